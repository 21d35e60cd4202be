"""Messages that `send_async` writes together: each is stored once, in order, with one callback."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pulsar_spark.client import InitialPosition, MessageId, PulsarClient, PulsarConsumer, Result
from pulsar_spark.errors import InvalidRow, OptionError
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.producing import Sent, TopicScript
from tests.engine.scripted_broker import Session
from tests.support.waiting import finish, wait_until

RECEIVE_MS = 60_000
HOUR_MS = 3_600_000
UNBATCHED: dict[str, Any] = {"batching_enabled": False}
BATCHED: dict[str, Any] = {
    "batching_enabled": True,
    "batching_max_messages": 10,
    "batching_max_publish_delay_ms": HOUR_MS,
}


@pytest.fixture
def consumer(broker: EmbeddedBroker, client: PulsarClient) -> PulsarConsumer:
    topic = broker.create_topic("t")
    return client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)


class Outcomes:
    """Records the order and arguments of callbacks."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.results: list[Result] = []
        self.ids: list[MessageId] = []

    def callback(self, number: int) -> Any:
        def note(result: Result, message_id: MessageId) -> None:
            self.numbers.append(number)
            self.results.append(result)
            self.ids.append(message_id)

        return note


@pytest.mark.parametrize("options", [UNBATCHED, BATCHED], ids=["unbatched", "batched"])
@pytest.mark.parametrize("mixed", [False, True], ids=["alike", "mixed"])
def test_each_callback_gets_the_id_under_which_its_message_is_stored(
    client: PulsarClient, consumer: PulsarConsumer, options: dict[str, Any], mixed: bool
) -> None:
    producer = client.create_producer("t", block_if_queue_full=True, **options)
    outcomes = Outcomes()
    for number in range(505):
        callback = None if mixed and number % 3 == 0 else outcomes.callback(number)
        key = None if mixed and number % 7 == 0 else f"key-{number}"
        properties = {"p": "v"} if mixed and number % 11 == 0 else None
        producer.send_async(b"%d" % number, callback, properties, key)
    producer.flush()
    found = [consumer.receive(RECEIVE_MS) for _ in range(505)]
    assert [each.data() for each in found] == [b"%d" % number for number in range(505)]
    wanted = [n for n in range(505) if not (mixed and n % 3 == 0)]
    assert outcomes.numbers == wanted
    assert set(outcomes.results) == {Result.Ok}
    assert outcomes.ids == [found[number].message_id() for number in wanted]
    keys = [each.partition_key() for each in found]
    assert keys == ["" if mixed and n % 7 == 0 else f"key-{n}" for n in range(505)]


def test_batches_that_are_full_have_all_of_their_messages_and_do_not_wait_for_the_delay(
    client: PulsarClient, consumer: PulsarConsumer
) -> None:
    producer = client.create_producer("t", block_if_queue_full=True, **BATCHED)
    for number in range(507):
        producer.send_async(b"%d" % number, None, partition_key="k")
    found = [consumer.receive(RECEIVE_MS) for _ in range(500)]
    assert {each.message_id().batch_index() for each in found} == set(range(10))
    assert len({each.message_id().entry_id() for each in found}) == 50
    producer.close()
    assert [consumer.receive(RECEIVE_MS).data() for _ in range(7)] == [
        b"%d" % number for number in range(500, 507)
    ]


@pytest.mark.fault(107)
@pytest.mark.parametrize("options", [UNBATCHED, BATCHED], ids=["unbatched", "batched"])
def test_when_the_producer_fails_each_callback_is_told_once_and_in_order(
    script: TopicScript, scripted: PulsarClient, options: dict[str, Any]
) -> None:
    def on_send(session: Session, sent: Sent) -> bool:
        return sent.sequence_id >= 60

    script.on_send = on_send
    producer = scripted.create_producer("t", block_if_queue_full=True, **options)
    outcomes = Outcomes()
    for number in range(305):
        producer.send_async(b"%d" % number, outcomes.callback(number))
    wait_until(lambda: len(outcomes.numbers) == 60)
    scripted.shutdown()
    wait_until(lambda: len(outcomes.numbers) >= 305)
    assert outcomes.numbers == list(range(305))
    assert outcomes.results == [Result.Ok] * 60 + [Result.AlreadyClosed] * 245


@pytest.mark.parametrize("options", [UNBATCHED, BATCHED], ids=["unbatched", "batched"])
def test_memory_is_given_back_whatever_becomes_of_messages(
    client: PulsarClient, consumer: PulsarConsumer, options: dict[str, Any]
) -> None:
    producer = client.create_producer("t", block_if_queue_full=True, **options)
    outcomes = Outcomes()
    most = 0
    budget = producer._writer._context.budget
    for number in range(300):
        producer.send_async(b"x" * 100, outcomes.callback(number))
        producer.send_async(bytes(6 << 20) if number % 50 == 7 else b"y", None)
        most = max(most, budget.used)
    producer.flush()
    assert most > 0
    assert budget.used == 0
    assert outcomes.numbers == list(range(300))
    assert set(outcomes.results) == {Result.Ok}
    producer.close()


@pytest.mark.fault(107)
def test_a_queue_that_is_full_is_told_and_nothing_is_lost(
    script: TopicScript, scripted: PulsarClient
) -> None:
    held: list[tuple[Session, Sent]] = []

    def on_send(session: Session, sent: Sent) -> bool:
        held.append((session, sent))
        return True

    script.on_send = on_send
    producer = scripted.create_producer("t", max_pending_messages=20)
    outcomes = Outcomes()
    for number in range(25):
        producer.send_async(b"%d" % number, outcomes.callback(number))
    wait_until(lambda: len(held) == 20)
    wait_until(lambda: outcomes.results == [Result.ProducerQueueIsFull] * 5)
    script.on_send = lambda session, sent: False
    for session, sent in held:
        script.acknowledge(session, sent)
    producer.flush()
    assert sorted(outcomes.numbers) == list(range(25))
    assert outcomes.numbers[5:] == list(range(20))


def test_what_cannot_be_a_message_is_refused_and_what_waits_goes_on(
    client: PulsarClient, consumer: PulsarConsumer
) -> None:
    producer = client.create_producer("t", **BATCHED)
    for number in range(20):
        producer.send_async(b"%d" % number, None)
        with pytest.raises(InvalidRow):
            producer.send_async("text", None)
        with pytest.raises(InvalidRow):
            producer.send_async(b"", None, partition_key="\ud800")
        with pytest.raises(OptionError):
            producer.send_async(b"", None, partition_key=7)  # type: ignore[arg-type]
    producer.flush()
    found = [consumer.receive(RECEIVE_MS).data() for _ in range(20)]
    assert found == [b"%d" % number for number in range(20)]


def test_what_has_no_callback_is_logged_if_it_is_not_sent_and_only_then(
    script: TopicScript, scripted: PulsarClient, caplog: pytest.LogCaptureFixture
) -> None:
    producer = scripted.create_producer("t", **BATCHED)
    producer.send(b"stored")
    producer.abort()
    assert "without a callback" not in caplog.text
    producer = scripted.create_producer("t", **BATCHED)
    producer.send_async(b"lost", None)
    producer.abort()
    assert caplog.text.count("a message without a callback was not sent") == 1


def test_threads_that_send_with_callbacks_lose_nothing(
    client: PulsarClient, consumer: PulsarConsumer
) -> None:
    producer = client.create_producer("t", block_if_queue_full=True, **BATCHED)
    outcomes = [Outcomes() for _ in range(4)]

    def send(own: int) -> None:
        for number in range(200):
            producer.send_async(b"%d" % own, outcomes[own].callback(number))

    threads = [threading.Thread(target=send, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    finish(*threads)
    producer.flush()
    assert [each.numbers for each in outcomes] == [list(range(200))] * 4
    found = [consumer.receive(RECEIVE_MS) for _ in range(800)]
    stored = {(each.data(), each.message_id()) for each in found}
    assert stored == {(b"%d" % own, id) for own in range(4) for id in outcomes[own].ids}
