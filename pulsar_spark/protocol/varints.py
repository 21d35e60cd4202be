"""Numbers as protobuf writes them: seven bits per byte, lowest first.

We call such bytes digits. All but a number's last one are above 127.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from pulsar_spark.protocol.memo import Memo


def _number(digits: bytes) -> int:
    value = 0
    for place, digit in enumerate(digits):
        value |= (digit & 127) << 7 * place
    return value


NUMBERS = Memo(_number)
"""The value of digits, which are not checked."""


def encode_number(value: int) -> bytes:
    """Encode a non-negative number."""
    if value < 128:
        return _FINAL[value]
    return _CONTINUED[value & 127] + _encode_higher(value >> 7)


# Consecutive sequence ids and times share all digits except the first.
_encode_higher = lru_cache(4096)(encode_number)
_FINAL = [bytes((digit,)) for digit in range(128)]
_CONTINUED = [bytes((digit | 128,)) for digit in range(128)]


def number_runs(first: int, count: int) -> Iterator[list[bytes]]:
    """Yield `count` encoded numbers from `first` on, in lists of numbers of equal length."""
    end = first + count
    run: list[bytes] = []
    while first < end:
        # Up to here the numbers differ only in their first digit.
        stop = min((first | 127) + 1, end)
        low = first & 127
        if first > 127:
            rest = encode_number(first >> 7)
            block = [digit + rest for digit in _CONTINUED[low : low + stop - first]]
        else:
            block = _FINAL[low : low + stop - first]
        if run and len(run[0]) != len(block[0]):
            yield run
            run = []
        run += block
        first = stop
    yield run


def sized(data: bytes) -> bytes:
    """Return bytes with their length before them."""
    size = len(data)
    return (_FINAL[size] if size < 128 else encode_number(size)) + data
