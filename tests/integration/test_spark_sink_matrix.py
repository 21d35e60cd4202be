"""What can happen to an exactly-once query or job, and what a consumer of its topic then sees.

The consumer is one of the official client, on a real broker, and has begun before all of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from pulsar_spark.cli import main as cli
from pulsar_spark.spark.writing.crash_points import VARIABLE
from tests.integration.brokers import Real
from tests.integration.onlooker import Onlooker
from tests.integration.standalone_spark import standalone_spark
from tests.integration.test_sink_recovery import move_over
from tests.integration.test_spark_crash_points import PARTITIONS, Crash
from tests.integration.test_spark_stream_sink import ROWS, Job, answer, ask, driver, numbers
from tests.support.real_broker import RealBroker, rest_path
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.slow, pytest.mark.real_broker]

logger = logging.getLogger(__name__)

Connect = Callable[..., Any]

OTHER = 1_000_000
"""What is added to the numbers of other rows."""

WAIT_SECONDS = 30.0
"""How long a row may be withheld. 10 s are promised; a busy machine can need more."""


class Stage:
    """A topic, the jobs that write to it, and who looks on. `records` has the sinks' records."""

    def __init__(self, spark: SparkSession, broker: RealBroker, client: Any, folder: Path) -> None:
        self.spark = spark
        self.broker = Real(broker)
        self.folder = folder
        self.topic = self.broker.create_topic()
        self.records = f"{self.topic}-records"
        self.onlooker = Onlooker(client, [self.topic])

    def options(self, **more: str) -> dict[str, str]:
        """The options of a writer; those that are empty are left out."""
        found = {
            "topic": self.topic,
            "deliveryGuarantee": "exactly-once",
            "sinkStateTopic": self.records,
            **more,
        }
        return {name: value for name, value in found.items() if value}

    def job(self, name: str = "job", **options: str) -> Job:
        """Return a query with a checkpoint of its own."""
        url = self.broker.service_url
        return Job(self.spark, self.folder / name, url, **self.options(**options))

    def save(self, frame: DataFrame, **options: str) -> None:
        """Write a batch."""
        given = {"service.url": self.broker.service_url, **self.options(**options)}
        frame.write.format("pulsar").options(**given).mode("append").save()

    def repair(self, error: str, action: str, *more: str) -> None:
        """Run the command line that an error names."""
        found = re.search(rf"python -m pulsar_spark (sink .*?--{action} \S+?)\.?\s", error)
        assert found is not None, error
        command = shlex.split(found[1].replace("URL", self.broker.service_url))
        assert cli.main([*command, *more]) == 0

    def entries(self) -> int:
        """How many entries the topic has, those of open and aborted transactions among them."""
        stats = self.broker.own.admin("GET", f"{rest_path(self.topic)}/internalStats")
        return int(stats["numberOfEntries"])

    def expect(self, wanted: Counter[bytes]) -> None:
        """Fail unless the consumer sees exactly these rows, and nothing holds the topic."""
        found = self.onlooker.values()
        assert (found - wanted, wanted - found) == (Counter(), Counter())


@pytest.fixture
def stage(
    spark: SparkSession, real_broker: RealBroker, official_client: Connect, tmp_path: Path
) -> Iterator[Stage]:
    made = Stage(spark, real_broker, official_client(real_broker.service_url), tmp_path)
    yield made
    made.onlooker.close()


def refused(job: Job, frame: DataFrame | None = None) -> str:
    """Run a query that fails with SinkStateError, and return its text."""
    with pytest.raises(StreamingQueryException, match="SinkStateError") as caught:
        job.run(frame)
    return str(caught.value)


def other_rows(job: Job) -> DataFrame:
    return job.rows().selectExpr(f"string(value + {OTHER}) AS value")


def other_numbers(first: int, stop: int) -> Counter[bytes]:
    return Counter(b"%d" % (OTHER + number) for number in range(first * ROWS, stop * ROWS))


def query_id(job: Job) -> str:
    found = json.loads((job.checkpoint / "metadata").read_text())["id"]
    assert isinstance(found, str)
    return found


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.fault(170)
def test_a_checkpoint_from_a_backup_is_refused_until_it_is_accepted_once(stage: Stage) -> None:
    job, backup = stage.job(), stage.folder / "backup"

    def restore() -> None:
        shutil.rmtree(job.checkpoint)
        shutil.copytree(backup, job.checkpoint)

    job.run()
    shutil.copytree(job.checkpoint, backup)
    job.run()
    restore()
    for _ in range(2):
        error = refused(job, other_rows(job))
        assert "batch 1 is committed with other rows" in error
    stage.expect(numbers(0, 2))
    stage.repair(error, "accept")
    job.run(other_rows(job))
    assert job.committed == {"0", "1", "2"}
    wanted = numbers(0, 2) + other_numbers(2, 3)
    stage.expect(wanted)
    restore()
    assert "batch 1 comes behind batch 2" in refused(job, other_rows(job))
    stage.expect(wanted)


@pytest.mark.fault(170)
def test_a_deleted_checkpoint_is_refused_before_the_first_row(stage: Stage) -> None:
    job = stage.job(sinkId="s")
    job.run()
    job.run()
    before, entries = query_id(job), stage.entries()
    shutil.rmtree(job.checkpoint)
    error = refused(job)
    assert before in error
    assert query_id(job) in error
    assert stage.entries() == entries
    stage.expect(numbers(0, 2))
    stage.repair(error, "reset", "--yes")
    job.run()
    assert job.committed == {"0", "1"}
    # As was asked for: what the new query writes is there beside what the old one wrote.
    stage.expect(numbers(0, 2) + numbers(0, 2))


@pytest.mark.fault(170)
def test_a_copied_checkpoint_continues(stage: Stage) -> None:
    job, copy = stage.job("one", sinkId="s"), stage.job("two", sinkId="s")
    job.run()
    job.run()
    shutil.copytree(job.checkpoint, copy.checkpoint)
    copy.forget(1)
    copy.run()
    assert copy.committed == {"0", "1", "2"}
    stage.expect(numbers(0, 3))


@pytest.mark.fault(170)
def test_a_checkpoint_is_one_sink_however_it_is_written(stage: Stage) -> None:
    job = stage.job(sinkStateTopic="")
    path = job.location
    job.run()
    batches = 1
    for location in (f"{path}/", f"file:{path}", f"file://{path}", path):
        job.location = location
        job.forget(batches - 1)
        job.run()
        batches = len(job.committed)
        stage.expect(numbers(0, batches))
    assert batches == 5


# --- two queries ----------------------------------------------------------------------------------


@pytest.mark.fault(171)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["one topic", "two topics"])
def test_a_second_query_with_a_sink_id_is_refused(stage: Stage, elsewhere: bool) -> None:
    first = stage.job("first", sinkId="s")
    first.run()
    topic = stage.broker.create_topic() if elsewhere else stage.topic
    second = stage.job("second", sinkId="s", topic=topic)
    entries = stage.entries()
    error = refused(second, other_rows(second))
    assert query_id(first) in error
    assert query_id(second) in error
    assert stage.entries() == entries
    first.run()
    assert first.committed == {"0", "1"}
    stage.expect(numbers(0, 2))


@pytest.mark.fault(171)
@pytest.mark.parametrize("later", [False, True], ids=["together", "later"])
def test_of_two_queries_at_the_same_time_one_owns_the_sink(stage: Stage, later: bool) -> None:
    jobs = [stage.job(name, sinkId="s") for name in ("first", "second")]
    frames = [jobs[0].rows().selectExpr("string(value) AS value"), other_rows(jobs[1])]

    def start(number: int) -> StreamingQuery:
        writer = frames[number].writeStream.format("pulsar").options(**jobs[number].options)
        return writer.option("checkpointLocation", jobs[number].location).start()

    queries = [start(0)]
    try:
        if later:
            wait_until(lambda: jobs[0].committed, "the first query commits nothing")
        queries.append(start(1))

        def is_decided() -> bool:
            return any(job.committed for job in jobs)

        wait_until(
            lambda: is_decided() or not any(query.isActive for query in queries), "both wait"
        )
        if not is_decided():
            # Each has taken the sink over from the other one.
            queries[0] = start(0)
            wait_until(is_decided, "the first query commits nothing")
        owner = 0 if jobs[0].committed else 1
        other = queries[1 - owner]
        wait_until(lambda: not other.isActive, "both go on")
        error = str(other.exception())
        assert "SinkStateError" in error
        belongs = f"the sink belongs to the query {query_id(jobs[owner])}" in error
        assert belongs or "another driver has taken this sink over" in error
        before = len(jobs[owner].committed)

        def goes_on() -> bool:
            return len(jobs[owner].committed) > before + 1

        wait_until(lambda: goes_on() or not queries[owner].isActive, "the owner does nothing")
        if not queries[owner].isActive:
            # The other one is told whose the sink is when it has taken it over.
            assert "another driver has taken this sink over" in str(queries[owner].exception())
            queries[owner] = start(owner)
            wait_until(goes_on, "the owner does not go on")
    finally:
        for query in queries:
            query.stop()
    jobs[owner].run(frames[owner])
    assert not jobs[1 - owner].committed
    batches = len(jobs[owner].committed)
    stage.expect(numbers(0, batches) if owner == 0 else other_numbers(0, batches))


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.fault(172)
def test_a_job_that_a_scheduler_runs_again_is_there_once(stage: Stage) -> None:
    def write(first: int, run: str) -> None:
        frame = stage.spark.range(first, first + ROWS, 1, 2).selectExpr("string(id) AS value")
        stage.save(frame, sinkId="daily", sinkRunId=run)

    write(0, "2026-01-01")
    write(0, "2026-01-01")
    write(ROWS, "2026-01-02")
    write(0, "2026-01-01")
    with pytest.raises(Exception, match="run 2026-01-02 is committed with other rows"):
        write(OTHER, "2026-01-02")
    stage.expect(numbers(0, 2))


@pytest.mark.fault(172)
def test_each_write_of_foreach_batch_is_there_once(stage: Stage) -> None:
    job = stage.job()
    failing = {(1, 0), (2, 1)}

    def write(frame: DataFrame, batch: int) -> None:
        for part in range(2):
            rows = frame.where(f"value % 2 = {part}").selectExpr("string(value) AS value")
            stage.save(rows, sinkId="each", sinkRunId=f"{batch}/{part}")
            if (batch, part) in failing:
                failing.remove((batch, part))
                raise RuntimeError("the driver dies here")

    def run() -> None:
        writer = job.rows().writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", job.location).trigger(availableNow=True).start()
        assert query.awaitTermination(job.seconds)

    run()
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="the driver dies here"):
            run()
    run()
    batches = len(job.committed)
    assert batches == 4
    job.forget(batches - 1)
    run()
    assert not failing
    stage.expect(numbers(0, len(job.committed)))


@pytest.mark.fault(173)
def test_a_query_that_never_gives_the_same_rows_twice_keeps_the_first_ones(stage: Stage) -> None:
    job = stage.job()
    job.run(job.rows().selectExpr("concat(value, ' ', uuid()) AS value"))
    job.run(job.rows().selectExpr("concat(value, ' ', uuid()) AS value"))
    first = stage.onlooker.values()
    job.forget(1)
    frame = job.rows().selectExpr("concat(value, ' ', uuid()) AS value")
    assert "sinkRepeats=first" in refused(job, frame)
    job.options["sinkRepeats"] = "first"
    job.run(frame)
    found = stage.onlooker.values()
    assert first <= found
    seen = Counter(value.partition(b" ")[0] for value in found.elements())
    assert seen == numbers(0, len(job.committed))
    assert len(job.committed) == 3


# --- records --------------------------------------------------------------------------------------


@pytest.mark.fault(174)
@pytest.mark.parametrize("how", ["expired", "truncated"])
def test_records_that_are_gone_are_told_and_no_row_is_lost(stage: Stage, how: str) -> None:
    job = stage.job(sinkId="s")
    job.run()
    job.run()
    job.forget(1)
    move_over(stage.broker, stage.records, how)
    if how == "truncated":
        stage.broker.trim(stage.records)
        entries = stage.entries()
        error = refused(job)
        assert "records of the sink are missing" in error
        assert stage.entries() == entries
        stage.expect(numbers(0, 2))
        stage.repair(error, "reset", "--yes")
    job.run()
    assert job.committed == {"0", "1", "2"}
    # To begin anew on purpose writes what was committed last once more.
    stage.expect(numbers(0, 3) + (numbers(1, 2) if how == "truncated" else Counter()))


# --- what is killed -------------------------------------------------------------------------------


@pytest.mark.fault(175)
@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_before_its_decision_withholds_nothing_once_it_is_restarted(
    spark: SparkSession, real_broker: RealBroker, official_client: Connect, tmp_path: Path
) -> None:
    points = ("task-announced", "task-flushed", "before-decision")
    crash = Crash(tmp_path, real_broker, real_broker.unique_topic("killed"), points)
    client = official_client(real_broker.service_url)
    lookers = {
        name: Onlooker(
            client, [f"{crash.topic(name)}-partition-{number}" for number in range(PARTITIONS)]
        )
        for name in points
    }
    try:
        crash.run("hold")
        # Others write behind what is open now, to each partition, and their commit is reported.
        others = spark.range(OTHER, OTHER + ROWS).selectExpr(
            "string(id) AS value", "string(id) AS __key"
        )
        for name in points:
            given = {"service.url": real_broker.service_url, "topic": crash.topic(name)}
            given |= {"deliveryGuarantee": "exactly-once", "sinkId": f"other {name}"}
            others.write.format("pulsar").options(**given).mode("append").save()
        restarted = dict(line.split() for line in crash.run("finish")[:-1])
        for name, looker in lookers.items():
            batches = len(crash.commits(name))
            waits = [looker.when(other_numbers(0, 1)) - float(restarted[name])]
            assert (waits[0] > 0) == (name != "task-announced")
            for file in crash.commits(name):
                batch = int(file.name)
                waits.append(looker.when(numbers(batch, batch + 1)) - file.stat().st_mtime)
            logger.info("%s: the consumer waited for %.1f s", name, max(waits))
            assert max(waits) < WAIT_SECONDS
            assert batches == 2
            assert looker.values() == numbers(0, batches) + other_numbers(0, 1)
    finally:
        for looker in lookers.values():
            looker.close()


def executor_of(pid: int) -> int:
    """Return the executor that a Python process runs for."""
    while True:
        command = ["ps", "-ww", "-o", "ppid=,command=", "-p", str(pid)]
        parent, text = subprocess.check_output(command, text=True).split(None, 1)
        if "CoarseGrainedExecutorBackend" in text:
            return pid
        pid = int(parent)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one address of loopback")
@pytest.mark.fault(176)
@pytest.mark.timeout(600)
def test_workers_and_executors_that_are_killed_and_speculation_withhold_nothing(
    real_broker: RealBroker, official_client: Connect, tmp_path: Path
) -> None:
    topic = real_broker.create_topic(real_broker.unique_topic("killed"))
    looker = Onlooker(official_client(real_broker.service_url), [topic])
    crash = tmp_path / "crash"
    crash.mkdir()
    holding = []

    def held(point: str) -> int:
        file = crash / f"{point}.held"
        pid = int(wait_until(lambda: file.exists() and file.read_text(), f"{point}: nobody"))
        file.unlink()
        holding.append(pid)
        return pid

    arguments = ["-m", "tests.integration.standalone_job"]
    with (
        contextlib.closing(looker),
        standalone_spark(tmp_path, {VARIABLE: str(crash)}) as master,
        driver(
            tmp_path, *arguments, master, str(tmp_path), real_broker.service_url, topic
        ) as process,
    ):
        try:
            assert answer(process) == "ready"
            # The second micro-batch's writer dies, the third one's executor, and the fourth one's
            # writer takes for ever.
            scenes = [
                ("", ""),
                ("task-midway", "1"),
                ("task-flushed", "hold"),
                ("task-sent", "hold"),
            ]
            for batch, (point, how) in enumerate(scenes):
                if point:
                    (crash / "part").write_text("1 hold" if how == "hold" else how)
                    (crash / "part").rename(crash / point)
                ask(process)
                if how == "hold":
                    pid = held(point)
                    if point == "task-flushed":
                        os.kill(executor_of(pid), signal.SIGKILL)
                assert answer(process) == "done"
                assert not (crash / point).is_file()
                commit = tmp_path / "checkpoint" / "commits" / str(batch)
                waited = looker.when(numbers(batch, batch + 1)) - commit.stat().st_mtime
                logger.info("%s: the consumer waited for %.1f s", point, waited)
                assert waited < WAIT_SECONDS
                assert looker.values() == numbers(0, batch + 1)
        finally:
            for pid in holding:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
