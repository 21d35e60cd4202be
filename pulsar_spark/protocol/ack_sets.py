"""Which messages of a batch are acknowledged: the wire format of an `ack_set`.

Signed longs of a little-endian bit set in which the bit of a message is set while it is not
acknowledged (Pulsar binary protocol, "Ack").
"""

from __future__ import annotations

from collections.abc import Sequence

_LONG_BITS = 64

MAX_BATCH = 1 << 20
"""A batch has at most so many messages: no number of bits is made from what a peer says."""


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
    """Return the bits of a batch of `size` messages of which those before `first` are done."""
    return ((1 << size) - 1) & ~((1 << first) - 1)
