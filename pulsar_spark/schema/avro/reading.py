"""Plans for AVRO values: how the kernel and the reference read them into columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pulsar_spark.schema.arrow.arrays import widest_item
from pulsar_spark.schema.avro.reference import read_value, reader_of
from pulsar_spark.schema.avro.resolution import (
    IntoMember,
    Plan,
    ReadArray,
    ReadBytes,
    ReadEnum,
    ReadMap,
    ReadNull,
    ReadNumber,
    ReadOpaque,
    ReadRecord,
    ReadUnion,
    Unresolvable,
)
from pulsar_spark.schema.column_decoder import Read


@dataclass(frozen=True)
class AvroPlan:
    """Reads values by a plan whose `type` is a struct of the columns."""

    plan: Plan

    def reader(self) -> Read:
        """Return the function that reads one value."""
        read = reader_of(self.plan)
        return lambda data: read_value(read, data)

    def described(self) -> tuple[Any, ...]:
        """Return the plan as the kernel takes it."""
        return _described(self.plan)


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
        case ReadOpaque() | Unresolvable():
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
