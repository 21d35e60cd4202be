"""Parsers: one option's text → its value.

A parser returns the value, or raises ValueError with what it expected, as in "a duration such as
500ms". It knows neither the option's name nor whether its value is secret: the option table adds
the name and withholds the value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

Parser = Callable[[str], Any]
T = TypeVar("T")

_DURATION = re.compile(r"(\d{1,18})\s*(ms|s|m|min|h|d)?", re.IGNORECASE)
_MILLIS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE = re.compile(r"(\d{1,18})\s*(?:(k|m|g)i?b?|b)?", re.IGNORECASE)
_FACTORS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_INTEGER = re.compile(r"[+-]?\d{1,18}")
# Python 3.10 reads neither "Z" nor fractions with other than 3 or 6 digits, so ISO-8601 is parsed
# here: date, time, fraction, zone.
_ISO_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[Tt ](\d{2}:\d{2}(?::\d{2})?)(?:[.,](\d{1,9}))?)?"
    r"\s*([Zz]|[+-]\d{2}(?::?\d{2})?)?"
)
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NANOS = 10**9

CENTURY = 100 * 365 * 24 * 3600 * 1000
"""In milliseconds: longer than anybody waits, and not too long for any timer."""


def text(value: str) -> str:
    """Return the stripped text; ValueError if it is empty."""
    value = value.strip()
    if not value:
        raise ValueError("a non-empty text")
    return value


def text_or_none(value: str) -> str | None:
    """Return the stripped text, None if it is empty, as in Java's jobs."""
    return value.strip() or None


def boolean(value: str) -> bool:
    """Parse "true" or "false", in any case."""
    word = value.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


def duration_millis(value: str) -> int:
    """Return milliseconds for a number of milliseconds, or 500ms, 30s, 5m, 1h, 7d."""
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError("a duration: milliseconds, or 500ms, 30s, 5m, 1h")
    return int(match[1]) * _MILLIS[(match[2] or "ms").lower()]


def plain_seconds(value: str) -> float:
    """Return seconds for a number of seconds or a duration with a unit.

    For the options whose Java name ends in "Seconds".
    """
    value = value.strip()
    return duration_millis(f"{value}s" if value.isdigit() else value) / 1000


def size(value: str) -> int:
    """Return bytes for a number of bytes, or 64k, 10m, 1g (powers of 1024)."""
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError("a size: bytes, or 64k, 10m, 1g")
    return int(match[1]) * _FACTORS.get((match[2] or "").lower(), 1)


def integer(value: str) -> int:
    """Parse an integer."""
    if not _INTEGER.fullmatch(value.strip()):
        raise ValueError("an integer")
    return int(value)


def within(
    parse: Callable[[str], T], low: float, high: float, unit: str = ""
) -> Callable[[str], T]:
    """Return a parser that also requires a value from `low` to `high`, both included."""

    def parse_within(value: str) -> T:
        parsed = parse(value)
        number: Any = parsed
        if not low <= number <= high:
            raise ValueError(f"a value from {low} to {high}{unit}")
        return parsed

    return parse_within


def milliseconds(low: int, high: int = CENTURY) -> Callable[[str], float]:
    """Return a parser of a duration from `low` to `high` milliseconds; its values are seconds."""
    parse = within(duration_millis, low, high, " ms")
    return lambda value: parse(value) / 1000


@dataclass(frozen=True, slots=True)
class Choice:
    """Parses one of `words`, in any case; the value is spelled as in `words`."""

    words: tuple[str, ...]

    def __call__(self, value: str) -> str:
        """Return the word; ValueError for none of them."""
        given = value.strip().lower()
        for word in self.words:
            if word.lower() == given:
                return word
        raise ValueError(f"one of {', '.join(self.words)}")


def choice(*words: str) -> Choice:
    """Return a parser for one of `words`."""
    return Choice(words)


def avro_name(value: str) -> str:
    """Parse a record's name as Avro allows it."""
    if not _AVRO_NAME.fullmatch(value):
        raise ValueError("an Avro name: letters, digits and _, not beginning with a digit")
    return value


def avro_namespace(value: str) -> str:
    """Parse a namespace as Avro allows it."""
    for part in value.split("."):
        if not _AVRO_NAME.fullmatch(part):
            raise ValueError(
                "an Avro namespace: parts separated by dots, of letters, digits and _, not "
                "beginning with a digit"
            )
    return value


def text_list(value: str) -> tuple[str, ...]:
    """Return the parts of a comma-separated list, in order, each once."""
    if value.strip().startswith(("[", "(")):
        # So Python writes a list or tuple, and JSON an array.
        raise ValueError("names separated by commas: a,b")
    parts = [part.strip() for part in value.split(",")]
    if not all(parts):
        raise ValueError("a comma-separated list without empty parts")
    return tuple(dict.fromkeys(parts))


def keys_by_name(value: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of a name ("" if missing) and a key, which is a path or PEM text."""
    value = value.strip()
    if not value.startswith("{"):
        return (("", text(value)),)
    expected = "a path or PEM text, or a JSON object of name → one of these"
    try:
        keys = json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError(expected) from None
    if not keys or not all(name and isinstance(key, str) and key for name, key in keys.items()):
        raise ValueError(expected)
    return tuple(keys.items())


def iso_millis(value: str) -> int:
    """Parse an ISO-8601 date or date and time into milliseconds since 1970.

    A time without a zone is UTC. Fractions of a millisecond are rounded up, so that a range never
    includes a message published before its start.
    """
    match = _ISO_TIME.fullmatch(value.strip())
    if match is None:
        raise ValueError("an ISO-8601 time such as 2026-11-20T10:00:00Z")
    date, time, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{time or '00:00'}").replace(tzinfo=_zone(zone))
        # Both times have whole seconds here, so nothing is rounded.
        seconds = (moment - _EPOCH) // timedelta(seconds=1)
    except (ValueError, OverflowError):
        raise ValueError("a valid ISO-8601 time") from None
    nanos = seconds * _NANOS + int((fraction or "0").ljust(9, "0"))
    return -(-nanos // 1_000_000)


def iso_text(millis: int) -> str:
    """Return milliseconds since 1970 as an ISO-8601 time, in UTC; after the year 9999 as they are.

    The opposite of `iso_millis`.
    """
    try:
        moment = _EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        return f"{millis} ms"
    digits = "milliseconds" if millis % 1000 else "seconds"
    return moment.isoformat(timespec=digits).replace("+00:00", "Z")


def _zone(text: str | None) -> timezone:
    if text is None or text in "Zz":
        return timezone.utc
    digits = text[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 18 or minutes > 59:
        raise ValueError("a zone up to 18 hours from UTC")
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if text[0] == "-" else offset)
