"""The examples of docs/sql.md run unchanged, except for addresses and folders."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_spark.testing import EmbeddedBroker
from tests.integration.pages import DOCS, examples, fills_up_with_nulls, here
from tests.spark.topics import store_many
from tests.support.pulsar_distribution import BrokerUnavailable, copy_artifact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

SECONDS = 480
AVRO_JOB = """
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", "{jar}")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
frame = spark.sql("SELECT 1 AS id, 'a book' AS item, struct(2 AS net) AS price")
frame.write.format("pulsar").option("service.url", "{url}").mode("append").save("typed-orders")
{example}
print([(row["id"], row["item"], row["price"]["net"]) for row in rows.collect()])
spark.stop()
"""
TOPICS = ("sql-orders", "sql-refunds", "sql-orders-copy", "typed-orders")


@pytest.fixture
def own() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(auto_create=False) as running:
        for topic in TOPICS:
            running.create_topic(topic, 2)
        yield running
        assert running.internal_errors == ()


class Page:
    """Runs the examples of a section."""

    def __init__(self, spark: SparkSession, own: EmbeddedBroker, folder: Path) -> None:
        self.names: dict[str, Any] = {"spark": spark}
        self._spark, self._url, self._folder = spark, own.service_url, folder

    def sql(self, example: str) -> list[list[Row]]:
        """Run the statements of an example; return the rows of each."""
        statements = here(example, self._url, self._folder).split(";\n")
        return [self._spark.sql(text).collect() for text in statements if text.strip()]

    def python(self, example: str) -> None:
        exec(here(example, self._url, self._folder), self.names)


@pytest.fixture
def page(spark: SparkSession, own: EmbeddedBroker, tmp_path: Path) -> Iterator[Page]:
    yield Page(spark, own, tmp_path)
    spark.catalog.dropTempView("recent_orders")
    for name in ("orders", "refunds"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def stored(spark: SparkSession, own: EmbeddedBroker, topic: str) -> list[str]:
    """Return the values of a topic, sorted."""
    reader = spark.read.format("pulsar").option("service.url", own.service_url)
    return texts(reader.load(topic))


def texts(frame: DataFrame) -> list[str]:
    return sorted(bytes(row["value"]).decode() for row in frame.collect())


def test_every_example_of_the_page_is_run() -> None:
    run = {
        ("A view of a topic", "sql"): 2,
        ("Tables, without addresses and passwords in SQL", "sql"): 2,
        ("Tables, without addresses and passwords in SQL", "python"): 2,
        ("Filters and columns", "python"): 1,
        ("Declarative pipelines", "yaml"): 1,
        ("Declarative pipelines", "python"): 1,
        ("Spark Connect", "python"): 1,
        ("from_json and from_avro", "python"): 2,
    }
    counted = {key: len(examples("sql.md", *key)) for key in run}
    assert counted == run
    blocks = re.findall(r"^```(\w+)$", (DOCS / "sql.md").read_text("utf-8"), re.MULTILINE)
    assert len(blocks) == sum(run.values())


@pytest.mark.timeout(2 * SECONDS)
def test_the_page_runs_in_one_session_in_order(
    spark: SparkSession, own: EmbeddedBroker, page: Page
) -> None:
    view, insert = examples("sql.md", "A view of a topic", "sql")
    assert page.sql(view) == [[], []]
    expected = ["a pen"]
    if fills_up_with_nulls():
        page.sql(insert)
        expected.insert(0, "a book")
    assert stored(spark, own, "sql-orders") == expected[:-1]

    section = "Tables, without addresses and passwords in SQL"
    tables, repeated = examples("sql.md", section, "sql")
    register, stream = examples("sql.md", section)
    refunds = sorted(value.decode() for value in store_many(own, "sql-refunds-partition-0", 3))
    page.python(register)
    created, inserted, ((count,),) = page.sql(tables)
    assert (created, inserted, count) == ([], [], len(expected))
    page.python(stream)
    assert page.names["query"].exception() is None
    assert stored(spark, own, "sql-orders-copy") == expected
    _, found = page.sql(repeated)
    assert sorted(bytes(row["value"]).decode() for row in found) == refunds

    (filters,) = examples("sql.md", "Filters and columns")
    page.python(filters)
    assert page.names["evening"].columns == ["value", "__publishTime"]
    assert page.names["evening"].collect() == []

    from_json, _ = examples("sql.md", "from_json and from_avro")
    frame = spark.sql("SELECT 1 AS id, 'a book' AS item, struct(2.5 AS net) AS price")
    writer = frame.write.format("pulsar").option("service.url", own.service_url)
    writer.option("valueFormat", "json").mode("append").save("typed-orders")
    page.python(from_json)
    (row,) = page.names["rows"].collect()
    assert (row["id"], row["item"], float(row["price"]["net"])) == (1, "a book", 2.5)


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
def test_the_example_of_from_avro(own: EmbeddedBroker, tmp_path: Path) -> None:
    _, from_avro = examples("sql.md", "from_json and from_avro")
    (tmp_path / "job.py").write_text(
        AVRO_JOB.format(
            jar=_spark_avro(tmp_path),
            url=own.service_url,
            example=here(from_avro, own.service_url, tmp_path),
        )
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "job.py"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "[(1, 'a book', 2)]"


def _spark_avro(folder: Path) -> Path:
    """Return Spark's Avro package, fetched by Maven in the version that the page names."""
    text = (DOCS / "sql.md").read_text("utf-8")
    (artifact,) = re.findall(r"--packages ([a-z0-9_.:-]+)`", text)
    try:
        copy_artifact(f"{artifact}:jar", folder)
    except BrokerUnavailable as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    (jar,) = folder.glob("spark-avro*.jar")
    return jar


def test_the_examples_of_spark_connect(
    spark: SparkSession, own: EmbeddedBroker, page: Page, connect_url: str
) -> None:
    (example,) = examples("sql.md", "Spark Connect")
    expected = sorted(value.decode() for value in store_many(own, "sql-orders-partition-0", 3))
    # A process can have only one kind of session, and this one has the other kind.
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    builder = 'SparkSession.builder.remote("sc://localhost:15002").getOrCreate()'
    assert builder in example
    remote: Any = RemoteSession.builder.remote(connect_url).create()
    try:
        page.names["remote"] = remote
        page.python(example.replace(builder, "remote"))
    finally:
        remote.stop()
    assert stored(spark, own, "sql-orders-copy") == expected
