"""Spark writes exactly once, whatever is killed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_spark.spark.writing.crash_points import POINTS, VARIABLE
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.brokers import Broker
from tests.integration.test_spark_stream_sink import Job, numbers, official_values
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Connect = Callable[..., Any]

ONCE = {"deliveryGuarantee": "exactly-once"}


def test_each_micro_batch_is_there_once(
    spark: SparkSession, broker: Broker, official_client: Connect, tmp_path: Path
) -> None:
    topic = broker.create_topic(partitions=2)
    job = Job(spark, tmp_path, broker.service_url, topic=topic, **ONCE)
    for _ in range(3):
        job.run()
    client = official_client(broker.service_url)
    assert official_values(client, *broker.partitions_of(topic, 2)) == numbers(0, 3)
    # As if the driver had died between the commit and Spark's note of it.
    for name in ("2", ".2.crc"):
        (job.checkpoint / "commits" / name).unlink(missing_ok=True)
    job.run()
    found = official_values(client, *broker.partitions_of(topic, 2))
    assert found == numbers(0, 4)


def test_a_batch_write_leaves_all_rows_or_none(
    spark: SparkSession, broker: Broker, official_client: Connect
) -> None:
    topic = broker.create_topic()

    def write(rows: str, timeout: str = "1h") -> None:
        frame = spark.range(0, 100, 1, 4).selectExpr(f"{rows} AS value")
        options = {"service.url": broker.service_url, "topic": topic, "sinkId": topic, **ONCE}
        options["transactionTimeout"] = timeout
        frame.write.format("pulsar").options(**options).mode("append").save()

    write("string(id)")
    with pytest.raises(Exception, match="no such row"):
        # Tasks that Spark kills because another one failed leave transactions that time out.
        write("IF(id = 99, raise_error('no such row'), string(id + 1000))", "3s")
    write("string(id + 100)")
    client = official_client(broker.service_url)
    wanted = Counter(b"%d" % number for number in range(200))
    wait_until(lambda: len(official_values(client, topic)) == len(wanted), "some are missing")
    assert official_values(client, topic) == wanted


# A driver that starts its query again whenever it fails, as a service manager does.
DRIVER = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.integration.test_spark_exactly_once import ONCE
from tests.integration.test_spark_stream_sink import Job

builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.memory", "512m").config("spark.log.level", "OFF")
builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
builder = builder.config("spark.sql.codegen.wholeStage", "false")
job = Job(builder.getOrCreate(), Path(sys.argv[1]), sys.argv[2], topic="t", **ONCE)
job.options["transactionTimeout"] = "25s"
for number in range(3):
    try:
        job.run()
    except Exception as error:
        print("failed", type(error).__name__, flush=True)
        job.run()
    print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.fault(78, 79)
@pytest.mark.timeout(200)
@pytest.mark.parametrize("point", ["task-flushed", "between-ends"])
def test_a_killed_python_process_of_spark_writes_nothing_twice(
    official_client: Connect, tmp_path: Path, point: str
) -> None:
    assert point in POINTS
    crash = f"{point}:1@{tmp_path / 'crashed'}"
    with EmbeddedBroker() as own:
        own.create_topic("t")
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(tmp_path), own.service_url],
            env={**os.environ, VARIABLE: crash},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.stdout.count("done") == 3, done.stdout + done.stderr[-3000:]
        assert (tmp_path / "crashed").exists()
        # What the killed attempt of a task left holds reading back until its time is up.
        wait_until(lambda: not own.open_transactions(), "transactions are open", 60.0)
        batches = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
        assert batches >= 3
        found = official_values(official_client(own.service_url), "t")
        assert found == numbers(0, batches)
        assert own.internal_errors == ()
