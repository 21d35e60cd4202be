"""Changes of a stream's topics, on both brokers: nothing is lost silently or read twice."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.errors import DataLossError, TopicNotFound
from pulsar_spark.protocol.outgoing_messages import MessageFields
from pulsar_spark.spark.options.stream import Caps
from tests.integration.brokers import Broker, Embedded, Real
from tests.integration.java_peer import JavaContent, JavaPeer
from tests.integration.messages import clustered, read_rows
from tests.integration.streams import (
    Feed,
    backlog,
    drained,
    remove_subscription,
)
from tests.spark.streams import NO_CAPS, Make, Query
from tests.support.real_broker import rest_path
from tests.support.waiting import wait_until


@pytest.mark.fault(63)
def test_empty_topics_have_no_rows_and_take_no_time(broker: Broker, make: Make, feed: Feed) -> None:
    topic = broker.create_topic()
    query = make(topic, startingOffsets="earliest")
    started = time.monotonic()
    assert query.batch() == []
    assert query.batch() == []
    assert time.monotonic() - started < 15
    assert query.restarted().batch() == []
    new = feed(topic, [0])
    assert query.batch() == new
    broker.trim(topic)
    assert query.batch() == []
    new = feed(topic, [2])
    assert query.batch() == new
    drained(broker, query, topic)


@pytest.mark.fault(58, 73)
@pytest.mark.parametrize("after", [0, 3], ids=["empty", "filled"])
def test_what_came_without_a_subscription_and_is_deleted_is_a_loss_at_the_restart(
    broker: Broker, make: Make, feed: Feed, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.create_topic()
    strict = make(topic, startingOffsets="earliest")
    loose = make(topic, startingOffsets="earliest", failOnDataLoss="false")
    read = feed(topic, [3, 0])
    for query in (strict, loose):
        assert query.batch() == read
        query.source.close()
        remove_subscription(broker, topic, query.start().subscription)
    feed(topic, [5, 0])
    broker.roll_ledger(topic)
    feed(topic, [5, 0])
    broker.trim(topic)
    broker.unload(topic)
    new = feed(topic, [after]) if after else []
    with pytest.raises(DataLossError, match="are gone"):
        strict.restarted().batch()
    loose = loose.restarted()
    assert loose.batch() == new
    assert "are gone" in caplog.text
    new = feed(topic, [2])
    assert loose.batch() == new


@pytest.mark.fault(58)
def test_a_restart_knows_what_was_left_to_read_and_is_deleted(
    broker: Broker, make: Make, feed: Feed
) -> None:
    topic = broker.create_topic()
    query = make(topic, startingOffsets="earliest")
    sent = [message for _ in range(6) for message in feed(topic, [1])]
    assert query.batch(Caps(max_messages=2)) == sent[:2]
    query.source.close()
    broker.trim(topic)
    broker.unload(topic)
    with pytest.raises(DataLossError, match=r"are gone \(4 entries at least\)"):
        query.restarted().batch()


@pytest.mark.fault(58, 61)
def test_ledgers_that_were_read_go_without_an_alarm(broker: Broker, make: Make, feed: Feed) -> None:
    topic = broker.create_topic()
    query = make(topic, startingOffsets="earliest")
    for number in range(4):
        new = feed(topic, [3, 0])
        assert query.batch() == new
        assert query.batch() == []
        if number % 2:
            broker.trim(topic)
        else:
            broker.roll_ledger(topic)
        assert query.batch() == []
        query = query.restarted()
    drained(broker, query, topic)


@pytest.mark.fault(58)
def test_what_is_trimmed_unread_is_data_loss(
    broker: Broker, make: Make, feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.create_topic()
    strict, loose = (
        make(topic, startingOffsets="earliest", failOnDataLoss=value) for value in ("true", "false")
    )
    feed(topic, [3])
    for query in (strict, loose):
        assert len(query.batch()) == 3
    feed(topic, [3])
    # Seen, and not yet read.
    for query in (strict, loose):
        query.source.latest(query.start(), Caps(1))
    broker.trim(topic)
    kept = feed(topic, [2, 2])
    with pytest.raises(DataLossError, match="are gone"):
        strict.batch()
    assert loose.batch() == kept
    assert "data was lost" in caplog.text
    drained(broker, loose, topic)


@pytest.mark.fault(57)
def test_new_partitions_are_read_from_their_beginning(
    broker: Broker, make: Make, feed: Feed
) -> None:
    topic = broker.create_topic(partitions=3)
    query = make(topic)
    query.batch()
    broker.add_partitions(topic, 6)
    new = feed(broker.partitions_of(topic, 6)[5], [4])
    assert query.batch() == new
    drained(broker, query, *broker.partitions_of(topic, 6))


@pytest.mark.fault(57)
def test_a_batch_that_was_decided_on_does_not_change_with_the_partitions(
    broker: Broker, make: Make, feed: Feed
) -> None:
    topic = broker.create_topic(partitions=2)
    old = feed(broker.partitions_of(topic, 2)[1], [3])
    query = make(topic, startingOffsets="earliest")
    start = query.start()
    end = query.source.latest(start, NO_CAPS)
    broker.add_partitions(topic, 4)
    new = feed(broker.partitions_of(topic, 4)[3], [4])
    assert query.read(start, end) == old
    query.committed = end
    assert query.batch() == new


@pytest.mark.fault(57)
def test_new_topics_of_a_pattern_are_read_from_their_beginning(
    broker: Broker, make: Make, feed: Feed
) -> None:
    namespace = broker.create_namespace()
    one = broker.create_topic(broker.unique_topic("one", namespace))
    query = make(None, topicsPattern=f"persistent://{namespace}/(one|two)-.*")
    assert query.batch() == []
    two = broker.create_topic(broker.unique_topic("two", namespace))
    broker.create_topic(broker.unique_topic("three", namespace))
    new = feed(one, [2]) + feed(two, [2, 0])
    assert query.batch() == new
    drained(broker, query, one, two)


@pytest.mark.fault(54)
def test_a_topic_that_is_deleted_during_a_batch_fails_its_tasks_unless_that_is_allowed(
    broker: Broker, make: Make, feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.create_topic()
    feed(topic, [3, 0])
    strict, loose = (
        make(topic, startingOffsets="earliest", failOnDataLoss=value, pollTimeout="60s")
        for value in ("true", "false")
    )
    planned = []
    for query in (strict, loose):
        start = query.start()
        planned.append(query.source.plan(start, query.source.latest(start, NO_CAPS)))
        # Once the topic is gone, nobody can ask for its schema.
        assert len(query.values(planned[-1])) == 4
    broker.delete_topic(topic)
    with pytest.raises((DataLossError, TopicNotFound)):
        strict.values(planned[0])
    assert loose.values(planned[1]) == []
    assert "data was lost" in caplog.text


@pytest.mark.fault(54)
def test_a_deleted_topic_is_data_loss(broker: Broker, make: Make, feed: Feed) -> None:
    one, two = (broker.create_topic() for _ in range(2))
    options = {"topics": f"{one},{two}", "startingOffsets": "earliest"}
    strict, loose = (make(None, failOnDataLoss=value, **options) for value in ("true", "false"))
    for topic in (one, two):
        feed(topic, [3])
    for query in (strict, loose):
        assert len(query.batch()) == 6
    broker.delete_topic(one)
    with pytest.raises(DataLossError, match="is gone"):
        strict.batch()
    new = feed(two, [2])
    assert loose.batch() == new
    assert set(loose.start().positions) == {two}


@pytest.mark.fault(55)
def test_a_topic_that_is_made_anew_is_data_loss_and_its_messages_are_read_once(
    broker: Broker, make: Make, feed: Feed
) -> None:
    topic = broker.create_topic()
    strict, loose = (
        make(topic, startingOffsets="earliest", failOnDataLoss=value) for value in ("true", "false")
    )
    feed(topic, [3])
    for query in (strict, loose):
        assert len(query.batch()) == 3
        query.source.close()
    broker.delete_topic(topic)
    broker.create_topic(topic)
    new = feed(topic, [2, 0])
    with pytest.raises(DataLossError, match=r"are gone|rolled back"):
        strict.restarted().batch()
    strict.source.close()
    loose = loose.restarted()
    assert loose.batch() == new
    assert loose.batch() == []
    new = feed(topic, [2])
    assert loose.batch() == new
    drained(broker, loose, topic)


@pytest.mark.fault(56)
def test_a_terminated_topic_is_read_to_its_end(broker: Broker, make: Make, feed: Feed) -> None:
    topic = broker.create_topic()
    payloads = feed(topic, [3, 0, 2])
    query = make(topic, startingOffsets="earliest")
    broker.terminate(topic)
    assert query.batch() == payloads
    drained(broker, query, topic)


@pytest.mark.fault(59)
def test_a_durable_subscription_keeps_what_nobody_else_would(
    broker: Broker, make: Make, feed: Feed
) -> None:
    if isinstance(broker, Real):
        namespace = f"public/gone-{time.time_ns()}"
        broker.own.admin("PUT", f"namespaces/{namespace}")
    else:
        namespace = broker.create_namespace()
    topic = broker.create_topic(broker.unique_topic(namespace=namespace))
    query = make(topic)
    query.batch()
    query.source.close()
    new = feed(topic, [3, 0])
    for _ in range(2):
        broker.unload(topic)
        new += feed(topic, [1])
    query = query.restarted()
    assert query.batch() == new
    drained(broker, query, topic)


# --- a subscription that is missing, or passed what was not read ----------------------------------


def create_fleeting(broker: Broker, partitions: int = 0) -> str:
    """Create a topic in a namespace that keeps nothing that is acknowledged."""
    namespace = broker.create_namespace()
    if isinstance(broker, Real):
        none = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        broker.own.admin("POST", f"namespaces/{namespace}/retention", none)
    return broker.create_topic(broker.unique_topic(namespace=namespace), partitions)


def reload(broker: Broker, topic: str) -> None:
    """Load a topic again and delete its ledgers; subscriptions have acknowledged them."""
    if isinstance(broker, Embedded):
        broker.unload(topic)
    broker.trim(topic)


def pass_over(broker: Broker, topic: str, how: str) -> None:
    """Acknowledge all on the subscription mine, as an administrator or TTL does."""
    if how == "truncated":
        broker.trim(topic)
        return
    if how == "expired":
        # The broker counts in seconds.
        time.sleep(1.5)
        broker.expire(topic, "mine", 1)
    elif isinstance(broker, Real):
        broker.own.admin("POST", f"{rest_path(topic)}/subscription/mine/skip_all")
    else:
        broker.expire(topic, "mine", -1)
    wait_until(lambda: backlog(broker, topic, "mine") == 0, f"nothing is {how}")


@pytest.mark.fault(130)
@pytest.mark.parametrize("partitions,again", [(0, 0), (2, 2), (3, 2), (2, 3)])
@pytest.mark.parametrize("new", [0, 3])
def test_a_topic_that_is_made_again_while_its_query_runs_is_a_loss(
    broker: Broker,
    make: Make,
    feed: Feed,
    partitions: int,
    again: int,
    new: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = create_fleeting(broker, partitions)
    strict, loose = (
        make(topic, startingOffsets="earliest", failOnDataLoss=value) for value in ("true", "false")
    )
    old = feed(topic, [3, 0])
    for query in (strict, loose):
        assert sorted(query.batch()) == sorted(old)
        assert query.batch() == []
    feed(topic, [5, 0])
    broker.delete_topic(topic)
    broker.create_topic(topic, again)
    if not new:
        # Its consumers come back before anybody asks.
        for name in broker.partitions_of(topic, again) if again else [topic]:
            broker.unload(name) if isinstance(broker, Embedded) else None
    written = feed(topic, [new]) if new else []
    with pytest.raises(DataLossError, match=r"does not exist any more.*are gone|is gone"):
        strict.batch()
    assert sorted(loose.batch()) == sorted(written)
    assert "data was lost" in caplog.text
    with pytest.raises(DataLossError):
        strict.restarted().batch()
    strict.source.close()
    more = feed(topic, [2])
    assert sorted(loose.batch()) == sorted(more)
    assert loose.batch() == []


@pytest.mark.fault(130)
def test_one_partition_that_is_made_again_is_a_loss(broker: Broker, make: Make, feed: Feed) -> None:
    topic = create_fleeting(broker, 2)
    one, two = broker.partitions_of(topic, 2)
    query = make(topic, startingOffsets="earliest")
    old = feed(one, [3]) + feed(two, [3])
    assert sorted(query.batch()) == sorted(old)
    feed(one, [5])
    broker.delete_topic(one)
    feed(one, [5])
    with pytest.raises(DataLossError, match=r"does not exist any more.*are gone"):
        query.batch()


@pytest.mark.fault(131)
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("how", ["expired", "skipped", "truncated"])
def test_what_a_subscription_passes_unread_and_is_deleted_is_a_loss_without_news(
    broker: Broker,
    make: Make,
    feed: Feed,
    restarts: bool,
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = create_fleeting(broker)
    query = make(topic, startingOffsets="earliest", subscription="mine")
    old = feed(topic, [3, 0])
    assert query.batch() == old
    assert query.batch() == []
    if restarts:
        query.source.close()
    feed(topic, [5, 0])
    pass_over(broker, topic, how)
    if how != "truncated":
        reload(broker, topic)
    if restarts:
        query = query.restarted()
        query.source.fix_end()
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"are gone \(2 entries at"):
            query.batch()
        query = query.restarted()
    query.source.close()
    loose = make(topic, subscription="mine", failOnDataLoss="false", offset=query.committed)
    assert loose.batch() == []
    assert "are gone (2 entries at" in caplog.text
    new = feed(topic, [2])
    assert loose.batch() == new


@pytest.mark.fault(131)
@pytest.mark.parametrize("unloads", [1, 2])
def test_a_subscription_that_is_removed_again_and_again_is_a_loss(
    broker: Broker, make: Make, feed: Feed, unloads: int
) -> None:
    topic = create_fleeting(broker)
    query = make(topic, startingOffsets="earliest", subscription="mine")
    old = feed(topic, [3, 0])
    assert query.batch() == old
    assert query.batch() == []
    wait_until(lambda: backlog(broker, topic, "mine") == 0, "it is not acknowledged")
    for _ in range(3):
        feed(topic, [2])
        if backlog(broker, topic, "mine") >= 0:
            remove_subscription(broker, topic, "mine")
    for _ in range(unloads):
        reload(broker, topic)
    with pytest.raises(DataLossError, match=r"mine does not exist any more.*are gone"):
        query.batch()


@pytest.mark.fault(131)
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_a_topic_that_was_read_loses_all_its_ledgers_without_a_word(
    broker: Broker, make: Make, feed: Feed, restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    topic = create_fleeting(broker)
    query = make(topic, startingOffsets="earliest", subscription="mine")
    for sizes in ([3, 0], [2]):
        new = feed(topic, sizes)
        assert query.batch() == new
        assert query.batch() == []
        wait_until(lambda: backlog(broker, topic, "mine") == 0, "it is not acknowledged")
        reload(broker, topic)
        if restarts:
            query = query.restarted()
        assert query.batch() == []
    assert "lost" not in caplog.text
    assert "subscription" not in caplog.text


# --- topic partitions of which nothing was read ---------------------------------------------------

BEGINNINGS = ["earliest", "latest", "json", "time", "partition", "topic", "capped", "held"]


def unread_partition(
    broker: Broker, make: Make, feed: Feed, beginning: str
) -> tuple[Query, str, list[bytes]]:
    """Return a query that has read nothing of a partition, that, and what is there.

    It looked at the partition when it started, or when that was new.
    """
    topic = create_fleeting(broker, {"partition": 1, "capped": 2}.get(beginning, 0))
    if beginning in ("earliest", "latest", "json", "time"):
        options = {
            "earliest": {"startingOffsets": "earliest"},
            "latest": {},
            "json": {"startingOffsets": f'{{"{topic}": "earliest"}}'},
            "time": {"startingTime": "-1h"},
        }[beginning]
        query = make(topic, subscription="mine", **options)
        assert query.batch() == []
        return query, topic, []
    options = {"startingOffsets": "earliest", "subscription": "mine"}
    if beginning == "capped":
        query = make(topic, **options)
        stored = {name: feed(name, [0, 0]) for name in broker.partitions_of(topic, 2)}
        (read,) = query.batch(Caps(max_messages=1))
        (name,) = (name for name, values in stored.items() if read not in values)
        return query, name, stored[name]
    if beginning == "held":
        query = make(topic, **options)
        assert query.batch() == []
        stored = {topic: feed(topic, [0, 0])}
        assert query.batch(Caps(min_messages=100, max_delay=60.0)) == []
        return query, topic, stored[topic]
    if beginning == "partition":
        query = make(topic, **options)
        old = feed(broker.partitions_of(topic, 1)[0], [3])
        assert query.batch() == old
        broker.add_partitions(topic, 2)
        assert query.batch() == []
        return query, broker.partitions_of(topic, 2)[1], []
    other = f"{topic}-other"
    query = make(None, topicsPattern=f"{topic}.*", **options)
    old = feed(topic, [3])
    assert query.batch() == old
    broker.create_topic(other)
    assert query.batch() == []
    return query, other, []


@pytest.mark.fault(150)
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize(
    "beginning,how",
    [("earliest", "expired"), ("earliest", "skipped")]
    + [(beginning, "truncated") for beginning in BEGINNINGS],
)
def test_what_a_subscription_passes_before_anything_was_read_is_a_loss(
    broker: Broker,
    make: Make,
    feed: Feed,
    beginning: str,
    how: str,
    restarts: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    query, name, _ = unread_partition(broker, make, feed, beginning)
    if restarts:
        query.source.close()
    feed(name, [5, 0])
    pass_over(broker, name, how)
    if how != "truncated":
        reload(broker, name)
    if restarts:
        query = query.restarted()
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"are gone") as caught:
            query.batch()
        assert caught.value.topic == name
        query = query.restarted()
    query = query.restarted(loose=True)
    # What other partitions still had.
    assert len(query.batch()) == (beginning == "capped")
    assert caplog.text.count("data was lost") == 1
    new = feed(name, [2])
    assert query.batch() == new
    assert query.batch() == []


@pytest.mark.fault(150)
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_what_came_before_anything_was_read_is_read_after_restarts_without_an_alarm(
    broker: Broker, make: Make, feed: Feed, beginning: str, caplog: pytest.LogCaptureFixture
) -> None:
    query, name, there = unread_partition(broker, make, feed, beginning)
    # Brokers move the subscription of an empty topic to each new ledger.
    for again in range(3):
        broker.unload(name) if again % 2 else broker.roll_ledger(name)
        query = query.restarted()
        assert beginning in ("capped", "held") or query.batch() == []
    new = there + feed(name, [5, 0])
    query = query.restarted()
    found = query.batch()
    assert [value for value in found if value in new] == new
    assert query.batch() == []
    assert "lost" not in caplog.text
    assert "subscription" not in caplog.text


# --- expiry, transactions, compaction -------------------------------------------------------------


@pytest.fixture(scope="module")
def java(request: pytest.FixtureRequest) -> Iterator[JavaPeer]:
    peer = JavaPeer(request.getfixturevalue("_distribution"))
    yield peer
    peer.close()


@pytest.mark.fault(58)
def test_expiry_moves_the_subscription_and_the_query_reads_what_is_stored(
    broker: Broker, make: Make, feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.create_topic(broker.unique_topic(namespace=broker.create_namespace()))
    query = make(topic, startingOffsets="earliest", subscription="mine")
    read = feed(topic, [3, 0])
    assert query.batch() == read
    assert query.batch() == []
    wait_until(lambda: backlog(broker, topic, "mine") == 0, "it is not acknowledged")
    unread = feed(topic, [2, 0, 4])
    time.sleep(1.1)
    unread += feed(topic, [5])
    time.sleep(0.5)
    broker.expire(topic, "mine", 1)
    wait_until(lambda: backlog(broker, topic, "mine") < 4, "nothing expires")
    assert query.batch() == unread
    assert "by expiry" in caplog.text or "it is set to" in caplog.text
    drained(broker, query, topic)


@pytest.mark.fault(61)
def test_transactions_end_batches_and_hold_them_back(
    broker: Broker, make: Make, request: pytest.FixtureRequest
) -> None:
    java: JavaPeer = request.getfixturevalue("java")
    topic = broker.create_topic()
    query = make(topic, startingOffsets="earliest")
    assert query.batch() == []
    number = 0
    for fate in ("commit", "abort", "plain", "abort", "commit", "abort"):
        sent = [JavaContent(b"%d" % (number + index)) for index in range(5)]
        number += 5
        java.write(broker, topic, sent, transaction=None if fate == "plain" else fate)
        expected = [] if fate == "abort" else [content.value for content in sent]
        assert query.batch() == expected
        assert query.batch() == []
        if fate == "abort":
            # Only aborted messages are left, and ledgers that were read may be deleted.
            broker.unload(topic)
            query = query.restarted()
            assert query.batch() == []
    java.write(broker, topic, [JavaContent(b"open")], transaction="leave")
    assert query.batch() == []


@pytest.mark.fault(60)
def test_a_compacted_topic_is_read_as_it_is_and_compacted(
    broker: Broker, make: Make, feed: Feed
) -> None:
    topic = broker.create_topic()
    raw, compacted = (
        make(topic, startingOffsets="earliest", readCompacted=value) for value in ("false", "true")
    )
    assert raw.batch() == compacted.batch() == []
    with clustered(broker) as context, PartitionedProducer(context, topic) as writer:
        for number in range(30):
            writer.send(MessageFields(b"%d" % number, f"k{number % 3}"))
            writer.flush()
    broker.compact(topic)
    assert raw.batch() == [b"%d" % number for number in range(30)]
    assert compacted.batch() == [b"27", b"28", b"29"]
    with clustered(broker) as context, PartitionedProducer(context, topic) as writer:
        writer.send(MessageFields(b"30", "k1"))
        writer.flush()
        start = compacted.start()
        end = compacted.source.latest(start, NO_CAPS)
        for key, value in (("k1", b"31"), ("k0", None)):
            writer.send(MessageFields(value, key))
            writer.flush()
    broker.compact(topic)

    def view() -> list[bytes | None]:
        return [row.content.payload for row in read_rows(broker, topic, read_compacted=True)]

    # Some real brokers, those of 4.0.8 among them, keep a tombstone that is not in a batch.
    views = [[b"29", b"31"], [b"29", b"31", None]][: 2 if isinstance(broker, Real) else 1]
    wait_until(lambda: view() in views, "it is not compacted")
    assert raw.batch() == [b"30", b"31", None]
    # The end of the range is a deleted message.
    assert compacted.read(start, end) == []
    compacted.committed = end
    assert compacted.batch() == view()[1:]
    assert raw.batch() == compacted.batch() == []
