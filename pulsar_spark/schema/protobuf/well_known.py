"""The well-known types of google.protobuf, which have their own column types.

timestamp.proto, duration.proto and struct.proto. Spark has microseconds; finer parts are truncated,
as in Java's and Python's own conversions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import json_format, struct_pb2

from pulsar_spark.schema.arrow.arithmetic import all_within, floor_divide, number
from pulsar_spark.schema.arrow.arrays import binaries
from pulsar_spark.schema.codec import Mismatch

# The years 0001 to 9999, and a Duration's range of 10,000 years.
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
LAST_DURATION = 315_576_000_000
_NANOS = 10**9
_MICROS = 1_000_000
_INT64 = pa.int64()


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

Refuse = Callable[[int, str], Mismatch]
"""Returns the error for the value at an index, given its description."""


def split_timestamp(values: pa.Array, refuse: Refuse) -> list[pa.Array]:
    """Return the seconds and nanoseconds of timestamps; nanoseconds are never negative."""
    micros = values.view(_INT64)
    _check_range(micros, FIRST_SECOND, LAST_SECOND + 1, refuse)
    seconds = floor_divide(micros, _MICROS)
    rest = pc.subtract(micros, pc.multiply(seconds, number(_MICROS)))
    return [seconds, pc.multiply(rest, number(1000)).cast(pa.int32())]


def split_duration(values: pa.Array, refuse: Refuse) -> list[pa.Array]:
    """Return the seconds and nanoseconds of durations, both with the duration's sign."""
    micros = values.view(_INT64)
    _check_range(micros, -LAST_DURATION, LAST_DURATION + 1, refuse)
    million = number(_MICROS)
    seconds = pc.divide(micros, million)
    rest = pc.subtract(micros, pc.multiply(seconds, million))
    return [seconds, pc.multiply(rest, number(1000)).cast(pa.int32())]


def _check_range(micros: pa.Array, first: int, end: int, refuse: Refuse) -> None:
    """Refuse times before the second `first`, and from `end` on."""
    if all_within(micros, first * _MICROS, end * _MICROS - 1):
        return
    for index, value in enumerate(micros.to_pylist()):
        if not first * _MICROS <= value < end * _MICROS:
            raise refuse(index, f"is {value} microseconds, more than protobuf's type has")


def json_messages(name: str, values: pa.Array, refuse: Refuse) -> pa.Array:
    """Return Structs, Values or ListValues parsed from JSON; `name` is the message's."""
    kind = _JSON_CLASSES[name]
    messages = []
    for index, text in enumerate(values.to_pylist()):
        try:
            messages.append(json_format.Parse(text, kind()).SerializeToString())
        except (json_format.Error, ValueError, TypeError, RecursionError):
            raise refuse(index, f"is not the JSON of a {name}") from None
    return binaries(messages)


_JSON_CLASSES = {
    kind.DESCRIPTOR.full_name: kind
    for kind in (struct_pb2.Struct, struct_pb2.Value, struct_pb2.ListValue)
}
