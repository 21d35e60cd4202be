"""Random Avro schemas and values, and fastavro's results for them."""

from __future__ import annotations

import datetime
import io
import json
import uuid
from collections.abc import Iterable, Sequence
from decimal import Decimal
from random import Random
from typing import Any

import fastavro
import pyarrow as pa

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo

PLAIN = ("boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL: tuple[dict[str, Any], ...] = (
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-nanos"},
    {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4},
    {"type": "string", "logicalType": "uuid"},
    {"type": "fixed", "size": 9, "logicalType": "decimal", "precision": 18, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 17, "scale": 3},
    {"type": "fixed", "size": 8, "logicalType": "decimal", "precision": 18, "scale": 2},
    {"type": "fixed", "size": 16, "logicalType": "uuid"},
    {"type": "fixed", "size": 12, "logicalType": "duration"},
)
_EPOCH = datetime.datetime(1970, 1, 1)
_WORDS = ("", "a", "Zürich", "日本", "x" * 70, "\0", "mixed 😀 text")


class Schemas:
    """Makes random schemas; names of types are never used twice."""

    def __init__(self, rng: Random, *, logical: bool = True) -> None:
        self._rng = rng
        self._logical = logical
        self._names = 0

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def record(self, depth: int = 3) -> dict[str, Any]:
        fields = [
            {"name": self.name("f"), "type": self.type(depth - 1)}
            for _ in range(self._rng.randint(1, 5))
        ]
        return {"type": "record", "name": self.name("R"), "fields": fields}

    def type(self, depth: int) -> Any:
        rng = self._rng
        choice = rng.random()
        if choice < 0.4 or depth <= 0:
            return rng.choice(PLAIN)
        if choice < 0.55 and self._logical:
            kind = dict(rng.choice(LOGICAL))
            return kind | {"name": self.name("L")} if kind["type"] == "fixed" else kind
        if choice < 0.7:
            return ["null", self.type(0)] if rng.random() < 0.7 else [self.type(0), "null"]
        return self._composed(depth)

    def _composed(self, depth: int) -> Any:
        rng = self._rng
        composed: Any
        match rng.randrange(7):
            case 0:
                composed = {"type": "array", "items": self.type(depth - 1)}
            case 1:
                composed = {"type": "map", "values": self.type(depth - 1)}
            case 2:
                composed = self.record(depth)
            case 3:
                symbols = [f"S{number}" for number in range(rng.choice((1, 3, 80)))]
                composed = {"type": "enum", "name": self.name("E"), "symbols": symbols}
            case 4:
                composed = {"type": "fixed", "name": self.name("F"), "size": rng.choice((0, 1, 7))}
            case 5:
                inner = self._composed(depth - 1) if depth > 1 else "int"
                composed = inner if isinstance(inner, list) else ["null", inner]
            case _:
                composed = self.union(depth)
        return composed

    def union(self, depth: int) -> Any:
        rng = self._rng
        members: list[Any] = ["boolean", "long", "double", "string", "bytes"]
        members.append({"type": "array", "items": self.type(depth - 1)})
        members.append(self.record(depth - 1))
        chosen = rng.sample(members, rng.randint(2, 4))
        return ["null", *chosen] if rng.random() < 0.5 else chosen


class Values:
    """Makes random values of schemas, in fastavro's form without logical types."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def of(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return self.of(self._rng.choice(tree))
        kind = tree if isinstance(tree, str) else tree["type"]
        if isinstance(tree, dict) and "logicalType" in tree:
            return self._logical(tree)
        if kind == "record":
            return {field["name"]: self.of(field["type"]) for field in tree["fields"]}
        if kind == "array":
            return [self.of(tree["items"]) for _ in range(self._count())]
        if kind == "map":
            return {f"k{i}": self.of(tree["values"]) for i in range(self._count())}
        return self._plain(kind, tree)

    def _count(self) -> int:
        rng = self._rng
        return rng.randrange(4) if rng.random() < 0.995 else rng.randrange(200)

    def _plain(self, kind: str, tree: Any) -> Any:
        rng = self._rng
        value: Any = None
        match kind:
            case "boolean":
                value = rng.random() < 0.5
            case "int":
                value = rng.getrandbits(rng.randint(1, 32)) - 2**31 if rng.random() < 0.5 else 7
            case "long":
                bits = rng.randint(1, 63)
                value = rng.randrange(-(2**bits), 2**bits)
            case "float":
                value = rng.choice((-0.0, float(rng.randrange(-(2**20), 2**20)) / 8))
            case "double":
                value = rng.choice((-0.0, 0.5, -1e300, rng.random(), float("inf")))
            case "bytes":
                value = rng.randbytes(rng.choice((0, 3, 90)))
            case "string":
                value = rng.choice(_WORDS)
            case "enum":
                value = rng.choice(tree["symbols"])
            case "fixed":
                value = rng.randbytes(tree["size"])
        return value

    def _logical(self, tree: Any) -> Any:
        rng = self._rng
        name = tree["logicalType"]
        day = 86_400
        if name == "date":
            return rng.randrange(-600_000, 2_000_000)
        if name.startswith("time-"):
            return rng.randrange(day * (1000 if name == "time-millis" else 10**6))
        if "timestamp" in name:
            seconds = rng.randrange(-(2**33), 2**33)
            return seconds * {"millis": 1000, "micros": 10**6, "nanos": 10**9}[name[-6:].strip("-")]
        if name == "decimal":
            number = rng.randrange(-(10**17), 10**17)
            size = tree.get("size") or max(
                1, ((number if number >= 0 else ~number).bit_length() + 8) // 8
            )
            return number.to_bytes(size, "big", signed=True)
        if name == "uuid":
            found = uuid.UUID(int=rng.getrandbits(128))
            return found.bytes if tree["type"] == "fixed" else str(found)
        return rng.randbytes(12)


def bare(tree: Any) -> Any:
    """The schema without its logical types."""
    if isinstance(tree, list):
        return [bare(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    return {
        key: bare(value) if key in ("type", "items", "values", "fields") else value
        for key, value in tree.items()
        if key != "logicalType"
    }


def info(tree: Any) -> SchemaInfo:
    return SchemaInfo(pb.Schema.Avro, "", json.dumps(tree).encode())


def encoded(tree: Any, values: Iterable[Any]) -> list[bytes]:
    """The values, written by fastavro."""
    schema = fastavro.parse_schema(bare(tree))
    out = []
    for value in values:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, schema, value)
        out.append(target.getvalue())
    return out


def decoded(tree: Any, data: Iterable[bytes], reader: Any = None) -> list[Any]:
    """The values, read by fastavro, in Spark's form."""
    schema = fastavro.parse_schema(bare(tree))
    target = None if reader is None else fastavro.parse_schema(bare(reader))
    shown = tree if reader is None else reader
    return [
        expected(shown, fastavro.schemaless_reader(io.BytesIO(item), schema, target))
        for item in data
    ]


def expected(tree: Any, value: Any) -> Any:
    """Return fastavro's value in Arrow's form."""
    if isinstance(tree, list):
        return _expected_union(tree, value)
    kind = tree if isinstance(tree, str) else tree["type"]
    if isinstance(tree, dict) and "logicalType" in tree:
        value = _expected_logical(tree, value)
    elif kind == "record":
        value = {f["name"]: expected(f["type"], value[f["name"]]) for f in tree["fields"]}
    elif kind == "array":
        value = [expected(tree["items"], item) for item in value]
    elif kind == "map":
        value = [(key, expected(tree["values"], item)) for key, item in value.items()]
    return value


def _expected_union(tree: list[Any], value: Any) -> Any:
    present = [member for member in tree if member != "null"]
    if value is None:
        return None
    if len(present) == 1:
        return expected(present[0], value)
    if sorted(map(str, present)) in (["int", "long"], ["double", "float"]):
        return value
    chosen = next(place for place, member in enumerate(present) if _is_of(member, value))
    return {
        f"member{place}": expected(member, value) if place == chosen else None
        for place, member in enumerate(present)
    }


_PYTHON = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "bytes": bytes,
}


def _is_of(member: Any, value: Any) -> bool:
    if isinstance(member, dict):
        return isinstance(value, dict if member["type"] == "record" else list)
    return type(value) is _PYTHON[member]


def _expected_logical(tree: dict[str, Any], value: Any) -> Any:
    name = tree["logicalType"]
    found: Any
    if name == "date":
        found = datetime.date(1970, 1, 1) + datetime.timedelta(value)
    elif name.startswith("time-"):
        found = value * (10**6 if name == "time-millis" else 1000)
    elif "timestamp" in name:
        unit = {"millis": 1000, "micros": 10**6, "nanos": 10**9}[name.rpartition("-")[2]]
        found = _EPOCH + datetime.timedelta(seconds=value // unit)
        if not name.startswith("local"):
            found = found.replace(tzinfo=datetime.timezone.utc)
    elif name == "decimal":
        found = Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-tree["scale"])
    elif name == "uuid":
        found = value if isinstance(value, str) else str(uuid.UUID(bytes=value))
    else:
        parts = [int.from_bytes(value[at : at + 4], "little") for at in (0, 4, 8)]
        found = dict(zip(("months", "days", "milliseconds"), parts, strict=True))
    return found


def rows(names: Sequence[str], columns: Sequence[pa.Array]) -> list[dict[str, Any]]:
    """The rows of columns, which are validated."""
    for column in columns:
        column.validate(full=True)
    lists = [column.to_pylist() for column in columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]
