"""Values of parsed JSON, one by one: checked against their shape, and as what columns are made of.

Exact, for all that JSON can say: numbers arrive as the text that they were where a Python number
would not hold them. Slow; most rows never get here.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any

from pulsar_spark.schema.json.numbers import (
    LONGEST_INTEGER,
    NOT_FINITE,
    Misfit,
    NumberText,
    in_range,
    named,
    scaled_decimal,
    whole_number,
    wrong,
)
from pulsar_spark.schema.json.times import to_date, to_moment, to_time_of_day
from pulsar_spark.schema.json.types import Rule, Shape

Convert = Callable[[Any], Any]
"""Turns a value that is not null into what `json_columns.build` takes, or raises Misfit."""

_MAX_SHOWN = 100


def _parse_integer(text: str) -> int | NumberText:
    # Python refuses to parse integers of thousands of digits, and columns hold none of 40.
    return int(text) if len(text) <= LONGEST_INTEGER else NumberText(text)


_PARSER = json.JSONDecoder(
    parse_float=NumberText, parse_int=_parse_integer, parse_constant=NumberText
)


def parse(value: bytes) -> Any:
    """Return a value as Python's JSON module does, but with numbers that stay exact.

    Raises Misfit for what is not one JSON document in UTF-8. RecursionError passes: whether a
    value is nested too deeply is for the caller to say.
    """
    try:
        return _PARSER.decode(value.decode())
    except UnicodeDecodeError as error:
        raise Misfit(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise Misfit(f"it is not JSON: {error.msg} at character {error.pos}") from None


def parse_roughly(value: bytes) -> Any:
    """Return a value as above, faster, with numbers that are not exact where they are floats.

    What they are needed for exactly, converters refuse. Raises Misfit for the same values, and
    for those with integers of thousands of digits.
    """
    try:
        return json.loads(value.decode())
    except ValueError:
        raise Misfit("it is not JSON") from None


def converter(shape: Shape) -> Convert:
    """Return what converts values of a shape."""
    make = _MAKERS.get(shape.rule)
    if make is not None:
        return make(shape)
    simple = _SIMPLE.get(shape.rule)
    if simple is not None:
        return simple
    convert = _SHAPED[shape.rule]
    return lambda value: convert(value, shape)


# --- what is made of parts ----------------------------------------------------------------


def _record(shape: Shape) -> Convert:
    parts = [(n, converter(p)) for n, p in zip(shape.names, shape.parts, strict=True)]

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise wrong(value, shape.rule)
        return tuple([take(value, name, part) for name, part in parts])

    return convert


def take(value: Mapping[str, Any], name: str, convert: Convert) -> Any:
    """Return the converted field of an object, None if it is null or missing."""
    found = value.get(name)
    if found is None:
        return None
    try:
        return convert(found)
    except Misfit as misfit:
        raise misfit.inside(f".{name}") from None


def _array(shape: Shape) -> Convert:
    part = converter(shape.parts[0])

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise wrong(value, shape.rule)
        found = []
        for index, item in enumerate(value):
            try:
                found.append(None if item is None else part(item))
            except Misfit as misfit:
                raise misfit.inside(f"[{index}]") from None
        return found

    return convert


def _map(shape: Shape) -> Convert:
    part = converter(shape.parts[0])

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise wrong(value, shape.rule)
        found = []
        for key, item in value.items():
            try:
                found.append((_text(key), None if item is None else part(item)))
            except Misfit as misfit:
                raise misfit.inside(f"{{{key[:_MAX_SHOWN]!r}}}") from None
        # An object's fields have no order, so they get the same one however they are read.
        return sorted(found, key=_first)

    return convert


def _first(pair: tuple[bytes, Any]) -> bytes:
    return pair[0]


def _union(shape: Shape) -> Convert:
    members = [(part, converter(part)) for part in shape.parts]

    def convert(value: Any) -> Any:
        # Sorting is stable: of equally good members the first is taken.
        for index, (_, member) in sorted(
            enumerate(members), key=lambda item: not _is_exactly(value, item[1][0])
        ):
            try:
                found = member(value)
            except Misfit:
                continue
            return tuple([found if i == index else None for i in range(len(members))])
        raise Misfit(f"it is {named(value)}, which no member of the union takes")

    return convert


def _is_exactly(value: Any, shape: Shape) -> bool:
    """Whether a value is what a member of a union is written as, rather than acceptable as it."""
    match shape.rule:
        case Rule.ENUM:
            return isinstance(value, str) and value in shape.words
        case Rule.RECORD:
            return isinstance(value, dict) and shape.words <= value.keys() <= set(shape.names)
        case Rule.FLOAT | Rule.DECIMAL:
            return isinstance(value, float | NumberText)
        case Rule.MAP:
            return False
    return not isinstance(value, float | NumberText)


# --- what is not --------------------------------------------------------------------------


def _null(value: Any) -> Any:
    raise wrong(value, Rule.NULL)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise wrong(value, Rule.BOOLEAN)


def _text(value: Any) -> bytes:
    if not isinstance(value, str) or isinstance(value, NumberText):
        raise wrong(value, Rule.TEXT)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Misfit("it is a string with half of a surrogate pair") from None


def _loose_text(value: Any) -> bytes:
    """Return a string, or a number as it is written.

    Python's client writes the values of an enum's members; only their symbols are known here.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return b"%d" % value
    return value.encode() if isinstance(value, NumberText) else _text(value)


def _base64(value: Any) -> bytes:
    text = _text(value)
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise Misfit("it is a string that is not base64") from None


def _float(value: Any) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise wrong(value, Rule.FLOAT)
    if isinstance(value, str) and not isinstance(value, NumberText) and value not in NOT_FINITE:
        raise wrong(value, Rule.FLOAT)
    try:
        return float(value)
    except OverflowError:
        raise Misfit("it is an integer that no double holds") from None


def _integer(value: Any, shape: Shape) -> int:
    bits = shape.kind.bit_width - 1
    return in_range(whole_number(value, shape), range(-(2**bits), 2**bits))


_SIMPLE: dict[Rule, Convert] = {
    Rule.NULL: _null,
    Rule.BOOLEAN: _boolean,
    Rule.FLOAT: _float,
    Rule.TEXT: _text,
    Rule.BYTES: _text,
    Rule.ENUM: _loose_text,
    Rule.LOOSE_TEXT: _loose_text,
    Rule.BASE64: _base64,
}


_SHAPED: dict[Rule, Callable[[Any, Shape], Any]] = {
    Rule.INTEGER: _integer,
    Rule.DECIMAL: scaled_decimal,
    Rule.DATE: to_date,
    Rule.MOMENT: to_moment,
    Rule.TIME: to_time_of_day,
}

_MAKERS: dict[Rule, Callable[[Shape], Convert]] = {
    Rule.RECORD: _record,
    Rule.ARRAY: _array,
    Rule.MAP: _map,
    Rule.UNION: _union,
}
