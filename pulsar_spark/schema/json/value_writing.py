"""One value at a time → text of a JSON topic, for clients without Spark.

Values have the form of the columns' cells (`python_values.converter`), and have been checked
against the definition. What is rare is written as a column of one.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from pulsar_spark.schema.avro import definition as avro
from pulsar_spark.schema.avro.types import TOO_LATE, day_of, sole_type
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.json.types import Dialect, JsonRule, Shape, is_java_map, shape_of
from pulsar_spark.schema.json.writing import OF_PYTHON, writer

WriteText: TypeAlias = Callable[[Any], str]
"""Returns a value's JSON; raises Mismatch for one that the type cannot hold."""

_LONGS = range(-(2**63), 2**63)
_quoted: WriteText = json.JSONEncoder(ensure_ascii=False).encode


def value_writer(node: avro.Node, dialect: Dialect, path: str = "") -> WriteText:
    """Return the function that writes values of a type, also if they are None."""
    write = _present(node, dialect, path)
    return lambda value: "null" if value is None else write(value)


def _present(node: avro.Node, dialect: Dialect, path: str) -> WriteText:
    if isinstance(node, avro.UnionOf):
        sole = sole_type(node)
        return _union(node, dialect, path) if sole is None else _present(sole, dialect, path)
    match node:
        case avro.Record():
            return _record(node, dialect, path)
        case avro.Array() if is_java_map(node):
            return _pairs(node.items, dialect, f"{path}[]")
        case avro.Array():
            item = value_writer(node.items, dialect, f"{path}[]")
            return lambda items: f"[{','.join(map(item, items))}]"
        case avro.Map():
            write = value_writer(node.values, dialect, f"{path}{{}}")
            return lambda pairs: (
                "{" + ",".join(f"{_quoted(key)}:{write(value)}" for key, value in pairs) + "}"
            )
    return _leaf(node, dialect, path)


def _record(node: avro.Record, dialect: Dialect, path: str) -> WriteText:
    prefix = f"{path}." if path else ""
    fields = [
        (
            field.name,
            f"{_quoted(field.name)}:",
            value_writer(field.type, dialect, prefix + field.name),
        )
        for field in node.fields
    ]
    leaves_out = dialect.leaves_out_nulls
    return lambda value: (
        "{"
        + ",".join(
            [
                start + write(value[name])
                for name, start, write in fields
                if not leaves_out or value[name] is not None
            ]
        )
        + "}"
    )


def _pairs(node: avro.Node, dialect: Dialect, path: str) -> WriteText:
    assert isinstance(node, avro.Record)
    key, value = (value_writer(each.type, dialect, f"{path}.{each.name}") for each in node.fields)

    def write(pairs: Any) -> str:
        texts = []
        for pair in pairs:
            if pair is None or pair["key"] is None:
                raise Mismatch("a key is null, and JSON's are not", path)
            name = key(pair["key"])
            quoted = name if name.startswith('"') else f'"{name}"'
            texts.append(f"{quoted}:{value(pair['value'])}")
        return "{" + ",".join(texts) + "}"

    return write


def _union(node: avro.UnionOf, dialect: Dialect, path: str) -> WriteText:
    members = {
        f"member{place}": _present(member, dialect, f"{path}.member{place}")
        for place, member in enumerate(node.present)
    }

    def write(value: dict[str, Any]) -> str:
        ((name, own),) = value.items()
        return members[name](own)

    return write


def _leaf(node: avro.Node, dialect: Dialect, path: str) -> WriteText:
    shape = shape_of(node, node, dialect)
    write = _leaf_of(shape)
    is_checked = isinstance(node, avro.Fixed) or getattr(node, "logical", None) == _UUID
    is_other = dialect.is_python and shape.rule in OF_PYTHON
    if write is None or shape.java or is_checked or is_other or pa.types.is_float32(shape.kind):
        return _by_column(node, shape.kind, dialect, path)

    def checked(value: Any) -> str:
        try:
            return write(value)
        except Mismatch as mismatch:
            raise mismatch.within(path) from None

    return checked


_UUID = avro.Logical("uuid")


def _by_column(node: avro.Node, kind: pa.DataType, dialect: Dialect, path: str) -> WriteText:
    write = writer(node, kind, dialect, path)

    def one(value: Any) -> str:
        try:
            column = pa.array([value], kind)
        except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
            raise Mismatch(f"it cannot be written: {error}", path) from None
        found: str = write(column)[0].as_py()
        return found

    return one


def _leaf_of(shape: Shape) -> WriteText | None:
    if shape.rule in (JsonRule.MOMENT, JsonRule.TIME):
        return _scaled(shape)
    return _LEAVES.get(shape.rule)


def _scaled(shape: Shape) -> WriteText:
    """Write times in the type's unit; finer parts are rounded towards the past."""

    def write(value: int) -> str:
        found = value * shape.divided // shape.times
        if found not in _LONGS:
            raise Mismatch(TOO_LATE)
        return str(found)

    return write


def _float(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else f'"{"-" if value < 0 else ""}Infinity"'


def _base64(value: bytes) -> str:
    return f'"{b64encode(value).decode()}"'


def _decimal(value: Decimal) -> str:
    return f"{value:f}"


def _day(value: date | int) -> str:
    return str(day_of(value))


_LEAVES: dict[JsonRule, WriteText] = {
    JsonRule.BOOLEAN: lambda value: "true" if value else "false",
    JsonRule.INTEGER: str,
    JsonRule.FLOAT: _float,
    JsonRule.DECIMAL: _decimal,
    JsonRule.TEXT: _quoted,
    JsonRule.ENUM: _quoted,
    JsonRule.BASE64: _base64,
    JsonRule.DATE: _day,
}
