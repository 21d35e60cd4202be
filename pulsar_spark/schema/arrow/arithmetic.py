"""Arithmetic on columns of whole numbers, with Arrow's own kernels."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.arrow.arrays import integers

_INT64, _UINT64 = pa.int64(), pa.uint64()
_UNSIGNED = Struct("=Q")
# How many scalars are cached: most are needed again and again.
_MOST_SCALARS = 4096


@lru_cache(_MOST_SCALARS)
def number(value: int, kind: pa.DataType = _INT64) -> pa.Scalar:
    """Return a 32 or 64-bit integer as an Arrow scalar.

    pyarrow's own function imports pandas.
    """
    if kind == _UINT64:
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(_UNSIGNED.pack(value))])[0]
    return integers([value], kind)[0]


ZERO = number(0)


def floor_divide(dividends: pa.Array, divisor: int) -> pa.Array:
    """Return 64-bit quotients rounded down, so that times before 1970 are rounded to the past."""
    # Arrow's own division rounds towards 0.
    quotients = pc.divide(dividends, number(divisor))
    too_large = pc.greater(pc.multiply(quotients, number(divisor)), dividends)
    return pc.subtract(quotients, too_large.cast(_INT64))


def floor_modulo(dividends: pa.Array, divisor: int) -> pa.Array:
    """Return the remainders of `floor_divide`, never below 0."""
    quotients = floor_divide(dividends, divisor)
    return pc.subtract(dividends, pc.multiply(quotients, number(divisor)))


def outside(values: pa.Array, low: int, high: int) -> pa.Array:
    """Return where numbers are not from `low` to `high`."""
    return pc.or_(pc.less(values, number(low)), pc.greater(values, number(high)))
