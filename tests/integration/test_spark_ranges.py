"""Batch reads return exactly the requested rows: offsets, times and splits."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import pytest
from pyspark.sql import functions as F

from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.spark.datasource import PulsarDataSource
from tests.integration.brokers import Broker
from tests.integration.spark_io import SparkRow, load, official, rows, send, topics_of, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

pytestmark = pytest.mark.timeout(600)

# The messages of each entry, and whether they are a batch; a new ledger begins at None.
ENTRIES = ((3, True), (1, False), (1, True), None, (5, True), (1, False), None, (2, True))


class History(NamedTuple):
    """A topic with all kinds of entries and ledgers, and its rows."""

    topic: str
    rows: list[SparkRow]


@pytest.fixture(scope="module")
def history(spark: SparkSession, broker: Broker) -> History:
    topic = broker.create_topic()
    number = 0
    with official(broker) as client:
        for entry in ENTRIES:
            if entry is None:
                broker.roll_ledger(topic)
                continue
            count, batched = entry
            options = {"batching_enabled": batched, "batching_max_publish_delay_ms": 60_000}
            send(client, topic, [b"%d" % (number + step) for step in range(count)], **options)
            number += count
            # Times do not distinguish entries of one millisecond.
            time.sleep(0.005)
    found = rows(load(spark, broker, topic, {"includeMetadata": True}))
    assert [row.value for row in found] == [b"%d" % step for step in range(number)]
    return History(topic, found)


def read_here(broker: Broker, topic: str, options: Mapping[str, object]) -> list[bytes]:
    """Return the values of a read, done as Spark does it, but in this process."""
    given = {"service.url": broker.service_url, "topic": topic}
    given |= {name: str(value) for name, value in options.items()}
    source = PulsarDataSource(given)
    reader = source.reader(source.schema())
    return [
        value
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for value in batch.column(0).to_pylist()  # type: ignore[union-attr]
    ]


def read_all(
    spark: SparkSession, broker: Broker, topic: str, cases: Sequence[Mapping[str, object]]
) -> list[list[bytes]]:
    """Return the values of several reads, run as one job."""
    frames = [
        load(spark, broker, topic, options).select(F.lit(number).alias("case"), "value")
        for number, options in enumerate(cases)
    ]
    found: list[list[bytes]] = [[] for _ in cases]
    for case, value in reduce(lambda one, other: one.union(other), frames).collect():
        found[case].append(bytes(value))
    return found


def id_text(row: SparkRow, *, entry: bool = False) -> str:
    """Return a row's id as users write it, or with `entry` its entry's."""
    text = f"{row.ledger_id}:{row.entry_id}"
    return text if entry or row.batch_index < 0 else f"{text}:-1:{row.batch_index}"


def of(topic: str, bound: object) -> str:
    return json.dumps({topic: bound})


def payloads(found: Sequence[SparkRow]) -> list[bytes | None]:
    return [row.value for row in found]


# --- offsets --------------------------------------------------------------------------------


@pytest.mark.fault(62)
def test_every_message_can_be_the_first_and_the_last(broker: Broker, history: History) -> None:
    topic, found = history
    for number, row in enumerate(found):
        start = {"startingOffsets": of(topic, id_text(row))}
        assert read_here(broker, topic, start) == payloads(found[number:]), row
        end = {"endingOffsets": of(topic, id_text(row))}
        assert read_here(broker, topic, end) == payloads(found[: number + 1]), row
    for number, row in enumerate(found[2:-1]):
        between = {
            "startingOffsets": of(topic, id_text(row)),
            "endingOffsets": of(topic, id_text(found[number + 3])),
        }
        assert read_here(broker, topic, between) == payloads(found[number + 2 : number + 4])


def test_an_id_without_a_batch_index_is_that_of_a_whole_entry(
    broker: Broker, history: History
) -> None:
    topic, found = history
    for row in found:
        entry = (row.ledger_id, row.entry_id)
        behind = [other for other in found if (other.ledger_id, other.entry_id) >= entry]
        upto = [other for other in found if (other.ledger_id, other.entry_id) <= entry]
        text = of(topic, id_text(row, entry=True))
        assert read_here(broker, topic, {"startingOffsets": text}) == payloads(behind)
        assert read_here(broker, topic, {"endingOffsets": text}) == payloads(upto)


def test_offsets_are_understood_in_every_notation(
    spark: SparkSession, broker: Broker, history: History
) -> None:
    topic, found = history
    short = topic.removeprefix("persistent://public/default/")
    row = found[6]
    assert row.batch_index > 0
    scala = [byte - 256 if byte > 127 else byte for byte in row.message_id]
    moment = datetime.fromtimestamp(row.publish_time / 1000, timezone.utc)
    iso = moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    entry = [other for other in found if other.publish_time >= row.publish_time]
    starts: list[tuple[object, list[SparkRow]]] = [
        ("earliest", found),
        (of(topic, "earliest"), found),
        (of(short, id_text(row)), found[6:]),
        (of(topic, scala), found[6:]),
        (of(topic, iso), entry),
        (of(topic, "-1h"), found),
        ("{}", found),
    ]
    ends: list[tuple[object, list[SparkRow]]] = [
        ("latest", found),
        (of(short, "latest"), found),
        (of(topic, id_text(row)), found[:7]),
        (of(topic, scala), found[:7]),
        (of(topic, iso), [other for other in found if other not in entry]),
        # There is nothing to wait for after the last message.
        (of(topic, f"{found[-1].ledger_id + 1000}:0"), found),
    ]
    cases = [{"startingOffsets": text} for text, _ in starts]
    cases += [{"endingOffsets": text} for text, _ in ends]
    wanted = [payloads(expected) for _, expected in starts + ends]
    assert read_all(spark, broker, topic, cases) == wanted


def test_offsets_of_the_official_client_are_taken(broker: Broker, history: History) -> None:
    topic, found = history
    with official(broker) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        for number in range(len(found)):
            serialized = reader.read_next(60_000).message_id().serialize()
            start = of(topic, list(serialized))
            read = read_here(broker, topic, {"startingOffsets": start})
            assert read == payloads(found[number:])
        reader.close()


def test_each_partition_has_bounds_of_its_own(spark: SparkSession, broker: Broker) -> None:
    topic = broker.create_topic(partitions=3)
    names = broker.partitions_of(topic, 3)
    with official(broker) as client:
        for number, name in enumerate(names):
            send(
                client,
                name,
                [b"%d-%d" % (number, step) for step in range(6)],
                batching_enabled=True,
            )
    found = {name: rows(load(spark, broker, name, {"includeMetadata": True})) for name in names}
    starts = {topic: "earliest", names[0]: id_text(found[names[0]][4])}
    ends = {names[1]: id_text(found[names[1]][1]), names[2]: "latest"}
    options = {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
    expected = found[names[0]][4:] + found[names[1]][:2] + found[names[2]]
    assert values(load(spark, broker, topic, options)) == payloads(expected)


# --- times ----------------------------------------------------------------------------------


def test_times_are_met_to_the_millisecond(broker: Broker, history: History) -> None:
    topic, found = history
    moments = sorted({row.publish_time for row in found})
    assert len(moments) == len([entry for entry in ENTRIES if entry])
    for bound in sorted({moment + step for moment in moments for step in (-1, 0, 1)}):
        before = [row for row in found if row.publish_time < bound]
        assert read_here(broker, topic, {"endingTime": bound}) == payloads(before), bound
        behind = [row for row in found if row.publish_time >= bound]
        assert read_here(broker, topic, {"startingTime": bound}) == payloads(behind), bound
    first, last = moments[1], moments[-2]
    inside = [row for row in found if first <= row.publish_time < last]
    both = {"startingTime": first, "endingTime": last}
    assert read_here(broker, topic, both) == payloads(inside)


def test_times_are_understood_in_every_notation(
    spark: SparkSession, broker: Broker, history: History
) -> None:
    topic, found = history
    moment = found[6].publish_time
    iso = datetime.fromtimestamp(moment / 1000, timezone.utc).isoformat(timespec="milliseconds")
    behind = payloads([row for row in found if row.publish_time >= moment])
    before = payloads([row for row in found if row.publish_time < moment])
    cases: list[dict[str, object]] = [
        {"startingTime": iso},
        {"endingTime": iso},
        {"startingTime": of(topic, moment)},
        {"startingTime": moment, "publishTimeTolerance": "0ms"},
        {"startingTime": "-1h"},
        {"startingTime": "2100-01-01T00:00:00Z"},
        {"endingTime": "-2d"},
        {"endingTime": "2100-01-01"},
    ]
    everything = payloads(found)
    wanted = [behind, before, behind, behind, everything, [], [], everything]
    assert read_all(spark, broker, topic, cases) == wanted


# --- tasks ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ledgers(spark: SparkSession, broker: Broker) -> History:
    """A topic of two partitions, each with several ledgers and batches of all sizes."""
    topic = broker.create_topic(partitions=2)
    names = broker.partitions_of(topic, 2)
    with official(broker) as client:
        for ledger in range(3):
            for number, name in enumerate(names):
                for batch in range(1, 9 + 8 * number):
                    send(
                        client,
                        name,
                        [b"%d-%d-%d-%d" % (number, ledger, batch, at) for at in range(batch % 5)],
                        batching_enabled=batch % 2 == 0,
                        batching_max_publish_delay_ms=60_000,
                    )
                broker.roll_ledger(name)
    return History(topic, rows(load(spark, broker, topic, {"includeMetadata": True})))


@pytest.mark.fault(63)
@pytest.mark.parametrize(
    "options, tasks",
    [
        ({"partitionsPerTopicPartition": 2}, 4),
        ({"partitionsPerTopicPartition": 7}, 14),
        ({"minPartitions": 5}, 5),
        ({"minPartitions": 3, "partitionsPerTopicPartition": 2}, 4),
    ],
)
def test_every_row_is_read_by_one_of_the_tasks(
    spark: SparkSession, broker: Broker, ledgers: History, options: dict[str, int], tasks: int
) -> None:
    frame = load(spark, broker, ledgers.topic, {"includeMetadata": True, **options})
    assert frame.rdd.getNumPartitions() == tasks
    assert rows(frame) == ledgers.rows


def test_more_tasks_than_entries_read_every_row_once(broker: Broker, ledgers: History) -> None:
    for number in (1, 3, 30, 1000):
        options = {"partitionsPerTopicPartition": number}
        assert read_here(broker, ledgers.topic, options) == payloads(ledgers.rows)
        least = {"minPartitions": number}
        assert read_here(broker, ledgers.topic, least) == payloads(ledgers.rows)


def test_a_range_that_begins_and_ends_in_a_batch_is_split_exactly(
    broker: Broker, history: History
) -> None:
    topic, found = history
    for number in (2, 3, 50):
        options = {
            "startingOffsets": of(topic, id_text(found[1])),
            "endingOffsets": of(topic, id_text(found[-2])),
            "partitionsPerTopicPartition": number,
        }
        assert read_here(broker, topic, options) == payloads(found[1:-1])


# --- topics ---------------------------------------------------------------------------------


@pytest.mark.fault(65)
def test_a_pattern_selects_topics_by_their_whole_names(spark: SparkSession, broker: Broker) -> None:
    namespace = broker.create_namespace()
    base = f"persistent://{namespace}"
    partitions = {"orders-1": 0, "orders-2": 2, "my-orders-3": 0, "orders": 0, "__orders-4": 0}
    partitions |= {"orders-partition-odd": 0}
    with official(broker) as client:
        for name, count in partitions.items():
            topic = broker.create_topic(f"{base}/{name}", count)
            send(client, topic, [name.encode()] * 2)
        # Such a topic exists as long as it has a consumer.
        listener = client.subscribe(f"non-{base}/orders-9", "s")
        cases = {
            rf"{namespace}/orders-\d": {b"orders-1", b"orders-2"},
            rf"{base}/.*orders.*": {name.encode() for name in partitions if name[0] != "_"},
            rf"{base}/orders": {b"orders"},
        }
        for pattern, expected in cases.items():
            frame = load(spark, broker, options={"topicsPattern": pattern})
            assert set(values(frame)) == expected, pattern
        for pattern in (rf"{namespace}/order", rf"{namespace}/orders-9", rf"{namespace}/__.*"):
            with pytest.raises(Exception, match=r"no topic of the namespace .* matches"):
                load(spark, broker, options={"topicsPattern": pattern})
        listener.close()


def test_several_topics_are_read_together_each_once(spark: SparkSession, broker: Broker) -> None:
    plain, partitioned = broker.create_topic(), broker.create_topic(partitions=2)
    one = f"{partitioned}-partition-1"
    with official(broker) as client:
        send(client, plain, [b"plain"])
        send(client, f"{partitioned}-partition-0", [b"zero"])
        send(client, one, [b"one"])
    short = plain.removeprefix("persistent://public/default/")
    frame = load(spark, broker, options={"topics": f"{plain}, {one}, {short},{partitioned}"})
    assert sorted(values(frame)) == [b"one", b"plain", b"zero"]
    path = spark.read.format("pulsar").option("service.url", broker.service_url).load(short)
    assert values(path) == [b"plain"]


@pytest.mark.fault(63)
def test_topics_without_messages_have_no_rows(spark: SparkSession, broker: Broker) -> None:
    never, trimmed = broker.create_topic(partitions=2), broker.create_topic()
    with official(broker) as client:
        send(client, trimmed, [b"gone"])
    broker.trim(trimmed)
    for options in ({}, {"startingTime": "-1h"}, {"minPartitions": 4}):
        frame = load(spark, broker, options={"topics": f"{never},{trimmed}", **options})
        assert frame.collect() == []


def test_a_topic_that_does_not_exist_is_an_error_and_is_not_made(
    spark: SparkSession, broker: Broker
) -> None:
    namespace = broker.create_namespace()
    missing = broker.unique_topic("missing", namespace)
    before = topics_of(broker, namespace)
    for options in ({}, {"valueFormat": "raw"}):
        with pytest.raises(Exception, match=rf"TopicNotFound.*{missing}.*never creates"):
            load(spark, broker, missing, options).collect()
    assert topics_of(broker, namespace) == before


# --- data that is gone ------------------------------------------------------------------------


@pytest.mark.fault(58)
def test_a_start_that_is_gone_is_an_error_unless_that_is_allowed(
    spark: SparkSession, broker: Broker
) -> None:
    topic = broker.create_topic()
    with official(broker) as client:
        gone, *_ = send(client, topic, [b"gone", b"gone too"])
        broker.trim(topic)
        send(client, topic, [b"kept", b"kept too"])
    start = of(topic, f"{gone.ledger_id()}:{gone.entry_id()}")
    with pytest.raises(Exception, match=rf"DataLossError.*{topic}.*failOnDataLoss"):
        load(spark, broker, topic, {"startingOffsets": start}).collect()
    with pytest.raises(Exception, match="DataLossError"):
        load(spark, broker, topic, {"endingOffsets": start}).collect()
    options = {"startingOffsets": start, "failOnDataLoss": False}
    assert values(load(spark, broker, topic, options)) == [b"kept", b"kept too"]
    options = {"endingOffsets": start, "failOnDataLoss": False}
    assert values(load(spark, broker, topic, options)) == []


def test_ids_of_rows_are_their_positions(history: History) -> None:
    for row in history.rows:
        found = MessageIdAdv.deserialize(row.message_id)
        assert (found.ledger_id, found.entry_id) == (row.ledger_id, row.entry_id)
        assert found.batch_index == row.batch_index
    assert sorted(history.rows, key=lambda row: row[8:11]) == history.rows
