"""The essentials, for every supported version of Spark and Python.

``make test-matrix`` runs this module with each of them. It needs only the embedded broker and our
own client.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_spark.spark.compat import passes_read_limits
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from pulsar_spark.testing import EmbeddedBroker
from tests.integration import checkpoints
from tests.spark.topics import full, store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 50
KEPT = sorted(path.parent for path in checkpoints.FOLDER.glob("*/offsets"))


@pytest.fixture
def own() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running
        assert running.internal_errors == ()


class Kept:
    """A handler for foreachBatch that keeps each micro-batch's values by its id."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = [bytes(value) for (value,) in frame.select("value").collect()]

    @property
    def values(self) -> list[bytes]:
        return [value for _, batch in sorted(self.batches.items()) for value in batch]


def run(frame: DataFrame, handler: Kept, checkpoint: Path, *, again: int = 0) -> None:
    """Read everything; `again` is the number of extra runs if each ends with its batch."""
    for _ in range(again + 1):
        writer = frame.writeStream.foreachBatch(handler).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            assert query.awaitTermination(240), "the query does not end"
        finally:
            query.stop()


def stream(spark: SparkSession, own: EmbeddedBroker, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("pulsar").option("service.url", own.service_url)
    return reader.option("topic", topic).options(**options).load()


def test_a_batch_is_written_and_read(spark: SparkSession, own: EmbeddedBroker) -> None:
    own.create_topic("t", partitions=2)
    options = {"service.url": own.service_url, "topic": "t"}
    rows = spark.range(ROWS).selectExpr(
        "string(id) AS value",
        "binary('k' || id % 7) AS __key",
        "timestamp_millis(1700000000000 + id) AS __eventTime",
        "map('id', string(id)) AS __messageProperties",
    )
    rows.write.format("pulsar").mode("append").options(**options).save()
    frame = spark.read.format("pulsar").options(**options, includeMetadata="true").load()
    found = frame.selectExpr(
        "int(string(value)) AS id",
        "string(__key)",
        "unix_millis(__eventTime) AS time",
        "__messageProperties.id AS property",
        "__topic",
        "__partition",
    ).collect()
    assert sorted(row["id"] for row in found) == list(range(ROWS))
    for row in found:
        assert row["__key"] == f"k{row['id'] % 7}"
        assert row["time"] == 1_700_000_000_000 + row["id"]
        assert row["property"] == str(row["id"])
        assert row["__topic"] == f"{full('t')}-partition-{row['__partition']}"
    assert frame.where("__key = 'k3'").count() == 7
    assert frame.select("value").limit(5).count() == 5


def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, own: EmbeddedBroker, tmp_path: Path
) -> None:
    own.create_topic("t", partitions=2)
    kept = Kept()
    expected: list[bytes] = []
    frame = stream(spark, own, "t", subscription="mine", startingOffsets="earliest")

    def feed(partition: int, *entries: int) -> None:
        for size in entries:
            payloads = [b"%d" % (len(expected) + number) for number in range(size)]
            store(own, f"{full('t')}-partition-{partition}", payloads)
            expected.extend(payloads)

    feed(0, 5, 1)
    feed(1, 3)
    query = frame.writeStream.foreachBatch(kept).option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        feed(1, 2, 2)
        query.processAllAvailable()
        assert sorted(kept.values, key=int) == expected
        progress: Any = query.lastProgress
        assert progress is not None
        assert progress["sources"][0]["endOffset"] is not None
    finally:
        query.stop()
    feed(0, 4)
    feed(1, 1)
    run(frame, kept, tmp_path)
    assert sorted(kept.values, key=int) == expected
    run(frame, kept, tmp_path)
    assert sorted(kept.values, key=int) == expected
    assert own.subscriptions(f"{full('t')}-partition-0").keys() == {"mine"}


def test_a_stream_is_written(spark: SparkSession, own: EmbeddedBroker, tmp_path: Path) -> None:
    own.create_topic("t", partitions=2)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    frame = source.selectExpr(
        "string(value) AS value", "'k' || value % 7 AS __key", "timestamp AS __eventTime"
    )
    for _ in range(2):
        writer = frame.writeStream.format("pulsar").option("service.url", own.service_url)
        writer = writer.option("topic", "t").option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(240), "the micro-batch does not end"
        finally:
            query.stop()
    options = {"service.url": own.service_url, "topic": "t"}
    read = spark.read.format("pulsar").options(**options).load()
    found = read.selectExpr("int(string(value)) AS id", "string(__key)").collect()
    assert sorted(row["id"] for row in found) == list(range(2 * ROWS))
    assert all(row["__key"] == f"k{row['id'] % 7}" for row in found)


def test_rows_are_written_exactly_once(
    spark: SparkSession, own: EmbeddedBroker, tmp_path: Path
) -> None:
    own.create_topic("t", partitions=2)
    once = {"service.url": own.service_url, "topic": "t", "deliveryGuarantee": "exactly-once"}
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    for batch in range(3):
        writer = source.selectExpr("string(value) AS value").writeStream.format("pulsar")
        writer = writer.options(**once).option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(240), "the micro-batch does not end"
        finally:
            query.stop()
        if not batch:
            # As if the driver had died between its last commit and Spark's record of it.
            for note in tmp_path.glob("commits/*0*"):
                note.unlink()
    rows = spark.range(3 * ROWS, 4 * ROWS).selectExpr("string(id) AS value")
    rows.write.format("pulsar").options(**once, sinkId="job").mode("append").save()
    read = spark.read.format("pulsar").options(**{"service.url": own.service_url, "topic": "t"})
    found = read.load().selectExpr("int(string(value)) AS id").collect()
    done = len(list(tmp_path.glob("commits/[0-9]*")))
    expected = [*range(done * ROWS), *range(3 * ROWS, 4 * ROWS)]
    assert sorted(row["id"] for row in found) == sorted(expected)
    assert own.open_transactions() == {}


@pytest.mark.fault(71, 72)
@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.name)
def test_kept_checkpoints_are_opened_and_read_on(
    spark: SparkSession, tmp_path: Path, kept: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(kept, checkpoint)
    first, second = (_offset(checkpoint / "offsets" / str(number)) for number in (0, 1))
    assert any(position.batch_index for position in second.positions.values())
    found = Kept()
    with checkpoints.broker_then() as broker:
        frame = checkpoints.stream(spark, broker)
        # If a run is one micro-batch, each takes as many messages as the cap allows.
        again = 0 if passes_read_limits() else 4
        run(frame, found, checkpoint, again=again)
        checkpoints.fill_further(broker)
        run(frame, found, checkpoint, again=again)
        for number, entries in enumerate(checkpoints.ENTRIES):
            topic = f"{full(checkpoints.TOPIC)}-partition-{number}"
            messages = [payload for payloads in entries for payload in payloads]
            start, end = (_count(offset, topic) for offset in (first, second))
            assert [value for value in found.values if value in messages] == messages[start:]
            planned = [value for value in found.batches[1] if value in messages]
            assert planned == messages[start:end]
            assert broker.subscriptions(topic).keys() == {checkpoints.SUBSCRIPTION}


def _offset(path: Path) -> StreamOffset:
    return StreamOffset.from_json(json.loads(path.read_text().splitlines()[-1]))


def _count(offset: StreamOffset, topic: str) -> int:
    """Return the number of a topic partition's messages before an offset."""
    position = offset.positions[topic]
    return max(0, position.entry_id * len(checkpoints.ENTRIES[0][0]) + position.batch_index)
