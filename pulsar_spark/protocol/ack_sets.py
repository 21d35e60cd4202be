"""Which messages of a batch are acknowledged: the wire format of an `ack_set`.

A little-endian bit set as signed longs; a message's bit is set until it is acknowledged (Pulsar
binary protocol, "Ack").
"""

from __future__ import annotations

from collections.abc import Sequence

_LONG_BITS = 64

MAX_BATCH = 1 << 20
"""The largest batch; a peer's number of bits is never believed beyond it."""


def ack_bits(ack_set: Sequence[int]) -> int:
    """Return an ack_set as one integer."""
    bits = 0
    for index, word in enumerate(ack_set):
        bits |= (word % 2**_LONG_BITS) << (_LONG_BITS * index)
    return bits


def ack_longs(bits: int) -> list[int]:
    """Return an integer of bits as an ack_set."""
    words = []
    while bits:
        word = bits % 2**_LONG_BITS
        words.append(word - 2**_LONG_BITS if word >= 2 ** (_LONG_BITS - 1) else word)
        bits >>= _LONG_BITS
    return words


def bits_from(first: int, size: int) -> int:
    """Return the bits of a batch of `size` messages, all before `first` being acknowledged."""
    return ((1 << size) - 1) & ~((1 << first) - 1)
