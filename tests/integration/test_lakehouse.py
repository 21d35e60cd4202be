"""docs/lakehouse.md with the versions of Delta Lake and Iceberg that it names for this Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.integration.pages import DOCS
from tests.support.pulsar_distribution import (
    BrokerUnavailable,
    cache_folder,
    copy_artifact,
    lock,
)

SECONDS = 480
SPARK = ".".join(pyspark.__version__.split(".")[:2])
JARS = re.findall(r"^(\S+:\S+_2\.13:[\d.]+)$", (DOCS / "lakehouse.md").read_text(), re.MULTILINE)
FITTING = [jar for jar in JARS if f"{SPARK}_2.13:" in jar]
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

pytestmark = [
    pytest.mark.skipif(
        not FITTING, reason=f"no Delta Lake for Spark {SPARK}: make test-matrix SPARKS=4.1"
    ),
    pytest.mark.timeout(2 * SECONDS),
]


@pytest.fixture(scope="module")
def jars() -> list[str]:
    """The jars that fit this Spark; Maven fetches them once. Skips if it cannot."""
    delta = FITTING[0].rpartition(":")[2]
    folder = cache_folder() / "lakehouse"
    try:
        with lock(folder, SECONDS):
            return [obtain(jar, folder) for jar in [*FITTING, f"io.delta:delta-storage:{delta}"]]
    except BrokerUnavailable as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


def obtain(artifact: str, folder: Path) -> str:
    _, name, version = artifact.split(":")
    jar = folder / f"{name}-{version}.jar"
    if not jar.exists():
        copy_artifact(f"{artifact}:jar", folder)
    return str(jar)


def test_the_page_names_a_delta_lake_and_an_iceberg_for_each_spark_that_it_names() -> None:
    assert len(FITTING) == 2
    assert {jar.split(":")[0] for jar in FITTING} == {"io.delta", "org.apache.iceberg"}


def test_each_message_is_once_in_delta_lake_and_in_iceberg_and_merges_by_key(
    jars: list[str], tmp_path: Path
) -> None:
    settings = [f"--conf {key}={value}" for key, value in SETTINGS.items()]
    arguments = ["--master local[2]", "--jars", ",".join(jars), *settings, "pyspark-shell"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.lakehouse_job", str(tmp_path)],
        cwd=tmp_path,  # Spark's warehouse comes to be here
        env={
            **os.environ,
            "PYTHONPATH": str(DOCS.parent),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": " ".join(arguments),
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.stdout.endswith("done\n"), (done.stdout + done.stderr)[-4000:]
