"""The well-known types of google.protobuf, which have their own column types.

timestamp.proto, duration.proto and struct.proto. Spark has microseconds; finer parts are truncated,
as in Java's and Python's own conversions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import json_format, struct_pb2

from pulsar_spark.schema.arrow.arithmetic import all_within, floor_divide, number
from pulsar_spark.schema.arrow.arrays import binaries, integers, strings
from pulsar_spark.schema.codec import Mismatch

Report = Callable[[int, str], None]
"""Takes a message's index and its error."""

# The years 0001 to 9999, and a Duration's range of 10,000 years.
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
LAST_DURATION = 315_576_000_000
_NANOS = 10**9
_MICROS = 1_000_000
_INT64 = pa.int64()


def timestamps(seconds: Sequence[int], nanos: Sequence[int], report: Report) -> pa.Array:
    """Return timestamps from seconds since 1970 and nanoseconds."""

    def is_time(s: int, n: int) -> bool:
        return FIRST_SECOND <= s <= LAST_SECOND and 0 <= n < _NANOS

    def check(s: pa.Array, n: pa.Array) -> bool:
        return all_within(s, FIRST_SECOND, LAST_SECOND) and all_within(n, 0, _NANOS - 1)

    found = _Pairs(seconds, nanos, is_time, check, "time of the years 1 to 9999")
    return found.micros(pa.timestamp("us", tz="UTC"), report)


def durations(seconds: Sequence[int], nanos: Sequence[int], report: Report) -> pa.Array:
    """Return durations from seconds and nanoseconds, which have the same sign."""

    def is_span(s: int, n: int) -> bool:
        return abs(s) <= LAST_DURATION and abs(n) < _NANOS and s * n >= 0

    def check(s: pa.Array, n: pa.Array) -> bool:
        return (
            all_within(s, -LAST_DURATION, LAST_DURATION)
            and all_within(n, 1 - _NANOS, _NANOS - 1)
            and all_within(pc.multiply(pc.sign(s), pc.sign(n)), 0, 1)
        )

    found = _Pairs(seconds, nanos, is_span, check, "span of up to 10,000 years")
    return found.micros(pa.duration("us"), report)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Seconds and nanoseconds with their allowed ranges, checked all at once or one by one."""

    seconds: Sequence[int]
    nanos: Sequence[int]
    is_valid: Callable[[int, int], bool]
    are_valid: Callable[[pa.Array, pa.Array], bool]
    what: str

    def micros(self, kind: pa.DataType, report: Report) -> pa.Array:
        """Return them as microseconds; invalid ones are reported, and become zero."""
        seconds, nanos = integers(self.seconds, _INT64), integers(self.nanos, _INT64)
        if not self.are_valid(seconds, nanos):
            pairs = [*zip(self.seconds, self.nanos, strict=True)]
            flags = [self.is_valid(*pair) for pair in pairs]
            for index in [index for index, valid in enumerate(flags) if not valid]:
                report(index, f"{pairs[index][0]} s and {pairs[index][1]} ns are not a {self.what}")
            kept = [pair if valid else (0, 0) for pair, valid in zip(pairs, flags, strict=True)]
            seconds = integers([s for s, _ in kept], _INT64)
            nanos = integers([n for _, n in kept], _INT64)
        whole = pc.multiply(seconds, number(_MICROS))
        return pc.add(whole, pc.divide(nanos, number(1000))).view(kind)


def json_texts(messages: Sequence[Any], report: Report) -> pa.Array:
    """Return each Struct, Value or ListValue as JSON."""
    texts = []
    for index, message in enumerate(messages):
        try:
            parsed = json_format.MessageToDict(message)
            text = json.dumps(parsed, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            text.encode()
        except (json_format.Error, ValueError, RecursionError):
            report(index, "the value has no JSON: a number is not finite, or it nests too deep")
            text = ""
        texts.append(text)
    return strings(texts)


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
