"""Values → columns, by a plan for each schema version: in the kernel, or one by one.

The compiled kernel reads many values at a time into Arrow's buffers. What it refuses, and all
values without it, the format's reference reads one by one: it knows what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from pulsar_spark.protocol import implementation
from pulsar_spark.schema.arrow.arrays import MAX_CELLS, build_array, integers
from pulsar_spark.schema.arrow.kernel_columns import layout, read_in_kernel, with_rows
from pulsar_spark.schema.bounded_cache import BoundedCache
from pulsar_spark.schema.codec import Decoded, Decoder, Mismatch, Undecodable

MAX_VERSIONS = 256
"""The most versions whose values are decoded together."""
MAX_EMPTY_ITEMS = 1000
"""Most items of arrays whose items take no bytes, such as nulls: no length limits their number.

An item counts once per field.
"""
# The kernel meets the limit of cells only after it has appended as many. Values with a part of the
# limit are rare enough to be left to the reference.
_FEWER = 8
# Rows whose values are read before they become columns: the garbage collector looks at all of them
# again and again.
_AT_ONCE = 1000

# Tasks of one topic have mostly the same versions.
_JOINTS = 64
_JOINT_PLANS = 2048
# A decoder of the kernel keeps the memory of its columns, so fewer of them are kept than plans.
_KERNELS = 32
_KERNEL_FIELDS = 3000

Read = Callable[[bytes], "Sequence[Any] | None"]
"""Returns a value's fields, in the form that `build_array` takes; None for a null value.

Raises Mismatch for a value that does not match its schema.
"""


class ValuePlan(Protocol):
    """How values of one version become columns."""

    def reader(self) -> Read:
        """Return the function that reads one value."""

    def described(self) -> tuple[Any, ...]:
        """Return the plan as the kernel takes it (`native/src/python_values.rs`)."""


class ColumnDecoder:
    """Decodes values into `fields`, by a plan for each version that they are written with."""

    def __init__(self, fields: Sequence[pa.Field], *plans: ValuePlan) -> None:
        self._fields = list(fields)
        self._schema = pa.schema(self._fields)
        self._plans = plans

    def __reduce__(self) -> tuple[type[ColumnDecoder], tuple[Any, ...]]:
        # Not what was made of the plans, which cannot be pickled.
        return ColumnDecoder, (self._fields, *self._plans)

    @cached_property
    def _reads(self) -> Sequence[Read]:
        return [plan.reader() for plan in self._plans]

    @property
    def _kernel(self) -> Any:
        if implementation.native is None:
            return None
        found = _kernels.get(self)
        if found is None:
            plans = [plan.described() for plan in self._plans]
            kind = layout(pa.struct(self._fields))
            limits = MAX_CELLS // _FEWER, MAX_EMPTY_ITEMS
            found = implementation.native.ValueDecoder(kind, plans, *limits)
            _kernels.put(self, found, len(self._fields))
        return found

    def together(self, decoders: Sequence[Decoder]) -> ColumnDecoder | None:
        """Return a decoder for values of all these decoders' versions, if there can be one.

        A value's version number is its decoder's index. It can be one that was returned before.
        """
        key = tuple(each for each in decoders if isinstance(each, ColumnDecoder))
        if len(key) < len(decoders) or len(key) > MAX_VERSIONS:
            return None
        found = _together.get(key)
        if found is None:
            found = ColumnDecoder(self._fields, *[each._plans[0] for each in key])
            _together.put(key, found, len(key))
        return found

    def decode(self, raw: pa.Array, versions: pa.Array | None = None) -> Decoded:
        """Decode a binary array; null is a null value. `versions` are numbers, as int32."""
        kernel = self._kernel if len(raw) else None
        if kernel is None:
            return self._one_by_one(raw, versions)
        columns, refused = read_in_kernel(kernel, self._schema, raw, versions)
        if not refused:
            return Decoded(columns)
        if len(refused) == len(raw):
            return self._one_by_one(raw, versions)
        rows = integers(refused, pa.int64())
        again = self._one_by_one(raw.take(rows), None if versions is None else versions.take(rows))
        bad = [replace(each, row=refused[each.row]) for each in again.bad]
        return Decoded(with_rows(columns, len(raw), refused, again.columns), bad)

    def _one_by_one(self, raw: pa.Array, versions: pa.Array | None) -> Decoded:
        bad: list[Undecodable] = []
        parts = [
            self._some(raw, versions, start, bad) for start in range(0, max(len(raw), 1), _AT_ONCE)
        ]
        if len(parts) == 1:
            return Decoded(parts[0], bad)
        return Decoded([pa.concat_arrays(part) for part in zip(*parts, strict=True)], bad)

    def _some(
        self, raw: pa.Array, versions: pa.Array | None, start: int, bad: list[Undecodable]
    ) -> list[pa.Array]:
        missing = [None] * len(self._fields)
        values: list[Sequence[Any]] = []
        numbers = None if versions is None else versions.slice(start, _AT_ONCE).to_pylist()
        for row, data in enumerate(raw.slice(start, _AT_ONCE).to_pylist()):
            value = None
            if data is not None:
                read = self._reads[0 if numbers is None else numbers[row]]
                try:
                    value = read(data)
                except Mismatch as error:
                    bad.append(Undecodable(start + row, error.field, error.reason))
            values.append(missing if value is None else value)
        columns = zip(*values, strict=True) if values else [()] * len(self._fields)
        return [
            build_array(column, field.type)
            for column, field in zip(columns, self._fields, strict=True)
        ]


_together = BoundedCache[tuple[ColumnDecoder, ...], ColumnDecoder](_JOINTS, _JOINT_PLANS)
_kernels = BoundedCache[ColumnDecoder, Any](_KERNELS, _KERNEL_FIELDS)
