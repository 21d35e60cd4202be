"""A real broker's own expiry (TTL) while Spark reads: every row that is stored is read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_spark.client import MessageId, PulsarClient
from tests.integration.brokers import Real
from tests.integration.spark_io import load, official, send
from tests.integration.streams import backlog
from tests.support.real_broker import OwnBroker, rest_path
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytest.importorskip("pulsar", reason="pulsar-client is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.fault(126)]

# Far more than readers, Spark and its sockets hold while the rows' consumer waits.
ENTRIES = 1200
SIZE = 50_000
FEW = {
    "pulsar.client.memoryLimitBytes": "6m",
    "pulsar.reader.receiverQueueSize": "20",
    "startingOffsets": "earliest",
}


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[Real]:
    """A real broker that expires messages once a minute."""
    own = OwnBroker(
        request.getfixturevalue("_distribution"), {"messageExpiryCheckIntervalInMinutes": "1"}
    )
    try:
        own.start()
        yield Real(own)
    finally:
        own.close()


def waiting(folder: Path, name: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]:
    """Return a function for mapInArrow that signals its first batch, waits, and gives numbers."""
    begun, go = str(folder / f"begun-{name}"), str(folder / "go")

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            Path(begun).touch()
            deadline = time.monotonic() + 600
            while not Path(go).exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            numbers = pc.binary_slice(batch.column("value"), 0, 6)
            yield pa.RecordBatch.from_arrays([numbers], ["value"])

    return work


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 20)
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.usefixtures("small_batches")
def test_a_brokers_ttl_takes_no_row_from_streams_copies_batches_and_readers(
    spark: SparkSession, broker: Real, tmp_path: Path
) -> None:
    namespace = broker.create_namespace("ttl")
    broker.own.admin("POST", f"namespaces/{namespace}/messageTTL", 5)
    copy = broker.create_topic()
    values = [b"%06d" % number for number in range(ENTRIES)]
    # Each has a task, and there are two at a time.
    for kinds in (("stream", "copy"), ("batch",)):
        topic = broker.create_topic(broker.unique_topic(namespace=namespace))
        path = f"{rest_path(topic)}/subscription/witness"
        broker.own.admin("PUT", path, {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
        with official(broker) as client:
            bodies = [value + bytes(SIZE) for value in values]
            send(client, topic, bodies, batching_enabled=False)
        (tmp_path / kinds[0]).mkdir()
        jobs = Jobs(spark, broker, topic, copy, tmp_path / kinds[0])
        found = jobs.while_messages_expire(kinds)
        for what in (*kinds, "reader"):
            assert Counter(found[what]) == Counter(values), what


class Jobs:
    """Spark jobs that read a topic, and wait in their first rows until its messages expired."""

    def __init__(
        self, spark: SparkSession, broker: Real, topic: str, copy: str, folder: Path
    ) -> None:
        self.spark = spark
        self.broker = broker
        self.topic = topic
        self.copy = copy
        self.folder = folder

    def while_messages_expire(self, kinds: tuple[str, ...]) -> dict[str, list[bytes]]:
        """Return what jobs of these kinds read, and what a reader of a client does."""
        with (
            ThreadPoolExecutor(1) as pool,
            PulsarClient(self.broker.service_url) as client,
            client.create_reader(self.topic, MessageId.earliest, receiver_queue_size=20) as reader,
        ):
            mine = [reader.read_next(60_000).data()[:6] for _ in range(20)]
            # Spark finds Python sinks on the thread that has the session only.
            queries = {kind: self._start(kind) for kind in kinds if kind != "batch"}
            batch = pool.submit(self._batch) if "batch" in kinds else None
            try:
                for kind in kinds:
                    begun = (self.folder / f"begun-{kind}").exists
                    wait_until(begun, f"the {kind} does not begin", 300)
                wait_until(
                    lambda: backlog(self.broker, self.topic, "witness") == 0, "nothing expires", 300
                )
            finally:
                (self.folder / "go").touch()
            mine += [reader.read_next(60_000).data()[:6] for _ in range(ENTRIES - len(mine))]
            for query in queries.values():
                query.awaitTermination()
            found = {"reader": mine}
            if batch is not None:
                found["batch"] = batch.result()
        if "stream" in kinds:
            written = self.spark.read.parquet(str(self.folder / "rows")).collect()
            found["stream"] = [bytes(row[0]) for row in written]
        if "copy" in kinds:
            copied = load(self.spark, self.broker, self.copy).collect()
            found["copy"] = [bytes(row["value"]) for row in copied]
        return found

    def _batch(self) -> list[bytes]:
        read = load(self.spark, self.broker, self.topic, FEW).select("value")
        rows = read.mapInArrow(waiting(self.folder, "batch"), "value binary").collect()
        return [bytes(row[0]) for row in rows]

    def _start(self, kind: str) -> Any:
        """Start a query that reads the topic once, into files or a copy."""
        reader = self.spark.readStream.format("pulsar")
        reader = reader.option("service.url", self.broker.service_url)
        rows = reader.options(topic=self.topic, **FEW).load().select("value")
        mapped = rows.mapInArrow(waiting(self.folder, kind), "value binary")
        checkpoint = str(self.folder / f"of-{kind}")
        writer = mapped.writeStream.option("checkpointLocation", checkpoint)
        writer = writer.trigger(availableNow=True)
        if kind == "stream":
            return writer.format("parquet").option("path", str(self.folder / "rows")).start()
        once = {"topic": self.copy, "deliveryGuarantee": "exactly-once"}
        writer = writer.format("pulsar").option("service.url", self.broker.service_url)
        return writer.options(**once).start()
