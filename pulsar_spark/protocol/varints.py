"""Numbers as protobuf writes them: seven bits per byte, lowest first.

We call such bytes digits. All but a number's last one are above 127.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TypeAlias

from pulsar_spark.protocol.memo import Memo

CONTINUING_DIGITS = bytes(range(128, 256))
MAX_DIGITS = 9
"""A tenth digit can overflow 64 bits: leave such numbers to protobuf."""
NUMBER = rb"[\x80-\xff]{0,8}[\0-\x7f]"
"""Pattern of a number of up to nine digits, so below 2^63."""
SHORTEST = rb"(?:[\0-\x7f]|[\x80-\xff]{1,8}[\x01-\x7f])"
"""The same, in its shortest encoding only."""


class UnusualNumber(Exception):
    """Digits that are no number in its shortest encoding."""


def _number(digits: bytes) -> int:
    value = 0
    for place, digit in enumerate(digits):
        value |= (digit & 127) << 7 * place
    return value


def _high(digits: bytes) -> int:
    if not _HIGH_DIGITS(digits):
        raise UnusualNumber
    return NUMBERS[digits] << 7


_HIGH_DIGITS = re.compile(rb"(?:[\x80-\xff]{0,7}[\x01-\x7f])?").fullmatch
NUMBERS = Memo(_number)
"""The value of digits, which are not checked."""
HIGHS = Memo(_high)
"""The value of a number's digits except the first, which consecutive numbers share.

Raises UnusualNumber unless the encoding is the shortest.
"""

Match: TypeAlias = "Callable[[bytes, int], re.Match[bytes] | None]"
match_number: Match = re.compile(NUMBER).match
match_shortest: Match = re.compile(SHORTEST).match


def take_number(data: bytes, at: int, match: Match = match_shortest) -> tuple[int, int]:
    """Return the number at `at` and where it ends; raises UnusualNumber or IndexError."""
    digit = data[at]
    if digit < 128:
        return digit, at + 1
    found = match(data, at)
    if found is None:
        raise UnusualNumber
    return NUMBERS[found[0][1:]] << 7 | digit & 127, found.end()


def read_number(digits: bytes) -> int:
    """Return a number of up to nine digits; raises UnusualNumber, IndexError if there is none."""
    low = digits[0]
    if low < 128:
        if len(digits) > 1:
            raise UnusualNumber
        return low
    if len(digits) == 1:
        raise UnusualNumber
    return HIGHS[digits[1:]] | low & 127


def are_numbers(data: bytes, begin: int, end: int, stride: int) -> bool:
    """Whether there is a number of so many digits at these places of each `stride` bytes."""
    return data[end - 1 :: stride].isascii() and not any(
        data[at::stride].translate(None, CONTINUING_DIGITS) for at in range(begin, end - 1)
    )


def read_numbers(data: bytes, begin: int, end: int, stride: int, *, factor: int = 1) -> list[int]:
    """Return these numbers, each times `factor`."""
    high, numbers = 0, list(data[begin::stride].translate(_LOW_BITS))
    for place, at in enumerate(range(begin + 1, end), 1):
        column, shift = data[at::stride], 7 * place
        if column.count(column[0]) == len(column):
            high |= (column[0] & 127) << shift
        else:
            numbers = [
                number | (digit & 127) << shift
                for number, digit in zip(numbers, column, strict=True)
            ]
    high *= factor
    return [high + number * factor for number in numbers]


_LOW_BITS = bytes(byte & 127 for byte in range(256))


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


def number_columns(first: int, count: int) -> list[bytes]:
    """Return the digits of numbers from `first` on, place by place: the first digits of all, ...

    Of `count` numbers, those that have as many digits as the first one.
    """
    size = len(encode_number(first))
    count = min(count, (1 << 7 * size) - first)
    begin, last = first & 127, first + count - 1
    lows = _LOWS[size > 1] * (count // _RUN + 2)
    # So many numbers share all digits except the first.
    runs = [encode_number(high) for high in range(first >> 7, (last >> 7) + 1)]
    columns = [
        lows,
        *(b"".join([run[at : at + 1] * _RUN for run in runs]) for at in range(size - 1)),
    ]
    return [column[begin : begin + count] for column in columns]


_RUN = 128
_LOWS = bytes(range(128)), CONTINUING_DIGITS


def sized(data: bytes) -> bytes:
    """Return bytes with their length before them."""
    size = len(data)
    return (_FINAL[size] if size < 128 else encode_number(size)) + data
