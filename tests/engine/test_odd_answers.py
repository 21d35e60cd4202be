"""Answers that no broker should give: each is an error of ours, for that request only."""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from urllib.parse import quote

import pytest

from pulsar_spark.engine.authentication.providers import AuthProvider, BasicAuth, TokenAuth
from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.lookups.lookup import MAX_PARTITIONS, Lookup
from pulsar_spark.engine.operations import run
from pulsar_spark.engine.options import ReaderOptions
from pulsar_spark.errors import (
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    ConnectionLost,
    LocalProtocolError,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
    ServiceNotReady,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.events import Event
from pulsar_spark.protocol.frames import encode_command
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.protocol.states import State
from tests import brief
from tests.engine.scripted_broker import ScriptedBroker, Session, T
from tests.engine.test_connection import connected, kind_of, look_up, only, request_of
from tests.engine.test_lookup import TOPIC, answering
from tests.support.asking import broker_of
from tests.support.waiting import wait_until

Answer = Callable[[int], pb.BaseCommand]

NOT_UTF8 = b"\xff\xfe-canary"


def raw(command: pb.BaseCommand, placeholder: bytes = b"PLACEHOLDER") -> bytes:
    """Return a command's frame with text that is not UTF-8 instead of a placeholder."""
    data = encode_command(command)
    return data.replace(placeholder, (NOT_UTF8 * 2)[: len(placeholder)])


@pytest.mark.fault(24)
@pytest.mark.parametrize(
    "answer",
    [
        commands.request(pb.CommandSuccess),
        lambda request_id: brief.partitions_response(request_id, partitions=3),
        lambda request_id: brief.last_id_response(
            request_id, pb.MessageIdData(ledgerId=1, entryId=1)
        ),
        lambda request_id: brief.producer_success(request_id, "p"),
    ],
    ids=["success", "partitions", "last_id", "producer"],
)
def test_an_answer_of_another_kind_is_an_error_of_its_request(answer: Answer) -> None:
    def script(session: Session, event: Event) -> bool:
        if kind_of(event) != T.LOOKUP or session.memo:
            return False
        session.memo["asked"] = True
        session.send_unchecked(answer(request_of(event)))
        return True

    with ScriptedBroker(script) as broker:
        connection = connected(broker)
        with pytest.raises(RemoteProtocolError, match="answered LOOKUP with ") as caught:
            connection.request(look_up)
        assert caught.value.broker == broker.address
        # The connection still works for all others.
        assert connection.request(look_up).brokerServiceUrl
        connection.close()


@pytest.mark.fault(24)
def test_many_requests_without_an_answer_are_forgotten() -> None:
    with ScriptedBroker(only(T.SUBSCRIBE, T.CLOSE_CONSUMER)) as broker:
        connection = connected(broker)
        ids = range(20)
        asked = [
            connection.request_async(
                lambda r, owner=owner: brief.subscribe("t", "s", owner, r),  # type: ignore[misc]
                0.01,
            )
            for owner in ids
        ]
        asked += [
            connection.request_async(
                lambda r, owner=owner: brief.close_consumer(owner, r),  # type: ignore[misc]
                0.01,
            )
            for owner in ids
        ]
        for request in asked:
            assert isinstance(request.exception(30), OperationTimeout)
        with pytest.raises(OperationTimeout):
            connection.request(lambda r: brief.subscribe("t", "s", 99, r), 0.01)
        wait_until(lambda: open_requests(connection) == (set(), set()))
        assert set(connection._core.conversation._consumers) <= {99}
        connection.close()


@pytest.mark.fault(24)
def test_a_request_that_must_not_be_sent_now_is_forgotten() -> None:
    with ScriptedBroker(only(T.SEEK)) as broker:
        connection = connected(broker)
        connection.request(lambda r: brief.subscribe("t", "s", 7, r))

        def seek() -> Future[Any]:
            return connection.request_async(
                commands.request(pb.CommandSeek, consumer_id=7, message_publish_time=1), 600
            )

        waiting = seek()
        for _ in range(20):
            assert isinstance(seek().exception(60), LocalProtocolError)
        assert open_requests(connection) == ({waiting.request_id}, {waiting.request_id})  # type: ignore[attr-defined]
        connection.close()


@pytest.mark.fault(24)
def test_a_request_that_was_answered_with_the_wrong_kind_is_forgotten() -> None:
    def script(session: Session, event: Event) -> bool:
        if kind_of(event) not in (T.SUBSCRIBE, T.CLOSE_CONSUMER):
            return False
        wrong = brief.partitions_response(request_of(event), partitions=3)
        session.send_unchecked(wrong)
        return True

    with ScriptedBroker(script) as broker:
        connection = connected(broker)
        asked: list[Answer] = [
            lambda r: brief.subscribe("t", "s", 7, r),
            lambda r: brief.close_consumer(7, r),
        ]
        for request in asked:
            with pytest.raises(RemoteProtocolError, match="answered"):
                connection.request(request, 60)
        assert open_requests(connection) == (set(), set())
        assert connection._core.conversation.consumer(7) is State.ABSENT
        connection.close()


def open_requests(connection: ClientConnection) -> tuple[set[int], set[int]]:
    """Return the ids of requests that wait for an answer, and of those that change a state."""
    return set(connection._requests._open), set(connection._core.conversation._requests)


# --- text that is not UTF-8 -------------------------------------------------------------------


@pytest.mark.fault(28)
def test_a_refusal_that_is_not_utf8_is_read_as_far_as_it_goes() -> None:
    def script(session: Session, event: Event) -> bool:
        if kind_of(event) != T.LOOKUP:
            return False
        error = brief.error(request_of(event), pb.TopicNotFound, "no PLACEHOLDER here")
        session.send_bytes(raw(error))
        return True

    with ScriptedBroker(script) as broker:
        connection = connected(broker)
        with pytest.raises(PulsarError, match=r"no .*canary.* here"):
            connection.request(look_up)
        connection.close()


@pytest.mark.fault(28)
def test_an_address_that_is_not_utf8_is_invalid() -> None:
    def script(session: Session, event: Event) -> bool:
        if kind_of(event) != T.LOOKUP:
            return False
        answer = brief.lookup_response(
            request_of(event),
            pb.CommandLookupTopicResponse.Connect,
            brokerServiceUrl="pulsar://PLACEHOLDER:6650",
        )
        session.send_bytes(raw(answer))
        return True

    with (
        ScriptedBroker(script) as broker,
        ConnectionPool(broker.options(operation_timeout=0.5)) as pool,
        pytest.raises(RemoteProtocolError, match=r"brokerServiceUrl .* is not text in UTF-8"),
    ):
        broker_of(Lookup(pool), TOPIC)


@pytest.mark.fault(28)
def test_names_of_topics_that_are_not_utf8_hide_no_other() -> None:
    def script(session: Session, event: Event) -> bool:
        if kind_of(event) != T.GET_TOPICS_OF_NAMESPACE:
            return False
        found = ["persistent://a/b/PLACEHOLDER", "persistent://a/b/t"]
        session.send_bytes(
            raw(
                commands.build(
                    pb.CommandGetTopicsOfNamespaceResponse,
                    request_id=request_of(event),
                    topics=found,
                )
            )
        )
        return True

    with ScriptedBroker(script) as broker, ConnectionPool(broker.options()) as pool:
        assert Lookup(pool).topics_of_namespace("a/b") == ["persistent://a/b/t"]


@pytest.mark.fault(17, 46)
def test_a_refusal_of_another_kind_is_a_refusal() -> None:
    """Pulsar's proxy answers requests for partitions with the same error as lookups."""

    def script(session: Session, event: Event) -> bool:
        if kind_of(event) != T.PARTITIONED_METADATA:
            return False
        refused = brief.lookup_response(
            request_of(event),
            pb.CommandLookupTopicResponse.Failed,
            error=pb.AuthorizationError,
            message="not yours",
        )
        session.send_unchecked(refused)
        return True

    with ScriptedBroker(script) as broker, ClientContext(broker.options()) as context:
        with pytest.raises(AuthorizationError, match="not yours"):
            context.lookup.partitions(TOPIC)
        assert broker_of(context.lookup, TOPIC) == broker.broker


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.fault(31)
def test_no_broker_is_believed_that_claims_billions_of_partitions() -> None:
    def answer(session: Session, request_id: int) -> pb.BaseCommand:
        return brief.partitions_response(request_id, partitions=count)

    script = answering(T.PARTITIONED_METADATA, answer)
    with ScriptedBroker(script) as broker, ClientContext(broker.options()) as context:
        count = MAX_PARTITIONS
        assert context.lookup.partitions(TOPIC) == MAX_PARTITIONS
        for count in (MAX_PARTITIONS + 1, 2**32 - 1):
            with pytest.raises(RemoteProtocolError, match=f"{count} partitions"):
                context.lookup.partitions(TOPIC)
            with pytest.raises(RemoteProtocolError, match=f"{count} partitions"):
                context.partitions_for_writing(TOPIC)


@pytest.mark.fault(31)
@pytest.mark.parametrize("numbers", [(2**63, 0), (1, 2**63), (2**64 - 2, 2**64 - 2)])
def test_impossible_numbers_of_a_last_message_are_refused(numbers: tuple[int, int]) -> None:
    def answer(session: Session, request_id: int) -> pb.BaseCommand:
        last = pb.MessageIdData(ledgerId=numbers[0], entryId=numbers[1])
        return brief.last_id_response(request_id, last)

    script = answering(T.GET_LAST_MESSAGE_ID, answer)
    with (
        ScriptedBroker(script) as broker,
        ConnectionPool(broker.options()) as pool,
        pytest.raises(RemoteProtocolError, match="is not a valid position of a message"),
    ):
        Lookup(pool).last_message_id(TOPIC)


@pytest.mark.fault(1)
def test_a_lookup_that_is_not_answered_is_given_up_at_the_operation_timeout() -> None:
    """Also if the caller would wait longer, and ask again."""
    with (
        ScriptedBroker(only(T.LOOKUP)) as broker,
        ConnectionPool(broker.options(operation_timeout=0.2)) as pool,
    ):
        lookup = Lookup(pool)
        with pytest.raises(OperationTimeout, match=r"did not answer LOOKUP within 0\.2 s"):
            run(lambda deadline: lookup.connection_operation(TOPIC, deadline), 60.0)


# --- secrets ----------------------------------------------------------------------------------

TOKEN = "canary, a token/of 3 words"
PASSWORD = "canary password"


@pytest.mark.fault(97)
@pytest.mark.parametrize(
    "auth, echoed",
    [
        (TokenAuth(TOKEN), TOKEN),
        (TokenAuth(TOKEN), quote(TOKEN)),
        (TokenAuth(TOKEN), base64.b64encode(TOKEN.encode()).decode()),
        (BasicAuth("user", PASSWORD), PASSWORD),
        (BasicAuth("user", PASSWORD), base64.b64encode(f"user:{PASSWORD}".encode()).decode()),
    ],
)
@pytest.mark.parametrize("where", ["login", "answer", "refused lookup", "challenge"])
def test_credentials_that_a_broker_repeats_are_in_no_error(
    auth: AuthProvider, echoed: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Long texts are cut; that must not leave half a secret.
    text = f"{'x' * 990}{echoed} is not welcome"

    def script(session: Session, event: Event) -> bool:
        kind = kind_of(event)
        if kind == T.CONNECT and where == "login":
            session.send_unchecked(brief.error(1, pb.AuthenticationError, text))
            return True
        if kind == T.CONNECT and where == "challenge":
            challenge = pb.CommandAuthChallenge()
            challenge.challenge.auth_method_name = text
            session.send_unchecked(pb.BaseCommand(type=T.AUTH_CHALLENGE, authChallenge=challenge))
            return True
        if kind == T.LOOKUP and where == "answer":
            session.send(brief.error(request_of(event), pb.AuthorizationError, text))
            return True
        if kind == T.LOOKUP and where == "refused lookup":
            failed = pb.CommandLookupTopicResponse(
                request_id=request_of(event),
                response=pb.CommandLookupTopicResponse.Failed,
                message=text,
            )
            session.send(pb.BaseCommand(type=T.LOOKUP_RESPONSE, lookupTopicResponse=failed))
            return True
        return False

    caplog.set_level(logging.DEBUG)
    with ScriptedBroker(script) as broker:
        pool = ConnectionPool(broker.options())
        pool.auth = auth
        with pool, pytest.raises(PulsarError) as caught:
            run(lambda deadline: Lookup(pool).broker_operation(TOPIC, deadline), 30.0)
    shown = f"{caught.value!r} {caught.value} {caught.value.__cause__!r} {caplog.text}"
    assert "xxx" in shown
    for part in (echoed, echoed[:8], "canary"):
        assert part not in shown


ECHOED = "CanaryOf20Characters"


def names_an_address(session: Session, event: Event, where: str, url: str) -> bool:
    """Name an address in the answer to LOOKUP of kind `where`, or when a consumer is closed."""
    kind = kind_of(event)
    if kind == T.LOOKUP and where in ("Connect", "Redirect"):
        response = pb.CommandLookupTopicResponse.LookupType.Value(where)
        answer = brief.lookup_response(request_of(event), response, brokerServiceUrl=url)
        session.send(answer)
        return True
    if kind == T.FLOW and where == "assigned" and session.memo.setdefault("left", True):
        consumer = event.body.consumer_id  # type: ignore[union-attr]
        session.memo["left"] = False
        session.send(brief.close_consumer(consumer, 2**64 - 1, assignedBrokerServiceUrl=url))
        return True
    return False


@pytest.mark.fault(97)
@pytest.mark.parametrize("where", ["Connect", "Redirect", "assigned"])
@pytest.mark.parametrize("echoed", [ECHOED, ECHOED.lower()])
@pytest.mark.parametrize("auth", [TokenAuth(ECHOED), BasicAuth("user", ECHOED)])
def test_an_address_that_repeats_credentials_is_neither_shown_nor_looked_for(
    auth: AuthProvider,
    echoed: str,
    where: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"pulsar://x-{echoed}.example:6650"
    names: list[str] = []
    opened = ConnectionPool.get_async

    def noting(pool: ConnectionPool, address: BrokerAddress) -> Future[ClientConnection]:
        names.append(str(address))
        return opened(pool, address)

    monkeypatch.setattr(ConnectionPool, "get_async", noting)
    limits = ReaderOptions(poll_timeout=1.0)
    with ScriptedBroker(lambda at, event: names_an_address(at, event, where, url)) as broker:
        pool = ConnectionPool(broker.options(operation_timeout=60))
        pool.auth = auth
        with (
            pool,
            EntryReader(pool, TOPIC, EARLIEST_POSITION, Position(1, 3), limits) as reader,
            pytest.raises(PulsarError) as caught,
        ):
            reader.next_entry()
    assert isinstance(
        caught.value, OperationTimeout if where == "assigned" else RemoteProtocolError
    )
    shown = f"{caught.value!r} {caught.value} {caught.value.__cause__!r} {caplog.text} {names}"
    assert "canary" not in shown.lower()
    assert names


class Broken:
    """Credentials whose provider fails the second time."""

    method_name = "token"

    def __init__(self) -> None:
        self.calls = 0

    def auth_data(self) -> bytes:
        self.calls += 1
        return b"fine" if self.calls == 1 else "not bytes"  # type: ignore[return-value]


@pytest.mark.fault(48)
def test_a_fault_while_credentials_are_renewed_ends_the_connection() -> None:
    with ScriptedBroker() as broker:
        connection = ClientConnection(broker.broker, broker.options(), Broken()).open()
        waiting = connection.request_async(
            commands.request(pb.CommandSeek, consumer_id=1, message_publish_time=1), 60
        )
        challenge = pb.CommandAuthChallenge()
        challenge.challenge.auth_method_name = "token"
        broker.sessions[0].send(pb.BaseCommand(type=T.AUTH_CHALLENGE, authChallenge=challenge))
        wait_until(lambda: connection.closed)
        waiting.exception(30)
        connection.close()


# --- threads that cannot start ----------------------------------------------------------------


@pytest.mark.fault(75)
def test_a_thread_that_could_not_start_is_no_end_of_a_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with ScriptedBroker() as broker, ConnectionPool(broker.options()) as pool:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            for _ in range(2):
                with pytest.raises(ConnectError, match="no thread could be started"):
                    pool.get(broker.broker)
        assert not pool.connections
        assert pool.get(broker.broker).request(look_up)


@pytest.mark.fault(18)
def test_a_retryable_refusal_keeps_its_class_and_text() -> None:
    def answer(session: Session, request_id: int) -> pb.BaseCommand:
        return brief.error(request_id, pb.ServiceNotReady, "not yet")

    with ScriptedBroker(answering(T.LOOKUP, answer)) as broker:
        connection = connected(broker)
        with pytest.raises(ServiceNotReady, match="not yet"):
            connection.request(look_up)
        assert isinstance(connection.refusal(3, "go away"), AuthenticationError)
        connection.close()
        assert isinstance(connection.request_async(look_up).exception(0), PulsarError)
        assert not isinstance(connection._error, ConnectionLost)
