from __future__ import annotations

import time

import pytest

from pulsar_spark.engine.connections import requests
from pulsar_spark.engine.connections.requests import (
    Request,
    RequestTable,
    answers_to,
    error_in,
    fail,
)
from pulsar_spark.errors import (
    BrokerError,
    ConnectionLost,
    LocalProtocolError,
    ServiceNotReady,
    TopicNotFound,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.validation import ANSWERS


def test_ids_are_never_used_twice() -> None:
    table = RequestTable(lambda request_id: None)
    assert [table.next_id() for _ in range(4)] == [0, 1, 2, 3]


def test_a_request_is_taken_once() -> None:
    table = RequestTable(lambda request_id: None)
    request = Request(7, pb.BaseCommand.LOOKUP, 5)
    table.add(request)
    assert table.get(7) is request
    assert table.take(7) is request
    assert table.take(7) is None
    assert table.get(7) is None
    assert len(table) == 0


def test_however_a_request_ends_the_protocol_core_forgets_it() -> None:
    forgotten: list[int] = []
    table = RequestTable(forgotten.append)
    for number in range(5):
        about = 7 if number == 2 else None
        timeout = 0.0 if number == 1 else 60
        table.add(Request(number, pb.BaseCommand.CONSUMER_STATS, timeout, about))
    table.take(0)
    table.take_expired(time.monotonic())
    table.take_asked(7)
    table.take_all()
    assert forgotten == [0, 1, 2, 3, 4]


def test_the_questions_about_a_consumer_are_taken_together() -> None:
    table = RequestTable(lambda request_id: None)
    about = {
        number: Request(number, pb.BaseCommand.CONSUMER_STATS, 5, number % 2) for number in range(4)
    }
    for request in [*about.values(), Request(4, pb.BaseCommand.SEEK, 5)]:
        table.add(request)
    assert table.take(1) is about[1]
    assert table.take_asked(1) == [about[3]]
    assert table.take_asked(1) == []
    assert set(table.take_asked(0)) == {about[0], about[2]}
    assert [request.request_id for request in table.take_all()] == [4]


def test_a_question_that_expired_is_not_taken_again() -> None:
    table = RequestTable(lambda request_id: None)
    request = Request(1, pb.BaseCommand.CONSUMER_STATS, 0.0, 7)
    table.add(request)
    assert table.take_expired(time.monotonic()) == [request]
    assert table.take_asked(7) == []


def test_a_request_cannot_be_cancelled_from_outside() -> None:
    assert not Request(7, pb.BaseCommand.LOOKUP, 5).cancel()


def test_requests_expire_one_by_one() -> None:
    table = RequestTable(lambda request_id: None)
    first, second = Request(1, pb.BaseCommand.LOOKUP, 0.0), Request(2, pb.BaseCommand.LOOKUP, 60)
    table.add(first)
    table.add(second)
    assert table.take_expired(time.monotonic()) == [first]
    assert table.take_expired(time.monotonic()) == []
    assert table.take_expired(time.monotonic() + 61) == [second]
    assert len(table) == 0


def test_the_number_of_open_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_REQUESTS", 2)
    table = RequestTable(lambda request_id: None)
    table.add(Request(1, pb.BaseCommand.LOOKUP, 5))
    table.add(Request(2, pb.BaseCommand.LOOKUP, 5))
    with pytest.raises(LocalProtocolError, match="2 requests wait"):
        table.add(Request(3, pb.BaseCommand.LOOKUP, 5))
    assert len(table.take_all()) == 2
    assert len(table) == 0


@pytest.mark.parametrize(
    "body, kind",
    [
        (pb.CommandError(request_id=1, error=pb.TopicNotFound, message="no t"), TopicNotFound),
        (
            pb.CommandLookupTopicResponse(request_id=1, error=pb.ServiceNotReady, message="no t"),
            ServiceNotReady,
        ),
        (
            pb.CommandGetSchemaResponse(
                request_id=1, error_code=pb.TopicNotFound, error_message="no t"
            ),
            TopicNotFound,
        ),
    ],
)
def test_errors_are_found_in_every_kind_of_answer(
    body: pb.CommandError, kind: type[BrokerError]
) -> None:
    error = error_in(body, "h:1")
    assert type(error) is kind
    assert "no t" in error.what
    assert error.broker == "h:1"


def test_an_answer_without_error_has_none() -> None:
    assert error_in(pb.CommandSuccess(request_id=1), "h:1") is None
    assert error_in(pb.CommandLookupTopicResponse(request_id=1), "h:1") is None


def test_commands_that_ask_are_no_answers() -> None:
    names = {pb.BaseCommand.Type.Name(number) for number in ANSWERS}
    assert {"SUCCESS", "ERROR", "PRODUCER_SUCCESS", "LOOKUP_RESPONSE"} <= names
    assert not {"AUTH_RESPONSE", "SEND_RECEIPT", "CLOSE_CONSUMER", "MESSAGE"} & names


def test_each_request_fails_with_an_error_of_its_own() -> None:
    lost = ConnectionLost("gone", broker="h:1")
    first, second = Request(1, pb.BaseCommand.LOOKUP, 5), Request(2, pb.BaseCommand.LOOKUP, 5)
    fail(first, lost)
    fail(second, lost)
    assert first.exception() is not second.exception()
    assert str(first.exception()) == str(lost)


@pytest.mark.parametrize(
    "kind, expected",
    [
        ("LOOKUP", "LOOKUP_RESPONSE"),
        ("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE"),
        ("PRODUCER", "PRODUCER_SUCCESS"),
        ("SUBSCRIBE", "SUCCESS"),
        ("UNSUBSCRIBE", "SUCCESS"),
        ("SEEK", "SUCCESS"),
        ("CLOSE_PRODUCER", "SUCCESS"),
        ("CLOSE_CONSUMER", "SUCCESS"),
        ("ACK", "ACK_RESPONSE"),
        ("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE"),
        ("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE"),
        ("GET_TOPICS_OF_NAMESPACE", "GET_TOPICS_OF_NAMESPACE_RESPONSE"),
        ("GET_SCHEMA", "GET_SCHEMA_RESPONSE"),
        ("GET_OR_CREATE_SCHEMA", "GET_OR_CREATE_SCHEMA_RESPONSE"),
        ("NEW_TXN", "NEW_TXN_RESPONSE"),
        ("TC_CLIENT_CONNECT_REQUEST", "TC_CLIENT_CONNECT_RESPONSE"),
        ("WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST_SUCCESS"),
    ],
)
def test_each_request_has_its_kind_of_answer(kind: str, expected: str) -> None:
    number = pb.BaseCommand.Type.Value
    assert answers_to(number(kind)) == {number(expected), pb.BaseCommand.ERROR}
