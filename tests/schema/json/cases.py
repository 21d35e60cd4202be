"""Random definitions of JSON topics, JSON text for them, and values decoded by the `json` module.

`expected` is a second, very simple decoder: `json.loads` and a rule for each type.
"""

from __future__ import annotations

import base64
import json
import math
import random
import re
import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo

UTC = timezone.utc
EPOCH = datetime(1970, 1, 1)
KEYS = ["a", "b", 'c"d', "é", "", "x y", "{}", "null"]
STRINGS = ["", "text", "a\nb", 'q"q\\', "}x{", "é😀", "\x00\x1f", "null", "}n", "{}{}", "[1]"]


class Bad(Exception):
    """The value does not fit its type."""


def info(definition: Any, *, indent: int | None = None) -> SchemaInfo:
    return SchemaInfo(pb.Schema.Json, "JSON", json.dumps(definition, indent=indent).encode())


def record(fields: Sequence[tuple[str, Any]], name: str = "R") -> dict[str, Any]:
    named = [{"name": field, "type": kind} for field, kind in fields]
    return {"type": "record", "name": name, "fields": named}


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def nullable(kind: Any) -> list[Any]:
    return ["null", kind]


def name_of(kind: Any) -> str:
    return str(kind.get("logicalType", kind["type"]) if isinstance(kind, dict) else kind)


LEAVES: list[Any] = [
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "string",
    "bytes",
    logical("int", "date"),
    logical("int", "time-millis"),
    logical("long", "time-micros"),
    logical("long", "timestamp-millis"),
    logical("long", "timestamp-micros"),
    logical("long", "local-timestamp-millis"),
    logical("string", "uuid"),
    logical("bytes", "decimal", precision=20, scale=4),
]


def random_type(rng: random.Random, depth: int = 0, unusual: bool = True) -> Any:
    """Return a type's definition; if `unusual` sometimes one that is not nullable."""
    choice = rng.random()
    if depth < 3 and choice < 0.3:
        inner = random_type(rng, depth + 1, unusual)
        kind = rng.choice(
            [
                {"type": "array", "items": inner},
                {"type": "map", "values": inner},
                random_record(rng, depth + 1, unusual),
            ]
        )
    elif choice < 0.35:
        symbols = ["RED", "GREEN"]
        kind = {"type": "enum", "name": f"E{rng.getrandbits(60)}", "symbols": symbols}
    else:
        kind = rng.choice(LEAVES)
    return kind if unusual and rng.random() < 0.3 else nullable(kind)


def random_record(rng: random.Random, depth: int = 0, unusual: bool = True) -> dict[str, Any]:
    count = rng.randint(1, 10 if depth == 0 else 3)
    fields = [(f"f{i}", random_type(rng, depth, unusual)) for i in range(count)]
    return record(fields, f"R{rng.getrandbits(60)}")


# --- text ---------------------------------------------------------------------------------


def random_text(rng: random.Random, kind: Any, *, unusual: bool = True) -> str:
    """Return JSON for a type: as producers write it, or if `unusual` sometimes otherwise."""
    return _Writer(rng, unusual).text(kind)


_UNUSUAL = {
    "boolean": ['"true"', '""'],
    "int": ["12.0", '"7"'],
    "long": ["1e3", '"-1"', '""'],
    "float": ["NaN", '"1.5"'],
    "double": ['"-Infinity"', '"1e3"'],
    "string": ["1.50", "true", "-0"],
    "enum": ["7"],
    "decimal": ['"1.5"', '""'],
    "date": ['"2024-02-29"', '""'],
    "timestamp-millis": ['"2024-02-29T13:14:15.123456789+01:30"', '""'],
    "timestamp-micros": ['"2024-02-29T13:14:15.123456789+01:30"', '""'],
}
_EXTRA = ["1", '{"f0":[{}]}', '"}"', "[null]"]


class _Writer:
    def __init__(self, rng: random.Random, unusual: bool) -> None:
        self.rng = rng
        self.unusual = unusual

    def rarely(self, share: float) -> bool:
        return self.unusual and self.rng.random() < share

    def text(self, kind: Any) -> str:
        if isinstance(kind, list):
            return "null" if self.rng.random() < 0.2 else self.text(kind[1])
        if self.rarely(0.01):
            return "null"
        name = name_of(kind)
        if name in _UNUSUAL and self.rarely(0.03):
            return self.rng.choice(_UNUSUAL[name])
        if name in ("array", "map", "record"):
            return self.compound(name, kind)
        value = self.leaf(name)
        if isinstance(value, Decimal):
            return str(value)
        return json.dumps(value, ensure_ascii=self.rng.random() < 0.5)

    def compound(self, name: str, kind: dict[str, Any]) -> str:
        space = self.rng.choice(["", "", "", " ", "\n "])
        if name == "array":
            items = [self.text(kind["items"]) for _ in range(self.rng.randint(0, 3))]
            return f"[{f',{space}'.join(items)}]"
        if name == "map":
            keys = KEYS if self.rng.random() < 0.1 else KEYS[:2]
            chosen = self.rng.sample(keys, self.rng.randint(0, 2))
            return self.object([(key, self.text(kind["values"])) for key in chosen], space)
        pairs = [
            (field["name"], self.text(field["type"]))
            for field in kind["fields"]
            if not self.rarely(0.05)
        ]
        if self.rarely(0.05):
            pairs.append(("extra", self.rng.choice(_EXTRA)))
        if self.rarely(0.02):
            pairs.extend(pairs[:1])
        if self.rarely(0.1):
            self.rng.shuffle(pairs)
        return self.object(pairs, space)

    def object(self, pairs: Sequence[tuple[str, str]], space: str) -> str:
        ascii_only = self.rng.random() < 0.5
        texts = [f"{json.dumps(k, ensure_ascii=ascii_only)}:{space}{v}" for k, v in pairs]
        return f"{{{space}{f',{space}'.join(texts)}{space}}}"

    def leaf(self, name: str) -> Any:
        rng = self.rng
        values: dict[str, Callable[[], Any]] = {
            "boolean": lambda: rng.random() < 0.5,
            "int": lambda: rng.randint(-(2**31), 2**31 - 1),
            "long": lambda: rng.randint(-(2**63), 2**63 - 1),
            "float": lambda: rng.choice([0.5, -1.25, 1e10, 3.0, -0.0]),
            "double": lambda: rng.choice([rng.uniform(-1e9, 1e9), -0.0, 5e-324]),
            "bytes": lambda: base64.b64encode(rng.randbytes(rng.randint(0, 5))).decode(),
            "string": lambda: rng.choice(STRINGS),
            "enum": lambda: rng.choice(["RED", "GREEN"]),
            "uuid": lambda: "6f1f2a52-9d0e-4b4c-a0cb-0e4b8e1d0000",
            "date": lambda: rng.randint(-100_000, 100_000),
            "time-millis": lambda: rng.randint(0, 86_399_999),
            "time-micros": lambda: rng.randint(0, 86_399_999_999),
            "decimal": lambda: Decimal(rng.randint(-(10**16), 10**16)).scaleb(-rng.choice([0, 4])),
        }
        return values.get(name, lambda: rng.randint(-(10**13), 10**13))()


BREAKERS = [
    "",
    " ",
    "{}{}",
    "{}\n{}",
    "{}null{}",
    "{} null {}",
    "{}[]{}",
    "null",
    "[]",
    "1",
    "{",
    "}",
    "{}}",
    '{"f0":',
    '{"f0":"}',
    '"}',
    "{}\x00",
    '{"f0":1}\x00{}',
    "{'f0':1}",
    '{"f0":1,}',
    '{"f0":"\n"}',
    '{"f0":01}',
    '{"f0":"\\ud800"}',
    '{"f0":"\\x"}',
    '{"f0":1e999999999999}',
    '{"f0":' + "9" * 5000 + "}",
    '{"f0":' + "[" * 2000 + "]" * 2000 + "}",
    '{"x":"\\"}{"}',
    "{},{}",
    "{}x{}",
    '{"f0":{"f0":{"f0":null}}}',
    '{"f0":true}',
    '{"f0":"text"}',
    '{"f0":[1]}',
    '{"f0":[{"key":"a","value":1}]}',
    '{"f0":{"a":null,"b":1}}',
    '{"f0":-NaN}',
    '{"f0":Inf}',
    "\ufeff{}",
    "/**/{}",
]


def broken(rng: random.Random, text: str) -> bytes:
    """Return mutated JSON text, which is usually invalid."""
    data = text.encode()
    place = rng.randrange(len(data) + 1)
    match rng.randrange(5):
        case 0:
            return data[:place]
        case 1:
            return (
                data[:place]
                + rng.choice([b"\xff", b"\x00", b"}", b'"', b"\n", b"{", b"1"])
                + data[place:]
            )
        case 2:
            return data + rng.choice(BREAKERS).encode()
        case 3:
            return data[:place] + data[place + 1 :]
    return rng.choice(BREAKERS).encode()


# --- what is expected ---------------------------------------------------------------------


def expected(kind: Any, value: bytes | None) -> dict[str, Any] | None:
    """Return a record's value as a row, None for null; raises Bad."""
    if value is None:
        return None
    try:
        text = value.decode().removeprefix("\ufeff")
        tree = json.loads(text, parse_float=Number, parse_int=Number, parse_constant=Number)
    except (ValueError, RecursionError):
        raise Bad from None
    if tree is None:
        return None
    found = _expected(kind, tree)
    assert isinstance(found, dict)
    return found


class Number(str):
    """A number as it is written."""

    __slots__ = ()


def _expected(kind: Any, tree: Any) -> Any:
    if isinstance(kind, list):
        kind = kind[1]
    if tree is None:
        return None
    name = name_of(kind)
    if name == "array":
        return [_expected(kind["items"], item) for item in _of(list, tree)]
    if name == "map":
        entries = _of(dict, tree).items()
        found = [(_utf8(key), _expected(kind["values"], value)) for key, value in entries]
        return sorted(found, key=lambda pair: pair[0])
    if name == "record":
        _of(dict, tree)
        return {f["name"]: _expected(f["type"], tree.get(f["name"])) for f in kind["fields"]}
    return _RULES[name](tree)


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise Bad
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and bool(
        re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", value)
    )


def _number(value: Any) -> Decimal | None:
    """Return a number, even if it is quoted; None for empty text."""
    if value == "":
        return None
    if not _is_number(value):
        raise Bad
    try:
        return Decimal(value)
    except ArithmeticError:
        raise Bad from None


def _utf8(value: Any) -> str:
    if isinstance(value, Number):
        raise Bad
    try:
        return str(_of(str, value).encode(), "utf-8")
    except UnicodeEncodeError:
        raise Bad from None


def _string(value: Any) -> str:
    if isinstance(value, bool | Number):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return _utf8(value)


def _boolean(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False, "": None}[_known(value, ("true", "false", ""))]


def _known(value: Any, words: Sequence[str]) -> str:
    if isinstance(value, Number) or _of(str, value) not in words:
        raise Bad
    return str(value)


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_utf8(value), validate=True)
    except ValueError:
        raise Bad from None


def _whole(value: Any, bits: int = 64, factor: int = 1) -> int | None:
    number = _number(value)
    if number is None:
        return None
    if number.adjusted() > 50 or number != int(number):
        raise Bad
    found = int(number) * factor
    if not -(2 ** (bits - 1)) <= found < 2 ** (bits - 1):
        raise Bad
    return found


def _double(value: Any) -> float | None:
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if value == "":
        return None
    if not _is_number(value):
        raise Bad
    return float(value)


def _single(value: Any) -> float | None:
    number = _double(value)
    if number is None:
        return None
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _decimal(value: Any) -> Decimal | None:
    if value == "":
        return None
    try:
        number = Decimal(_of(str, value))
    except ArithmeticError:
        raise Bad from None
    if not number.is_finite() or (number and not -4 <= number.adjusted() < 16):
        raise Bad
    if number != number.quantize(Decimal("0.0001")):
        raise Bad
    return number


def _symbol(value: Any) -> str:
    if isinstance(value, bool):
        raise Bad
    return _string(value)


def _date(value: Any) -> int | None:
    if isinstance(value, Number) or value == "":
        return _whole(value, 32)
    try:
        return (date.fromisoformat(_iso(value)) - date(1970, 1, 1)).days
    except ValueError:
        raise Bad from None


def _iso(value: Any) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", _of(str, value), re.ASCII):
        raise Bad
    return str(value)


def _moment(value: Any, factor: int, zoned: bool) -> int | None:
    if isinstance(value, Number) or value == "":
        return _whole(value, factor=factor)
    try:
        match = re.fullmatch(r"(.{19})(?:\.(\d{1,9}))?(.+)", _of(str, value), re.ASCII)
        if match is None or not zoned:
            raise Bad
        second, fraction, zone = match.groups("")
        micros = f"{fraction:0<6}"[:6]
        found = datetime.fromisoformat(f"{second}.{micros}{zone}").astimezone(UTC)
    except ValueError:
        raise Bad from None
    return (found.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1)


_RULES: dict[str, Any] = {
    "boolean": _boolean,
    "int": lambda value: _whole(value, 32),
    "long": _whole,
    "float": _single,
    "double": _double,
    "string": _string,
    "uuid": _string,
    "bytes": _bytes,
    "decimal": _decimal,
    "enum": _symbol,
    "date": _date,
    "time-millis": lambda value: _moment(value, 1_000_000, False),
    "time-micros": lambda value: _moment(value, 1000, False),
    "timestamp-millis": lambda value: _moment(value, 1000, True),
    "timestamp-micros": lambda value: _moment(value, 1, True),
    "local-timestamp-millis": lambda value: _moment(value, 1000, False),
}


# --- comparing ----------------------------------------------------------------------------


def plain(column: pa.Array) -> list[Any]:
    """Return a column as Python values, with dates and times as the numbers that they are."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return list(column.view(pa.int64()).to_pylist())
    if pa.types.is_date(kind):
        return list(column.view(pa.int32()).to_pylist())
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        parts = [plain(column.field(i)) for i in range(kind.num_fields)]
        rows = zip(*parts, strict=True) if parts else [()] * len(column)
        flags = column.is_valid().to_pylist()
        return [
            dict(zip(names, row, strict=True)) if flag else None
            for row, flag in zip(rows, flags, strict=True)
        ]
    if pa.types.is_map(kind):
        keys, items = plain(column.keys), plain(column.items)
        return _cut(column, list(zip(keys, items, strict=True)))
    if pa.types.is_list(kind):
        return _cut(column, plain(column.values))
    return list(column.to_pylist())


def _cut(column: pa.Array, items: list[Any]) -> list[Any]:
    ends = column.offsets.to_pylist()
    flags = column.is_valid().to_pylist()
    return [items[ends[i] : ends[i + 1]] if flag else None for i, flag in enumerate(flags)]


def same(first: Any, second: Any) -> bool:
    """Whether values are equal, floats bit by bit; but JSON has only one NaN."""
    if isinstance(first, float) and isinstance(second, float):
        bits = struct.pack("d", first) == struct.pack("d", second)
        return bits or (math.isnan(first) and math.isnan(second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)
