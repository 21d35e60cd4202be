"""Streams written by Spark: every row of every micro-batch arrives, whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.brokers import Broker
from tests.spark.topics import set_schema
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

Connect = Callable[..., Any]

ROWS = 400
TASKS = 2
RECEIVE_MS = 60_000


@pytest.fixture
def own() -> Iterator[EmbeddedBroker]:
    """A broker of the test's own, for faults."""
    with EmbeddedBroker(auto_create=False) as running:
        yield running
        assert running.internal_errors == ()


class Job:
    """A query that writes numbered rows to a topic; each run is one micro-batch of `ROWS` rows.

    It has `tasks` tasks, and must end within `seconds`. `location` is how its checkpoint's path is
    written.
    """

    tasks = TASKS
    seconds = 240

    def __init__(self, spark: SparkSession, folder: Path, url: str, **options: str) -> None:
        self.spark = spark
        self.checkpoint = folder / "checkpoint"
        self.location = str(self.checkpoint)
        self.options = {"service.url": url, **options}

    def rows(self) -> DataFrame:
        source = self.spark.readStream.format("rate-micro-batch")
        return source.option("rowsPerBatch", ROWS).option("numPartitions", self.tasks).load()

    def run(self, frame: DataFrame | None = None, mode: str = "append") -> None:
        """Run the next micro-batch, after the last one if that was not committed."""
        if frame is None:
            frame = self.rows().selectExpr("string(value) AS value")
        writer: DataStreamWriter = frame.writeStream.format("pulsar").outputMode(mode)
        writer = writer.options(**self.options).option("checkpointLocation", self.location)
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(self.seconds), "the micro-batch does not end"
        finally:
            query.stop()

    @property
    def committed(self) -> set[str]:
        """The ids of the micro-batches that Spark has committed."""
        found = (self.checkpoint / "commits").glob("[0-9]*")
        return {path.name for path in found}

    def forget(self, batch: int) -> None:
        """Have Spark run a micro-batch again, as if the driver had died before it noted its end."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


def numbers(first: int, stop: int) -> Counter[bytes]:
    """Return the values of some micro-batches, each value once."""
    return Counter(b"%d" % number for number in range(first * ROWS, stop * ROWS))


def official_values(client: Any, *topics: str) -> Counter[bytes]:
    """Return all messages of plain topics or partitions, read by the official client."""
    found: Counter[bytes] = Counter()
    for topic in topics:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        while reader.has_message_available():
            found[reader.read_next(RECEIVE_MS).data()] += 1
        reader.close()
    return found


# --- what is promised -------------------------------------------------------------------------


def test_each_micro_batch_arrives_once(
    spark: SparkSession, broker: Broker, official_client: Connect, tmp_path: Path
) -> None:
    topic = broker.create_topic(partitions=3)
    job = Job(spark, tmp_path, broker.service_url, topic=topic)
    frame = job.rows().selectExpr(
        "string(value) AS value",
        "concat('key-', value % 10) AS __key",
        "timestamp AS __eventTime",
        "map('batch', string(unix_seconds(timestamp))) AS __messageProperties",
    )
    for _ in range(3):
        job.run(frame)
    assert job.committed == {"0", "1", "2"}
    client = official_client(broker.service_url)
    partitions = broker.partitions_of(topic, 3)
    assert official_values(client, *partitions) == numbers(0, 3)
    reader = client.create_reader(partitions[0], pulsar.MessageId.earliest)
    message = reader.read_next(RECEIVE_MS)
    reader.close()
    assert message.partition_key() == f"key-{int(message.data()) % 10}"
    assert message.properties() == {"batch": str(message.event_timestamp() // 1000)}
    for partition in partitions:
        broker.expect_no_trace(partition)


def test_rows_name_their_topics(
    spark: SparkSession, own: EmbeddedBroker, official_client: Connect, tmp_path: Path
) -> None:
    own.create_topic("even")
    own.create_topic("odd")
    job = Job(spark, tmp_path, own.service_url)
    routed = "IF(value % 2 = 0, 'even', 'odd') AS __topic"
    job.run(job.rows().selectExpr("string(value) AS value", routed))
    client = official_client(own.service_url)
    even, odd = official_values(client, "even"), official_values(client, "odd")
    assert even + odd == numbers(0, 1)
    assert {int(value) % 2 for value in even} == {0}


def test_complete_mode_adds_the_whole_result_in_each_micro_batch(
    spark: SparkSession, own: EmbeddedBroker, official_client: Connect, tmp_path: Path
) -> None:
    own.create_topic("t")
    job = Job(spark, tmp_path, own.service_url, topic="t")
    counts = job.rows().selectExpr("value % 2 AS rest").groupBy("rest").count()
    shown = counts.selectExpr("concat(rest, ':', count) AS value")
    for _ in range(2):
        job.run(shown, "complete")
    half = ROWS // 2
    expected = [b"%d:%d" % (rest, count) for count in (half, 2 * half) for rest in (0, 1)]
    assert official_values(official_client(own.service_url), "t") == Counter(expected)


def test_a_micro_batch_asks_once_for_the_schema_and_its_commit_asks_nobody(
    spark: SparkSession, own: EmbeddedBroker, tmp_path: Path
) -> None:
    own.create_topic("t")
    Job(spark, tmp_path, own.service_url, topic="t").run()
    # One connection to check the schema, and one for each Spark process that runs tasks.
    assert own.faults.seen("CONNECT") <= 1 + TASKS
    assert own.faults.seen("GET_SCHEMA") == 1
    wait_until(lambda: own.clients == 0, "producers and consumers to be closed")


@pytest.mark.fault(78)
def test_a_micro_batch_is_committed_only_when_all_is_acknowledged(
    spark: SparkSession, own: EmbeddedBroker, official_client: Connect, tmp_path: Path
) -> None:
    own.create_topic("t")
    job = Job(spark, tmp_path, own.service_url, topic="t")
    job.options["pulsar.producer.sendTimeoutMs"] = "5s"
    job.run()
    # The receipt of one task's last batch is lost.
    with (
        own.faults.drop("SEND_RECEIPT", after=1, times=None),
        pytest.raises(StreamingQueryException, match="not acknowledged within 5 s"),
    ):
        job.run()
    assert job.committed == {"0"}
    job.run()
    assert job.committed == {"0", "1", "2"}
    found = official_values(official_client(own.service_url), "t")
    assert set(found) == set(numbers(0, 3))
    for batch in (0, 2):
        assert {found[value] for value in numbers(batch, batch + 1)} == {1}


def test_without_a_guarantee_micro_batches_wait_for_no_receipt(
    spark: SparkSession, own: EmbeddedBroker, official_client: Connect, tmp_path: Path
) -> None:
    own.create_topic("t")
    job = Job(spark, tmp_path, own.service_url, topic="t", deliveryGuarantee="none")
    with own.faults.drop("SEND_RECEIPT", times=None):
        job.run()
        job.run()
    assert job.committed == {"0", "1"}
    assert official_values(official_client(own.service_url), "t") == numbers(0, 2)


# --- what is refused --------------------------------------------------------------------------


def test_what_cannot_be_promised_or_written_is_told_before_the_first_row(
    spark: SparkSession, own: EmbeddedBroker, tmp_path: Path
) -> None:
    own.create_topic("t")
    own.create_topic("numbers")
    set_schema(own, "numbers", SchemaInfo(pb.Schema.Int32, "INT32"))
    url = own.service_url
    wrong: tuple[tuple[dict[str, str], str], ...] = (
        ({"topic": "t", "sinkId": "s"}, "only for exactly-once"),
        ({"topic": "numbers"}, "INT32"),
        ({"topic": "missing"}, "missing"),
        ({"topic": "t", "topicc": "t"}, "Did you mean"),
        ({}, "no topic"),
    )
    for options, told in wrong:
        job = Job(spark, tmp_path, url, **options)
        with pytest.raises(StreamingQueryException, match=told):
            job.run()
    job = Job(spark, tmp_path, url, topic="t")
    with pytest.raises(StreamingQueryException, match="Update"):
        job.run(mode="update")
    assert job.committed == set()
    assert own.faults.seen("SEND") == 0


# --- what is killed ---------------------------------------------------------------------------


def python_workers(root: int) -> list[int]:
    """Return the Python processes that run tasks for the Spark of a driver process."""
    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    )
    parents: dict[int, int] = {}
    daemons: set[int] = set()
    for line in listing.stdout.splitlines():
        pid, parent, command = line.split(None, 2)
        parents[int(pid)] = int(parent)
        if "pyspark.daemon pyspark.worker" in command:
            daemons.add(int(pid))
    return [pid for pid in daemons if parents[pid] in daemons and _is_below(pid, root, parents)]


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != root:
        pid = parents[pid]
    return pid == root


def kill_workers(root: int) -> None:
    """Kill the processes that run tasks, as if the machine had run out of memory."""
    for pid in python_workers(root):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# A separate driver, which retries tasks. Each line of its input starts a micro-batch.
DRIVER = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.integration.test_spark_stream_sink import Job

builder = SparkSession.builder.master("local[2,20]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.memory", "512m").config("spark.log.level", "OFF")
builder = builder.config("spark.ui.showConsoleProgress", "false")
builder = builder.config("spark.sql.codegen.wholeStage", "false")
job = Job(builder.getOrCreate(), Path(sys.argv[1]), sys.argv[2], topic="t")
job.options["pulsar.producer.batchingMaxMessages"] = "50"
print("ready", flush=True)
for line in sys.stdin:
    job.run()
    print("done", flush=True)
"""


@contextmanager
def driver(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a driver in Python, in a process group of its own, which is killed at the end."""
    with (folder / "driver.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_group(process)
        process.communicate()


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill the driver with its JVM and all Python processes that are not daemons."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def ask(process: subprocess.Popen[str]) -> None:
    """Start the next micro-batch."""
    stdin: IO[str] | None = process.stdin
    assert stdin is not None
    stdin.write("next\n")
    stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    """Wait for the driver's next line; empty if it has ended."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.slow
@pytest.mark.fault(66, 78)
@pytest.mark.timeout(600)
def test_killed_tasks_and_drivers_lose_nothing(
    spark: SparkSession, own: EmbeddedBroker, official_client: Connect, tmp_path: Path
) -> None:
    own.create_topic("t")
    points = [
        ("PRODUCER", 0, "before anything is sent"),
        ("SEND", 2, "in the middle of sending"),
        ("SEND_RECEIPT", 3, "before a receipt comes"),
        ("SEND_RECEIPT", 7, "before the last receipt comes"),
    ]
    with driver(tmp_path, "-c", DRIVER, str(tmp_path), own.service_url) as process:
        assert answer(process) == "ready"
        ask(process)
        assert answer(process) == "done"
        for command, after, when in points:
            with own.faults.call(
                command, lambda _: kill_workers(process.pid), topic="t", after=after
            ) as rule:
                ask(process)
                assert answer(process) == "done", when
                assert rule.hits == 1, when
        with own.faults.call("SEND", lambda _: kill_group(process), topic="t", after=5):
            ask(process)
            assert answer(process) == ""
    job = Job(spark, tmp_path, own.service_url, topic="t")
    assert job.committed == {"0", "1", "2", "3", "4"}
    job.run()
    assert job.committed == {"0", "1", "2", "3", "4", "5", "6"}
    found = official_values(official_client(own.service_url), "t")
    assert set(found) == set(numbers(0, 7))
    # Undisturbed rows are there once, and so are those of tasks killed before they sent anything.
    for batch in (0, 1, 6):
        assert {found[value] for value in numbers(batch, batch + 1)} == {1}
    # Tasks that were killed when all was stored have written twice.
    assert max(found[value] for value in numbers(4, 5)) == 2
