"""The examples of docs/streaming.md run as they stand, but for addresses and folders."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_spark.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "streaming.md"
TOPICS = ("orders-upper", "large-orders", "small-orders", "counts")


def examples(section: str) -> list[str]:
    """Return the Python of a section of the page."""
    text = PAGE.read_text("utf-8")
    (found,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```python\n(.*?)^```$", found, re.MULTILINE | re.DOTALL)


@pytest.fixture
def own() -> Iterator[EmbeddedBroker]:
    """A broker of the test's own."""
    with EmbeddedBroker(auto_create=False) as running:
        for topic in TOPICS:
            running.create_topic(topic)
        yield running
        assert running.internal_errors == ()


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
    for number, example in enumerate(examples("Writing a stream")):
        code = example.replace("pulsar://localhost:6650", own.service_url)
        exec(code.replace('"/data/', f'"{tmp_path}/{number}/'), names)
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
