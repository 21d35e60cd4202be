"""Topics that change while a stream reads them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_spark.errors import DataLossError, InvalidOffset, TopicNotFound
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.spark.options.stream import Caps, parse_stream_options
from pulsar_spark.spark.reading.batch_reader import infer_values
from pulsar_spark.spark.reading.planner import Planner
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.streams import NO_CAPS, Make, Query, backlogs, queries
from tests.spark.topics import NOW, full, store_many
from tests.support.waiting import wait_until


@pytest.fixture
def make(broker: EmbeddedBroker) -> Iterator[Make]:
    with queries(broker.service_url) as made:
        yield made


def strict_and_loose(make: Make, topic: str | None = "t", **options: str) -> tuple[Query, Query]:
    """Return two queries from the earliest message: one fails on data loss, one continues."""
    options["startingOffsets"] = "earliest"
    return make(topic, **options), make(topic, failOnDataLoss="false", **options)


@pytest.mark.fault(57)
def test_new_partitions_are_read_from_their_earliest_message_in_the_next_batch(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t", 3)
    store_many(broker, "t-partition-0", 10)
    query = make()
    query.batch()
    start = query.start()
    broker.add_partitions("t", 6)
    new = store_many(broker, "t-partition-4", 20)
    end = query.source.latest(start, NO_CAPS)
    # This does not change an existing plan.
    assert query.source.plan(start, start) == []
    new_ones = {full(f"t-partition-{number}") for number in (3, 4, 5)}
    assert set(end.positions) - set(start.positions) == new_ones
    assert query.batch() == new
    assert query.batch() == []
    wait_until(lambda: backlogs(broker, "t-partition-4") == [0])
    assert backlogs(broker, "t-partition-5") == [0]


@pytest.mark.fault(57)
def test_new_topics_of_a_pattern_are_read_from_their_earliest_message(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("a-1")
    store_many(broker, "a-1", 10)
    query = make(None, topicsPattern="a-.*")
    assert query.batch() == []
    broker.create_topic("b-1")
    broker.create_topic("a-2", 2)
    new = store_many(broker, "a-2-partition-1", 10)
    assert query.batch() == new
    assert set(query.start().positions) == {
        full(name) for name in ("a-1", "a-2-partition-0", "a-2-partition-1")
    }


@pytest.mark.parametrize("others", [1, 10, 100, 1000])
def test_an_idle_trigger_does_not_list_a_namespace_that_the_broker_watches(
    broker: EmbeddedBroker, make: Make, others: int
) -> None:
    for number in range(others):
        broker.create_topic(f"b-{number}")
    for number in range(3):
        broker.create_topic(f"a-{number}", 2)
    query = make(None, topicsPattern="a-.*")
    query.batch()
    query.batch()
    names = ("GET_TOPICS_OF_NAMESPACE", "PARTITIONED_METADATA", "GET_LAST_MESSAGE_ID")
    before = {name: broker.faults.seen(name) for name in names}
    for _ in range(10):
        assert query.batch() == []
    asked = {name: broker.faults.seen(name) - before[name] for name in names}
    assert asked["GET_TOPICS_OF_NAMESPACE"] == 0
    assert asked["PARTITIONED_METADATA"] <= 30
    assert asked["GET_LAST_MESSAGE_ID"] <= 60


def test_topics_that_a_watch_could_not_report_are_found_after_a_disconnect(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("a-1")
    query = make(None, topicsPattern="a-.*")
    query.batch()
    with broker.faults.delay("WATCH_TOPIC_UPDATE", 60.0, times=None):
        broker.create_topic("a-2")
        broker.faults.disconnect()
    new = store_many(broker, "a-2", 10)
    # A client learns of it a moment later.
    wait_until(lambda: query.batch() == new, "the new topic is not found")


def test_a_pattern_that_the_broker_does_not_watch_is_listed_at_each_trigger(
    broker: EmbeddedBroker, make: Make
) -> None:
    # Longer than brokers take by default (subscriptionPatternMaxLength).
    pattern = "a-.*|" + "b" * 60
    broker.create_topic("a-1")
    query = make(None, topicsPattern=pattern)
    query.batch()
    broker.create_topic("a-2")
    new = store_many(broker, "a-2", 10)
    assert query.batch() == new
    assert broker.faults.seen("WATCH_TOPIC_LIST") == 2


def test_a_stream_waits_for_topics_that_do_not_exist_if_it_is_told_to(
    broker: EmbeddedBroker, make: Make
) -> None:
    for topic, options in (("t", {}), (None, {"topicsPattern": "t.*"})):
        with pytest.raises(TopicNotFound):
            make(topic, **options).batch()
    query = make("t", waitingForNonExistedTopic="true", valueFormat="raw")
    assert query.batch() == []
    assert query.start().starts == {}
    assert query.batch() == []
    assert broker.topics() == []
    broker.create_topic("t", 2)
    new = store_many(broker, "t-partition-1", 10)
    assert query.batch() == new


@pytest.mark.parametrize(
    "option,bounds",
    [
        ("startingOffsets", {"a": "earliest", "b": "latest"}),
        ("startingTime", {"a": NOW, "b": NOW}),
    ],
)
def test_a_start_of_a_topic_that_does_not_exist_yet_is_no_error_while_the_stream_waits(
    broker: EmbeddedBroker,
    make: Make,
    caplog: pytest.LogCaptureFixture,
    option: str,
    bounds: dict[str, Any],
) -> None:
    broker.create_topic("a")
    stored = store_many(broker, "a", 10)
    options = {"topics": "a,b", option: json.dumps(bounds), "valueFormat": "raw"}
    query = make(None, waitingForNonExistedTopic="true", **options)
    assert query.batch() == stored
    assert f"{option} names the topic '{full('b')}', which is not there" in caplog.text
    broker.create_topic("b")
    new = store_many(broker, "b", 10)
    assert query.batch() == new
    # Without waiting, the name is a mistake.
    broker.delete_topic("b")
    with pytest.raises(InvalidOffset, match="this read does not include it"):
        make(None, **{**options, "topics": "a"}).batch()


@pytest.mark.fault(54)
def test_a_topic_that_is_deleted_is_data_loss(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("a", 2)
    broker.create_topic("b")
    for name in ("a-partition-0", "b"):
        store_many(broker, name, 10)
    strict, loose = strict_and_loose(make, None, topics="a,b")
    for query in (strict, loose):
        assert len(query.batch()) == 20
    broker.delete_topic("a")
    with pytest.raises(DataLossError, match=r"a-partition-0.*|is gone.*from 1:1:0 on"):
        strict.batch()
    new = store_many(broker, "b", 10)
    assert loose.batch() == new
    assert "data was lost" in caplog.text
    assert set(loose.start().positions) == {full("b")}
    assert broker.topics() == [full("b")]
    broker.create_topic("a", 2)
    new = store_many(broker, "a-partition-1", 10)
    assert loose.batch() == new


@pytest.mark.parametrize("name", ["topics", "topicsPattern"])
def test_what_is_advised_for_a_topic_that_is_gone_lets_the_query_start_again(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    broker.create_topic("a")
    store_many(broker, "a", 10)
    query = make(None, **{name: "a"}, startingOffsets="earliest")
    assert len(query.batch()) == 10
    broker.delete_topic("a")
    with pytest.raises(DataLossError) as caught:
        query.batch()
    advice = {"failOnDataLoss": "false", "waitingForNonExistedTopic": "true"}
    for key, value in advice.items():
        assert f"{key}={value}" in caught.value.remedy
    options = {name: "a", **advice}
    # Its columns are inferred first.
    given = {"service.url": broker.service_url, **options}
    assert infer_values(parse_stream_options(given).read) is None
    again = make(None, offset=query.committed, **options)
    assert again.batch() == []
    assert "; the read goes on" in caplog.text
    assert "failOnDataLoss" not in caplog.text
    broker.create_topic("a")
    new = store_many(broker, "a", 10)
    assert again.batch() == new


@pytest.mark.fault(55)
@pytest.mark.parametrize("ledger_id", [3, 5000], ids=["lower", "higher"])
def test_a_topic_that_is_made_anew_is_data_loss_and_read_once(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture, ledger_id: int
) -> None:
    broker.create_topic("t", ledger_id=1000)
    store_many(broker, "t", 50)
    strict, loose = strict_and_loose(make)
    for query in (strict, loose):
        assert len(query.batch()) == 50
        query.source.close()
    broker.delete_topic("t")
    broker.create_topic("t", ledger_id=ledger_id)
    new = store_many(broker, "t", 20)
    with pytest.raises(DataLossError, match=r"rolled back|are gone") as caught:
        strict.restarted().batch()
    assert "1000:5:0" in str(caught.value)
    loose = loose.restarted()
    assert loose.batch() == new
    assert "data was lost" in caplog.text
    assert loose.batch() == []
    new = store_many(broker, "t", 10)
    assert loose.batch() == new
    assert loose.batch() == []
    name = loose.start().subscription
    wait_until(lambda: broker.subscriptions("t")[name].backlog == 0)


@pytest.mark.fault(56)
def test_a_terminated_topic_is_read_to_its_end(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t")
    payloads = store_many(broker, "t", 20)
    query = make(startingOffsets="earliest")
    broker.terminate_topic("t")
    assert query.batch() == payloads
    assert query.batch() == []
    wait_until(lambda: backlogs(broker, "t") == [0])
    assert query.batch() == []


@pytest.mark.fault(58)
def test_what_is_trimmed_before_it_was_read_is_data_loss(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 30, batch_size=1)
    strict, loose = strict_and_loose(make)
    for query in (strict, loose):
        assert len(query.batch()) == 30
    payloads = store_many(broker, "t", 20, batch_size=1)
    broker.trim("t", Position(1, 45))
    with pytest.raises(
        DataLossError, match=r"from 1:30:0 up to 1:45:0 are gone \(15 entries at most\)"
    ):
        strict.batch()
    # The first stored message is not skipped.
    assert loose.batch() == payloads[15:]
    assert "from 1:30:0 up to 1:45:0 are gone" in caplog.text
    assert loose.batch() == []


@pytest.mark.fault(58, 63)
def test_what_is_trimmed_after_it_was_read_is_none(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 30)
    query = make(startingOffsets="earliest")
    assert len(query.batch()) == 30
    for _ in range(2):
        query.batch()
        broker.roll_ledger("t")
        broker.trim("t")
        assert query.batch() == []
        broker.unload("t")
        broker.roll_ledger("t")
        new = store_many(broker, "t", 10)
        query = query.restarted()
        assert query.batch() == new


def read_and_moved_on(broker: EmbeddedBroker, make: Make, **options: str) -> Query:
    """Return a query of the subscription `old`, all of which was read and is deleted."""
    broker.create_topic("t")
    store_many(broker, "t", 30)
    query = make(startingOffsets="earliest", subscription="old", **options)
    assert len(query.batch()) == 30
    assert query.batch() == []
    wait_until(lambda: backlogs(broker, "t") == [0])
    query.source.close()
    broker.roll_ledger("t")
    broker.trim("t")
    broker.unload("t")
    return query


@pytest.mark.fault(58, 71)
def test_with_another_subscription_a_query_has_what_the_one_of_its_checkpoint_has_kept(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    query = read_and_moved_on(broker, make)
    new = store_many(broker, "t", 20)
    renamed = make(offset=query.start(), subscription="new")
    assert renamed.batch() == new
    assert renamed.batch() == []
    wait_until(lambda: broker.subscriptions("t")["new"].backlog == 0)
    # It was left as it is.
    assert broker.subscriptions("t")["old"].backlog == 2
    assert "the option subscription is new" in caplog.text
    assert "was removed or emptied by others" not in caplog.text


@pytest.mark.fault(58, 71)
@pytest.mark.parametrize("held", ["removed", "expired"])
def test_with_another_subscription_what_the_one_of_the_checkpoint_has_not_kept_is_data_loss(
    broker: EmbeddedBroker, make: Make, held: str
) -> None:
    query = read_and_moved_on(broker, make)
    store_many(broker, "t", 10)
    if held == "removed":
        broker.remove_subscription("t", "old")
    else:
        broker.expire_messages("t", "old", -1e9)
    store_many(broker, "t", 10)
    with pytest.raises(
        DataLossError, match="new is new, and the checkpoint's, old, has not kept what follows"
    ):
        make(offset=query.start(), subscription="new").batch()


@pytest.mark.fault(58, 71)
def test_with_another_subscription_it_is_told_where_messages_may_have_expired_meanwhile(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    query = read_and_moved_on(broker, make)
    store_many(broker, "t", 10)
    broker.expire_messages("t", "old", -1e9)
    broker.roll_ledger("t")
    broker.trim("t")
    new = store_many(broker, "t", 10)
    assert make(offset=query.start(), subscription="new").batch() == new
    assert "1 topic partitions have deleted the ledgers that the query had read" in caplog.text


def test_it_is_said_once_that_a_query_has_another_subscription_than_its_checkpoint(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    query = read_and_moved_on(broker, make)
    renamed = make(offset=query.start(), subscription="new")
    for _ in range(3):
        assert renamed.batch() == []
    assert caplog.text.count("the option subscription is new") == 1


def test_the_subscription_that_keeps_a_left_out_topic_is_named_when_the_query_has_another(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("t", "u"):
        broker.create_topic(topic)
        store_many(broker, topic, 30)
    query = make(None, topics="t,u", startingOffsets="earliest", subscription="old")
    assert len(query.batch()) == 60
    query.source.close()
    store_many(broker, "u", 10)
    make(offset=query.start(), subscription="new").batch()
    assert "Until then the subscription old keeps the unread messages of 1 of them" in caplog.text


@pytest.mark.fault(58)
def test_what_waits_in_a_new_ledger_is_no_loss_of_the_one_that_was_read_and_deleted(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest")
    store_many(broker, "t", 10)
    assert len(query.batch()) == 10
    assert query.batch() == []
    wait_until(lambda: backlogs(broker, "t") == [0])
    broker.roll_ledger("t")
    broker.trim("t")
    new = store_many(broker, "t", 10)
    # Seen and not yet read, even if the consumer resubscribes.
    wait = Caps(min_messages=100, max_delay=60.0)
    for _ in range(3):
        assert query.batch(wait) == []
        broker.unload("t")
    assert query.batch() == new


@pytest.mark.fault(58, 73)
def test_what_came_after_the_subscription_was_removed_and_is_deleted_is_data_loss(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 30, batch_size=1)
    strict, loose = strict_and_loose(make)
    for query in (strict, loose):
        assert len(query.batch()) == 30
        query.source.close()
        broker.remove_subscription("t", query.start().subscription)
    store_many(broker, "t", 20, batch_size=1)
    for _ in range(3):
        broker.roll_ledger("t")
        store_many(broker, "t", 5, batch_size=1)
    broker.roll_ledger("t")
    broker.trim("t")
    broker.unload("t")
    with pytest.raises(
        DataLossError, match=r"up to the topic's end are gone \(how many is not known"
    ):
        strict.restarted().batch()
    loose = loose.restarted()
    assert loose.batch() == []
    assert "from 1:30:0 up to the topic's end are gone" in caplog.text
    new = store_many(broker, "t", 10)
    assert loose.batch() == new


@pytest.mark.fault(58)
def test_a_restart_knows_what_was_there_to_read_when_it_stopped(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 30, batch_size=1)
    strict, loose = strict_and_loose(make)
    for query in (strict, loose):
        assert len(query.batch(Caps(max_messages=12))) == 12
        query.source.close()
    # TTL expires the rest, and its ledger is deleted.
    broker.roll_ledger("t")
    broker.trim("t")
    for more in (False, True):
        new = store_many(broker, "t", 5) if more else []
        with pytest.raises(
            DataLossError, match=r"from 1:12:0 up to .* are gone \(18 entries at least\)"
        ):
            strict.restarted().batch()
        caplog.clear()
        assert loose.restarted().batch() == new
        assert "from 1:12:0 up to" in caplog.text


@pytest.mark.fault(58)
def test_a_restart_tells_once_where_it_cannot_know_whether_messages_expired(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t", 2)
    for number in range(2):
        store_many(broker, f"t-partition-{number}", 10)
    query = make(startingOffsets="earliest")
    assert len(query.batch()) == 20
    assert query.batch() == []
    for number in range(2):
        broker.roll_ledger(f"t-partition-{number}")
        broker.trim(f"t-partition-{number}")
    # As long as a broker has the topic loaded, it knows that nothing came.
    query = query.restarted()
    for _ in range(3):
        assert query.batch() == []
    assert "have deleted" not in caplog.text
    broker.unload("t")
    query = query.restarted()
    for _ in range(3):
        assert query.batch() == []
    assert caplog.text.count("2 topic partitions have deleted the ledgers") == 1
    assert "t-partition-1" in caplog.text


@pytest.mark.fault(61)
def test_markers_between_and_behind_messages_are_no_loss(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest")
    expected = []
    for _ in range(3):
        broker.skip_entries("t", 3)
        expected = store_many(broker, "t", 10)
        broker.skip_entries("t", 2)
        assert query.batch() == expected
        assert query.batch() == []


@pytest.mark.fault(59)
def test_an_idle_topic_stays_while_the_stream_holds_it(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 10)
    query = make(startingOffsets="earliest")
    query.batch()
    query.source.close()
    assert broker.collect_inactive() == []
    new = store_many(broker, "t", 10)
    assert query.restarted().batch() == new


def test_topics_move_while_the_stream_runs(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t", 3)
    query = make()
    query.batch()
    for number in range(5):
        broker.unload("t")
        new = store_many(broker, f"t-partition-{number % 3}", 10)
        assert query.batch() == new
    broker.restart(down_for=0.3)
    new = store_many(broker, "t-partition-0", 10)
    assert query.batch() == new


@pytest.mark.fault(54)
def test_an_empty_topic_that_goes_is_no_loss(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    broker.create_topic("t-1")
    broker.create_topic("t-2")
    options = {"topicsPattern": "t-.*", "startingOffsets": "earliest"}
    query = make(None, **options)
    assert query.batch() == []
    broker.delete_topic("t-1")
    new = store_many(broker, "t-2", 10)
    assert query.batch() == new
    assert "was deleted, and was empty" in caplog.text
    # Messages seen but not read are lost with their topic.
    broker.create_topic("t-3")
    store_many(broker, "t-3", 10)
    assert query.batch(Caps(min_messages=100, max_delay=60.0)) == []
    broker.delete_topic("t-3")
    with pytest.raises(DataLossError, match=r"what was on it from 3:0:0 on, .*cannot be read"):
        query.batch()


# --- a subscription that is missing, or passed what was not read ----------------------------------


@pytest.mark.fault(130)
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_a_loss_without_a_subscription_stays_one_until_the_user_goes_on(
    broker: EmbeddedBroker, make: Make, restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    old = store_many(broker, "t", 10)
    query = make(startingOffsets="earliest", subscription="mine")
    assert query.batch() == old
    broker.delete_topic("t")
    broker.create_topic("t")
    new = store_many(broker, "t", 5)
    if restarts:
        query = query.restarted()
    for _ in range(3):
        with pytest.raises(DataLossError, match=r"mine does not exist any more.*are gone"):
            query.batch()
        # The evidence stays: nothing creates the subscription meanwhile.
        assert "mine" not in broker.subscriptions("t")
        query = query.restarted()
    query.source.close()
    query = make(failOnDataLoss="false", subscription="mine", offset=query.committed)
    assert query.batch() == new
    assert query.batch() == []
    assert caplog.text.count("data was lost") == 1
    wait_until(lambda: broker.subscriptions("t")["mine"].backlog == 0)


@pytest.mark.fault(130)
def test_a_subscription_that_goes_while_everything_is_stored_is_a_warning(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 10)
    query = make(startingOffsets="earliest", subscription="mine")
    query.batch()
    expected = []
    for _ in range(3):
        expected += store_many(broker, "t", 5)
        broker.remove_subscription("t", "mine")
        broker.unload("t")
    assert query.batch() == expected
    assert (
        caplog.text.count("the subscription mine is new, or was removed or emptied by others") == 1
    )
    assert "lost" not in caplog.text
    assert query.batch() == []


def fill(broker: EmbeddedBroker, *steps: str | int) -> list[Any]:
    """Make topics, or store that many messages on topic t, each time in another ledger of it."""
    stored: list[Any] = []
    for step in steps:
        if isinstance(step, str):
            broker.create_topic(step)
            continue
        if stored:
            broker.roll_ledger("t")
        stored += store_many(broker, "t", step, batch_size=1)
    return stored


@pytest.mark.fault(130)
@pytest.mark.parametrize("batch_size", [1, 10])
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(["t", 20, "x", 20], id="the ledger is another topic's"),
        pytest.param(["x", "t", 9, 20], id="the ledger is shorter"),
    ],
)
def test_a_topic_of_another_cluster_that_never_had_the_position_is_a_loss(
    broker: EmbeddedBroker, make: Make, steps: list[str | int], batch_size: int
) -> None:
    broker.create_topic("x")
    broker.create_topic("t")
    store_many(broker, "t", 10 * batch_size, batch_size=batch_size)
    query = make(startingOffsets="earliest", subscription="mine")
    assert len(query.batch()) == 10 * batch_size
    at = query.start().positions[full("t")]
    with EmbeddedBroker() as other, queries(other.service_url) as make_there:
        fill(other, *steps)
        for _ in range(2):
            there = make_there(subscription="mine", offset=query.committed)
            with pytest.raises(DataLossError, match=rf"never had .* {at}.*one cluster"):
                there.batch()
            assert "mine" not in other.subscriptions("t")
            there.source.close()


@pytest.mark.fault(130)
@pytest.mark.parametrize(
    "steps", [["x", "t", 10, 20], ["x", "t", 30]], ids=["at a ledger's end", "within a ledger"]
)
def test_a_topic_that_may_have_had_the_position_goes_on_with_a_warning(
    broker: EmbeddedBroker,
    make: Make,
    steps: list[str | int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(broker, "x", "t", 10)
    query = make(startingOffsets="earliest", subscription="mine")
    assert len(query.batch()) == 10
    with EmbeddedBroker() as other, queries(other.service_url) as make_there:
        stored = fill(other, *steps)
        assert make_there(subscription="mine", offset=query.committed).batch() == stored[10:]
    assert "belong to one cluster" in caplog.text
    assert "lost" not in caplog.text


@pytest.mark.fault(130)
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("seen", [False, True])
def test_what_was_never_read_of_a_topic_that_is_made_again_is_a_loss(
    broker: EmbeddedBroker, make: Make, seen: bool, restarts: bool
) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest")
    assert query.batch() == []
    store_many(broker, "t", 10)
    if seen:
        assert query.batch(Caps(min_messages=100, max_delay=60.0)) == []
    broker.delete_topic("t")
    broker.create_topic("t")
    store_many(broker, "t", 3)
    if restarts:
        query = query.restarted()
    with pytest.raises(DataLossError, match="from 1:0:0 up to"):
        query.batch()


@pytest.mark.fault(131)
def test_what_expires_before_anything_was_read_is_a_loss(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest", subscription="mine")
    assert query.batch() == []
    broker.unload("t")
    assert query.batch() == []
    store_many(broker, "t", 5, batch_size=1)
    broker.roll_ledger("t")
    broker.expire_messages("t", "mine", -1e9)
    broker.trim("t")
    with pytest.raises(DataLossError, match=r"from 1:0:0 up to the topic's end are gone"):
        query.batch()


@pytest.mark.fault(72, 130)
def test_another_subscription_need_not_exist_where_nothing_was_read(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t", 2)
    old = store_many(broker, "t-partition-0", 10)
    query = make(startingOffsets="earliest", subscription="mine")
    assert query.batch() == old
    query.source.close()
    query = make(subscription="other", offset=query.committed)
    assert query.batch() == []
    new = store_many(broker, "t-partition-1", 10)
    assert query.batch() == new


@pytest.mark.fault(131)
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("new", [0, 3])
def test_unread_messages_that_expire_with_their_ledger_are_a_loss(
    broker: EmbeddedBroker,
    make: Make,
    restarts: bool,
    new: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker.create_topic("t")
    strict, loose = strict_and_loose(make)
    old = store_many(broker, "t", 10, batch_size=1)
    for query in (strict, loose):
        assert query.batch() == old
        assert query.batch() == []
        if restarts:
            query.source.close()
    store_many(broker, "t", 5, batch_size=1)
    broker.roll_ledger("t")
    for name in broker.subscriptions("t"):
        broker.expire_messages("t", name, -1e9)
    broker.trim("t")
    if not restarts:
        # It looks at the topic again when it is disconnected, before anybody asks.
        broker.close_clients("t", producers=False)
        name = loose.start().subscription
        for each in (loose, strict):
            assert each.source._topics is not None
            consumers = each.source._topics.subscriptions._consumers
            wait_until(partial(getattr, consumers[full("t")], "_unread"))
    elif new:
        # Nobody looked before the next message came.
        return
    more = store_many(broker, "t", new, batch_size=1)
    with pytest.raises(DataLossError, match=r"from 1:10:0 up to .* are gone \(5 entries at"):
        (strict.restarted() if restarts else strict).batch()
    if restarts:
        loose = loose.restarted()
    assert loose.batch() == more
    assert "(5 entries at" in caplog.text
    assert loose.batch() == []


def passed_over(broker: EmbeddedBroker, make: Make) -> tuple[Query, Query]:
    """Return queries that were stopped after ten messages of fifty, of which forty expired."""
    broker.create_topic("t")
    strict, loose = strict_and_loose(make)
    store_many(broker, "t", 10)
    for query in (strict, loose):
        assert len(query.batch()) == 10
        query.source.close()
    for _ in range(4):
        broker.roll_ledger("t")
        store_many(broker, "t", 10)
    for name in broker.subscriptions("t"):
        broker.expire_messages("t", name, -1e9)
    broker.roll_ledger("t")
    return strict.restarted(), loose.restarted()


@pytest.mark.fault(58, 131)
@pytest.mark.parametrize("when", ["between", "while it is planned"])
def test_expired_messages_that_are_deleted_while_a_query_catches_up_are_a_loss(
    broker: EmbeddedBroker,
    make: Make,
    when: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strict, loose = passed_over(broker, make)
    last = store_many(broker, "t", 10)
    ten = Caps(max_messages=10)
    for query in (strict, loose):
        assert len(query.batch(ten)) == 10
        assert "which are still stored" in caplog.text

    first_entries = Planner.first_entries

    def trimmed(planner: Planner, bounds: Mapping[str, Any]) -> dict[str, Position]:
        broker.trim("t", Position(5, 0))
        return first_entries(planner, bounds)

    if when == "between":
        broker.trim("t", Position(5, 0))
    else:
        monkeypatch.setattr(Planner, "first_entries", trimmed)
    with pytest.raises(DataLossError, match=r"from 2:1:0 up to 5:0:0 are gone"):
        strict.batch(ten)
    assert len(loose.batch(ten)) == 10
    assert caplog.text.count("data was lost") == 1
    assert loose.batch(ten) == last
    assert loose.batch(ten) == []


@pytest.mark.fault(58, 131)
def test_a_loss_is_told_at_each_start_until_it_is_accepted(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the subscription was cleared: moved back at once, it would hide the loss."""
    strict, loose = passed_over(broker, make)
    broker.trim("t", Position(4, 0))
    for _ in range(3):
        with pytest.raises(DataLossError, match=r"from 1:1:0 up to 4:0:0 are gone"):
            strict.batch()
        strict = strict.restarted()
    assert len(loose.batch()) == 20
    assert "data was lost" in caplog.text
    loose = loose.restarted()
    assert loose.batch() == []


# --- topic partitions of which nothing was read ---------------------------------------------------


def as_before(offset: StreamOffset, **known: Position) -> StreamOffset:
    """Return an offset as earlier versions wrote it, without beginnings, with these known ends."""
    positions = {
        topic: EARLIEST_POSITION if position.begins_ledger else position
        for topic, position in offset.positions.items()
    }
    ends = {full(name): end for name, end in known.items()}
    body = replace(offset, positions=positions, ends=ends, firsts={}).to_json()
    assert "-1:-1:0" in body["positions"].values()
    return StreamOffset.from_json(body)


@pytest.mark.fault(150)
def test_a_checkpoint_without_beginnings_goes_on_and_gets_them(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        broker.create_topic(name)
    query = make(None, topics="a,b", startingOffsets="earliest")
    assert query.batch() == []
    query.committed = as_before(query.start())
    stored = store_many(broker, "a", 10)
    query = query.restarted()
    assert query.batch() == stored
    assert query.start().positions[full("b")].begins_ledger
    assert query.start().positions[full("b")] != EARLIEST_POSITION
    before = query.start()
    assert query.batch() == []
    assert query.start() == before
    assert caplog.text == ""
    query.source.close()
    store_many(broker, "b", 5)
    broker.roll_ledger("b")
    broker.trim("b")
    with pytest.raises(DataLossError, match="are gone"):
        query.restarted().batch()


@pytest.mark.fault(150)
@pytest.mark.parametrize("gone", [False, True])
def test_a_checkpoint_without_beginnings_may_know_what_was_there(
    broker: EmbeddedBroker, make: Make, gone: bool
) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest")
    assert query.batch() == []
    query.committed = as_before(query.start(), t=Position(1, 10))
    stored = store_many(broker, "t", 10, batch_size=1)
    query.source.close()
    broker.roll_ledger("t")
    for name in broker.subscriptions("t"):
        broker.expire_messages("t", name, -1e9)
    if not gone:
        assert query.restarted().batch() == stored
        return
    broker.trim("t")
    for _ in range(2):
        with pytest.raises(DataLossError, match="are gone"):
            query.restarted().batch()


@pytest.mark.fault(150)
@pytest.mark.parametrize("ledgers", [1, 2])
def test_the_first_batch_of_a_new_partition_that_is_repeated_knows_where_it_began(
    broker: EmbeddedBroker, make: Make, ledgers: int
) -> None:
    broker.create_topic("t", 1)
    query = make(startingOffsets="earliest")
    assert query.batch() == []
    broker.add_partitions("t", 2)
    new = "t-partition-1"
    stored = []
    for _ in range(ledgers):
        stored += store_many(broker, new, 5)
        broker.roll_ledger(new)
    stored += store_many(broker, new, 5)
    start, end = query.start(), query.source.latest(query.start(), NO_CAPS)
    assert full(new) not in start.positions
    end = StreamOffset.from_json(end.to_json())
    assert query.read(start, end) == stored
    broker.trim(new)
    # Some of it is still there.
    query = query.restarted()
    query.source.learn(end)
    with pytest.raises(DataLossError, match="between planning and reading"):
        query.read(start, end)


@pytest.mark.fault(61, 150)
@pytest.mark.parametrize("how", ["kept", "skipped", "removed", "rolled"])
def test_markers_in_front_of_the_first_message_are_no_loss(
    broker: EmbeddedBroker, make: Make, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest", subscription="mine")
    assert query.batch() == []
    query.source.close()
    if how == "rolled":
        broker.roll_ledger("t")
    broker.skip_entries("t", 3)
    stored = store_many(broker, "t", 10, batch_size=1)
    if how == "skipped":
        broker.expire_messages("t", "mine", -1e9)
    elif how == "removed":
        broker.remove_subscription("t", "mine")
    query = query.restarted()
    assert query.batch() == stored
    assert query.batch() == []
    assert "lost" not in caplog.text
    told = caplog.text.count("was removed or emptied by others")
    assert told == (how in ("skipped", "removed"))
    wait_until(lambda: backlogs(broker, "t") == [0])


@pytest.mark.fault(150)
def test_a_new_partition_that_is_empty_does_not_put_off_a_waiting_batch(
    broker: EmbeddedBroker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0.0
    monkeypatch.setattr(
        "pulsar_spark.spark.streaming.source.time",
        SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + passed),
    )
    broker.create_topic("t", 1)
    query = make(startingOffsets="earliest")
    old = store_many(broker, "t-partition-0", 3)
    assert query.batch() == old
    new = store_many(broker, "t-partition-0", 3)
    wait = Caps(min_messages=100, max_delay=60.0)
    passed += 50.0
    broker.add_partitions("t", 2)
    assert query.batch(wait) == []
    assert full("t-partition-1") in query.start().positions
    passed += 20.0
    assert query.batch(wait) == new


@pytest.mark.parametrize("option", ["startingOffsets", "startingTime"])
def test_a_compacted_view_begins_wherever_compacted_entries_are(
    broker: EmbeddedBroker, make: Make, option: str
) -> None:
    broker.create_topic("t")
    value = "earliest" if option == "startingOffsets" else "-1h"
    query = make(readCompacted="true", **{option: value})
    assert query.batch() == []
    assert query.start().positions == {full("t"): EARLIEST_POSITION}
    asked = broker.faults.seen("SUBSCRIBE")
    assert query.batch() == []
    assert broker.faults.seen("SUBSCRIBE") == asked


@pytest.mark.fault(150)
def test_where_new_partitions_begin_is_asked_once(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t", 2)
    query = make(startingOffsets="earliest")
    assert query.batch() == []
    broker.add_partitions("t", 5)
    before = broker.faults.seen("SUBSCRIBE")
    assert query.batch() == []
    # The durable subscription, one that begins at the first entry, and as there is none, whether
    # the broker knows it.
    assert broker.faults.seen("SUBSCRIBE") == before + 3 * 3
    for _ in range(3):
        assert query.batch() == []
    # At rest, once, whether there is something behind the end that nobody can read.
    assert broker.faults.seen("SUBSCRIBE") == before + 3 * 3 + 3


# --- topics that are left out ---------------------------------------------------------------------


@pytest.mark.fault(132)
@pytest.mark.parametrize("how", ["topics", "pattern"])
@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_topic_that_is_left_out_is_told_and_resumed_where_it_was(
    broker: EmbeddedBroker, make: Make, how: str, strict: str, caplog: pytest.LogCaptureFixture
) -> None:
    both = {"topics": "a,b"} if how == "topics" else {"topicsPattern": "a|b"}
    one = {"topics": "b"} if how == "topics" else {"topicsPattern": "b"}
    broker.create_topic("a", 2)
    broker.create_topic("b")
    options = {"startingOffsets": "earliest", "failOnDataLoss": strict}
    stored = [
        store_many(broker, name, 10, first=10 * number)
        for number, name in enumerate(("a-partition-0", "a-partition-1", "b"))
    ]
    query = make(None, **both, **options)
    values = query.batch(Caps(max_messages=15))
    query.source.close()
    stopped = query.start()
    name = stopped.subscription
    assert stopped.ends
    stored.append(store_many(broker, "a-partition-1", 10, first=30))
    for _ in range(2):
        caplog.clear()
        query = make(None, offset=query.committed, **one, **options)
        for _ in range(3):
            values += query.batch()
        assert caplog.text.count("2 topic partitions are left out") == 1
        assert f"--topic {full('a')} --subscription {name} --drop" in caplog.text
        assert "lost" not in caplog.text
        for topic in (full("a-partition-0"), full("a-partition-1")):
            assert query.start().positions[topic] == stopped.positions[topic]
            assert query.start().ends.get(topic) == stopped.ends.get(topic)
            assert broker.subscriptions(topic)[name].consumers == ()
        stored.append(store_many(broker, "b", 10, first=10 * len(stored)))
        query.source.close()
    query = make(None, offset=query.committed, **both, **options)
    values += query.batch()
    assert sorted(values) == sorted(value for part in stored for value in part)
    assert query.batch() == []


@pytest.mark.fault(132)
def test_a_topic_that_is_left_out_may_be_deleted_and_is_a_loss_when_it_is_read_again(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        broker.create_topic(name)
        store_many(broker, name, 10)
    query = make(None, topics="a,b", startingOffsets="earliest")
    assert len(query.batch()) == 20
    query.source.close()
    broker.delete_topic("a")
    new = store_many(broker, "b", 10)
    query = make(None, topics="b", offset=query.committed)
    assert query.batch() == new
    assert query.batch() == []
    assert caplog.text == ""
    assert full("a") in query.start().positions
    query.source.close()
    with pytest.raises(DataLossError, match=r"is gone"):
        make(None, topics="a,b", waitingForNonExistedTopic="true", offset=query.committed).batch()
    broker.create_topic("a")
    with pytest.raises(DataLossError, match=r"does not exist any more.*are gone"):
        make(None, topics="a,b", offset=query.committed).batch()
