"""The driver's part of a stream, without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from pulsar_spark.engine import attaching
from pulsar_spark.errors import ConsumerBusy, DataLossError, TopicNotFound
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.spark.options.stream import Caps
from pulsar_spark.spark.streaming.source import CommitWatch
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import lose_topic
from tests.spark.streams import NO_CAPS, Make, Query, backlogs, queries
from tests.spark.topics import NOW, full, store, store_many
from tests.support.waiting import wait_until


@pytest.fixture
def make(broker: EmbeddedBroker) -> Iterator[Make]:
    with queries(broker.service_url) as made:
        yield made


# --- starting -----------------------------------------------------------------------------------


def test_a_stream_reads_everything_once_and_acknowledges_it(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t", 2)
    expected = [store_many(broker, f"t-partition-{n}", 40) for n in range(2)]
    query = make(startingOffsets="earliest")
    assert query.batch() == expected[0] + expected[1]
    assert backlogs(broker, "t-partition-0") == [4]
    # An idle trigger shows that the batch is committed.
    assert query.batch() == []
    wait_until(lambda: backlogs(broker, "t-partition-0") == [0])
    assert backlogs(broker, "t-partition-1") == [0]
    more = store_many(broker, "t-partition-1", 10)
    assert query.batch() == more
    query.source.commit(query.start())
    wait_until(lambda: backlogs(broker, "t-partition-1") == [0])


SEALED = [pb.EncryptionKeys(key="k", value=b"v")]
CONSUME = {"valueFormat": "raw", "pulsar.reader.cryptoFailureAction": "CONSUME"}


@pytest.mark.fault(40)
def test_a_batch_that_stays_encrypted_is_one_row_wherever_micro_batches_end(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"m"] * 10, encryption_keys=SEALED)
    query = make(startingOffsets="earliest", **CONSUME)
    caps = Caps(max_messages=3)
    assert [len(query.batch(caps)) for _ in range(2)] == [1, 0]
    query = query.restarted()
    assert [len(query.batch(caps)) for _ in range(2)] == [0, 0]


@pytest.mark.fault(40)
def test_the_rest_of_a_batch_that_stays_encrypted_is_logged_where_a_stream_goes_on_in_it(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"m"] * 10, encryption_keys=SEALED)
    discard = {**CONSUME, "pulsar.reader.cryptoFailureAction": "DISCARD"}
    query = make(startingOffsets="earliest", **discard)
    query.batch(Caps(max_messages=3))
    query.source.close()
    caplog.clear()
    assert make(offset=query.start(), **CONSUME).batch() == []
    assert "encrypted batch from 1:0:-1:3 on" in caplog.text
    assert "could not decrypt messages: 7" in caplog.text


@pytest.mark.fault(40)
def test_a_stream_that_is_told_to_start_in_a_batch_that_stays_encrypted_gets_it(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"m"] * 10, encryption_keys=SEALED)
    store(broker, "t", [b"plain"])
    offsets = json.dumps({"t": "1:0:-1:5"})
    query = make(startingOffsets=offsets, **CONSUME)
    caps = Caps(max_messages=3)
    assert [len(query.batch(caps)) for _ in range(2)] == [1, 1]


def test_an_idle_trigger_gives_the_same_offset(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t", 2)
    store_many(broker, "t-partition-0", 10)
    query = make(startingOffsets="earliest")
    query.batch()
    first = query.start()
    assert query.source.latest(first, NO_CAPS) is first
    assert first.to_json() == query.source.latest(first, NO_CAPS).to_json()


def test_latest_is_fixed_when_the_query_first_starts(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t", 2)
    store_many(broker, "t-partition-0", 10)
    query = make()
    initial = query.source.initial()
    assert initial.positions[full("t-partition-0")] == Position(1, 1)
    # The beginning of a topic partition is told from where nothing was kept.
    assert initial.positions[full("t-partition-1")] == Position(2, 0)
    assert query.source.initial() is initial
    new = store_many(broker, "t-partition-0", 10) + store_many(broker, "t-partition-1", 10)
    assert query.batch() == new


def test_the_subscription_is_there_before_the_first_offset(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 10, batch_size=1)
    for options, backlog in (
        ({}, 0),
        ({"startingOffsets": "earliest"}, 10),
        ({"startingOffsets": '{"t": "1:4"}'}, 6),
        ({"startingTime": str(NOW + 8), "publishTimeTolerance": "1ms"}, 3),
    ):
        query = make(**options)
        name = query.source.initial().subscription
        query.source.latest(query.source.initial(), NO_CAPS)
        wait_until(lambda n=name, b=backlog: broker.subscriptions("t")[n].backlog == b)  # type: ignore[misc]
        assert name.startswith("spark-pulsar-")


@pytest.mark.parametrize(
    "option,start",
    [
        ("startingOffsets", '{"t-partition-0": "earliest"}'),
        ("startingTime", '{"t-partition-0": 0}'),
    ],
)
def test_what_the_starts_leave_out_begins_at_latest_and_is_told_once(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture, option: str, start: str
) -> None:
    broker.create_topic("t", 6)
    first = store_many(broker, "t-partition-0", 10)
    store_many(broker, "t-partition-1", 10)
    query = make(**{option: start})
    assert query.batch() == first
    (told,) = [line for line in caplog.messages if "does not name" in line]
    assert told.startswith(f"{option} does not name {full('t-partition-1')}, ")
    assert "and 2 more: they begin at latest" in told
    query.restarted().batch()
    make(startingOffsets="latest").batch()
    assert caplog.text.count("does not name") == 1


def test_a_start_inside_a_batch_is_exact(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t")
    payloads = store_many(broker, "t", 20)
    query = make(startingOffsets='{"t": "1:0:-1:7"}')
    assert query.batch() == payloads[7:]


def test_no_row_before_the_starting_time_is_read_in_any_batch(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    for number, millis in enumerate([NOW - 5000, NOW + 1, NOW - 3000, NOW + 2]):
        store(broker, "t", [b"%d" % number], publish_time=millis)
    query = make(startingTime=str(NOW))
    assert query.batch() == [b"1", b"3"]
    store(broker, "t", [b"late"], publish_time=NOW - 1)
    store(broker, "t", [b"4"], publish_time=NOW + 3)
    query = query.restarted()
    assert query.batch() == [b"4"]


def test_the_first_batch_starts_where_it_did_after_a_restart(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 10)
    query = make()
    start = query.source.initial()
    new = store_many(broker, "t", 10)
    end = query.source.latest(start, NO_CAPS)
    assert end.starts == start.positions
    store_many(broker, "t", 10)
    # Spark keeps only the end of the first batch.
    again = make(offset=StreamOffset.from_json(end.to_json()))
    assert again.source.initial() == start
    query.source.close()
    assert again.read(again.source.initial(), end) == new
    assert again.source.latest(end, NO_CAPS).starts is None


@pytest.mark.fault(71)
@pytest.mark.parametrize("grows", [False, True], ids=["same", "grown"])
@pytest.mark.parametrize("more", [0, 30])
@pytest.mark.parametrize("rows", [0, 20])
@pytest.mark.parametrize("named", [False, True], ids=["made up", "named"])
@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_a_first_batch_that_was_not_finished_comes_again_as_it_was(
    broker: EmbeddedBroker,
    make: Make,
    starting: str,
    named: bool,
    rows: int,
    more: int,
    grows: bool,
) -> None:
    """Spark asks a restarted query for a start, which is chosen anew, and passes the old end."""
    broker.create_topic("t", 2)
    options = {"startingOffsets": starting, **({"subscription": "s"} if named else {})}
    old = store_many(broker, "t-partition-0", 50)
    query = make(**options)
    start = query.source.initial()
    expected = [] if starting == "latest" else old
    expected += store_many(broker, "t-partition-0", rows) if rows else []
    end = query.source.latest(start, NO_CAPS)
    query.source.close()
    new = store_many(broker, "t-partition-1", more) if more else []
    if grows:
        broker.add_partitions("t", 3)
        new += store_many(broker, "t-partition-2", 10)
    again = make(**options)
    other = again.source.initial()
    assert again.read(other, StreamOffset.from_json(end.to_json())) == expected
    again.committed = end
    assert sorted(again.batch()) == sorted(new)
    assert again.batch() == []
    again.source.close()
    for number in range(3 if grows else 2):
        found = broker.subscriptions(f"t-partition-{number}")
        assert {name for name, view in found.items() if view.durable} == {end.subscription}
        wait_until(lambda n=number: backlogs(broker, f"t-partition-{n}") == [0])  # type: ignore[misc]


def lose(broker: EmbeddedBroker, topic: str, name: str, loss: str) -> None:
    """Lose what a topic partition has."""
    if loss == "made again":
        broker.delete_topic(topic)
        broker.create_topic(topic, 2)
        return
    partition = f"{topic}-partition-1"
    if loss == "removed":
        broker.remove_subscription(partition, name)
    else:
        broker.expire_messages(partition, name, 0)
    broker.roll_ledger(full(partition))
    broker.trim(partition, Position(2**40, 0))


@pytest.mark.fault(71)
@pytest.mark.parametrize("loss", ["removed", "expired", "made again"])
@pytest.mark.parametrize("named", [False, True], ids=["made up", "named"])
@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_what_is_lost_behind_a_first_batch_that_was_not_finished_is_noticed(
    broker: EmbeddedBroker, make: Make, starting: str, named: bool, loss: str
) -> None:
    broker.create_topic("t", 2)
    options = {"startingOffsets": starting, **({"subscription": "s"} if named else {})}
    query = make(**options)
    store_many(broker, "t-partition-0", 10)
    end = query.source.latest(query.source.initial(), NO_CAPS)
    query.source.close()
    store_many(broker, "t-partition-1", 10)
    lose(broker, "t", end.subscription, loss)
    again = make(**options)
    again.source.plan(again.source.initial(), StreamOffset.from_json(end.to_json()))
    with pytest.raises(DataLossError):
        again.source.latest(end, NO_CAPS)


def test_a_start_that_fails_leaves_no_subscription_behind(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 10)
    with pytest.raises(DataLossError):
        make(startingOffsets='{"t": "0:4"}').source.initial()
    wait_until(lambda: broker.subscriptions("t") == {})
    with pytest.raises(TopicNotFound):
        make("none").source.initial()


def test_a_query_that_ends_before_its_first_offset_leaves_no_subscription_behind(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 10)
    query = make(startingOffsets="earliest")
    assert query.source.initial().subscription in broker.subscriptions("t")
    query.source.close()
    wait_until(lambda: broker.subscriptions("t") == {})
    query.source.close()


@pytest.mark.parametrize("how", ["its own name", "an offset was chosen", "a checkpoint names it"])
def test_a_query_that_ends_leaves_a_subscription_that_a_restart_can_need(
    broker: EmbeddedBroker, make: Make, how: str
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 10)
    query = make(**{"subscription": "mine"} if how == "its own name" else {})
    start = query.source.initial()
    if how != "its own name":
        end = query.source.latest(start, NO_CAPS)
    if how == "a checkpoint names it":
        query.source.close()
        query = make(offset=StreamOffset.from_json(end.to_json()))
        query.source.initial()
        query.source.latest(end, NO_CAPS)
    query.source.close()
    wait_until(lambda: list(broker.subscriptions("t")) == [start.subscription])


# --- restarting ---------------------------------------------------------------------------------


@pytest.mark.fault(71)
def test_a_restart_goes_on_exactly_and_never_moves_the_subscription_back(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    first = store_many(broker, "t", 30)
    query = make(startingOffsets="earliest", subscription="mine")
    assert query.batch() == first
    query.batch()
    wait_until(lambda: backlogs(broker, "t") == [0])
    more = store_many(broker, "t", 20)
    query = query.restarted()
    assert backlogs(broker, "t") == [2]
    assert query.batch() == more
    assert query.batch() == []
    wait_until(lambda: broker.subscriptions("t")["mine"].backlog == 0)
    assert list(broker.subscriptions("t")) == ["mine"]


@pytest.mark.fault(70)
def test_two_queries_on_one_name_are_told_apart(
    broker: EmbeddedBroker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "BUSY_SECONDS", 1.0)
    broker.create_topic("t")
    store_many(broker, "t", 10)
    first = make(startingOffsets="earliest", subscription="mine")
    first.batch()
    with pytest.raises(ConsumerBusy, match="give each its own name"):
        make(startingOffsets="earliest", subscription="mine").batch()
    assert first.batch() == []


def test_another_name_takes_over_at_the_position_of_the_checkpoint(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 30)
    query = make(startingOffsets="earliest", subscription="old")
    query.batch()
    new = store_many(broker, "t", 20)
    other = make(offset=query.start(), subscription="new")
    assert other.batch() == new
    assert "the option subscription is new" in caplog.text
    assert other.start().subscription == "new"
    other.batch()
    wait_until(lambda: broker.subscriptions("t")["new"].backlog == 0)


@pytest.mark.fault(73)
def test_a_subscription_that_was_removed_is_made_again_at_the_position_of_the_checkpoint(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 30)
    query = make(startingOffsets="earliest", subscription="mine")
    query.batch()
    query.source.close()
    remover = make(offset=query.start())
    remover.source.latest(query.start(), NO_CAPS)
    remover.source._abandon(remover.source._open("mine"))
    assert broker.subscriptions("t") == {}
    new = store_many(broker, "t", 20)
    query = query.restarted()
    end = query.source.latest(query.start(), NO_CAPS)
    assert (
        "was removed or emptied by others; it is set to the query's position 1:3:0" in caplog.text
    )
    wait_until(lambda: broker.subscriptions("t")["mine"].backlog == 2)
    assert query.read(query.start(), end) == new


@pytest.mark.fault(14)
def test_a_consumer_that_the_broker_left_without_its_topic_loses_no_message(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t", 2)
    expected = store_many(broker, "t-partition-0", 20)
    query = make(startingOffsets="earliest")
    assert query.batch() == expected
    lose_topic(broker, full("t-partition-0"))
    more = store_many(broker, "t-partition-0", 20)
    assert query.batch() == more
    assert query.batch() == []
    wait_until(lambda: backlogs(broker, "t-partition-0") == [0])
    # A subscription that was confirmed is not confirmed again.
    subscribed = broker.faults.seen("SUBSCRIBE")
    for _ in range(3):
        assert query.batch() == []
    assert broker.faults.seen("SUBSCRIBE") == subscribed


# --- batches ------------------------------------------------------------------------------------


def test_ranges_are_split_over_tasks(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t", 2)
    expected = [store_many(broker, f"t-partition-{n}", 100) for n in range(2)]
    query = make(startingOffsets="earliest", partitionsPerTopicPartition="3")
    start = query.source.initial()
    planned = query.source.plan(start, query.source.latest(start, NO_CAPS))
    assert len(planned) == 6
    assert query.values(planned) == expected[0] + expected[1]


def test_the_end_is_fixed_where_it_is_told_to(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t", 2)
    first = store_many(broker, "t-partition-0", 10)
    query = make(startingOffsets="earliest")
    query.source.fix_end()
    assert query.source.end_is_fixed
    store_many(broker, "t-partition-0", 10)
    store_many(broker, "t-partition-1", 10)
    broker.add_partitions("t", 3)
    store_many(broker, "t-partition-2", 10)
    assert query.batch() == first
    assert query.batch() == []


def test_nothing_is_left_open_at_the_end(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t", 2)
    query = make()
    query.batch()
    query.source.close()
    query.source.close()
    wait_until(lambda: broker.clients == 0)
    assert len(broker.subscriptions("t-partition-0")) == 1


# --- admission ------------------------------------------------------------------------------------


def test_batches_keep_to_the_caps(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t", 2)
    expected = [store_many(broker, f"t-partition-{n}", 60, batch_size=1) for n in range(2)]
    query = make(startingOffsets="earliest")
    sizes = []
    values = []
    while batch := query.batch(Caps(50)):
        sizes.append(len(batch))
        values += batch
    assert sizes == [50, 50, 20]
    assert sorted(values) == sorted(expected[0] + expected[1])
    wait_until(lambda: backlogs(broker, "t-partition-0") == [0])


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("partitions", [1, 10, 100, 1000])
def test_a_capped_trigger_takes_64_subscriptions_however_many_partitions_there_are(
    broker: EmbeddedBroker, make: Make, partitions: int
) -> None:
    broker.create_topic("t", partitions)
    for number in range(partitions):
        store_many(broker, f"t-partition-{number}", 30)
    query = make(startingOffsets="earliest")
    query.start()
    cap, found = 10 * partitions, 0
    asked = ("SUBSCRIBE", "GET_LAST_MESSAGE_ID", "LOOKUP", "FLOW")
    for _ in range(2):
        before = {name: broker.faults.seen(name) for name in asked}
        end = query.source.latest(query.start(), Caps(cap))
        new = {name: broker.faults.seen(name) - before[name] for name in asked}
        assert new["SUBSCRIBE"] <= 64
        assert new["LOOKUP"] <= 64
        assert new["GET_LAST_MESSAGE_ID"] <= partitions + 3 * 64
        taken = len(query.read(query.start(), end))
        assert 0 < taken <= cap
        found += taken
        query.committed = end
    # The others are as those that were looked at, and are taken whole.
    assert found > 0.8 * 2 * cap


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("partitions", [1, 10, 100])
def test_a_cap_that_does_not_bind_takes_few_subscriptions_in_each_trigger(
    broker: EmbeddedBroker, make: Make, partitions: int
) -> None:
    broker.create_topic("t", partitions)
    query = make(startingOffsets="earliest")
    query.batch(Caps(100_000))
    for size in (1, 1, 20):
        for number in range(partitions):
            store_many(broker, f"t-partition-{number}", 200 // partitions * size, batch_size=size)
        before = broker.faults.seen("SUBSCRIBE")
        end = query.source.latest(query.start(), Caps(100_000))
        assert broker.faults.seen("SUBSCRIBE") - before <= 16
        assert len(query.read(query.start(), end)) == 200 * size
        query.committed = end


@pytest.mark.parametrize("indexed", [False, True])
def test_a_batch_that_ends_inside_an_entry_is_acknowledged_by_its_bits(indexed: bool) -> None:
    own = EmbeddedBroker(expose_entry_metadata=indexed)
    with own as broker, queries(broker.service_url) as make:
        broker.create_topic("t")
        expected = store_many(broker, "t", 30)
        query = make(startingOffsets="earliest")
        values, sizes = [], []
        while batch := query.batch(Caps(7)):
            sizes.append(len(batch))
            values += batch
        assert sizes == [7, 7, 7, 7, 2]
        assert values == expected
        wait_until(lambda: backlogs(broker, "t") == [0])
        assert any(seen.body.message_id[0].ack_set for seen in broker.faults.log("ACK"))


def test_a_batch_waits_for_a_least_number_of_messages(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest")
    query.batch()
    caps = Caps(min_messages=30, max_delay=60.0)
    expected = store_many(broker, "t", 20)
    assert query.batch(caps) == []
    expected += store_many(broker, "t", 20)
    assert query.batch(caps) == expected
    late = store_many(broker, "t", 5)
    assert query.batch(caps) == []
    assert query.batch(Caps(min_messages=30, max_delay=0.0)) == late


def test_the_first_batch_after_a_start_does_not_wait(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t")
    caps = Caps(min_messages=1000, max_delay=900.0)
    expected = store_many(broker, "t", 20)
    query = make(startingOffsets="earliest")
    assert query.batch(caps) == expected
    late = store_many(broker, "t", 20)
    assert query.batch(caps) == []
    query = query.restarted()
    assert query.batch(caps) == late


def test_available_now_waits_for_nothing(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t")
    expected = store_many(broker, "t", 20)
    query = make(startingOffsets="earliest")
    query.source.fix_end()
    caps = Caps(max_messages=10, min_messages=10, max_delay=60.0)
    assert [query.batch(caps), query.batch(caps), query.batch(caps)] == [
        expected[:10],
        expected[10:],
        [],
    ]


def test_the_only_batch_of_available_now_is_acknowledged(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    expected = store_many(broker, "t", 20)
    query = make(startingOffsets="earliest")
    query.source.fix_end()
    assert query.batch() == expected
    assert backlogs(broker, "t") == [2]
    assert query.batch() == []
    query.source.close()
    assert backlogs(broker, "t") == [0]


@pytest.mark.fault(76)
@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("partitions", [1, 10, 100, 1000])
def test_the_start_of_a_stream_asks_once_about_each_partition(
    broker: EmbeddedBroker, make: Make, partitions: int, start: str
) -> None:
    broker.create_topic("t", partitions)
    for number in range(0, partitions, 2):
        store_many(broker, f"t-partition-{number}", 10)
    query = make(startingOffsets=start)
    query.start()
    asked = {
        name: broker.faults.seen(name, direction="in")
        for name in ("SUBSCRIBE", "GET_LAST_MESSAGE_ID", "LOOKUP", "CLOSE_CONSUMER")
    }
    # One of them is asked beside its subscription, as tasks will be, and again if it is empty.
    assert asked["LOOKUP"] == asked["GET_LAST_MESSAGE_ID"] == partitions + 1
    assert asked["SUBSCRIBE"] <= partitions + 2
    assert asked["CLOSE_CONSUMER"] <= 2
    expected = 10 * -(-partitions // 2) if start == "earliest" else 0
    assert len(query.batch()) == expected


def test_a_thousand_partitions_without_news_are_asked_at_once(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t", 1000)
    query = make(startingOffsets="earliest")
    query.batch()
    started = time.monotonic()
    with broker.faults.delay("GET_LAST_MESSAGE_ID", 0.05, times=None) as delayed:
        assert query.batch() == []
    assert delayed.hits == 1000
    # One after another they would take 50 seconds.
    assert time.monotonic() - started < 20


# --- commits --------------------------------------------------------------------------------------


def at(entry: int) -> StreamOffset:
    return StreamOffset("s", {full("t"): Position(1, entry)})


@pytest.mark.fault(71)
def test_what_a_checkpoint_gave_is_held_by_it() -> None:
    assert CommitWatch().holds(at(5))


@pytest.mark.fault(71)
def test_the_first_batch_of_a_process_has_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = CommitWatch()
    watch.on_plan(at(0), at(5))
    assert not watch.holds(at(5))
    monkeypatch.setattr(watch, "settle_seconds", 0.0)
    assert watch.holds(at(5))
    monkeypatch.setattr(watch, "settle_seconds", 3600.0)
    assert not watch.holds(at(9))


@pytest.mark.fault(71)
@pytest.mark.parametrize("repeated", [False, True])
def test_batches_that_are_committed_before_the_next_one_is_planned_are_held(repeated: bool) -> None:
    watch = CommitWatch()
    watch.on_plan(at(0), at(5))
    watch.on_commit(at(5))
    for _ in range(1 + repeated):
        watch.on_plan(at(5), at(9))
    assert watch.holds(at(9))


@pytest.mark.fault(71)
def test_batches_that_are_committed_later_are_not_held(caplog: pytest.LogCaptureFixture) -> None:
    watch = CommitWatch()
    for entry in range(4):
        watch.on_plan(at(entry), at(entry + 1))
        if entry:
            watch.on_commit(at(entry - 1))
    assert not watch.holds(at(4))
    assert caplog.text.count("asyncProgressTrackingEnabled") == 1


# --- asynchronous progress tracking -------------------------------------------------------------


def run_late(query: Query, start: StreamOffset) -> StreamOffset:
    """Run a micro-batch that is reported as committed later, or never; return its end."""
    end = query.source.latest(start, NO_CAPS)
    query.read(start, end)
    return StreamOffset.from_json(end.to_json())


@pytest.mark.fault(71)
@pytest.mark.parametrize("unwritten", [0, 1, 3])
def test_micro_batches_that_are_repeated_as_one_begin_where_their_first_one_did(
    broker: EmbeddedBroker, make: Make, unwritten: int
) -> None:
    """With asynchronous progress tracking Spark writes only some of the ends."""
    broker.create_topic("t", 1)
    store_many(broker, "t-partition-0", 10)
    query = make(startingOffsets="earliest")
    written = end = run_late(query, query.source.initial())
    broker.add_partitions("t", 2)
    expected = []
    for _ in range(unwritten + 1):
        expected += store_many(broker, "t-partition-1", 10)
        end = run_late(query, end)
        broker.roll_ledger(full("t-partition-1"))
    query.source.close()
    again = make(offset=end)
    assert again.read(written, end) == expected


@pytest.mark.fault(71)
@pytest.mark.parametrize("rolls", [[1], [0, 1], [2]], ids=str)
def test_a_loss_within_micro_batches_that_are_repeated_as_one_is_noticed(
    broker: EmbeddedBroker, make: Make, rolls: list[int]
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 10)
    query = make(startingOffsets="earliest")
    written = end = run_late(query, query.source.initial())
    for number in range(3):
        if number in rolls:
            broker.roll_ledger(full("t"))
        store_many(broker, "t", 10)
        end = run_late(query, end)
    query.source.close()
    broker.expire_messages("t", end.subscription, 0)
    broker.roll_ledger(full("t"))
    broker.trim("t", end.positions[full("t")]._replace(entry_id=0))
    again = make(offset=end)
    with pytest.raises(DataLossError):
        again.read(written, end)


def test_no_first_entries_are_kept_where_commits_are_not_late(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest")
    for _ in range(4):
        store_many(broker, "t", 10)
        query.batch()
        query.source.commit(query.start())
    assert not query.source.commits._open
    assert not query.start().firsts
