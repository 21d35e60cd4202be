"""With broker deduplication, a job that is killed and run again writes each row once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.writing.columns import plan_columns
from pulsar_spark.spark.writing.task_writer import TaskPlan, write_task
from tests.integration.brokers import Broker
from tests.integration.messages import read_rows
from tests.integration.spark_io import save
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)

JOB = Path(__file__).with_name("killed_job.py")
ROWS = 20_000
QUICK = 6_000
OPTIONS = {"pulsar.producer.producerName": "job", "valueFormat": "string"}


@contextmanager
def job(broker: Broker, topic: str) -> Iterator[None]:
    """Run the job in a process session of its own, and kill all its processes at the end."""
    arguments = [broker.service_url, topic, str(ROWS), str(QUICK)]
    process = subprocess.Popen(
        [sys.executable, str(JOB), *arguments],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        # Spark's Python workers have their own process groups, but are in the same session.
        own = list(map(int, filter(str.isdigit, os.listdir("/proc"))))
        for pid in own:
            with suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) == process.pid:
                    os.kill(pid, signal.SIGKILL)
        process.wait()


def numbers(spark: SparkSession, tasks: int) -> DataFrame:
    frame = spark.range(0, ROWS, 1, tasks)
    return frame.selectExpr("cast(id as string) value", "id __sequenceId")


def written(broker: Broker, topic: str, partitions: int) -> Counter[int]:
    return Counter(
        int(row.content.payload or b"")
        for name in broker.partitions_of(topic, partitions)
        for row in read_rows(broker, name)
    )


@pytest.mark.slow
@pytest.mark.fault(83)
def test_a_task_tells_whether_the_broker_deduplicates(broker: Broker, tuned_broker: Broker) -> None:
    for used, told in ((broker, True), (tuned_broker, False)):
        topic = used.create_topic(partitions=2)
        options = {"service.url": used.service_url, "topic": topic, **OPTIONS}
        schema = StructType().add("value", "string").add("__sequenceId", "long")
        columns = plan_columns(schema, topic_given=True, value_format="string")
        rows = pa.RecordBatch.from_pydict({"value": ["a", "b"], "__sequenceId": [5, 6]})
        done = write_task(TaskPlan(parse_write_options(options), columns), [rows])
        assert done.forgetful == ((topic,) if told else ())


@pytest.mark.slow
@pytest.mark.fault(13, 79)
def test_a_killed_job_that_is_run_again_writes_each_row_once(
    spark: SparkSession, tuned_broker: Broker
) -> None:
    partitions = 3
    topic = tuned_broker.create_topic(partitions=partitions)
    with job(tuned_broker, topic):
        wait_until(
            lambda: written(tuned_broker, topic, partitions).total() >= QUICK,
            "the job has not written",
            seconds=240,
        )
    before = written(tuned_broker, topic, partitions)
    assert QUICK <= before.total() < ROWS
    save(numbers(spark, 2), tuned_broker, topic, OPTIONS)
    assert written(tuned_broker, topic, partitions) == Counter(range(ROWS))
    # Running it again writes nothing.
    save(numbers(spark, 2), tuned_broker, topic, OPTIONS)
    assert written(tuned_broker, topic, partitions) == Counter(range(ROWS))
    # Another number of tasks has other producer names: rows are duplicated, none is missing.
    save(numbers(spark, 3), tuned_broker, topic, OPTIONS)
    found = written(tuned_broker, topic, partitions)
    assert set(found) == set(range(ROWS))
    assert set(found.values()) == {1, 2}


@pytest.mark.slow
@pytest.mark.fault(135)
@pytest.mark.parametrize("for_each", [False, True])
def test_ids_may_start_anew_in_each_micro_batch(
    spark: SparkSession, tuned_broker: Broker, tmp_path: Path, for_each: bool
) -> None:
    topic = tuned_broker.create_topic(partitions=2)
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100)
    frame = rate.option("numPartitions", 2).load()
    frame = frame.selectExpr("string(value) value", "value % 100 __sequenceId")
    options = {"service.url": tuned_broker.service_url, "topic": topic, **OPTIONS}

    def write(rows: DataFrame, number: int) -> None:
        rows.write.format("pulsar").mode("append").options(**options).save()

    def run() -> None:
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path))
        if for_each:
            writer = writer.foreachBatch(write)
        else:
            writer = writer.format("pulsar").options(**options)
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(240)
        finally:
            query.stop()

    for _ in range(3):
        run()
    assert written(tuned_broker, topic, 2) == Counter(range(300))
    # As if the driver had been killed before it noted the commit: the micro-batch runs again.
    for file in (tmp_path / "commits").glob("*2*"):
        file.unlink()
    run()
    assert written(tuned_broker, topic, 2) == Counter(range(400))
