"""JSON values one by one: parsed, checked against their shape, converted to a column's values.

The plain reference of the kernel's decoder (`native/src/json.rs`), which it also tells what is
wrong with a value and where. Exact for all of JSON: numbers that Python's types cannot hold stay
text.
"""

from __future__ import annotations

import json
import re
from array import array
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from struct import Struct
from typing import Any

import pyarrow as pa

from pulsar_spark.protocol.validation import is_unicode
from pulsar_spark.schema.arrow.arrays import widest_item
from pulsar_spark.schema.avro.types import DAYS_OF_400_YEARS, day_of
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.json.types import JsonRule, Shape

LONGEST_INTEGER = 40
"""Maximum length in characters of an integer that is parsed: no column holds a longer one."""
NOT_FINITE = frozenset(("NaN", "Infinity", "-Infinity"))
"""The words that stand for numbers."""

_DOUBLE = Struct("<d")
_LONGEST_DECIMAL = 1000
_EXACT = Context(prec=_LONGEST_DECIMAL, Emax=MAX_EMAX, Emin=MIN_EMIN)
# Each text matches in at most one way, so that a mismatch is found quickly.
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)


class NumberText(str):
    """A number as text, unless it is a short integer."""

    __slots__ = ()


def wrong(value: Any, wanted: JsonRule) -> Mismatch:
    """Return the error for a value of another kind."""
    return Mismatch(f"it is {named(value)} where the schema has {wanted.value}")


def named(value: Any) -> str:
    """Describe a value's kind, without showing it."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float | NumberText):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def whole_number(value: Any, shape: Shape) -> int:
    """Return an integer, even if it is written as 1.0 or 1e3."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, NumberText) or value in NOT_FINITE:
        raise wrong(value, shape.rule)
    number = Decimal(value) if _DECIMAL.fullmatch(value) else None
    # Larger numbers exceed any column's range, and computing the power would not end.
    if number is None or number.adjusted() > LONGEST_INTEGER:
        raise Mismatch("it is a number out of the range of its type")
    whole = int(number)
    if whole != number and not (shape.coerces_as_java and shape.rule is JsonRule.INTEGER):
        raise Mismatch(f"it is a number with a fraction where the schema has {shape.rule.value}")
    return whole


def in_range(number: int, allowed: range) -> int:
    """Return the number; raises Mismatch if it is not in the allowed range."""
    if number in allowed:
        return number
    raise Mismatch("it is a number out of the range of its type")


def scaled_decimal(value: Any, shape: Shape) -> int:
    """Return the unscaled number of a decimal; refuses to round."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise wrong(value, shape.rule)
    text = str(value)
    if not _DECIMAL.fullmatch(text):
        raise wrong(value, shape.rule)
    kind = shape.kind
    number = Decimal(text)
    digits = number.adjusted() + 1 + kind.scale
    if len(text) > _LONGEST_DECIMAL or (number and not 0 < digits <= kind.precision):
        raise Mismatch(f"it is a number that does not fit decimal({kind.precision},{kind.scale})")
    scaled = number.scaleb(kind.scale, _EXACT) if number else number
    whole = int(scaled)
    if whole != scaled:
        raise Mismatch(f"it is a number with more than {kind.scale} digits after the decimal point")
    return whole


_MICROS_PER_DAY = 86_400_000_000
_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)

_TIME = r"(\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?"
_TIME_OF_DAY = re.compile(_TIME, re.ASCII)
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[T ]" + _TIME + r"(Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_SECONDS = re.compile(r"(-?\d{1,18})\.(\d{1,9})", re.ASCII)
# Seconds below a microsecond, which Java writes with an exponent.
_NANOS = re.compile(r"\d(\.\d+)?E-[789]", re.ASCII)


def to_date(value: Any, shape: Shape) -> int:
    """Return days since 1970."""
    if _is_text(value):
        return _iso_day(value)
    if isinstance(value, list):
        return in_range(_array_day(_fields(value, 3, 3)), _INT32)
    return in_range(whole_number(value, shape), _INT32)


def to_moment(value: Any, shape: Shape) -> int:
    """Return microseconds since 1970, in UTC or without a zone."""
    if _is_text(value):
        return _iso_moment(value, shape)
    if isinstance(value, list) and shape.kind.tz is None:
        fields = _fields(value, 5, 7)
        nanos = _day_nanos(*fields[3:])
        return in_range(_array_day(fields[:3]) * _MICROS_PER_DAY + nanos // 1000, _INT64)
    is_java = shape.java and isinstance(value, NumberText)
    if is_java and _NANOS.fullmatch(value):
        return 0
    seconds = _SECONDS.fullmatch(value) if is_java else None
    if seconds is None:
        return in_range(whole_number(value, shape) * shape.times // shape.divided, _INT64)
    nanos = int(seconds[2].ljust(9, "0"))
    count = int(seconds[1])
    if count == 0 and value.startswith("-"):
        nanos = -nanos
    return in_range(count * 1_000_000 + nanos // 1000, _INT64)


def to_time_of_day(value: Any, shape: Shape) -> int:
    """Return nanoseconds since midnight."""
    if _is_text(value):
        match = _TIME_OF_DAY.fullmatch(value)
        if match is None:
            raise Mismatch("it is a string that is not an ISO time of day")
        return _iso_nanos(match, 0)
    if isinstance(value, list):
        return _day_nanos(*_fields(value, 2, 4))
    return in_range(whole_number(value, shape) * shape.times // shape.divided, _INT64)


_TIMES: dict[JsonRule, Callable[[Any, Shape], int]] = {
    JsonRule.DATE: to_date,
    JsonRule.MOMENT: to_moment,
    JsonRule.TIME: to_time_of_day,
}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, NumberText)


def _fields(value: list[Any], least: int, most: int) -> list[int]:
    if least <= len(value) <= most and all(type(field) is int for field in value):
        return value
    raise Mismatch(f"it is an array, but not of {least} to {most} integers")


def _array_day(fields: list[int]) -> int:
    try:
        return _day(*fields)
    except (ValueError, OverflowError):
        raise Mismatch("it is an array that is not a date") from None


def _iso_day(text: str) -> int:
    try:
        if match := _DATE.fullmatch(text):
            return _day(*map(int, match.groups()))
    except ValueError:
        pass
    raise Mismatch("it is a string that is not an ISO date")


def _day(year: int, month: int, day: int) -> int:
    # Python has the years 1 to 9999.
    cycles, place = divmod(year - 1, 400)
    return cycles * DAYS_OF_400_YEARS + day_of(date(place + 1, month, day))


def _iso_nanos(match: re.Match[str], first: int) -> int:
    hours, minutes, seconds, fraction = match.groups()[first : first + 4]
    return _day_nanos(
        int(hours), int(minutes), int(seconds or 0), int((fraction or "").ljust(9, "0"))
    )


def _day_nanos(hours: int, minutes: int, seconds: int = 0, nanos: int = 0) -> int:
    limits = (hours, 24), (minutes, 60), (seconds, 60), (nanos, 1_000_000_000)
    if not all(0 <= number < limit for number, limit in limits):
        raise Mismatch("it has an impossible time of day")
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + nanos


def _iso_moment(text: str, shape: Shape) -> int:
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise Mismatch("it is a string that is not an ISO time")
    zone = match[6]
    if zone and shape.kind.tz is None:
        raise Mismatch("it is a time with a zone where the schema has a local one")
    micros = _iso_day(match[1]) * _MICROS_PER_DAY + _iso_nanos(match, 1) // 1000
    if not zone or zone == "Z":
        return micros
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
    offset = (hours * 60 + minutes) * 60_000_000
    return micros + offset if zone[0] == "-" else micros - offset


Convert = Callable[[Any], Any]
"""Converts a non-null value to what `build_array` takes, or raises Mismatch."""

_MAX_SHOWN = 100


def _parse_integer(text: str) -> int | NumberText:
    # Python refuses to parse integers of thousands of digits, and columns hold at most 39. As an
    # integer, -0 would lose its sign.
    return int(text) if len(text) <= LONGEST_INTEGER and text != "-0" else NumberText(text)


_PARSER = json.JSONDecoder(
    parse_float=NumberText, parse_int=_parse_integer, parse_constant=NumberText
)


def parse(value: bytes, *, ends: bool = True) -> Any:
    """Parse JSON as Python's module does, but keep numbers exact.

    Raises Mismatch for anything but one JSON document in UTF-8; unless it `ends`, anything may
    follow. RecursionError passes: the caller decides whether a value is nested too deeply.
    """
    try:
        text = value.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise Mismatch(f"byte {error.start} is not UTF-8") from None
    return _parsed(text, ends=ends)


_WITHIN_WORD = re.compile(r"\w\w")


def _parsed(text: str, *, ends: bool) -> Any:
    try:
        if ends:
            return _PARSER.decode(text)
        text = text.lstrip(" \t\r\n")
        found, end = _PARSER.raw_decode(text)
    except json.JSONDecodeError as error:
        raise Mismatch(f"it is not JSON: {error.msg} at character {error.pos}") from None
    if _WITHIN_WORD.match(text, end - 1):
        raise Mismatch(f"it is not JSON: a word goes on at character {end}")
    return found


def check_json(text: str) -> None:
    """Raise Mismatch unless a text is one JSON document, which can be read back."""
    try:
        # Python 3.13 parses what is nested deeper than it can be told.
        _json_text(_parsed(text, ends=True))
    except RecursionError:
        raise Mismatch("it is nested too deeply") from None


def converter(shape: Shape, *, exact: bool = False) -> Convert:
    """Return the converter for values of a shape.

    Unless `exact`, values of another kind are taken where nothing is lost: numbers and truth values
    as text, and text as the number or truth value that it says; empty text is null. What
    `coerces_as_java` takes more than that.
    """
    make = _MAKERS.get(shape.rule)
    simple = _SIMPLE.get(shape.rule)
    if make is not None:
        convert = make(shape, exact)
    elif simple is not None:
        convert = simple
    else:
        shaped = _SHAPED[shape.rule]
        convert = lambda value: shaped(value, shape)  # noqa: E731
    if exact:
        return convert
    if shape.rule is JsonRule.TEXT:
        return lambda value: convert(value if value.__class__ is str else _as_text(value))
    if shape.rule is JsonRule.BASE64 and shape.coerces_as_java:
        return _java_bytes
    if shape.rule in _TIMES and shape.coerces_as_java:
        return lambda value: _java_time(value, shape)
    says = (_JAVA_SAYS if shape.coerces_as_java else _SAYS).get(shape.rule)
    if says is None:
        return convert
    # Java reads 1.5 as 1, but not "1.5".
    of_text = converter(replace(shape, coerces_as_java=False), exact=True)

    def coerced(value: Any) -> Any:
        if value.__class__ is not str:
            return convert(value)
        found = says(value) if value else None
        return None if found is None else of_text(found)

    return coerced


_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


def _as_text(value: Any) -> Any:
    """Return a number or truth value as it is written, anything else as it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | NumberText) else value


def _truth(text: str) -> Any:
    return text == "true" if text in ("true", "false") else text


def _figure(text: str) -> Any:
    """Return the number that a text says, anything else as it is."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return text
    return NumberText(text) if found[2] or found[3] else _parse_integer(text)


# What Java's `String.trim` removes.
_JAVA_SPACES = "".join(map(chr, range(0x21)))
_JAVA_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_JAVA_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_JAVA_SECONDS = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_JAVA_LOCAL = re.compile(r"(\d{4}-\d\d-\d\d)T([^Z]*)(Z?)", re.ASCII)
_JAVA_INFINITIES = {"INF": "Infinity", "+Infinity": "Infinity", "-INF": "-Infinity"}


def _java_text(text: str) -> str | None:
    """Return text without spaces around it; None for what is null to Java."""
    bare = text.strip(_JAVA_SPACES)
    return None if bare in ("", "null") else bare


def _java_truth(text: str) -> Any:
    bare = _java_text(text)
    for word in ("true", "false"):
        if bare in (word, word.capitalize(), word.upper()):
            return word == "true"
    return bare


def _java_figure(text: str) -> Any:
    bare = _java_text(text)
    if bare is None:
        return None
    if bare in _JAVA_INFINITIES:
        return _JAVA_INFINITIES[bare]
    if _JAVA_WHOLE.fullmatch(bare):
        return _parse_integer(bare)
    return NumberText(bare) if _JAVA_NUMBER.fullmatch(bare) else bare


def _java_time(value: Any, shape: Shape) -> int | None:
    """Return a date or time, or None, of what says one to Java.

    Local ones may be text with both, and even end with a Z; instants may be text of seconds.
    """
    if not _is_text(value):
        is_null = value == [] and getattr(shape.kind, "tz", None) is None
        return None if is_null else _TIMES[shape.rule](value, shape)
    bare = value.strip(_JAVA_SPACES)
    if not bare:
        return None
    found = _JAVA_LOCAL.fullmatch(bare)
    match shape.rule:
        case JsonRule.DATE if found:
            to_time_of_day(found[2], shape)
            bare = found[1]
        case JsonRule.TIME if found and not found[3]:
            to_date(found[1], shape)
            bare = found[2]
        case JsonRule.MOMENT if shape.kind.tz is None:
            bare = bare.removesuffix("Z") if found else bare
        case JsonRule.MOMENT if shape.java and _JAVA_SECONDS.fullmatch(bare):
            bare = _java_figure(bare)
    return _TIMES[shape.rule](bare, shape)


def _java_bytes(value: Any) -> bytes:
    """Return bytes that are base64, or an array of their numbers."""
    if not isinstance(value, list):
        return _base64(value.strip(_JAVA_SPACES) if value.__class__ is str else value)
    if all(type(item) is int and -128 <= item <= 255 for item in value):
        return bytes(item & 0xFF for item in value)
    raise Mismatch("it is an array, but not of bytes")


_SAYS: dict[JsonRule, Callable[[str], Any]] = {
    JsonRule.BOOLEAN: _truth,
    JsonRule.INTEGER: _figure,
    JsonRule.FLOAT: _figure,
    JsonRule.DECIMAL: str,
    # Not a number: 20240229 is a date, too.
    JsonRule.DATE: str,
    JsonRule.MOMENT: str,
    JsonRule.TIME: str,
}
"""What text stands for that is not empty."""

_JAVA_SAYS = _SAYS | {
    JsonRule.BOOLEAN: _java_truth,
    JsonRule.INTEGER: _java_figure,
    JsonRule.FLOAT: _java_figure,
}
"""What it stands for to Java."""


def count_cells(value: Any, shape: Shape) -> int:
    """Return how many fields the items of a value's lists have, counting absent ones."""
    if shape.rule is JsonRule.RECORD and isinstance(value, dict):
        parts = zip(shape.names, shape.parts, strict=True)
        return sum(count_cells(value.get(name), part) for name, part in parts if part.parts)
    items: Any = value.values() if isinstance(value, dict) else value
    if not shape.parts or shape.rule is JsonRule.UNION or not isinstance(value, dict | list):
        return 0
    inner = shape.parts[0]
    has_lists = widest_item(inner.kind) > 0
    within = sum(count_cells(item, inner) for item in items) if has_lists else 0
    return len(items) * widest_item(shape.kind) + within


# --- types with parts ---------------------------------------------------------------------


def _record(shape: Shape, exact: bool) -> Convert:
    read = fields_of(shape.names, [converter(part, exact=exact) for part in shape.parts])

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise wrong(value, shape.rule)
        return read(value)

    return convert


def fields_of(
    names: Sequence[str], converters: Sequence[Convert]
) -> Callable[[Mapping[str, Any]], list[Any]]:
    """Return the function that converts these fields of an object; missing ones are null."""
    parts = list(zip(names, converters, strict=True))

    def read(value: Mapping[str, Any]) -> list[Any]:
        found: list[Any] = []
        try:
            for name, convert in parts:
                field = value.get(name)
                found.append(None if field is None else convert(field))
        except Mismatch as mismatch:
            raise mismatch.within(names[len(found)]) from None
        return found

    return read


def _array(shape: Shape, exact: bool) -> Convert:
    part = converter(shape.parts[0], exact=exact)

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise wrong(value, shape.rule)
        found = []
        for index, item in enumerate(value):
            try:
                found.append(None if item is None else part(item))
            except Mismatch as mismatch:
                raise mismatch.within(f"[{index}]") from None
        return found

    return convert


def _map(shape: Shape, exact: bool) -> Convert:
    part = converter(shape.parts[0], exact=exact)

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise wrong(value, shape.rule)
        # An object's fields are unordered: sorted, they are the same however they are read.
        return sorted(_entries(value, _text, part), key=_first)

    return convert


def _entries(value: Mapping[str, Any], key: Convert, part: Convert) -> list[tuple[Any, Any]]:
    found = []
    for name, item in value.items():
        try:
            found.append((key(name), None if item is None else part(item)))
        except Mismatch as mismatch:
            raise mismatch.within(f"{{{name[:_MAX_SHOWN]!r}}}") from None
    return found


def _pairs(shape: Shape, exact: bool) -> Convert:
    """Read a map whose keys are not text: an object, or an array of pairs."""
    items = _array(shape, exact)
    # What keys say stands in quotes.
    key, value = (converter(part) for part in shape.parts[0].parts)

    return lambda found: _entries(found, key, value) if isinstance(found, dict) else items(found)


def _first(pair: tuple[bytes, Any]) -> bytes:
    return pair[0]


def _union(shape: Shape, exact: bool) -> Convert:
    # The value's kind says which member it is.
    members = [(part, converter(part, exact=True)) for part in shape.parts]

    def convert(value: Any) -> Any:
        # Sorting is stable: of equally good members the first one is taken.
        for index, (_, member) in sorted(
            enumerate(members), key=lambda item: not _is_exactly(value, item[1][0])
        ):
            try:
                found = member(value)
            except Mismatch:
                continue
            return tuple([found if i == index else None for i in range(len(members))])
        raise Mismatch(f"it is {named(value)}, which no member of the union takes")

    return convert


def _is_exactly(value: Any, shape: Shape) -> bool:
    """Whether a value is written in a union member's own form, rather than one it also accepts."""
    match shape.rule:
        case JsonRule.ENUM:
            return isinstance(value, str) and value in shape.words
        case JsonRule.RECORD:
            return isinstance(value, dict) and shape.words <= value.keys() <= set(shape.names)
        case JsonRule.FLOAT | JsonRule.DECIMAL:
            return isinstance(value, NumberText)
        case JsonRule.MAP | JsonRule.ANY:
            return False
    return not isinstance(value, NumberText)


# --- types without parts ------------------------------------------------------------------


def _null(value: Any) -> Any:
    raise wrong(value, JsonRule.NULL)


def _boolean(value: Any, shape: Shape) -> bool:
    if isinstance(value, bool):
        return value
    if shape.coerces_as_java and isinstance(value, int):
        return value != 0
    raise wrong(value, JsonRule.BOOLEAN)


def _text(value: Any) -> bytes:
    if type(value) is not str:
        raise wrong(value, JsonRule.TEXT)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Mismatch("it is a string with half of a surrogate pair") from None


def _symbol(value: Any) -> bytes:
    """Return a string, or a number as it is written.

    The Python client writes an enum's values; only its symbols are known here.
    """
    return _text(value if isinstance(value, bool) else _as_text(value))


def _json(value: Any) -> bytes:
    return _json_text(value).encode()


def _json_text(value: Any) -> str:
    """Return a value's JSON, numbers as they were written."""
    if isinstance(value, dict):
        return "{" + ",".join([f"{_quoted(k)}:{_json_text(v)}" for k, v in value.items()]) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(_json_text, value))}]"
    if isinstance(value, str) and not isinstance(value, NumberText):
        return _quoted(value)
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _quoted(text: str) -> str:
    # Half of a surrogate pair can only be an escape.
    return json.dumps(text, ensure_ascii=not is_unicode(text))


def _base64(value: Any) -> bytes:
    text = _text(value)
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise Mismatch("it is a string that is not base64") from None


def _base64_text(value: Any) -> bytes:
    found = _base64(value)
    try:
        found.decode()
    except UnicodeDecodeError:
        raise Mismatch("it is a string in base64 whose bytes are not UTF-8") from None
    return found


def _unfit(value: Any, shape: Shape) -> Any:
    raise Mismatch(shape.why)


def _float(value: Any) -> float:
    if isinstance(value, NumberText):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise wrong(value, JsonRule.FLOAT)
    if isinstance(value, str) and value not in NOT_FINITE:
        raise wrong(value, JsonRule.FLOAT)
    return float(value)


def _floating(shape: Shape, exact: bool) -> Convert:
    if pa.types.is_float32(shape.kind):
        # Unlike a Struct, an array takes a number that is too large for a float.
        return lambda value: array("f", [_float(value)]).tobytes()
    pack = _DOUBLE.pack
    return lambda value: pack(_float(value))


def _integer(shape: Shape, exact: bool) -> Convert:
    bits = shape.kind.bit_width - 1
    allowed = range(-(2**bits), 2**bits)

    def convert(value: Any) -> int:
        return in_range(value if value.__class__ is int else whole_number(value, shape), allowed)

    return convert


_SIMPLE: dict[JsonRule, Convert] = {
    JsonRule.NULL: _null,
    JsonRule.TEXT: _text,
    JsonRule.BYTES: _text,
    JsonRule.ENUM: _symbol,
    JsonRule.BASE64: _base64,
    JsonRule.BASE64_TEXT: _base64_text,
    JsonRule.ANY: _json,
}


_SHAPED: dict[JsonRule, Callable[[Any, Shape], Any]] = {
    JsonRule.BOOLEAN: _boolean,
    JsonRule.DECIMAL: scaled_decimal,
    JsonRule.UNFIT: _unfit,
    **_TIMES,
}

_MAKERS: dict[JsonRule, Callable[[Shape, bool], Convert]] = {
    JsonRule.RECORD: _record,
    JsonRule.ARRAY: _array,
    JsonRule.MAP: _map,
    JsonRule.PAIRS: _pairs,
    JsonRule.UNION: _union,
    JsonRule.INTEGER: _integer,
    JsonRule.FLOAT: _floating,
}
