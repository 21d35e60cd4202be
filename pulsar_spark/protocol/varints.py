"""Numbers as protobuf writes them: seven bits per byte, lowest first.

We call such bytes digits. All but a number's last one are above 127.
"""

from __future__ import annotations

from functools import lru_cache

_MOST = 4096


@lru_cache(4096)
def varint(value: int) -> bytes:
    """Encode a non-negative number of at most 64 bits."""
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)


class _Numbers(dict[bytes, int]):
    """Numbers that were read before, by their digits; a lookup costs less than a call.

    Starts anew when it is full.
    """

    def __missing__(self, digits: bytes) -> int:
        value = 0
        for place, digit in enumerate(digits):
            value |= (digit & 127) << 7 * place
        if len(self) >= _MOST:
            self.clear()
        self[digits] = value
        return value


NUMBERS = _Numbers()
"""The value of digits, which are not checked."""
