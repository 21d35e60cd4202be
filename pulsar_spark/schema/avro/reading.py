"""Values of AVRO topics → columns, by plans: many values at a time in the kernel, or one by one.

The compiled kernel reads values into Arrow's buffers, each by the plan of its version. What it
refuses, and all values without it, `avro/reference` reads one by one: it knows what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from pulsar_spark.protocol import implementation
from pulsar_spark.schema.arrow.arrays import MAX_CELLS, build_array, widest_item
from pulsar_spark.schema.arrow.kernel_columns import layout
from pulsar_spark.schema.avro.reference import MAX_EMPTY_ITEMS, Read, read_value, reader_of
from pulsar_spark.schema.avro.resolution import (
    IntoMember,
    Plan,
    ReadArray,
    ReadBytes,
    ReadEnum,
    ReadMap,
    ReadNull,
    ReadNumber,
    ReadRecord,
    ReadUnion,
    Unresolvable,
)
from pulsar_spark.schema.codec import (
    Decoded,
    Decoder,
    JointDecoder,
    Mismatch,
    Undecodable,
    decode_by_kernel,
)

MAX_VERSIONS = 256
"""The most versions whose values are decoded together."""


class AvroDecoder:
    """Decodes values by plans whose `type` is a struct of the columns.

    With several plans, each value has the number of its own.
    """

    def __init__(self, *plans: Plan) -> None:
        self._plans = plans
        self._fields = list(plans[0].type)
        self._schema = pa.schema(self._fields)

    def __reduce__(self) -> tuple[type[AvroDecoder], tuple[Plan, ...]]:
        return AvroDecoder, self._plans

    @cached_property
    def _reads(self) -> Sequence[Read]:
        return list(map(reader_of, self._plans))

    @cached_property
    def _kernel(self) -> Any:
        if implementation.native is None:
            return None
        plans = list(map(_described, self._plans))
        kind = layout(self._plans[0].type)
        return implementation.native.ValueDecoder(kind, plans, MAX_CELLS, MAX_EMPTY_ITEMS)

    def together(self, decoders: Sequence[Decoder]) -> JointDecoder | None:
        """Return a decoder for values of all these decoders' versions, if there can be one."""
        plans = [each._plans[0] for each in decoders if isinstance(each, AvroDecoder)]
        if len(plans) < len(decoders) or len(plans) > MAX_VERSIONS:
            return None
        return AvroDecoder(*plans)

    def decode(self, raw: pa.Array, versions: pa.Array | None = None) -> Decoded:
        """Decode a binary array; null is a null value. `versions` are numbers, as int32."""
        if self._kernel is None or not len(raw):
            return self._one_by_one(raw, versions)
        return decode_by_kernel(self._kernel, self._schema, raw, versions, self._one_by_one)

    def _one_by_one(self, raw: pa.Array, versions: pa.Array | None) -> Decoded:
        missing = [None] * len(self._fields)
        values: list[Sequence[Any]] = []
        bad: list[Undecodable] = []
        numbers = None if versions is None else versions.to_pylist()
        for row, data in enumerate(raw.to_pylist()):
            value = None
            if data is not None:
                read = self._reads[0 if numbers is None else numbers[row]]
                try:
                    value = read_value(read, data)
                except Mismatch as error:
                    bad.append(Undecodable(row, error.field, error.reason))
            values.append(missing if value is None else value)
        columns = zip(*values, strict=True) if values else [()] * len(self._fields)
        built = [
            build_array(column, field.type)
            for column, field in zip(columns, self._fields, strict=True)
        ]
        return Decoded(built, bad)


# --- plans for the kernel ---------------------------------------------------------------------


def _described(plan: Plan) -> tuple[Any, ...]:
    """Return a plan as the kernel takes it."""
    found: tuple[Any, ...]
    match plan:
        case ReadNull():
            found = ("null",)
        case ReadNumber():
            # A factor of 0 says that a whole number becomes a float.
            floats = pa.types.is_floating(plan.type)
            found = "number", plan.kind, 0 if floats else plan.factor, plan.divisor
        case ReadBytes():
            found = "bytes", plan.size, _conversion(plan)
        case ReadEnum():
            found = "enum", [None if symbol is None else symbol.encode() for symbol in plan.symbols]
        case ReadArray():
            found = "array", _described(plan.items), plan.least, widest_item(plan.type)
        case ReadMap():
            keys = _conversion(ReadBytes(None, plan.type.key_type))
            found = "map", _described(plan.values), plan.least, widest_item(plan.type), keys
        case ReadRecord():
            found = _record(plan)
        case ReadUnion():
            found = "union", list(map(_described, plan.branches))
        case IntoMember():
            found = "member", _described(plan.plan), plan.member
        case Unresolvable():
            found = ("unresolvable",)
    return found


def _record(plan: ReadRecord) -> tuple[Any, ...]:
    steps = [(_described(step.plan), step.target) for step in plan.steps]
    defaults = [(item.target, _described(item.plan), item.data) for item in plan.defaults]
    known = {target for _, target in steps} | {target for target, _, _ in defaults}
    missing = [place for place in range(plan.type.num_fields) if place not in known]
    return "record", steps, defaults, missing


def _conversion(plan: ReadBytes) -> tuple[Any, ...]:
    kind = plan.type
    if pa.types.is_decimal(kind):
        finer = kind.scale - plan.scale
        return "decimal", max(finer, 0), max(-finer, 0), kind.precision
    if pa.types.is_struct(kind):
        return ("duration",)
    if pa.types.is_string(kind):
        return ("text",) if plan.size is None else ("uuid",)
    return ("raw",)
