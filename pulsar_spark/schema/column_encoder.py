"""Columns → values, by a plan: in the kernel, or one by one.

The compiled kernel writes many rows at a time, out of Arrow's buffers. What it refuses, and all
rows without it, the format's reference writes one by one: it knows what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

import pyarrow as pa

from pulsar_spark.errors import InvalidRow
from pulsar_spark.protocol import implementation
from pulsar_spark.schema.arrow.arrays import binaries, cells_of, integers, usual_type
from pulsar_spark.schema.arrow.kernel_columns import layout, with_rows, write_in_kernel
from pulsar_spark.schema.bounded_cache import BoundedCache
from pulsar_spark.schema.codec import Mismatch

# An encoder of the kernel keeps memory for values, so fewer of them are kept than plans.
_KERNELS = 32
_KERNEL_FIELDS = 10_000
# Rows that become Python's objects at a time.
_AT_ONCE = 1000

Write = Callable[[Sequence[Any]], bytes]
"""Returns the bytes of a row, given its cells in the form that `cells_of` gives.

Raises Mismatch for a row that the schema cannot hold.
"""


@dataclass(frozen=True)
class WritingPlan:
    """How rows become values of a format.

    The kernel takes the description (`native/src/value_encoder.rs`); `writer` makes the reference's
    function of it.
    """

    format: str
    description: tuple[Any, ...]
    writer: Callable[[tuple[Any, ...]], Write]


class ColumnEncoder:
    """Encodes record batches that have the Arrow schema `columns`, by a plan."""

    def __init__(self, columns: pa.Schema, plan: WritingPlan) -> None:
        self._columns, self._plan = columns, plan
        self._given = pa.schema([field.with_type(usual_type(field.type)) for field in columns])

    def __reduce__(self) -> tuple[type[ColumnEncoder], tuple[pa.Schema, WritingPlan]]:
        # Not what was made of the plan, which cannot be pickled.
        return ColumnEncoder, (self._columns, self._plan)

    @cached_property
    def _write(self) -> Write:
        return self._plan.writer(self._plan.description)

    @property
    def _kernel(self) -> Any:
        if implementation.native is None:
            return None
        found = _kernels.get(self)
        if found is None:
            kinds = [layout(kind) for kind in self._given.types]
            plan = self._plan.format, self._plan.description
            found = implementation.native.ValueEncoder(kinds, plan)
            _kernels.put(self, found, len(kinds))
        return found

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return a binary array with a value for each row.

        Raises Mismatch for the first row that the schema cannot hold; InvalidRow if the values take
        more than 2 GiB.
        """
        if columns.schema != self._given:
            arrays = map(pa.Array.cast, columns.columns, self._given.types)
            columns = pa.RecordBatch.from_arrays(list(arrays), schema=self._given)
        try:
            kernel = self._kernel
            if kernel is None:
                return binaries(self._one_by_one(columns, range(columns.num_rows)))
            found, refused = write_in_kernel(kernel, columns)
            if not refused:
                return found
            if len(refused) < len(found):
                columns = columns.take(integers(refused, pa.int64()))
            again = binaries(self._one_by_one(columns, refused))
        except OverflowError:
            raise InvalidRow(
                "the values of one batch of rows take more than 2 GiB",
                "Lower spark.sql.execution.arrow.maxRecordsPerBatch.",
            ) from None
        return with_rows([found], len(found), refused, [again])[0]

    def _one_by_one(self, columns: pa.RecordBatch, rows: Sequence[int]) -> list[bytes]:
        """Return the values of columns, whose rows have these numbers."""
        write, found = self._write, []
        for start in range(0, len(rows), _AT_ONCE):
            some = columns.slice(start, _AT_ONCE)
            cells = zip(*map(cells_of, some.columns), strict=True)
            for row, values in enumerate(
                cells if some.num_columns else repeat((), len(some)), start
            ):
                try:
                    found.append(write(values))
                except Mismatch as error:
                    raise error.within("", rows[row]) from None
        return found


_kernels = BoundedCache[ColumnEncoder, Any](_KERNELS, _KERNEL_FIELDS)
