"""Plans for AVRO values: how the kernel and the reference write them from columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pulsar_spark.schema.arrow.varints import zigzag
from pulsar_spark.schema.avro.definition import Enum, Fixed, Logical, Opaque, Primitive
from pulsar_spark.schema.avro.fitting import (
    WriteArray,
    WriteLeaf,
    WriteMap,
    WriteMember,
    WriteNull,
    WritePlan,
    WriteRecord,
    WriteUnion,
)
from pulsar_spark.schema.avro.resolution import units
from pulsar_spark.schema.avro.value_writing import NANOS_PER_DAY, value_writer
from pulsar_spark.schema.column_encoder import Write


@dataclass(frozen=True)
class AvroWritingPlan:
    """Writes rows by a plan for all columns."""

    plan: WriteRecord

    def writer(self) -> Write:
        """Return the function that writes one row."""
        return value_writer(self.plan)

    def described(self) -> tuple[Any, ...]:
        """Return the plan as the kernel takes it."""
        return "avro", _described(self.plan)


def _described(plan: WritePlan) -> tuple[Any, ...]:
    found: tuple[Any, ...]
    match plan:
        case WriteNull():
            found = ("null",)
        case WriteMember():
            own = zigzag(plan.number), _described(plan.plan)
            found = "union", _number(plan.null_number), [own], False
        case WriteUnion():
            members = [(zigzag(number), _described(each)) for number, each in plan.members]
            found = "union", _number(plan.null_number), members, True
        case WriteRecord():
            found = "record", [_step(step) for step in plan.steps]
        case WriteArray():
            found = "array", _described(plan.items)
        case WriteMap():
            found = "map", _described(plan.values)
        case WriteLeaf():
            found = _leaf(plan)
    return found


def _number(number: int | None) -> bytes | None:
    return None if number is None else zigzag(number)


def _step(step: tuple[str, int, WritePlan] | bytes) -> tuple[Any, ...]:
    return (None, step) if isinstance(step, bytes) else (step[1], _described(step[2]))


def _leaf(plan: WriteLeaf) -> tuple[Any, ...]:
    node, kind = plan.node, plan.type
    match node:
        case Opaque():
            return ("refused",)
        case Enum():
            return "enum", [(symbol.encode(), zigzag(n)) for n, symbol in enumerate(node.symbols)]
        case Fixed():
            return _of_size(node, kind)
    return _primitive(node, kind) if node.logical is None else _logical(node.logical, kind)


def _of_size(node: Fixed, kind: pa.DataType) -> tuple[Any, ...]:
    logical = node.logical
    if logical is not None and logical.name == "decimal":
        return _decimal(logical, kind, node.size)
    if pa.types.is_string(kind):
        return ("uuid",)
    return ("duration",) if pa.types.is_struct(kind) else ("fixed", node.size)


def _logical(logical: Logical, kind: pa.DataType) -> tuple[Any, ...]:
    if logical.name == "decimal":
        return _decimal(logical, kind, None)
    if logical.name == "uuid":
        return ("uuid text",)
    if logical.name == "date":
        return "whole", 1, 1, 0
    factor, divisor = units(logical)
    return "whole", divisor, factor, NANOS_PER_DAY if logical.name.startswith("time-") else 0


def _decimal(logical: Logical, kind: pa.DataType, size: int | None) -> tuple[Any, ...]:
    finer = kind.scale - logical.scale
    return "decimal", max(-finer, 0), max(finer, 0), logical.precision, size


def _primitive(node: Primitive, kind: pa.DataType) -> tuple[Any, ...]:
    if node.kind in ("int", "long"):
        return "whole", 1, 1, 0
    if node.kind in ("float", "double"):
        return node.kind, pa.types.is_floating(kind)
    return ("boolean",) if node.kind == "boolean" else ("bytes",)
