"""The declarative pipeline of examples/, which docs/sql.md shows: topics, a table, a topic."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pulsar_spark.testing import EmbeddedBroker
from tests.integration.pages import examples, here
from tests.spark.topics import store, store_many
from tests.support import groups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECTION = "Declarative pipelines"
PROJECT = Path(__file__).resolve().parents[2] / "examples" / "pipelines"
FILES = sorted(path for path in PROJECT.rglob("*") if path.suffix in (".yml", ".py"))
SECONDS = 480

# Other requirements of pipelines are dependencies of the tests: without them they fail.
pytestmark = [
    pytest.mark.skipif(
        find_spec("pyspark.pipelines") is None, reason="this Spark has no declarative pipelines"
    ),
    pytest.mark.timeout(2 * SECONDS),
]


@pytest.fixture
def own() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(auto_create=False) as running:
        for topic in ("sql-orders", "sql-refunds", "long-orders"):
            running.create_topic(topic, 2)
        yield running
        assert running.internal_errors == ()


@pytest.fixture
def pipeline(own: EmbeddedBroker, tmp_path: Path) -> Path:
    """The pipeline's specification, in a folder of its own."""
    for source in FILES:
        path = tmp_path / source.relative_to(PROJECT)
        path.parent.mkdir(exist_ok=True)
        path.write_text(here(source.read_text(), own.service_url, tmp_path))
    return tmp_path / "spark-pipeline.yml"


def run(command: list[str], folder: Path, **more: str) -> None:
    """Run a command to its end. Fails with its output."""
    with (folder / "said").open("w") as said:
        done = subprocess.run(
            command,
            env={**os.environ, **more},
            cwd=folder,
            stdout=said,
            stderr=said,
            timeout=SECONDS,
            check=False,
        )
    assert done.returncode == 0, (folder / "said").read_text()[-4000:]


def test_the_page_shows_the_files_of_the_example() -> None:
    shown = [*examples("sql.md", SECTION), *examples("sql.md", SECTION, "yaml")]
    assert sorted(shown) == sorted(path.read_text() for path in FILES)
    for text in shown:
        assert (PROJECT / text.partition("\n")[0].removeprefix("# ")).read_text() == text


def test_a_pipeline_reads_topics_into_a_table_and_writes_to_a_topic(
    spark: SparkSession, connect_url: str, own: EmbeddedBroker, pipeline: Path
) -> None:
    command = [sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec", str(pipeline)]
    store_many(own, "sql-refunds-partition-0", 5)
    for payload in (b"long" * 50, b"short"):
        store(own, "sql-orders-partition-1", [payload])
    try:
        run(command, pipeline.parent, SPARK_REMOTE=connect_url)
        spark.catalog.refreshTable("orders")
        assert spark.table("orders").count() == 7
        store_many(own, "sql-orders-partition-0", 3)
        run(command, pipeline.parent, SPARK_REMOTE=connect_url)
        spark.catalog.refreshTable("orders")
        # A run continues where the last one ended.
        assert spark.table("orders").count() == 10
        assert "__publishTime" in spark.table("orders").columns
    finally:
        spark.sql("DROP TABLE IF EXISTS orders")
    reader = spark.read.format("pulsar").option("service.url", own.service_url)
    assert [bytes(row["value"]) for row in reader.load("long-orders").collect()] == [b"long" * 50]


@pytest.mark.slow
@pytest.mark.xdist_group(groups.CONNECT_PORT)
def test_a_pipeline_is_run_from_the_command_line(own: EmbeddedBroker, pipeline: Path) -> None:
    import pyspark

    store_many(own, "sql-orders-partition-0", 3)
    home = Path(pyspark.__file__).parent
    folder = pipeline.parent
    # Spark starts a server for this run, if there is none.
    run([str(home / "bin" / "spark-pipelines"), "run"], folder, SPARK_HOME=str(home))
    assert list((folder / "spark-warehouse" / "orders").glob("*.parquet"))
    shutil.rmtree(folder / "spark-warehouse")
