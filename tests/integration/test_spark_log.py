"""The tasks' counts are visible: in the log of Spark's Python workers, and in the progress."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_spark.logs import LOG_LEVEL_VARIABLE
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import store_many

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOB = """
import sys
from pyspark.sql import SparkSession

url, folder = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
given = {"service.url": url, "topic": "t", "startingTime": "1796003450"}
stream = spark.readStream.format("pulsar").options(**given).load()
writer = stream.writeStream.format("noop").option("checkpointLocation", folder)
query = writer.trigger(availableNow=True).start()
query.awaitTermination(240)
print("ROWS", sum(progress["numInputRows"] for progress in query.recentProgress))
"""


@pytest.mark.parametrize("level", ["INFO", None])
def test_the_counts_of_tasks_are_in_the_log_of_workers(tmp_path: Path, level: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != LOG_LEVEL_VARIABLE}
    environment["PYSPARK_PYTHON"] = sys.executable
    if level is not None:
        environment[LOG_LEVEL_VARIABLE] = level
    with EmbeddedBroker() as broker:
        broker.create_topic("t")
        store_many(broker, "t", 25)
        done = subprocess.run(
            [sys.executable, "-c", JOB, broker.service_url, str(tmp_path / "checkpoint")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "ROWS 25" in done.stdout
    line = "a task has read 25 messages"
    assert (line in done.stderr) == (level is not None)
    warning = r"^\d{4}-\d\d-\d\d [\d:,]+ WARNING pulsar_spark\.\S+: startingTime=1796003450"
    assert re.search(warning, done.stderr, re.MULTILINE)
