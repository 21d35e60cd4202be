"""One row at a time → text of a JSON topic: the reference, and the only way without the kernel.

Values are cells, in the form of `arrays.cells_of`.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import MAX_PREC, Context, Decimal
from json.encoder import encode_basestring as quoted
from struct import Struct
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa

from pulsar_spark.schema.arrow.arrays import build_array
from pulsar_spark.schema.avro.types import (
    DAYS_OF_400_YEARS,
    NANOS_PER_DAY,
    NOT_A_TIME,
    NOT_A_UUID,
    NOT_NULL,
    ONLY_NULL,
    SEVERAL_MEMBERS,
    TOO_LATE,
    UUID_TEXT,
    WITHOUT_MEMBER,
    WRONG_SIZE,
)
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.json.reference import check_json

Plan: TypeAlias = tuple[Any, ...]
"""How values are written: a name, and what it takes (`json/writing.py`)."""

WriteText: TypeAlias = Callable[[Any], "str | None"]
"""Returns a value's JSON, None for null; raises Mismatch for one that the type cannot hold."""

_DOUBLE = Struct("<d")
_EXACT = Context(prec=MAX_PREC)
_EPOCH = datetime(1970, 1, 1)
_IS_UUID = re.compile(UUID_TEXT.replace(r"\z", r"\Z").encode()).match
_IS_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})").fullmatch


def row_writer(plan: Plan) -> Callable[[Sequence[Any]], bytes]:
    """Return the function that writes rows by a plan."""
    is_alone = plan[0] == "alone"
    write = _writer(plan[1], plan[2]) if is_alone else _writer(plan, "")

    def write_row(cells: Sequence[Any]) -> bytes:
        text = write(cells[0] if is_alone else cells)
        return (text or "null").encode("utf-8", "surrogateescape")

    return write_row


def _writer(plan: Plan, path: str) -> WriteText:
    """Return the function that writes values by a plan, at a path."""
    nullable = plan[0] == "nullable"
    name, *parts = plan[1] if nullable else plan
    write = _PARTS[name](path, *parts)

    def write_present(value: Any) -> str | None:
        if value is None:
            if nullable:
                return None
            raise Mismatch(NOT_NULL, path)
        return write(value)

    return write_present


def _refused(path: str, write: Callable[[Any], str]) -> WriteText:
    """Return a function whose ValueErrors are mismatches at a path."""

    def convert(value: Any) -> str:
        try:
            return write(value)
        except (ValueError, OverflowError) as error:
            raise Mismatch(str(error), path) from None

    return convert


def _only_null(path: str) -> WriteText:
    def refuse(value: Any) -> str:
        raise Mismatch(ONLY_NULL, path)

    return refuse


# --- types with parts ---------------------------------------------------------------------


def _record(path: str, fields: Sequence[tuple[str, bytes, Plan]], leaves_out: bool) -> WriteText:
    prefix = f"{path}." if path else ""
    writers = [(start.decode(), _writer(plan, prefix + name)) for name, start, plan in fields]

    def write(cells: Sequence[Any]) -> str:
        texts = [
            start + (write_field(cell) or "null")
            for (start, write_field), cell in zip(writers, cells, strict=True)
        ]
        return "{" + ",".join(texts) + "}"

    def write_present(cells: Sequence[Any]) -> str:
        texts = []
        for (start, write_field), cell in zip(writers, cells, strict=True):
            text = write_field(cell)
            if text is not None:
                texts.append(start + text)
        return "{" + ",".join(texts) + "}"

    return write_present if leaves_out else write


def _array(path: str, items: Plan) -> WriteText:
    write = _writer(items, f"{path}[]")
    return lambda cells: "[" + ",".join([write(cell) or "null" for cell in cells]) + "]"


def _map(path: str, values: Plan) -> WriteText:
    write = _writer(values, f"{path}{{}}")
    return lambda pairs: (
        "{" + ",".join([f"{_text(key)}:{write(cell) or 'null'}" for key, cell in pairs]) + "}"
    )


def _pairs(path: str, key: tuple[int, Plan], value: tuple[int, Plan]) -> WriteText:
    """Write pairs of keys that are not text as an object, as Jackson does."""
    write_key, write_value = _writer(key[1], f"{path}[].key"), _writer(value[1], f"{path}[].value")

    def write(pairs: Sequence[Any]) -> str:
        texts = []
        for pair in pairs:
            name = write_key(None if pair is None else pair[key[0]])
            if name is None:
                raise Mismatch("a key is null, and JSON's are not", path)
            if name[0] in "{[":
                raise Mismatch("a key is an object or an array, and JSON's are text", path)
            shown = name if name.startswith('"') else f'"{name}"'
            texts.append(f"{shown}:{write_value(pair[value[0]]) or 'null'}")
        return "{" + ",".join(texts) + "}"

    return write


def _union(path: str, members: Sequence[Plan], nullable: bool) -> WriteText:
    writers = [_writer(member, f"{path}.member{i}") for i, member in enumerate(members)]

    def write(cells: Sequence[Any]) -> str | None:
        there = [place for place, cell in enumerate(cells) if cell is not None]
        if len(there) > 1:
            raise Mismatch(SEVERAL_MEMBERS, path)
        if not there and not nullable:
            raise Mismatch(WITHOUT_MEMBER, path)
        return writers[there[0]](cells[there[0]]) if there else None

    return write


# --- types without parts ------------------------------------------------------------------


def _text(value: bytes) -> str:
    return quoted(value.decode("utf-8", "surrogateescape"))


def _enum(path: str, names: Sequence[bytes] | None) -> WriteText:
    known = None if names is None else frozenset(names)

    def write(value: bytes) -> str:
        if known is None:
            # Numbers are values of an enum's members, other text is their names.
            found = value.decode("utf-8", "surrogateescape")
            return found if _IS_NUMBER(found) else quoted(found)
        if value not in known:
            shown = value.decode(errors="replace")[:100]
            raise Mismatch(f"it is {shown!r}, which is not a symbol of the enum", path)
        return _text(value)

    return write


def _uuid(value: bytes) -> str:
    if _IS_UUID(value) is None:
        raise ValueError(NOT_A_UUID)
    return _text(value)


def _bytes(path: str, is_base64: bool, size: int | None) -> WriteText:
    def write(value: bytes) -> str:
        if size is not None and len(value) != size:
            raise Mismatch(WRONG_SIZE.format(size), path)
        if is_base64:
            return f'"{b64encode(value).decode()}"'
        try:
            return quoted(value.decode())
        except UnicodeDecodeError:
            reason = "it is not UTF-8, and schemas of the Python client have bytes as UTF-8"
            raise Mismatch(reason, path) from None

    return write


def _any(path: str) -> WriteText:
    def write(value: bytes) -> str:
        text = value.decode("utf-8", "surrogateescape")
        try:
            check_json(text)
        except Mismatch as error:
            raise Mismatch(error.reason, path) from None
        return text

    return write


def _float(path: str, bits: int, source: int, is_quoted: bool) -> WriteText:
    words = {text: f'"{word}"' if is_quoted else word for text, word in _WORDS.items()}
    # Without a point it would be read as an integer, which has no negative zero.
    words["-0"] = "-0.0"
    if source == 64 and bits == 64:

        def write_double(value: bytes) -> str:
            (number,) = _DOUBLE.unpack(value)
            if 1e-4 <= abs(number) < 1e10:
                return repr(number).removesuffix(".0")
            text = float_text(number)
            return words.get(text, text)

        return write_double

    def write(value: Any) -> str:
        cell = value if source else _DOUBLE.pack(value)
        column = build_array([cell], _KINDS[source]).cast(_KINDS[bits])
        text: str = column.cast(pa.string())[0].as_py()
        return words.get(text, text)

    return write


_KINDS = {0: pa.float64(), 32: pa.float32(), 64: pa.float64()}
_WORDS = {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def float_text(value: float) -> str:
    """Return a number with as few digits as tell it from others, as Arrow writes it."""
    if value == 0 or value - value != 0 or 1e-4 <= abs(value) < 1e10:
        return repr(value).removesuffix(".0")
    _, digits, exponent = Decimal(repr(value)).normalize(_EXACT).as_tuple()
    assert isinstance(exponent, int)
    sign = "-" if value < 0 else ""
    shown = "".join(map(str, digits))
    power = exponent + len(digits) - 1
    if power in (-5, -6):
        return f"{sign}0.{'0' * (-power - 1)}{shown}"
    point = f".{shown[1:]}" if shown[1:] else ""
    return f"{sign}{shown[0]}{point}e{power:+d}"


def _python_float(path: str) -> WriteText:
    def write(value: bytes) -> str:
        (found,) = _DOUBLE.unpack(value)
        text = repr(found)
        return f'"{_WORDS[text]}"' if text in _WORDS else text

    return write


def _decimal(path: str, factor: int, divisor: int, precision: int, scale: int) -> WriteText:
    times, parts, bound = 10**factor, 10**divisor, 10**precision

    def write(value: int) -> str:
        found, rest = divmod(value * times, parts)
        if rest or not -bound < found < bound:
            reason = "it does not fit the precision and scale of the topic's schema"
            raise Mismatch(reason, path)
        return str(Decimal(found).scaleb(-scale, _EXACT))

    return write


# --- times --------------------------------------------------------------------------------


def _time(path: str, factor: int, divisor: int, of_day: bool) -> WriteText:
    """Write times in the type's unit; finer parts are rounded towards the past."""

    def write(value: int) -> str:
        if of_day and not 0 <= value < NANOS_PER_DAY:
            raise Mismatch(NOT_A_TIME, path)
        found = value * factor // divisor
        if not -(2**63) <= found < 2**63:
            raise Mismatch(TOO_LATE, path)
        return str(found)

    return write


def _iso_time(value: int) -> str:
    if not 0 <= value < NANOS_PER_DAY:
        raise ValueError(NOT_A_TIME)
    seconds, nanos = divmod(value, 10**9)
    return f'"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{nanos:09}"'


def _iso(value: int, unit: timedelta, timespec: str) -> str:
    """Return a time of the years 0 to 9999 in ISO 8601; Python has no year 0."""
    try:
        days, rest = divmod(value * unit, timedelta(1))
        if not _FIRST_DAY <= days <= _LAST_DAY:
            raise OverflowError
        shift = 0 if days >= _FIRST_DAY + 366 else 400
        found = _EPOCH + timedelta(days + (DAYS_OF_400_YEARS if shift else 0)) + rest
    except OverflowError:
        reason = "it is not in the years 0 to 9999, which ISO 8601 has"
        raise ValueError(reason) from None
    text = found.isoformat(timespec=timespec)
    return f"{found.year - shift:04}{text[4:]}"


_FIRST_DAY, _LAST_DAY = -719_528, 2_932_896


def _iso_date(value: int) -> str:
    return f'"{_iso(value, timedelta(1), "hours")[:10]}"'


def _iso_moment(path: str, zone: bytes) -> WriteText:
    unit, end = timedelta(microseconds=1), zone.decode()
    return _refused(path, lambda value: f'"{_iso(value, unit, "microseconds")}{end}"')


_PARTS: dict[str, Callable[..., WriteText]] = {
    "null": _only_null,
    "record": _record,
    "array": _array,
    "map": _map,
    "pairs": _pairs,
    "union": _union,
    "text": lambda path: _text,
    "enum": _enum,
    "uuid": lambda path: _refused(path, _uuid),
    "uuid bytes": lambda path: _refused(path, lambda value: f'"{UUID(bytes=value)}"'),
    "bytes": _bytes,
    "any": _any,
    "boolean": lambda path: lambda value: "true" if value else "false",
    "integer": lambda path: str,
    "float": _float,
    "python float": _python_float,
    "decimal": _decimal,
    "time": _time,
    "iso date": lambda path: _refused(path, _iso_date),
    "iso time": lambda path: _refused(path, _iso_time),
    "iso moment": _iso_moment,
}
