"""Differences between versions of Spark."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, Row, StructType, TimestampType

from pulsar_spark.spark import compat


def test_timestamps_of_the_arrow_schema_are_utc_microseconds() -> None:
    schema = StructType().add("value", BinaryType()).add("t", TimestampType())
    expected = pa.schema([("value", pa.binary()), ("t", pa.timestamp("us", tz="UTC"))])
    assert compat.arrow_schema(schema) == expected


def test_the_arrow_schema_is_had_from_a_spark_that_takes_no_timezone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = inspect.signature(to_arrow_schema).parameters
    utc: dict[str, Any] = {"timezone": "UTC"} if "timezone" in known else {}
    monkeypatch.setattr(compat, "to_arrow_schema", lambda schema: to_arrow_schema(schema, **utc))
    assert compat.arrow_schema(StructType().add("t", TimestampType())).field("t").type.tz == "UTC"


SINK_WORKER = "pyspark.sql.worker.python_streaming_sink_runner"


def test_the_worker_that_commits_micro_batches_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, SINK_WORKER, raising=False)
    assert not compat.ends_micro_batch()
    assert importlib.util.find_spec(SINK_WORKER) is not None
    monkeypatch.setitem(sys.modules, SINK_WORKER, ModuleType(SINK_WORKER))
    assert compat.ends_micro_batch()


def test_streams_are_arrow_where_spark_has_such_writers() -> None:
    known = hasattr(datasource, "DataSourceStreamArrowWriter")
    assert compat.streams_are_arrow() is known
    assert issubclass(compat.ArrowStreamWriterBase, datasource.DataSourceStreamWriter)


def test_rows_become_record_batches_of_sparks_types() -> None:
    schema = StructType().add("value", BinaryType()).add("t", TimestampType())
    row = Row("value", "t")
    (batch,) = compat.rows_to_arrow([row(bytearray(b"a"), None), row(None, None)], schema)
    assert batch.schema == compat.arrow_schema(schema)
    assert batch.to_pydict() == {"value": [b"a", None], "t": [None, None]}


def test_limits_are_told_from_spark_4_2_on() -> None:
    known = inspect.signature(datasource.DataSourceStreamReader.latestOffset).parameters
    assert compat.passes_read_limits() is ("limit" in known)


def test_a_session_without_a_jvm_is_active_everywhere() -> None:
    class Remote:
        def __getattr__(self, name: str) -> object:
            raise AttributeError(name)

    compat.make_active(Remote())  # type: ignore[arg-type]
