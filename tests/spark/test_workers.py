"""Spark's Python workers, on the embedded broker."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StructType

from pulsar_spark.spark import workers
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import store


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Return how many objects were frozen since the test began; leave the process as it was."""
    before = gc.get_freeze_count()
    workers.prepare.cache_clear()
    logger = logging.getLogger("pulsar_spark")
    monkeypatch.setattr(logger, "handlers", [])
    level = logger.level
    yield lambda: gc.get_freeze_count() - before
    logger.setLevel(level)
    workers.prepare.cache_clear()
    gc.unfreeze()


def test_outside_of_a_worker_nothing_is_frozen(frozen: Callable[[], int]) -> None:
    workers.prepare()
    assert frozen() == 0


def test_a_worker_freezes_its_modules_once(
    frozen: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name="pyspark.daemon")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    workers.prepare()
    after_first = frozen()
    assert after_first > 10_000
    made_later = [[number] for number in range(1000)]
    workers.prepare()
    assert frozen() <= after_first
    assert len(made_later) == 1000


def counting_source(url: str) -> type[DataSource]:
    """Return a source that reads topic t, and has one row: how much planning and reading froze.

    As classes of a function they are pickled whole: workers do not know this module.
    """

    class CountingReader(DataSourceReader):
        def __init__(self) -> None:
            source = PulsarDataSource({"service.url": url, "topic": "t"})
            self.inner: Any = source.reader(StructType().add("value", BinaryType()))

        def partitions(self) -> list[InputPartition]:
            [found] = self.inner.partitions()
            return [InputPartition((found, gc.get_freeze_count()))]

        def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
            found, planned = partition.value
            assert [batch.num_rows for batch in self.inner.read(found)] == [1]
            yield planned, gc.get_freeze_count()

    class CountingSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "counting"

        def schema(self) -> str:
            return "planned long, read long"

        def reader(self, schema: StructType) -> DataSourceReader:
            return CountingReader()

    return CountingSource


def test_workers_freeze_before_they_plan_and_before_they_read(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"m"])
    spark.dataSource.register(counting_source(broker.service_url))
    [row] = spark.read.format("counting").load().collect()
    assert row["planned"] > 10_000
    assert row["read"] > 10_000
