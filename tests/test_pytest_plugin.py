"""The fixtures for other projects' tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FIRST = """\
from pulsar_spark import PulsarClient

def test_my_first(pulsar_url, pulsar_topic):
    with PulsarClient(pulsar_url) as client, client.create_producer(pulsar_topic) as producer:
        producer.send(b"hello")
"""

WITH_SPARK = """\
from pyspark.sql import SparkSession

def test_my_first(pulsar_url, pulsar_topic):
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    options = {"service.url": pulsar_url, "topic": pulsar_topic}
    spark.range(3).selectExpr("CAST(id AS STRING) AS value").write.format("pulsar").options(
        **options
    ).mode("append").save()
    assert spark.read.format("pulsar").options(**options).load().count() == 3
    spark.stop()
"""

SHARED = """\
topics = []

def test_one(pulsar_broker, pulsar_url, pulsar_topic):
    topics.append(pulsar_topic)
    assert pulsar_url == pulsar_broker.service_url

def test_other(pulsar_topic):
    assert pulsar_topic not in topics
"""

NOTHING = """\
import sys

def test_nothing_is_loaded():
    ours = {name for name in sys.modules if name.startswith("pulsar_spark")}
    assert ours <= {"pulsar_spark", "pulsar_spark.pytest_plugin"}
    assert not {"google.protobuf", "pyarrow", "pyspark"} & set(sys.modules)
"""


def run_tests(folder: Path, text: str) -> None:
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-W", "error", "-p", "pulsar_spark.pytest_plugin", "--rootdir", str(folder)]
    # In an editable installation pytest loads it by its entry point, as in every project.
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        [*command, str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "text", [FIRST, SHARED, NOTHING], ids=["first", "shared", "nothing is loaded"]
)
def test_a_project_has_the_fixtures(tmp_path: Path, text: str) -> None:
    run_tests(tmp_path, text)


@pytest.mark.xdist_group("spark")
def test_a_first_test_with_spark_takes_a_broker_by_name(tmp_path: Path) -> None:
    run_tests(tmp_path, WITH_SPARK)


def test_pytest_finds_the_fixtures_by_the_entry_point() -> None:
    entry = '[project.entry-points.pytest11]\npulsar-spark = "pulsar_spark.pytest_plugin"\n'
    assert entry in (ROOT / "pyproject.toml").read_text("utf-8")
