"""Producers of `PulsarClient`: what callers and callbacks get, and on which thread."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from pulsar_spark.client import MessageId, PulsarClient, Result
from pulsar_spark.errors import (
    ClosedError,
    InvalidRow,
    MessageTooLarge,
    NotAllowed,
    OperationTimeout,
    OptionError,
    ProducerQueueFull,
    PulsarError,
    TopicTerminated,
    WrongType,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.producing import NO_ID, TopicScript, refuse
from tests.engine.scripted_broker import ScriptedBroker
from tests.support.waiting import finish, wait_until


class Outcomes:
    """Records the results that callbacks got, and their threads."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.ids: list[MessageId] = []
        self.threads: set[str] = set()

    def __call__(self, result: Result, message_id: MessageId) -> None:
        self.results.append(result)
        self.ids.append(message_id)
        self.threads.add(threading.current_thread().name)


@pytest.fixture
def client(scripted: PulsarClient) -> PulsarClient:
    return scripted


def test_a_message_is_sent_at_once_with_what_its_batch_holds(
    script: TopicScript, client: PulsarClient
) -> None:
    producer = client.create_producer(
        "t", batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    outcomes = Outcomes()
    producer.send_async(b"1", outcomes)
    assert str(producer.send(b"2")) == "(7,0,-1,1)"
    producer.flush()
    assert [str(found) for found in outcomes.ids] == ["(7,0,-1,0)"]


def test_callbacks_run_on_a_thread_of_the_client_and_before_flush_returns(
    client: PulsarClient,
) -> None:
    producer = client.create_producer("t", batching_enabled=True, block_if_queue_full=True)
    outcomes = Outcomes()
    for _ in range(2000):
        producer.send_async(b"x", outcomes)
    producer.flush()
    assert outcomes.results == [Result.Ok] * 2000
    assert outcomes.ids == sorted(outcomes.ids)
    assert outcomes.threads == {"pulsar-spark-callbacks"}


def test_a_callback_may_send_and_wait(client: PulsarClient) -> None:
    producer = client.create_producer("t")
    stored: list[MessageId] = []
    done = threading.Event()

    def again(result: Result, message_id: MessageId) -> None:
        stored.append(producer.send(b"from a callback"))
        producer.flush()
        done.set()

    producer.send_async(b"first", again)
    assert done.wait(60)
    assert str(stored[0]) == "(7,1,-1,-1)"


def test_no_callback_is_needed(script: TopicScript, client: PulsarClient) -> None:
    producer = client.create_producer("t")
    producer.send_async(b"x", None)
    producer.flush()
    assert len(script.sends) == 1


@pytest.mark.fault(89)
def test_an_error_reaches_callbacks_flush_and_the_next_send(
    script: TopicScript, client: PulsarClient
) -> None:
    refuse(script, pb.TopicTerminatedError, sequence_id=1)
    producer = client.create_producer("t")
    outcomes = Outcomes()
    for _ in range(3):
        producer.send_async(b"x", outcomes)
    with pytest.raises(TopicTerminated):
        producer.flush()
    with pytest.raises(TopicTerminated):
        producer.send(b"x")
    producer.send_async(b"x", outcomes)
    with pytest.raises(TopicTerminated):
        producer.close()
    assert outcomes.results[0] is Result.Ok
    assert set(outcomes.results[1:]) == {Result.TopicTerminated}
    assert len(outcomes.results) == 4


@pytest.mark.fault(137)
@pytest.mark.parametrize("batching", [False, True])
def test_a_message_that_the_topic_does_not_allow_is_refused_alone(
    script: TopicScript, client: PulsarClient, batching: bool
) -> None:
    refuse(script, pb.NotAllowedError, sequence_id=1)
    producer = client.create_producer("t", batching_enabled=batching, batching_max_messages=1)
    outcomes = Outcomes()
    for _ in range(3):
        producer.send_async(b"x", outcomes)
    with pytest.raises(NotAllowed, match=r"a message of .* bytes was refused"):
        producer.flush()
    assert outcomes.results == [Result.Ok, Result.NotAllowedError, Result.Ok]
    producer.send(b"x")
    refuse(script, pb.NotAllowedError, sequence_id=4)
    with pytest.raises(NotAllowed):
        producer.send(b"x")
    # What its caller was told, the next flush or close tells once more.
    with pytest.raises(NotAllowed):
        producer.close()


@pytest.mark.fault(7)
def test_send_without_a_receipt_ends_at_its_timeout(
    script: TopicScript, client: PulsarClient
) -> None:
    script.on_send = lambda session, sent: True
    producer = client.create_producer("t", send_timeout_millis=200)
    with pytest.raises(OperationTimeout, match="not acknowledged"):
        producer.send(b"x")


def test_a_full_queue_is_told_or_waited_for(script: TopicScript, client: PulsarClient) -> None:
    script.on_send = lambda session, sent: True
    producer = client.create_producer("t", max_pending_messages=2)
    outcomes = Outcomes()
    for _ in range(3):
        producer.send_async(b"x", outcomes)
    with pytest.raises(ProducerQueueFull, match="block_if_queue_full"):
        producer.send(b"x")
    producer.abort()
    script.on_send = None
    with client.create_producer("t", max_pending_messages=2, block_if_queue_full=True) as blocking:
        for _ in range(20):
            blocking.send_async(b"x", outcomes)
    assert sorted(outcomes.results) == [Result.Ok] * 20 + [Result.AlreadyClosed] * 2 + [
        Result.ProducerQueueIsFull
    ]


@pytest.mark.fault(86)
def test_a_message_that_is_too_large_is_told_and_the_rest_goes_on(
    script: TopicScript, client: PulsarClient
) -> None:
    script.max_message_size = 1000
    producer = client.create_producer("t", batching_enabled=True)
    outcomes = Outcomes()
    for content in (b"1", bytes(2000), b"2"):
        producer.send_async(content, outcomes)
    producer.flush()
    assert sorted(outcomes.results) == [Result.Ok, Result.Ok, Result.MessageTooBig]
    with pytest.raises(MessageTooLarge):
        producer.send(bytes(2000))


def test_duplicates_have_the_id_of_none(script: TopicScript, client: PulsarClient) -> None:
    def on_send(session: Any, sent: Any) -> bool:
        script.acknowledge(session, sent, duplicate=True)
        return True

    script.on_send = on_send
    script.success = {"last_sequence_id": 0}
    assert client.create_producer("t", initial_sequence_id=-1).send(b"x") == MessageId()
    assert NO_ID == 2**64 - 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"partition_key": 5},
        {"ordering_key": 5},
        {"ordering_key": "\ud800"},
        {"properties": [("a", "b")]},
        {"sequence_id": "1"},
        {"event_timestamp": "now"},
        {"deliver_after": 5},
    ],
)
def test_arguments_of_a_wrong_type_are_refused_at_once(
    client: PulsarClient, arguments: dict[str, Any]
) -> None:
    producer = client.create_producer("t")
    with pytest.raises(OptionError, match=next(iter(arguments))):
        producer.send(b"x", **arguments)
    with pytest.raises(OptionError):
        producer.send_async(b"x", Outcomes(), **arguments)


def test_values_must_fit_the_schema(client: PulsarClient) -> None:
    producer = client.create_producer("t")
    with pytest.raises(InvalidRow) as raised:
        producer.send("text")
    # As in the official client, and as any invalid value.
    assert isinstance(raised.value, TypeError)
    assert isinstance(raised.value, ValueError)
    with pytest.raises(TypeError):
        producer.send_async("text", Outcomes())


def test_a_message_that_utf8_cannot_express_is_refused(client: PulsarClient) -> None:
    producer = client.create_producer("t")
    outcomes = Outcomes()
    with pytest.raises(InvalidRow):
        producer.send(b"x", partition_key="\ud800")
    producer.send_async(b"x", outcomes, properties={"a": "\ud800"})
    producer.flush()
    assert outcomes.results == [Result.InvalidMessage]


@pytest.mark.parametrize("properties", [{"a": None}, {None: "a"}, {"a": 1}], ids=str)
def test_a_property_that_is_no_text_is_refused_at_once(
    script: TopicScript, client: PulsarClient, properties: Any
) -> None:
    producer = client.create_producer("t", batching_enabled=True)
    outcomes = Outcomes()
    producer.send_async(b"mate", outcomes)
    with pytest.raises(WrongType):
        producer.send_async(b"x", outcomes, properties=properties)
    with pytest.raises(WrongType):
        producer.send(b"x", properties=properties)
    with pytest.raises(OptionError, match="properties"):
        client.create_producer("t", properties=properties)
    producer.flush()
    assert outcomes.results == [Result.Ok]


def test_a_router_must_choose_a_partition_that_is_there() -> None:
    script = TopicScript(partitions=2)
    with ScriptedBroker(script) as broker, PulsarClient(f"pulsar://{broker.address}") as client:
        producer = client.create_producer("t", message_router=lambda message, partitions: 2)
        with pytest.raises(OptionError, match="partition 2 of 2"):
            producer.send(b"x", partition_key="k", ordering_key="o", properties={"a": "b"})


def test_after_close_nothing_is_sent(script: TopicScript, client: PulsarClient) -> None:
    producer = client.create_producer("t")
    producer.send(b"x")
    producer.close()
    producer.close()
    outcomes = Outcomes()
    with pytest.raises(ClosedError):
        producer.send(b"x")
    producer.send_async(b"x", outcomes)
    with pytest.raises(ClosedError):
        producer.flush()
    assert not producer.is_connected()
    assert len(script.sends) == 1


def test_an_error_in_the_callers_code_leaves_without_waiting(
    script: TopicScript, client: PulsarClient
) -> None:
    script.on_send = lambda session, sent: True
    outcomes = Outcomes()

    def write() -> None:
        with client.create_producer("t") as producer:
            producer.send_async(b"x", outcomes)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    client.close()
    assert outcomes.results == [Result.AlreadyClosed]


@pytest.mark.fault(90, 107)
def test_a_producer_goes_on_after_a_message_whose_time_was_up(
    script: TopicScript, client: PulsarClient
) -> None:
    script.on_send = lambda session, sent: sent.sequence_id == 0
    producer = client.create_producer("t", send_timeout_millis=1500)
    outcomes = Outcomes()
    producer.send_async(b"lost", outcomes)
    with pytest.raises(OperationTimeout):
        producer.flush()
    assert outcomes.results == [Result.Timeout]
    assert str(producer.send(b"next")) == "(7,0,-1,-1)"
    producer.send_async(b"last", outcomes)
    producer.flush()
    producer.close()
    assert outcomes.results == [Result.Timeout, Result.Ok]


@pytest.mark.fault(104)
def test_shutdown_does_not_wait_behind_a_sender_that_waits_for_room(
    script: TopicScript, client: PulsarClient
) -> None:
    script.on_send = lambda session, sent: True
    producer = client.create_producer(
        "t", send_timeout_millis=60_000, max_pending_messages=1, block_if_queue_full=True
    )
    outcomes = Outcomes()
    producer.send_async(b"1", outcomes)
    sender = threading.Thread(target=producer.send_async, args=(b"2", outcomes), daemon=True)
    sender.start()
    (own,) = producer._writer.producers
    wait_until(lambda: own.waiting.is_sending)
    leaving = threading.Thread(target=client.shutdown, daemon=True)
    leaving.start()
    finish(leaving, sender, seconds=20)
    wait_until(lambda: outcomes.results == [Result.AlreadyClosed] * 2)


@pytest.mark.parametrize("batching", [False, True])
def test_the_last_sequence_id_is_used_and_then_an_error_says_so(batching: bool) -> None:
    last = 2**63 - 1
    with EmbeddedBroker(deduplication=True) as broker, PulsarClient(broker.service_url) as client:
        producer = client.create_producer(
            "t", "name", initial_sequence_id=last - 2, batching_enabled=batching
        )
        told: list[Result] = []
        for _ in range(3):
            producer.send_async(b"x", lambda result, _: told.append(result))
        producer.flush()
        # Of a batch that would go beyond the end, those are sent that fit.
        assert sorted(told) == [Result.Ok, Result.Ok, Result.InvalidConfiguration]
        assert producer.last_sequence_id() == last
        with pytest.raises(OptionError, match=str(last)):
            producer.send(b"x")
        # It goes on for messages with ids of their own, and is on the same connection.
        producer.send(b"x", sequence_id=1)
        with pytest.raises(OptionError, match=str(last)):
            producer.send(b"x")
        producer.abort()
        # So does one that the broker tells the last id.
        other = client.create_producer("t", "name", batching_enabled=batching)
        assert other.last_sequence_id() == last
        with pytest.raises(OptionError, match=str(last)):
            other.send(b"x")
        assert broker.faults.seen("PRODUCER") == 2
        with pytest.raises(OptionError, match="initial_sequence_id"):
            client.create_producer("t", initial_sequence_id=last + 1)


@pytest.mark.parametrize("refusal", ["ChecksumError", "NotAllowedError"])
@pytest.mark.parametrize("batching", [False, True])
def test_what_one_refused_entry_holds_fails_and_others_are_told_the_truth(
    refusal: str, batching: bool
) -> None:
    with EmbeddedBroker() as broker, PulsarClient(broker.service_url) as client:
        producer = client.create_producer(
            "t", batching_enabled=batching, batching_max_messages=2, max_pending_messages=100
        )
        told: dict[int, Result] = {}
        broker.faults.error("SEND", refusal, times=1, after=3)

        def tell(number: int, result: Result, _: MessageId) -> None:
            told[number] = result

        for number in range(20):
            producer.send_async(b"%d" % number, partial(tell, number))
        with pytest.raises(PulsarError):
            producer.flush()
        producer.send(b"20")
        assert len(told) == 20
        stored = {number for number, result in told.items() if result is Result.Ok}
        assert len(stored) == (18 if batching else 19)
        assert {told[number] for number in range(20) if number not in stored} == {Result[refusal]}
        with client.create_reader("t", MessageId.earliest) as reader:
            found = []
            while reader.has_message_available():
                found.append(int(reader.read_next().data()))
        assert found == [*sorted(stored), 20]
        assert broker.faults.seen("PRODUCER") == 1
