"""Differences between versions of Spark; only this module checks the version."""

from __future__ import annotations

import inspect
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, Row, StructType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    ArrowStreamWriterBase = datasource.DataSourceStreamArrowWriter
else:
    # The base of writers of streams that take record batches, where Spark (4.1) has them.
    ArrowStreamWriterBase = getattr(
        datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter
    )

# The module that Spark (4.1 and later) runs to push filters down; it plans such reads itself.
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
# The module that Spark runs to commit or abort a micro-batch.
_SINK_WORKER = "pyspark.sql.worker.python_streaming_sink_runner"


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of record batches for `schema`."""
    arguments: dict[str, Any] = {}
    # Before it was a parameter UTC was the only choice.
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        arguments["timezone"] = "UTC"
    return to_arrow_schema(schema, **arguments)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return Spark's schema for columns as they are in Arrow."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def spark_type(kind: pa.DataType) -> DataType:
    """Return Spark's type for a type of Arrow."""
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def filters_are_pushed() -> bool:
    """Return whether the reader that is being made is to take filters.

    Spark refuses readers that define `pushFilters` while spark.sql.python.filterPushdown.enabled
    is off. The configuration cannot be seen from a Python worker, but while it is on, and there
    are filters, another worker module runs.
    """
    return keeps_scans_apart() and _runs(_PUSHDOWN_WORKER)


def ends_micro_batch() -> bool:
    """Return whether the writer that is being made is only to commit or abort a micro-batch."""
    return _runs(_SINK_WORKER)


def _runs(worker: str) -> bool:
    """Return whether this is a process that Spark started to run a worker module."""
    if worker in sys.modules:
        return True
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == worker


def keeps_scans_apart() -> bool:
    """Return whether filters that one scan pushed down stay with that scan.

    In the versions of Spark that came before limits could be pushed down too, what one scan
    pushed down holds for all scans of the same DataFrame, also for those without a filter:
    taking a filter there would change their results.
    """
    return hasattr(DataSourceReader, "pushLimit")


def streams_are_arrow() -> bool:
    """Return whether Spark hands record batches to the writers of streams, or else rows."""
    return ArrowStreamWriterBase is not DataSourceStreamWriter


def rows_to_arrow(rows: list[Row], schema: StructType) -> list[pa.RecordBatch]:
    """Return rows, at least one, as record batches of the types that Spark has for `schema`.

    Times without a zone, as in the rows that Spark makes, are of this process's zone.
    """
    # Only old versions need it; later versions may remove it.
    from pyspark.sql.conversion import LocalDataToArrowConversion

    table = LocalDataToArrowConversion.convert(rows, schema, use_large_var_types=False)
    return table.to_batches()  # type: ignore[no-any-return]


def limits_are_told() -> bool:
    """Return whether Spark gives a stream's reader its position and a read limit (4.2)."""
    return find_spec("pyspark.sql.streaming.datasource") is not None


def make_active(spark: SparkSession) -> None:
    """Let Spark find data sources for `df.write` on the calling thread too.

    It looks them up in the thread's active session, and of Python's threads only the one that
    made the session has it. On Spark Connect threads make no difference.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        spark._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)
