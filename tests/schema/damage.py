"""Damages values, as broken writers and disks do."""

from __future__ import annotations

from random import Random


def damage(rng: Random, data: bytes, times: int) -> bytes:
    """Return bytes of which some were cut off, added or changed so many times."""
    found = bytearray(data)
    for _ in range(times):
        place = rng.randrange(len(found) + 1)
        match rng.randrange(4):
            case 0:
                del found[place:]
            case 1:
                found[place:place] = rng.randbytes(rng.randrange(1, 12))
            case 2 if place < len(found):
                found[place] ^= 1 << rng.randrange(8)
            case _:
                found += rng.randbytes(1)
    return bytes(found)
