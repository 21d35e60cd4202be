"""Arrow arrays from Python values, put together from buffers.

pyarrow's own `array` and `scalar` import pandas where it is installed, which costs each Python
worker of Spark a second and 50 MB; and they never let go of memory views that they are given.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from pulsar_spark.protocol.blocks import Buffer


def integers(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Return an array of 32 or 64-bit integers, or of a type that has such, as timestamps."""
    validity = _validity(values)
    present: Any = values
    if validity is not None:
        present = [0 if value is None else value for value in values]
    numbers: array[int] = array("i" if kind.bit_width == 32 else "q", present)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(numbers)])


def binaries(values: Sequence[Buffer | None], kind: pa.DataType | None = None) -> pa.Array:
    """Return an array of bytes, in one copy; `kind` can be `pa.string()` for UTF-8."""
    validity = _validity(values)
    present: Sequence[Any] = values
    if validity is not None:
        present = [value for value in values if value is not None]
    offsets = array("i", accumulate((len(value or b"") for value in values), initial=0))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(present))]
    return pa.Array.from_buffers(kind or pa.binary(), len(values), buffers)


def strings(values: Sequence[str | None]) -> pa.Array:
    """Return an array of text."""
    encoded = [None if value is None else value.encode() for value in values]
    return binaries(encoded, pa.string())


def booleans(values: Sequence[bool]) -> pa.Array:
    """Return an array of truth values."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def make(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of any of the types above."""
    if pa.types.is_binary(kind):
        return binaries(values)
    if pa.types.is_string(kind):
        return strings(values)
    return integers(values, kind)


def repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Return an array that has a value `count` times."""
    return pa.repeat(make([value], kind)[0], count)


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    """Return the bits that say which values are there, None if all are."""
    return _bits([value is not None for value in values]) if None in values else None


def _bits(flags: Sequence[bool]) -> pa.Buffer:
    # The first flag is the lowest bit of the first byte.
    digits = "".join(["1" if flag else "0" for flag in reversed(flags)])
    return pa.py_buffer(int(digits or "0", 2).to_bytes((len(flags) + 7) // 8, "little"))
