"""The examples of docs/streaming.md run unchanged, except for addresses and folders."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_spark.spark.compat import passes_read_limits
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.pages import examples, here
from tests.spark.topics import store_many
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ = ("orders", "refunds")
TOPICS = ("orders-upper", "large-orders", "small-orders", "counts")


@pytest.fixture
def own() -> Iterator[EmbeddedBroker]:
    """A broker of the test's own."""
    with EmbeddedBroker(auto_create=False) as running:
        for topic in READ + TOPICS:
            running.create_topic(topic)
        yield running
        assert running.internal_errors == ()


def values_in(spark: SparkSession, folder: Path) -> list[bytes]:
    """Return the values that a query wrote, sorted."""
    return sorted(bytes(row["value"]) for row in spark.read.parquet(str(folder)).collect())


def test_the_examples_of_reading(
    spark: SparkSession, own: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refunds = store_many(own, "refunds", 5, batch_size=1)
    names: dict[str, Any] = {"spark": spark}
    code = [
        here(example, own.service_url, tmp_path)
        for example in examples("streaming.md", "Reading a stream")
    ]
    first, read, capped, available, listener = code
    if passes_read_limits():
        exec(listener, names)
    try:
        exec(first, names)
        query = names["query"]
        # It starts with new messages.
        query.processAllAvailable()
        orders = store_many(own, "orders", 20)
        query.processAllAvailable()
        query.stop()
        assert values_in(spark, tmp_path / "orders") == sorted(orders)
        exec(read, names)
        for name in ("all_of_it", "since", "last_hour"):
            assert "__publishTime" in names[name].columns
        exec(capped, names)
        exec(available, names)
        assert names["query"].exception() is None
        assert values_in(spark, tmp_path / "all") == sorted(orders + refunds)
        if passes_read_limits():
            said: list[str] = []

            def heard() -> bool:
                said.append(capsys.readouterr().out)
                return "2 topic partitions: 0 entries, 0 messages" in "".join(said)

            wait_until(heard, "the listener says nothing")
    finally:
        names["query"].stop()
        if "watch" in names:
            spark.streams.removeListener(names["watch"])


def test_the_examples_of_writing(spark: SparkSession, own: EmbeddedBroker, tmp_path: Path) -> None:
    rows = [{"__key": f"k{i % 2}", "value": "x" * (2000 if i < 3 else 5)} for i in range(10)]
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "0.json").write_text("\n".join(map(json.dumps, rows)))
    names: dict[str, Any] = {
        "spark": spark,
        "orders": spark.readStream.schema("__key string, value string").json(
            str(tmp_path / "orders")
        ),
    }
    for number, example in enumerate(examples("streaming.md", "Writing a stream")):
        exec(here(example, own.service_url, tmp_path / str(number)), names)
        query = names.pop("query")
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    reader = spark.read.format("pulsar").option("service.url", own.service_url)
    found = reader.option("topics", ",".join(TOPICS)).option("allowDifferentTopicSchemas", "true")
    text = found.load().selectExpr("__topic", "CAST(__key AS STRING)", "CAST(value AS STRING)")
    stored = text.collect()
    counted = Counter(row["__topic"].rpartition("/")[2] for row in stored)
    assert counted == {"orders-upper": 10, "large-orders": 3, "small-orders": 7, "counts": 2}
    upper = {row["value"] for row in stored if row["__topic"].endswith("orders-upper")}
    assert upper == {"X" * 2000, "X" * 5}
    assert {row["value"] for row in stored if row["__topic"].endswith("counts")} == {"5"}
