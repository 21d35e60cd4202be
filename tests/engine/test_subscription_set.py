"""One subscription on many topic partitions."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from pulsar_spark.engine.consumers import attachment
from pulsar_spark.engine.consumers.subscription import EARLIEST, LATEST, SubscriptionSet, TopicEnd
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.errors import PulsarError, TopicNotFound
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import add_plain, quick
from tests.support.waiting import wait_until

TOPIC = "persistent://public/default/t"


def partition(number: int) -> str:
    return f"{TOPIC}-partition-{number}"


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(auto_create=False) as running:
        running.create_topic(TOPIC, 3)
        yield running
        assert running.internal_errors == ()


@pytest.fixture
def context(broker: EmbeddedBroker) -> Iterator[ClientContext]:
    with ClientContext(quick(broker)) as made:
        yield made


@pytest.fixture
def held(context: ClientContext) -> Iterator[SubscriptionSet]:
    made = SubscriptionSet(context, "s", 10.0)
    for number in range(3):
        made.add(partition(number), EARLIEST)
    yield made
    made.close()


def good(result: TopicEnd | PulsarError) -> TopicEnd:
    assert isinstance(result, TopicEnd), result
    return result


def test_all_partitions_are_asked_in_one_round(
    broker: EmbeddedBroker, held: SubscriptionSet
) -> None:
    add_plain(broker, partition(1), b"1")
    ends = {topic: good(end).last.entry_id for topic, end in held.ends().items()}
    assert ends == {partition(0): -1, partition(1): 0, partition(2): -1}
    assert partition(1) in held
    held.remove(partition(1))
    assert held.topics == [partition(0), partition(2)]
    assert "s" in broker.subscriptions(partition(1))


def test_they_come_back_in_the_background(broker: EmbeddedBroker, held: SubscriptionSet) -> None:
    held.ends()
    broker.unload(TOPIC)
    wait_until(
        lambda: all(broker.subscriptions(partition(n))["s"].consumers for n in range(3)),
    )
    broker.restart(down_for=0.3)
    wait_until(
        lambda: all(broker.subscriptions(partition(n))["s"].consumers for n in range(3)),
    )


def test_an_error_takes_the_place_of_a_missing_answer(
    broker: EmbeddedBroker, held: SubscriptionSet
) -> None:
    held.add("persistent://public/default/none", EARLIEST)
    ends = held.ends()
    error = ends.pop("persistent://public/default/none")
    assert isinstance(error, TopicNotFound)
    assert error.topic == "persistent://public/default/none"
    assert all(isinstance(end, TopicEnd) for end in ends.values())


def test_subscriptions_move_back_and_go_only_when_told(
    broker: EmbeddedBroker, context: ClientContext, held: SubscriptionSet
) -> None:
    last = add_plain(broker, partition(0), b"1")
    held.remove(partition(0))
    held.add(partition(0), LATEST)
    held.ends()
    assert broker.subscriptions(partition(0))["s"].backlog == 0
    assert held.seek({partition(0): Position(last.ledger_id, 0)}) == {partition(0): None}
    assert broker.subscriptions(partition(0))["s"].backlog == 1
    assert set(held.unsubscribe().values()) == {None}
    assert broker.subscriptions(partition(0)) == {}


def test_closing_waits_for_acknowledgements_and_leaves_the_subscriptions(
    broker: EmbeddedBroker, context: ClientContext
) -> None:
    held = SubscriptionSet(context, "s", 10.0)
    for number in range(3):
        held.add(partition(number), EARLIEST)
        add_plain(broker, partition(number), b"1")
    held.ends()
    for number in range(3):
        ledger_id = broker.stats(partition(number)).ledgers[0]
        held.acknowledge(partition(number), Position(ledger_id, 1))
    held.close()
    for number in range(3):
        view = broker.subscriptions(partition(number))["s"]
        assert (view.backlog, view.consumers) == (0, ())


def test_closing_does_not_wait_for_a_broker_that_is_gone(
    broker: EmbeddedBroker, context: ClientContext, held: SubscriptionSet
) -> None:
    held.ends()
    broker.stop()
    held.acknowledge(partition(0), Position(5, 1))
    started = time.monotonic()
    held.close()
    assert time.monotonic() - started < 5


@pytest.mark.fault(76)
def test_a_thousand_partitions_without_news_are_asked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a slow machine a while has passed, after which empty topics are looked at twice.
    monkeypatch.setattr(attachment, "_DOUBT_SECONDS", 1000.0)
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC, 1000)
        with ClientContext(quick(broker, operation_timeout=30.0)) as context:
            held = SubscriptionSet(context, "s", 60.0)
            for number in range(1000):
                held.add(partition(number), EARLIEST)
            assert all(isinstance(end, TopicEnd) for end in held.ends().values())
            threads = threading.active_count()
            # On a busy machine some were asked to attach twice.
            attached = broker.faults.seen("SUBSCRIBE")
            started = time.monotonic()
            with broker.faults.delay("GET_LAST_MESSAGE_ID", 0.05, times=None):
                held.ends()
            # One after another they would take 50 seconds.
            assert time.monotonic() - started < 20
            assert threading.active_count() <= threads
            assert broker.faults.seen("SUBSCRIBE") == attached
            held.close()


@pytest.mark.fault(14)
def test_coming_back_holds_no_thread_while_a_broker_does_not_answer(
    broker: EmbeddedBroker, held: SubscriptionSet, context: ClientContext
) -> None:
    held.ends()
    with broker.faults.drop("SUBSCRIBE", times=None) as silent:
        broker.unload(TOPIC)
        wait_until(lambda: silent.hits == 3)
        # The timers' thread is not blocked.
        fired = threading.Event()
        context.timers.after(0.0, fired.set)
        assert fired.wait(10)
        broker.faults.disconnect()
    wait_until(
        lambda: all(broker.subscriptions(partition(n))["s"].consumers for n in range(3)),
    )


@pytest.mark.fault(150)
def test_what_an_emptied_topics_subscription_had_passed_is_part_of_the_next_answer(
    broker: EmbeddedBroker, held: SubscriptionSet
) -> None:
    topic = partition(1)
    assert good(held.ends()[topic]).unread is None
    for _ in range(3):
        add_plain(broker, topic, b"1")
    broker.expire_messages(topic, "s", -1e9)
    broker.trim(topic, Position(2, 3))
    looks = broker.faults.seen("GET_LAST_MESSAGE_ID", topic)
    broker.close_clients(topic, producers=False)
    wait_until(lambda: broker.faults.seen("GET_LAST_MESSAGE_ID", topic) > looks)
    # Somebody moves it to the start of what is there now.
    broker.roll_ledger(topic)
    add_plain(broker, topic, b"2")
    found = good(held.ends()[topic])
    assert found.unread == Position(2, 3)


@pytest.mark.fault(130)
def test_a_subscription_is_made_again_although_an_attempt_to_attach_is_under_way(
    broker: EmbeddedBroker, context: ClientContext, held: SubscriptionSet
) -> None:
    held.ends()
    asked = broker.faults.delay("SUBSCRIBE", 0.5, answer=True, topic=TOPIC, times=None)
    seen = broker.faults.seen("SUBSCRIBE")
    for number in range(3):
        broker.remove_subscription(partition(number), "s")
    # They ask in the background whether it exists.
    wait_until(lambda: broker.faults.seen("SUBSCRIBE") >= seen + 3)
    found = held.create_again([partition(number) for number in range(3)])
    asked.remove()
    assert all(isinstance(end, TopicEnd) for end in found.values()), found
