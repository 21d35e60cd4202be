"""Dates and times of parsed JSON, one by one: numbers, ISO 8601 text, and as Jackson writes Java's.

Jackson's Instant is seconds with a point and nine digits of nanoseconds. These are added to the
seconds also where those are negative: -1.999999999 is the last nanosecond before 1970. Its local
dates and times are arrays of their fields, without the seconds or nanoseconds that are zero.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Any

from pulsar_spark.schema.json.numbers import Misfit, NumberText, in_range, whole_number
from pulsar_spark.schema.json.types import Shape

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROS_PER_DAY = 86_400_000_000
_INT64 = range(-(2**63), 2**63)

_TIME = r"(\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?"
_TIME_OF_DAY = re.compile(_TIME, re.ASCII)
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[T ]" + _TIME + r"(Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_SECONDS = re.compile(r"(-?\d{1,18})\.(\d{1,9})", re.ASCII)


def to_date(value: Any, shape: Shape) -> int:
    """Return days since 1970."""
    if _is_text(value):
        return _iso_day(value)
    if isinstance(value, list):
        return _array_day(_fields(value, 3, 3))
    return in_range(whole_number(value, shape), range(-(2**31), 2**31))


def to_moment(value: Any, shape: Shape) -> int:
    """Return microseconds since 1970, in UTC or without a zone."""
    if _is_text(value):
        return _iso_moment(value, shape)
    if isinstance(value, list) and shape.kind.tz is None:
        fields = _fields(value, 5, 7)
        nanos = _day_nanos(*fields[3:])
        return _array_day(fields[:3]) * _MICROS_PER_DAY + nanos // 1000
    seconds = _SECONDS.fullmatch(value) if shape.java and isinstance(value, NumberText) else None
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
            raise Misfit("it is a string that is no ISO time of day")
        return _iso_nanos(match, 0)
    if isinstance(value, list):
        return _day_nanos(*_fields(value, 2, 4))
    return in_range(whole_number(value, shape) * shape.times // shape.divided, _INT64)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, NumberText)


def _fields(value: list[Any], least: int, most: int) -> list[int]:
    if least <= len(value) <= most and all(type(field) is int for field in value):
        return value
    raise Misfit(f"it is an array, and not of {least} to {most} integers")


def _array_day(fields: list[int]) -> int:
    try:
        return date(*fields).toordinal() - _EPOCH_DAY
    except (ValueError, OverflowError):
        raise Misfit("it is an array that is no date") from None


def _iso_day(text: str) -> int:
    try:
        if _DATE.fullmatch(text):
            return date.fromisoformat(text).toordinal() - _EPOCH_DAY
    except ValueError:
        pass
    raise Misfit("it is a string that is no ISO date")


def _iso_nanos(match: re.Match[str], first: int) -> int:
    hours, minutes, seconds, fraction = match.groups()[first : first + 4]
    return _day_nanos(
        int(hours), int(minutes), int(seconds or 0), int((fraction or "").ljust(9, "0"))
    )


def _day_nanos(hours: int, minutes: int, seconds: int = 0, nanos: int = 0) -> int:
    limits = (hours, 24), (minutes, 60), (seconds, 60), (nanos, 1_000_000_000)
    if not all(0 <= number < limit for number, limit in limits):
        raise Misfit("it has a time that no day has")
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + nanos


def _iso_moment(text: str, shape: Shape) -> int:
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise Misfit("it is a string that is no ISO time")
    zone = match[6]
    if zone and shape.kind.tz is None:
        raise Misfit("it is a time with a zone where the schema has a local one")
    micros = _iso_day(match[1]) * _MICROS_PER_DAY + _iso_nanos(match, 1) // 1000
    if not zone or zone == "Z":
        return micros
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
    offset = (hours * 60 + minutes) * 60_000_000
    return micros + offset if zone[0] == "-" else micros - offset
