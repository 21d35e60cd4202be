"""After a first success: what a client's handles wait for, and what a task does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_spark.client import ConsumerType, InitialPosition, MessageId, PulsarClient
from pulsar_spark.engine.consumers import consumer_session
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.consumers.subscription import EARLIEST, HeldSubscription
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import run
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.retry import can_pass, retried
from pulsar_spark.errors import (
    BrokerError,
    ClosedError,
    ConnectionLost,
    MetadataError,
    OperationTimeout,
    ProducerFenced,
    PulsarError,
    RemoteProtocolError,
    ServiceNotReady,
    TlsError,
    TopicNotFound,
    TopicTerminated,
    UnsupportedFeature,
    from_server_error,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import add_plain, quick
from tests.outgoing import single
from tests.support.waiting import wait_until

CODES = sorted(pb.ServerError.keys())
FINAL = {"TopicTerminatedError": TopicTerminated, "ProducerFenced": ProducerFenced}
PROMPT = [
    name
    for name in CODES
    if not from_server_error(pb.ServerError.Value(name), "").retryable
    and name not in ("ConsumerBusy", "ProducerBusy")
]
WAIT_MS = 60_000


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    return broker.create_topic("t")


@pytest.mark.parametrize(
    "error, client, task",
    [
        (ServiceNotReady("x"), True, True),
        (ConnectionLost("x"), True, True),
        (OperationTimeout("x"), True, True),
        (TopicNotFound("x"), True, False),
        (RemoteProtocolError("x"), True, False),
        (TlsError("x"), True, False),
        (UnsupportedFeature("x"), False, False),
        (ClosedError("x"), False, False),
    ],
)
def test_the_table_has_a_column_for_clients_and_one_for_tasks(
    error: PulsarError, client: bool, task: bool
) -> None:
    assert (can_pass(error, lives=True), can_pass(error)) == (client, task)


# --- clients ------------------------------------------------------------------------------------


@pytest.mark.fault(207)
@pytest.mark.parametrize("code", CODES)
def test_a_client_goes_on_after_each_refusal_that_a_broker_may_take_back(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, code: str
) -> None:
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    reader = client.create_reader(topic, MessageId.earliest)
    producer = client.create_producer(topic)
    producer.send(b"1")
    assert reader.read_next(WAIT_MS).data() == consumer.receive(WAIT_MS).data() == b"1"
    commands = ["SUBSCRIBE", *(["PRODUCER"] if code not in FINAL else [])]
    rules = [broker.faults.error(name, code, times=2) for name in commands]
    broker.faults.disconnect()
    wait_until(lambda: all(rule.hits == 2 for rule in rules), "they do not try again")
    if code == "ProducerBlockedQuotaExceededException":
        # What is pending while it refuses fails, as its policy says.
        wait_until(producer.is_connected)
    producer.send(b"2")
    found = {consumer.receive(WAIT_MS).data() for _ in range(2)}
    assert (reader.read_next(WAIT_MS).data(), b"2" in found) == (b"2", True)


@pytest.mark.fault(207)
@pytest.mark.parametrize("code", FINAL)
def test_a_clients_producer_ends_where_no_further_attempt_can_help(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, code: str
) -> None:
    producer = client.create_producer(topic)
    refused = broker.faults.error("PRODUCER", code, times=None)
    broker.faults.disconnect()
    wait_until(lambda: refused.hits == 1)
    for _ in range(2):
        with pytest.raises(FINAL[code]):
            producer.send(b"x")
    assert refused.hits == 1


@pytest.mark.fault(207)
@pytest.mark.parametrize("code", PROMPT)
def test_a_client_is_told_at_once_what_refuses_its_first_attempt(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, code: str
) -> None:
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("PRODUCER", lambda: client.create_producer(topic)),
        ("SUBSCRIBE", lambda: client.subscribe(topic, "s")),
    ]
    for command, attempt in attempts:
        with (
            broker.faults.error(command, code, times=None) as refused,
            pytest.raises(BrokerError) as raised,
        ):
            attempt()
        assert (raised.value.code, refused.hits) == (pb.ServerError.Value(code), 1)


@pytest.mark.fault(206)
def test_readers_and_table_views_go_on_when_their_topic_is_made_again(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    with client.create_producer(topic) as producer:
        producer.send(b"old", partition_key="k")
    reader = client.create_reader(topic, MessageId.earliest)
    view = client.create_table_view(topic)
    assert reader.read_next(WAIT_MS).data() == view.get("k") == b"old"
    asked = broker.faults.seen("LOOKUP")
    broker.delete_topic(topic)
    wait_until(lambda: broker.faults.seen("LOOKUP") > asked, "it does not look for it")
    broker.create_topic(topic)
    with client.create_producer(topic) as producer:
        producer.send(b"new", partition_key="k")
    assert reader.read_next(WAIT_MS).data() == b"new"
    wait_until(lambda: view.get("k") == b"new", "the table view stays as it was")


@pytest.mark.fault(206)
def test_a_producer_goes_on_when_its_topic_is_made_again(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    producer = client.create_producer(topic)
    producer.send(b"old")
    refused = broker.faults.error("PRODUCER", "TopicNotFound", times=2)
    broker.delete_topic(topic)
    wait_until(lambda: refused.hits == 2)
    producer.send(b"new")
    assert client.create_reader(topic, MessageId.earliest).read_next(WAIT_MS).data() == b"new"


# --- tasks and streams --------------------------------------------------------------------------


def write(context: ClientContext, topic: str) -> Callable[[], object]:
    producer = TopicProducer(context, topic).open()

    def go_on() -> None:
        producer.send(single(b"x"))
        producer.flush()

    return go_on


def read(context: ClientContext, topic: str) -> Callable[[], object]:
    reader = EntryReader(context.pool, topic, EARLIEST_POSITION, Position(2**40, 0))
    assert reader.next_entry() is not None
    return reader.next_entry


def hold(context: ClientContext, topic: str) -> Callable[[], object]:
    held = HeldSubscription(context, topic, "s", EARLIEST)
    run(held.end_operation, 30.0)
    return lambda: run(retried(held.end_operation), 30.0)


@pytest.mark.fault(208)
@pytest.mark.parametrize("code", PROMPT)
@pytest.mark.parametrize(
    "command, begin", [("PRODUCER", write), ("SUBSCRIBE", read), ("SUBSCRIBE", hold)]
)
def test_a_task_and_a_stream_fail_at_the_first_refusal_that_does_not_pass_by_itself(
    broker: EmbeddedBroker,
    topic: str,
    command: str,
    begin: Callable[[ClientContext, str], Callable[[], object]],
    code: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_session, "_TURN_SECONDS", 0.1)
    add_plain(broker, topic, b"1")
    with ClientContext(quick(broker, operation_timeout=30.0)) as context:
        go_on = begin(context, topic)
        refused = broker.faults.error(command, code, times=None)
        broker.close_clients(topic)
        wait_until(lambda: command != "PRODUCER" or refused.hits)
        with pytest.raises(BrokerError) as raised:
            go_on()
        assert raised.value.code == pb.ServerError.Value(code)
        # A reader's question waits its turn where a policy limits consumers.
        assert refused.hits == 1 or code == "NotAllowedError"


# --- requests that are refused ------------------------------------------------------------------


def test_a_refused_unsubscribe_is_told_at_once_and_the_consumer_goes_on(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    first = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"0")
    held = first.receive(WAIT_MS)
    second = client.subscribe(topic, "s", ConsumerType.Shared)
    with pytest.raises(MetadataError, match="attempting to unsubscribe"):
        first.unsubscribe()
    assert broker.faults.seen("UNSUBSCRIBE") == 1
    second.close()
    producer.send(b"1")
    # The held message stays with it.
    assert first.receive(WAIT_MS).data() == b"1"
    assert broker.faults.seen("SUBSCRIBE") == 2
    first.acknowledge(held)
    first.unsubscribe()
    wait_until(lambda: not broker.subscriptions(topic))


@pytest.mark.parametrize("code", ["MetadataError", "ServiceNotReady"])
def test_a_refused_question_leaves_what_was_delivered_where_it_is(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, code: str
) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    at = client.create_producer(topic).send(b"0")
    held = consumer.receive(WAIT_MS)
    with broker.faults.error("GET_LAST_MESSAGE_ID", pb.ServerError.Value(code), times=1):
        assert consumer.get_last_message_id() == at
    assert consumer.is_connected()
    assert broker.faults.seen("SUBSCRIBE") == 1
    consumer.acknowledge(held)


def test_an_unsubscribe_is_tried_again_while_the_broker_is_not_ready(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    with broker.faults.error("UNSUBSCRIBE", pb.ServiceNotReady, times=1):
        consumer.unsubscribe()
    wait_until(lambda: not broker.subscriptions(topic))


@pytest.mark.parametrize(
    "code, told",
    [(pb.MetadataError, "Consumer not found"), (pb.ConsumerNotFound, "Consumer 0 not found")],
)
def test_a_consumer_that_its_broker_does_not_know_attaches_again(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, code: int, told: str
) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    at = client.create_producer(topic).send(b"0")
    with broker.faults.error("GET_LAST_MESSAGE_ID", code, told, times=1):
        assert consumer.get_last_message_id() == at
    assert broker.faults.seen("SUBSCRIBE") == 2
