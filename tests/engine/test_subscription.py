"""The durable consumer of one topic partition."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pulsar_spark.engine import attaching
from pulsar_spark.engine import deadline as deadlines
from pulsar_spark.engine.consumers import attachment as module
from pulsar_spark.engine.consumers.subscription import EARLIEST, LATEST, HeldSubscription, TopicEnd
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.operations import OperationFactory, run
from pulsar_spark.engine.retry import retried
from pulsar_spark.errors import ClosedError, ConsumerBusy, NotAllowed, TopicNotFound
from pulsar_spark.protocol.message_id import EARLIEST as NO_MESSAGE
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import add_batch, add_plain, lose_topic, quick
from tests.support.waiting import wait_until

TOPIC = "persistent://public/default/t"


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(auto_create=False) as running:
        running.create_topic(TOPIC)
        yield running
        assert running.internal_errors == ()


@pytest.fixture
def context(broker: EmbeddedBroker) -> Iterator[ClientContext]:
    with ClientContext(quick(broker)) as made:
        yield made


def is_attached(consumer: HeldSubscription) -> bool:
    return consumer.attached


def ask(factory: OperationFactory[TopicEnd]) -> TopicEnd:
    return run(retried(factory), 10.0)


def backlog(broker: EmbeddedBroker) -> int:
    return broker.subscriptions(TOPIC)["s"].backlog


def held(broker: EmbeddedBroker, context: ClientContext) -> tuple[HeldSubscription, Position]:
    """Return an attached consumer on a topic of one message, and the position behind that."""
    stored = add_plain(broker, TOPIC, b"1")
    consumer = HeldSubscription(context, TOPIC, "s", EARLIEST)
    ask(consumer.end_operation)
    return consumer, Position(stored.ledger_id, 1)


def test_it_holds_a_subscription_and_tells_where_the_topic_ends(
    broker: EmbeddedBroker, context: ClientContext
) -> None:
    first = add_plain(broker, TOPIC, b"1")
    consumer = HeldSubscription(context, TOPIC, "s", EARLIEST)
    assert not is_attached(consumer)
    end = ask(consumer.end_operation)
    assert is_attached(consumer)
    assert end.done == Position(first.ledger_id, 0)
    add_batch(broker, TOPIC, [b"2", b"3"])
    end = ask(consumer.end_operation)
    assert (end.last.entry_id, end.last.batch_index, end.attachment) == (1, 1, 1)
    view = broker.subscriptions(TOPIC)["s"]
    assert (view.durable, view.kind, view.backlog) == (True, "Exclusive", 2)
    assert view.consumers[0].permits == 0
    answer = consumer.close()
    assert answer is not None
    answer.result(5)
    assert broker.subscriptions(TOPIC)["s"].consumers == ()


@pytest.mark.parametrize("initial,expected", [(EARLIEST, 1), (LATEST, 0)])
def test_a_new_subscription_begins_where_it_is_told_to(
    broker: EmbeddedBroker, context: ClientContext, initial: int, expected: int
) -> None:
    add_plain(broker, TOPIC, b"1")
    ask(HeldSubscription(context, TOPIC, "s", initial).end_operation)
    assert backlog(broker) == expected


@pytest.mark.fault(63)
def test_an_empty_topic_has_no_last_message(broker: EmbeddedBroker, context: ClientContext) -> None:
    end = ask(HeldSubscription(context, TOPIC, "s", EARLIEST).end_operation)
    assert end.last.ledger_id == end.last.entry_id == NO_MESSAGE.ledger_id


def test_acknowledgements_go_forward_only_and_inside_a_batch_by_its_bits(
    broker: EmbeddedBroker, context: ClientContext
) -> None:
    for number in range(4):
        add_batch(broker, TOPIC, [b"%d" % number] * 3)
    ledger_id = broker.stats(TOPIC).ledgers[0]
    consumer = HeldSubscription(context, TOPIC, "s", EARLIEST)
    consumer.acknowledge(Position(ledger_id, 1))
    assert consumer.ack_pending
    ask(consumer.end_operation)
    wait_until(lambda: not consumer.ack_pending)
    assert backlog(broker) == 3
    consumer.acknowledge(Position(ledger_id, 2, 2), 3)
    wait_until(lambda: not consumer.ack_pending)
    assert consumer.acked == Position(ledger_id, 2, 2)
    assert backlog(broker) == 2
    acks = broker.faults.log("ACK")
    assert [list(seen.body.message_id[0].ack_set) for seen in acks] == [[], [4]]
    consumer.acknowledge(Position(ledger_id, 1))
    consumer.acknowledge(Position(ledger_id, 4))
    wait_until(lambda: not consumer.ack_pending)
    assert backlog(broker) == 0
    assert len(broker.faults.log("ACK")) == 3


def test_it_comes_back_with_its_acknowledgements_after_every_kind_of_loss(
    broker: EmbeddedBroker, context: ClientContext
) -> None:
    consumer = HeldSubscription(context, TOPIC, "s", EARLIEST)
    for number in range(4):
        add_plain(broker, TOPIC, b"%d" % number)
    ledger_id = broker.stats(TOPIC).ledgers[0]
    ask(consumer.end_operation)
    broker.faults.close_consumers(TOPIC)
    wait_until(lambda: not is_attached(consumer))
    consumer.acknowledge(Position(ledger_id, 2))
    assert ask(consumer.end_operation).attachment == 2
    wait_until(lambda: backlog(broker) == 2)
    broker.faults.disconnect(reset=True)
    wait_until(lambda: not is_attached(consumer))
    assert ask(consumer.end_operation).attachment == 3
    broker.restart()
    consumer.acknowledge(Position(ledger_id, 3))
    end = ask(consumer.end_operation)
    wait_until(lambda: backlog(broker) == 1)
    assert end.attachment == 4


@pytest.mark.fault(73)
def test_an_acknowledgement_that_is_refused_is_sent_again_with_the_next_one(
    broker: EmbeddedBroker, context: ClientContext, caplog: pytest.LogCaptureFixture
) -> None:
    consumer, read = held(broker, context)
    broker.faults.error("ACK", "MetadataError", "no", times=1)
    consumer.acknowledge(read)
    wait_until(lambda: "could not be acknowledged" in caplog.text)
    assert consumer.ack_pending
    assert "canary" not in caplog.text
    consumer.acknowledge(read)
    wait_until(lambda: not consumer.ack_pending)
    assert backlog(broker) == 0


def test_an_acknowledgement_that_is_dropped_with_its_consumer_is_sent_again_by_the_next_one(
    broker: EmbeddedBroker, context: ClientContext, caplog: pytest.LogCaptureFixture
) -> None:
    consumer, read = held(broker, context)
    broker.faults.drop("ACK")
    consumer.acknowledge(read)
    wait_until(lambda: broker.faults.seen("ACK") == 1)
    broker.faults.close_consumers(TOPIC)
    wait_until(lambda: not is_attached(consumer))
    assert consumer.ack_pending
    ask(consumer.end_operation)
    wait_until(lambda: not consumer.ack_pending)
    assert backlog(broker) == 0
    assert "could not be acknowledged" not in caplog.text


@pytest.mark.fault(70)
def test_a_name_in_use_is_an_error_once_it_is_known_to_be_no_remnant(
    broker: EmbeddedBroker, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "BUSY_SECONDS", 1.2)
    with ClientContext(quick(broker)) as other:
        first = HeldSubscription(other, TOPIC, "s", EARLIEST)
        ask(first.end_operation)
        second = HeldSubscription(context, TOPIC, "s", EARLIEST)
        with pytest.raises(ConsumerBusy, match="each its own name"):
            ask(second.end_operation)
        assert broker.faults.seen("SUBSCRIBE", direction="in") >= 3
        timer = threading.Timer(0.3, first.close)
        timer.start()
        ask(second.end_operation)
        timer.join()


@pytest.mark.fault(70)
def test_a_non_durable_subscription_of_the_name_that_is_about_to_go_is_waited_for(
    broker: EmbeddedBroker, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real broker answers CLOSE_CONSUMER of the question whether a name exists before it goes."""
    text = "NonDurable subscription with the same name already exists."
    with broker.faults.error("SUBSCRIBE", "NotAllowedError", text, times=2):
        assert ask(HeldSubscription(context, TOPIC, "s", EARLIEST).end_operation).done is not None
    monkeypatch.setattr(attaching, "BUSY_SECONDS", 1.2)
    with (
        broker.faults.error("SUBSCRIBE", "NotAllowedError", text, times=None) as lasting,
        pytest.raises(NotAllowed, match="NonDurable"),
    ):
        ask(HeldSubscription(context, TOPIC, "other", EARLIEST).end_operation)
    assert lasting.hits >= 2
    # What a policy does not allow is told at once.
    with (
        broker.faults.error("SUBSCRIBE", "NotAllowedError", "a policy", times=None) as policy,
        pytest.raises(NotAllowed, match="a policy"),
    ):
        ask(HeldSubscription(context, TOPIC, "other", EARLIEST).end_operation)
    assert policy.hits == 1


def test_a_topic_that_does_not_exist_is_not_created(
    broker: EmbeddedBroker, context: ClientContext
) -> None:
    with pytest.raises(TopicNotFound):
        ask(HeldSubscription(context, TOPIC + "x", "s", EARLIEST).end_operation)
    assert broker.topics() == [TOPIC]


def test_a_subscription_can_be_moved_back_and_removed(
    broker: EmbeddedBroker, context: ClientContext
) -> None:
    for number in range(3):
        add_plain(broker, TOPIC, b"%d" % number)
    ledger_id = broker.stats(TOPIC).ledgers[0]
    consumer = HeldSubscription(context, TOPIC, "s", LATEST)
    ask(consumer.end_operation)
    run(lambda deadline: consumer.seek_operation(Position(ledger_id, 1), deadline), 5.0)
    assert is_attached(consumer)
    assert backlog(broker) == 2
    run(consumer.unsubscribe_operation, 5.0)
    assert broker.subscriptions(TOPIC) == {}
    with pytest.raises(ClosedError):
        run(consumer.end_operation, 5.0)


def test_questions_at_the_same_time_attach_it_once(
    broker: EmbeddedBroker, context: ClientContext
) -> None:
    broker.faults.delay("SUBSCRIBE", 0.3)
    consumer = HeldSubscription(context, TOPIC, "s", EARLIEST)
    found: list[TopicEnd] = []
    threads = [
        threading.Thread(target=lambda: found.append(ask(consumer.end_operation))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert [end.attachment for end in found] == [1] * 4
    assert broker.faults.seen("SUBSCRIBE") == 1


def test_a_broker_that_does_not_answer_is_asked_anew(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "ATTEMPT_SECONDS", 0.5)
    with ClientContext(quick(broker)) as context:
        consumer = HeldSubscription(context, TOPIC, "s", EARLIEST)
        ask(consumer.end_operation)
        broker.faults.drop("GET_LAST_MESSAGE_ID", times=1)
        deadline = Deadline(10)
        while not deadline.expired():
            try:
                assert run(consumer.end_operation, 5.0).attachment == 2
                return
            except TimeoutError:
                continue


# --- answers that may be of no topic ----------------------------------------------------------


def end_of(consumer: HeldSubscription, known: Position) -> TopicEnd:
    consumer.quiet_end(known)
    return run(retried(consumer.end_operation), 10.0)


@pytest.mark.fault(14)
def test_that_less_is_there_than_was_is_believed_of_no_consumer_without_a_topic(
    broker: EmbeddedBroker, context: ClientContext
) -> None:
    consumer = HeldSubscription(context, TOPIC, "s", EARLIEST)
    last = add_plain(broker, TOPIC, b"1")
    reached = Position(last.ledger_id, 1)
    assert end_of(consumer, reached).last.entry_id == 0
    consumer.acknowledge(reached)
    wait_until(lambda: not consumer.ack_pending)
    lose_topic(broker, TOPIC)
    add_plain(broker, TOPIC, b"2")
    found = end_of(consumer, reached)
    assert (found.last.entry_id, found.attachment) == (1, 2)
    assert broker.subscriptions(TOPIC)["s"].backlog == 1
    assert len(broker.subscriptions(TOPIC)["s"].consumers) == 1


@pytest.mark.fault(14)
def test_that_nothing_is_there_is_not_believed_for_ever_of_a_consumer_without_a_topic(
    broker: EmbeddedBroker, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DOUBT_SECONDS", 0.1)
    monkeypatch.setattr(module, "_DOUBT_SPREAD", 0.1)
    consumer = HeldSubscription(context, TOPIC, "s", EARLIEST)
    assert ask(consumer.end_operation).last.entry_id == -1
    lose_topic(broker, TOPIC)
    add_plain(broker, TOPIC, b"1")
    wait_until(lambda: ask(consumer.end_operation).last.entry_id == 0)
    assert len(broker.subscriptions(TOPIC)["s"].consumers) == 1


@pytest.mark.fault(55, 63)
def test_what_is_made_sure_of_once_is_not_asked_again(
    broker: EmbeddedBroker, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = HeldSubscription(context, TOPIC, "s", EARLIEST)
    for _ in range(3):
        assert ask(consumer.end_operation).last.entry_id == -1
    assert broker.faults.seen("SUBSCRIBE", direction="in") == 1
    # It was deleted and created again, or trimmed, so it really ends before the known position.
    for _ in range(3):
        assert end_of(consumer, Position(70, 5)).last.entry_id == -1
    assert broker.faults.seen("SUBSCRIBE", direction="in") == 2
    last = add_plain(broker, TOPIC, b"1")
    for _ in range(3):
        assert end_of(consumer, Position(last.ledger_id, 1)).last.entry_id == 0
    assert broker.faults.seen("SUBSCRIBE", direction="in") == 2
    assert end_of(consumer, EARLIEST_POSITION).attachment == 1
    broker.faults.close_consumers(TOPIC)
    monkeypatch.setattr(module, "_DOUBT_SECONDS", 0.0)
    monkeypatch.setattr(module, "_DOUBT_SPREAD", 0.0)
    wait_until(lambda: not is_attached(consumer))
    broker.trim(TOPIC)
    for _ in range(3):
        end_of(consumer, Position(last.ledger_id + 5, 0))
    assert broker.faults.seen("SUBSCRIBE", direction="in") == 4


def test_a_topic_that_went_elsewhere_is_looked_for(
    broker: EmbeddedBroker, context: ClientContext
) -> None:
    consumer = HeldSubscription(context, TOPIC, "s", EARLIEST)
    add_plain(broker, TOPIC, b"1")
    ask(consumer.end_operation)
    lookups = broker.faults.seen("LOOKUP")
    lose_topic(broker, TOPIC)
    broker.faults.error("SUBSCRIBE", "ServiceNotReady", times=2)
    assert end_of(consumer, Position(0, 1)).attachment == 2
    assert broker.faults.seen("LOOKUP") > lookups
    assert len(broker.subscriptions(TOPIC)["s"].consumers) == 1
