"""The well-known types of google.protobuf, which have their own column types.

timestamp.proto, duration.proto and struct.proto. Spark has microseconds; finer parts are truncated,
as in Java's and Python's own conversions.
"""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format, struct_pb2

from pulsar_spark.schema.codec import Mismatch

# The years 0001 to 9999, and a Duration's range of 10,000 years.
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
LAST_DURATION = 315_576_000_000
_NANOS = 10**9
_MICROS = 1_000_000


def timestamp(seconds: int, nanos: int, path: str) -> int:
    """Return microseconds since 1970."""
    if FIRST_SECOND <= seconds <= LAST_SECOND and 0 <= nanos < _NANOS:
        return seconds * _MICROS + nanos // 1000
    raise Mismatch(f"{seconds} s and {nanos} ns are not a time of the years 1 to 9999", path)


def duration(seconds: int, nanos: int, path: str) -> int:
    """Return microseconds; seconds and nanoseconds have the same sign."""
    if abs(seconds) <= LAST_DURATION and abs(nanos) < _NANOS and seconds * nanos >= 0:
        return seconds * _MICROS + int(nanos / 1000)
    raise Mismatch(f"{seconds} s and {nanos} ns are not a span of up to 10,000 years", path)


def json_text(message: Any, path: str) -> bytes:
    """Return a Struct, Value or ListValue as JSON."""
    try:
        parsed = json_format.MessageToDict(message)
        # Protobuf's order of keys is another one in each process.
        text = json.dumps(
            parsed, ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True
        )
        return text.encode()
    except (json_format.Error, ValueError, RecursionError):
        reason = "the value has no JSON: a number is not finite, or it nests too deep"
        raise Mismatch(reason, path) from None


# --- writing ------------------------------------------------------------------------------


def split_timestamp(micros: int, path: str, remedy: str) -> tuple[int, int]:
    """Return the seconds and nanoseconds of a timestamp; nanoseconds are never negative."""
    _check_range(micros, FIRST_SECOND * _MICROS, _end(LAST_SECOND), path, remedy)
    return micros // _MICROS, micros % _MICROS * 1000


def split_duration(micros: int, path: str, remedy: str) -> tuple[int, int]:
    """Return the seconds and nanoseconds of a duration, both with the duration's sign."""
    _check_range(micros, -_end(LAST_DURATION), _end(LAST_DURATION), path, remedy)
    sign = -1 if micros < 0 else 1
    return sign * (abs(micros) // _MICROS), sign * (abs(micros) % _MICROS) * 1000


def _end(second: int) -> int:
    """Return the last microsecond of a second."""
    return second * _MICROS + _MICROS - 1


def _check_range(micros: int, first: int, last: int, path: str, remedy: str) -> None:
    if not first <= micros <= last:
        reason = f"it is {micros} microseconds, more than protobuf's type has"
        raise Mismatch(reason, path, remedy=remedy)


def json_message(name: str, text: bytes, path: str, remedy: str) -> bytes:
    """Return a Struct, Value or ListValue parsed from JSON; `name` is the message's."""
    try:
        message = json_format.Parse(text, _JSON_CLASSES[name]())
        # Protobuf's order of keys is another one in each process, and a repeated row has the same
        # bytes.
        data: bytes = message.SerializeToString(deterministic=True)
    except (json_format.Error, ValueError, TypeError, RecursionError):
        raise Mismatch(f"it is not the JSON of a {name}", path, remedy=remedy) from None
    return data


_JSON_CLASSES = {
    kind.DESCRIPTOR.full_name: kind
    for kind in (struct_pb2.Struct, struct_pb2.Value, struct_pb2.ListValue)
}
