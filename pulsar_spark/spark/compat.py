"""Differences between the versions of Spark; the only file that asks which one runs."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

# The module that Spark (4.1 and later) runs to push filters down; it plans such reads itself.
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of record batches for `schema`."""
    arguments: dict[str, Any] = {}
    # Before it was a parameter UTC was the only choice.
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        arguments["timezone"] = "UTC"
    return to_arrow_schema(schema, **arguments)


def filters_are_pushed() -> bool:
    """Return whether the reader that is being made is to take filters.

    Spark refuses readers that define `pushFilters` while spark.sql.python.filterPushdown.enabled
    is off. The configuration cannot be seen from a Python worker, but while it is on, and there
    are filters, another worker module runs.
    """
    if not keeps_scans_apart():
        return False
    if _PUSHDOWN_WORKER in sys.modules:
        return True
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _PUSHDOWN_WORKER


def keeps_scans_apart() -> bool:
    """Return whether filters that one scan pushed down stay with that scan.

    In the versions of Spark that came before limits could be pushed down too, what one scan
    pushed down holds for all scans of the same data frame, also for those without a filter:
    taking a filter there would change their results.
    """
    return hasattr(DataSourceReader, "pushLimit")
