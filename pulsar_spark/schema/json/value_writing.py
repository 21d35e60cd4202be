"""One value at a time → text of a JSON topic, for clients without Spark.

Values have the form of the columns' cells (`python_values.converter`), and have been checked
against the definition. What is rare is written as a column of one.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable
from decimal import MAX_PREC, Context, Decimal
from struct import Struct
from typing import Any, TypeAlias

import pyarrow as pa

from pulsar_spark.schema.arrow.arrays import build_array
from pulsar_spark.schema.avro import definition as avro
from pulsar_spark.schema.avro.types import TOO_LATE, sole_type
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.json.types import Dialect, JsonRule, Shape, is_java_map, shape_of
from pulsar_spark.schema.json.writing import OF_PYTHON, writer

WriteText: TypeAlias = Callable[[Any], str]
"""Returns a value's JSON; raises Mismatch for one that the type cannot hold."""

_LONGS = range(-(2**63), 2**63)
_quote = json.JSONEncoder(ensure_ascii=False).encode


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
        (f"{_quote(field.name)}:", value_writer(field.type, dialect, prefix + field.name))
        for field in node.fields
    ]
    leaves_out = dialect.leaves_out_nulls
    return lambda value: (
        "{"
        + ",".join(
            [
                start + write(cell)
                for (start, write), cell in zip(fields, value, strict=True)
                if not leaves_out or cell is not None
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
            if pair is None or pair[0] is None:
                raise Mismatch("a key is null, and JSON's are not", path)
            name = key(pair[0])
            quoted = name if name.startswith('"') else f'"{name}"'
            texts.append(f"{quoted}:{value(pair[1])}")
        return "{" + ",".join(texts) + "}"

    return write


def _union(node: avro.UnionOf, dialect: Dialect, path: str) -> WriteText:
    members = [
        _present(member, dialect, f"{path}.member{place}")
        for place, member in enumerate(node.present)
    ]

    def write(value: list[Any]) -> str:
        place = next(place for place, own in enumerate(value) if own is not None)
        return members[place](value[place])

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
_DOUBLE = Struct("<d")
_EXACT = Context(prec=MAX_PREC)


def _by_column(node: avro.Node, kind: pa.DataType, dialect: Dialect, path: str) -> WriteText:
    write = writer(node, kind, dialect, path)

    def one(value: Any) -> str:
        found: str = write(build_array([value], kind))[0].as_py()
        return found

    return one


def _leaf_of(shape: Shape) -> WriteText | None:
    if shape.rule in (JsonRule.MOMENT, JsonRule.TIME):
        return _scaled(shape)
    if shape.rule is JsonRule.DECIMAL:
        return _decimal(shape.kind.scale)
    return _LEAVES.get(shape.rule)


def _scaled(shape: Shape) -> WriteText:
    """Write times in the type's unit; finer parts are rounded towards the past."""

    def write(value: int) -> str:
        found = value * shape.divided // shape.times
        if found not in _LONGS:
            raise Mismatch(TOO_LATE)
        return str(found)

    return write


def _float(data: bytes) -> str:
    (value,) = _DOUBLE.unpack(data)
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else f'"{"-" if value < 0 else ""}Infinity"'


def _base64(value: bytes) -> str:
    return f'"{b64encode(value).decode()}"'


def _decimal(scale: int) -> WriteText:
    return lambda value: f"{Decimal(value).scaleb(-scale, _EXACT):f}"


def _quoted(value: bytes) -> str:
    return _quote(value.decode())


_LEAVES: dict[JsonRule, WriteText] = {
    JsonRule.BOOLEAN: lambda value: "true" if value else "false",
    JsonRule.INTEGER: str,
    JsonRule.FLOAT: _float,
    JsonRule.TEXT: _quoted,
    JsonRule.ENUM: _quoted,
    JsonRule.BASE64: _base64,
    JsonRule.DATE: str,
}
