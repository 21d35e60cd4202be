"""``doctor --executors`` takes the same steps in Spark tasks."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pulsar_spark.cli import main as cli
from pulsar_spark.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.fault(46)
def test_each_executor_tells_what_it_finds(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("good")
    with EmbeddedBroker(authenticate=lambda _, data: data == b"good") as broker:
        broker.create_topic("orders", partitions=2)
        # The driver's own producers, one per partition, succeed.
        broker.faults.error("PRODUCER", "AuthorizationError", "not for tasks", times=None, after=2)
        command = ["doctor", "--service-url", broker.service_url, "--executors", "--json"]
        assert cli.main([*command, "--topic", "orders", "--token-file", str(token)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert "failed" not in {step["status"] for step in report["steps"]}
    (executor,) = report["executors"]
    assert executor["ok"] is False
    found = {step["name"]: step for step in executor["steps"]}
    assert list(found) == [step["name"] for step in report["steps"]]
    assert [name for name, step in found.items() if step["status"] == "failed"] == ["write"]
    assert "not for tasks" in found["write"]["detail"]
    assert executor["environment"]["python"] == platform.python_version()


@pytest.mark.slow
def test_executors_behind_spark_connect_are_asked_too(connect_url: str) -> None:
    with EmbeddedBroker() as broker:
        command = ["-m", "pulsar_spark", "doctor", "--service-url", broker.service_url, "--json"]
        done = subprocess.run(
            [sys.executable, *command, "--executors", "--master", connect_url, "--tasks", "3"],
            capture_output=True,
            text=True,
            timeout=240,
            env=dict(os.environ),
            check=False,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    (executor,) = json.loads(done.stdout)["executors"]
    assert executor["ok"] is True
