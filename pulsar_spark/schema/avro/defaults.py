"""Default values of fields: JSON, as definitions have them → the bytes of a value.

Avro 1.12 specification, Complex Types, Records: a table of how each type's defaults are written.
"""

from __future__ import annotations

import struct
from typing import Any

from pulsar_spark.schema.avro.definition import (
    NO_DEFAULT,
    Array,
    Enum,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    UnionOf,
)

_BOUNDS = {"int": 2**31, "long": 2**63}


class _Unfit(Exception):
    """JSON that is no value of a type."""


def encode_default(node: Node, value: Any) -> bytes | None:
    """Return the bytes of a default, None if `value` is none for this type.

    Of a union any member will do; the specification asks for the first, Java's client writes
    others too.
    """
    try:
        return _encode(node, value)
    except (_Unfit, UnicodeEncodeError, OverflowError):
        return None


def zigzag(number: int) -> bytes:
    """Return a whole number as Avro writes it: zigzag, seven bits a byte, lowest first."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _encode(node: Node, value: Any) -> bytes:
    match node:
        case Primitive():
            data = _primitive(node.kind, value)
        case Fixed():
            data = _check(value, str).encode("latin-1")
            if len(data) != node.size:
                raise _Unfit
        case Enum():
            if value not in node.symbols:
                raise _Unfit
            data = zigzag(node.symbols.index(value))
        case Array():
            data = _block([_encode(node.items, item) for item in _check(value, list)])
        case Map():
            pairs = _check(value, dict).items()
            data = _block([_text(key) + _encode(node.values, item) for key, item in pairs])
        case Record():
            found = _check(value, dict)
            data = b"".join(
                _encode(field.type, found.get(field.name, field.default)) for field in node.fields
            )
        case UnionOf():
            data = _union(node, value)
    return data


def _union(node: UnionOf, value: Any) -> bytes:
    for number, member in enumerate(node.members):
        found = encode_default(member, value)
        if found is not None:
            return zigzag(number) + found
    raise _Unfit


def _block(items: list[bytes]) -> bytes:
    return b"".join([zigzag(len(items)), *items, b"\0" if items else b""])


def _text(value: str) -> bytes:
    data = value.encode()
    return zigzag(len(data)) + data


def _primitive(kind: str, value: Any) -> bytes:
    match kind:
        case "null" if value is None:
            data = b""
        case "boolean":
            data = bytes([_check(value, bool)])
        case "int" | "long":
            # JSON has no whole numbers: some writers give them a point.
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not -_BOUNDS[kind] <= _check(value, int) < _BOUNDS[kind]:
                raise _Unfit
            data = zigzag(value)
        case "float" | "double":
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _Unfit
            data = struct.pack("<f" if kind == "float" else "<d", float(value))
        case "bytes":
            raw = _check(value, str).encode("latin-1")
            data = zigzag(len(raw)) + raw
        case "string":
            data = _text(_check(value, str))
        case _:
            raise _Unfit
    return data


def _check(value: Any, kind: type) -> Any:
    # NO_DEFAULT comes here for fields of a default record that are not in it.
    if value is NO_DEFAULT or not isinstance(value, kind):
        raise _Unfit
    return value
