"""Each kind of fault does what its name says."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pulsar_spark.errors import ChecksumMismatch, OptionError, RemoteProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import parse_payload
from pulsar_spark.protocol.frames import FrameDecoder
from pulsar_spark.testing import EmbeddedBroker, actions
from pulsar_spark.testing.rules import Seen
from tests.testing.wire_client import WireClient, names, turn

Dial = Callable[..., WireClient]


def test_drop_loses_a_request(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.faults.drop("LOOKUP")
    client.ask("LOOKUP", topic="t")
    client.nothing_came()
    assert client.request("LOOKUP", topic="t").name == "LOOKUP_RESPONSE"


def test_drop_loses_a_receipt_but_not_the_message(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    client.produce("t")
    broker.faults.drop("SEND_RECEIPT")
    client.send_entry()
    client.nothing_came()
    assert broker.stats("t").entries == 1
    assert client.publish().name == "SEND_RECEIPT"


def test_a_lost_answer_is_to_a_request_that_was_carried_out(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    broker.faults.drop("SUBSCRIBE", answer=True)
    client.ask("SUBSCRIBE", topic="t", subscription="sub", subType=0, consumer_id=0)
    client.nothing_came()
    assert len(broker.subscriptions("t")["sub"].consumers) == 1


def test_a_delayed_request_lets_others_pass(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.faults.delay("LOOKUP", 0.2)
    started = time.monotonic()
    slow, quick = client.ask("LOOKUP", topic="t"), client.ask("LOOKUP", topic="t")
    answers = [client.expect("LOOKUP_RESPONSE").body.request_id for _ in range(2)]
    assert answers == [quick, slow]
    assert time.monotonic() - started >= 0.19


def test_a_delayed_send_holds_what_follows(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    broker.faults.delay("SEND", 0.1)
    for _ in range(3):
        client.send_entry()
    receipts = [client.expect("SEND_RECEIPT").body for _ in range(3)]
    assert [receipt.sequence_id for receipt in receipts] == [0, 1, 2]
    entries = [receipt.message_id.entryId for receipt in receipts]
    assert entries == sorted(entries)


def test_delayed_frames_keep_their_order(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    broker.faults.delay("SEND_RECEIPT", 0.1)
    broker.faults.delay("SEND_RECEIPT", 0.02, after=1)
    started = time.monotonic()
    for _ in range(4):
        client.send_entry()
    receipts = [client.expect("SEND_RECEIPT").body.sequence_id for _ in range(4)]
    assert receipts == [0, 1, 2, 3]
    assert time.monotonic() - started >= 0.09


@pytest.mark.parametrize(
    "kind,fields,answer,error",
    [
        ("LOOKUP", {"topic": "t"}, "LOOKUP_RESPONSE", "error"),
        ("PARTITIONED_METADATA", {"topic": "t"}, "PARTITIONED_METADATA_RESPONSE", "error"),
        ("PRODUCER", {"topic": "t", "producer_id": 1}, "ERROR", "error"),
        (
            "SUBSCRIBE",
            {"topic": "t", "subscription": "s", "subType": 0, "consumer_id": 0},
            "ERROR",
            "error",
        ),
        ("GET_TOPICS_OF_NAMESPACE", {"namespace": "a/b"}, "ERROR", "error"),
        ("GET_SCHEMA", {"topic": "t"}, "GET_SCHEMA_RESPONSE", "error_code"),
        ("GET_LAST_MESSAGE_ID", {"consumer_id": 0}, "ERROR", "error"),
        ("CLOSE_PRODUCER", {"producer_id": 0}, "ERROR", "error"),
        ("NEW_TXN", {}, "NEW_TXN_RESPONSE", "error"),
    ],
)
def test_an_error_comes_in_the_form_of_the_answer(
    broker: EmbeddedBroker,
    client: WireClient,
    kind: str,
    fields: dict[str, object],
    answer: str,
    error: str,
) -> None:
    broker.faults.error(kind, "ServiceNotReady", "not now")
    refused = client.request(kind, **fields)
    assert refused.name == answer
    assert getattr(refused.body, error) == pb.ServiceNotReady
    assert "not now" in str(refused.body)


def test_an_error_for_send_and_for_ack(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    broker.faults.error("SEND", pb.PersistenceError)
    assert client.publish().body.error == pb.PersistenceError
    client.publish()
    client.subscribe("t")
    broker.faults.error("ACK", "UnknownError")
    message = client.messages(1)[0]
    answer = client.request("ACK", consumer_id=0, ack_type=0, message_id=[message.body.message_id])
    assert answer.name == "ACK_RESPONSE"
    assert answer.body.HasField("error")


def test_an_error_for_connect_closes(broker: EmbeddedBroker, dial: Dial) -> None:
    broker.faults.error("CONNECT", "AuthenticationError", "who are you")
    client = dial(broker, handshake=False)
    client.send("CONNECT", client_version="x", protocol_version=21)
    assert client.expect("ERROR").body.error == pb.AuthenticationError
    assert client.closed()


@pytest.mark.parametrize("reset", [False, True])
def test_close_ends_the_connection(broker: EmbeddedBroker, client: WireClient, reset: bool) -> None:
    broker.faults.close("LOOKUP", reset=reset)
    client.ask("LOOKUP", topic="t")
    assert client.closed()


def test_close_in_place_of_a_frame(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    broker.faults.close("SEND_RECEIPT")
    client.send_entry()
    assert client.closed()
    assert broker.stats("t").entries == 1


def test_a_black_hole_stays_open_and_silent(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.faults.black_hole("SUBSCRIBE")
    client.ask("SUBSCRIBE", topic="t", subscription="s", subType=0, consumer_id=0)
    client.send("PING")
    client.ask("LOOKUP", topic="t")
    turn(broker)
    client.nothing_unread()
    assert broker.connections == 1


@pytest.mark.fault(16)
def test_redirect_names_another_broker(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.faults.redirect("pulsar://other:1", tls="pulsar+ssl://other:2", authoritative=True)
    body = client.request("LOOKUP", topic="t").body
    assert body.response == pb.CommandLookupTopicResponse.Redirect
    assert body.brokerServiceUrl == "pulsar://other:1"
    assert body.brokerServiceUrlTls == "pulsar+ssl://other:2"
    assert body.authoritative


@pytest.mark.fault(33)
@pytest.mark.parametrize("exposed", [False, True])
@pytest.mark.parametrize("part", ["payload", "checksum", "metadata"])
def test_corrupt_entries_arrive_with_a_wrong_checksum(
    start_broker: Callable[..., EmbeddedBroker], dial: Dial, part: str, exposed: bool
) -> None:
    broker = start_broker(expose_entry_metadata=exposed)
    client = dial(broker)
    client.produce("t")
    client.subscribe("t")
    broker.faults.corrupt("MESSAGE", part)
    client.publish(b"payload", partition_key="key")
    client.publish(b"payload", partition_key="key")
    damaged, sound = (message.raw for message in client.messages(2))
    assert damaged is not None
    assert sound is not None
    with pytest.raises(ChecksumMismatch):
        parse_payload(damaged)
    parse_payload(sound)


@pytest.mark.parametrize("part", ["metadata_size", "magic"])
def test_corrupt_entries_have_no_sense(
    broker: EmbeddedBroker, client: WireClient, part: str
) -> None:
    client.produce("t")
    client.subscribe("t")
    broker.faults.corrupt("MESSAGE", part)
    client.publish(b"payload", partition_key="key")
    (damaged,) = (message.raw for message in client.messages(1))
    assert damaged is not None
    with pytest.raises((ChecksumMismatch, RemoteProtocolError)):
        parse_payload(damaged)


def test_corrupt_sends_are_refused_by_their_checksum(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    client.produce("t")
    broker.faults.corrupt("SEND")
    assert client.publish().body.error == pb.ChecksumError
    assert client.publish().name == "SEND_RECEIPT"


@pytest.mark.parametrize("part", ["command", "size"])
def test_corrupt_frames_cannot_be_read(
    broker: EmbeddedBroker, client: WireClient, part: str
) -> None:
    broker.faults.corrupt("LOOKUP_RESPONSE", part)
    client.ask("LOOKUP", topic="t")
    with pytest.raises(RemoteProtocolError):
        client.expect("LOOKUP_RESPONSE")


def test_truncated_frames_end_with_the_connection(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    broker.faults.truncate("LOOKUP", 7)
    client.ask("LOOKUP", topic="t")
    assert client.closed()
    assert names(client.unread) == []


@pytest.mark.fault(24)
def test_answers_can_come_more_often(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.faults.duplicate("LOOKUP", copies=3)
    asked = client.ask("LOOKUP", topic="t")
    for _ in range(3):
        client.answer(asked)
    client.produce("t")
    broker.faults.duplicate("SEND_RECEIPT")
    client.send_entry()
    ids = [client.expect("SEND_RECEIPT").body.sequence_id for _ in range(2)]
    assert ids == [0, 0]


@pytest.mark.fault(6)
def test_trickled_frames_arrive_whole(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.faults.trickle("LOOKUP", size=1, seconds=0.0005)
    slow = client.ask("LOOKUP", topic="t")
    fast = client.ask("LOOKUP", topic="t")
    assert client.answer(fast).body.brokerServiceUrl == broker.service_url
    assert client.answer(slow).body.brokerServiceUrl == broker.service_url


def test_a_function_can_watch_and_act(broker: EmbeddedBroker, client: WireClient) -> None:
    calls: list[Seen] = []

    def unload(seen: Seen) -> None:
        calls.append(seen)
        broker.unload("t")

    client.produce("t")
    broker.faults.call("SEND", unload, after=1)
    client.publish()
    client.send_entry()
    client.expect("CLOSE_PRODUCER")
    client.nothing_came()
    assert [seen.topic for seen in calls] == ["persistent://public/default/t"]


def test_rewriting_replaces_the_bytes(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.faults.rewrite("LOOKUP", lambda _: b"\xff\xff\xff\xff")
    client.ask("LOOKUP", topic="t")
    with pytest.raises(RemoteProtocolError, match="exceeds the limit"):
        client.expect("LOOKUP_RESPONSE")
    assert FrameDecoder().next_block_or_frame() is None


@pytest.mark.parametrize(
    "make", [lambda: actions.Corrupt("nonsense"), lambda: actions.Error("NoSuchError")]
)
def test_nonsense_is_refused_where_it_is_written(make: Callable[[], object]) -> None:
    with pytest.raises(OptionError):
        make()
