"""Differences between versions of Spark; only this module checks the version."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource, types
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, Row, StructType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    ArrowStreamWriterBase = datasource.DataSourceStreamArrowWriter
else:
    # The base class of stream writers that take record batches, if Spark has it (4.1).
    ArrowStreamWriterBase = getattr(
        datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter
    )

INTERNAL_STRUCTS: tuple[type[DataType], ...] = tuple(
    getattr(types, name)
    for name in ("VariantType", "GeographyType", "GeometryType")
    if hasattr(types, name)
)
"""Types without parts that Spark passes on as structs of its own, as far as Spark has them."""

# The module whose forks are Spark's workers.
_DAEMON = "pyspark.daemon"
# The module that Spark runs to commit or abort a micro-batch.
_SINK_WORKER = "pyspark.sql.worker.python_streaming_sink_runner"


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of record batches with `schema`."""
    arguments: dict[str, Any] = {}
    # Before there was this parameter, the timezone was always UTC.
    if _takes_timezone(to_arrow_schema):
        arguments["timezone"] = "UTC"
    return to_arrow_schema(schema, **arguments)


@lru_cache(1)
def _takes_timezone(function: Callable[..., Any]) -> bool:
    return "timezone" in inspect.signature(function).parameters


def spark_schema(schema: pa.Schema) -> StructType:
    """Return Spark's schema for an Arrow schema."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def spark_type(kind: pa.DataType) -> DataType:
    """Return Spark's type for an Arrow type."""
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def ends_micro_batch() -> bool:
    """Return whether the writer that is being created only commits or aborts a micro-batch."""
    return _runs(_SINK_WORKER)


def is_worker() -> bool:
    """Return whether this process is a worker of Spark, which runs one step or task after another.

    Where Spark cannot fork (`spark.python.use.daemon=false`, Windows), each process runs only one.
    """
    return _runs(_DAEMON)


def _runs(worker: str) -> bool:
    """Return whether Spark started this process to run a worker module."""
    if worker in sys.modules:
        return True
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == worker


def streams_are_arrow() -> bool:
    """Return whether Spark passes record batches, not rows, to stream writers."""
    return ArrowStreamWriterBase is not DataSourceStreamWriter


def batches_behind(rows: Iterator[Row]) -> Iterator[pa.RecordBatch] | None:
    """Return the record batches that Spark makes rows of, None if it is something else.

    Times in the rows of Spark 4.0 are without their zone. So its generator, which has not begun, is
    not used.
    """
    if not inspect.isgenerator(rows) or rows.gi_code.co_name != "batch_to_rows":
        return None
    batches: Iterator[pa.RecordBatch] | None = inspect.getgeneratorlocals(rows).get("iterator")
    return batches


def rows_to_arrow(rows: list[Row], schema: StructType) -> list[pa.RecordBatch]:
    """Return rows (at least one) as record batches with Spark's types for `schema`.

    Times without a zone, as in Spark's rows, are in this process's zone.
    """
    # Only old versions need it; later versions may remove it.
    from pyspark.sql.conversion import LocalDataToArrowConversion

    table = LocalDataToArrowConversion.convert(rows, schema, use_large_var_types=False)
    return table.to_batches()  # type: ignore[no-any-return]


def passes_read_limits() -> bool:
    """Return whether Spark passes a stream reader its position and a read limit (4.2)."""
    return find_spec("pyspark.sql.streaming.datasource") is not None


def make_active(spark: SparkSession) -> None:
    """Let Spark find data sources for `df.write` on the calling thread too.

    Spark looks in the thread's active session, and among Python's threads only the one that
    created the session has it. Spark Connect does not depend on threads.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        spark._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)
