"""Columns with rows left out: put between nulls again, or made null.

Formats decode what is there packed together, and know afterwards which rows were not.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.arrow.arrays import integers


def spread(packed: pa.Array, present: pa.BooleanArray) -> pa.Array:
    """Return a column that has the values of `packed`, in order, where `present` is true."""
    one = integers([1], pa.int64())[0]
    places = pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), one)
    return packed.take(pc.if_else(present, places, pa.nulls(1, pa.int64())[0]))


def without(column: pa.Array, rows: Iterable[int]) -> pa.Array:
    """Return a column with null in these rows."""
    flags = bytearray(b"\x01") * len(column)
    for row in rows:
        flags[row] = 0
    if all(flags):
        return column
    places = integers([row if flag else None for row, flag in enumerate(flags)], pa.int64())
    return column.take(places)
