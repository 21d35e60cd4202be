"""The digest of rows that were written: whether two writings had the same rows.

Each field of a row has a hash of 64 bits (`schema/arrow/value_hashes.py`) with the field's own
seed, a field that the row does not have has 0. Their sum, mixed, is the row's hash, and the sum of
these the digest's total, both modulo 2^64. So it counts how often a row is there, but not in which
order, record batch or task. A change of any of this is a new DIGEST_VERSION.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.arrow.arithmetic import ZERO, number, zeros
from pulsar_spark.schema.arrow.value_hashes import (
    hash_column,
    hash_numbers,
    hash_values,
    mixed,
)

DIGEST_VERSION = 1
"""Which algorithm made a digest: digests of different versions cannot be compared."""

_INT64, _UINT64 = pa.int64(), pa.uint64()
_WRAP = 2**64
# A seed for each field: digits of pi.
_TOPIC = 0x243F6A8885A308D3
_KEY = 0x13198A2E03707344
_ORDERING_KEY = 0xA4093822299F31D0
_VALUE = 0x082EFA98EC4E6C89
_EVENT_TIME = 0x452821E638D01377
_PROPERTY_NAME = 0xBE5466CF34E90C6C
_PROPERTY_VALUE = 0xC0AC29B7C97C50DD
_NONE = number(0, _UINT64)


@dataclass(frozen=True, slots=True)
class Digest:
    """How many rows, and the sum of their hashes modulo 2^64."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, (self.total + other.total) % _WRAP)


def digest_of(
    topic: str,
    values: Sequence[bytes | None],
    *,
    keys: pa.Array | Sequence[bytes | None] | None = None,
    ordering_keys: pa.Array | None = None,
    event_times: pa.Array | None = None,
    properties: pa.MapArray | None = None,
) -> Digest:
    """Return the digest of the rows of one topic, which is given by its full name.

    `values` are payloads, None for a null value; keys are bytes, or text, which counts as its
    UTF-8, however they are sent. `event_times` are milliseconds. A null is the same as a column
    that is missing, an event time of 0 as none, and properties that are null as an empty map; the
    order of properties does not count.
    """
    if not len(values):
        return Digest()
    found = pc.add(hash_values(values, _VALUE), hash_values([topic.encode()], _TOPIC)[0])
    for column, seed in ((keys, _KEY), (ordering_keys, _ORDERING_KEY)):
        if column is not None:
            hashes = hash_column if isinstance(column, pa.Array) else hash_values
            found = pc.add(found, hashes(column, seed))
    if event_times is not None:
        times = pc.fill_null(event_times, ZERO)
        hashes = hash_numbers(times, _EVENT_TIME)
        found = pc.add(found, pc.if_else(pc.equal(times, ZERO), _NONE, hashes))
    if properties is not None:
        found = pc.add(found, _of_properties(properties))
    return Digest(len(found), pc.sum(mixed(found)).as_py())


def _of_properties(column: pa.MapArray) -> pa.Array:
    """Return the sum of the hashes of each row's properties."""
    offsets = column.offsets
    start, end = offsets[0].as_py(), offsets[len(column)].as_py()
    names = hash_column(column.keys.slice(start, end - start), _PROPERTY_NAME)
    values = hash_column(column.items.slice(start, end - start), _PROPERTY_VALUE)
    sums = pc.cumulative_sum(mixed(pc.add(names, values)))
    sums = pa.concat_arrays([zeros(1).cast(_UINT64), sums])
    places = pc.subtract(offsets, offsets[0])
    reached = sums.take(places)
    found = pc.subtract(reached.slice(1), reached.slice(0, len(column)))
    return found if not column.null_count else pc.if_else(column.is_valid(), found, _NONE)
