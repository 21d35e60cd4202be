"""The digest of rows that were written: whether two writings had the same rows.

A row's hash has 64 bits: the hashes of its topic, event time, properties, key, ordering key and
value, each with the field's own seed and onto the one before (`schema/arrow/value_hashes.py`). What
a row does not have leaves it as it is. The digest's total is the sum of the rows' hashes modulo
2^64. So it counts how often a row is there, but not in which order, record batch or task. A change
of any of this is a new DIGEST_VERSION.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.arrow.arithmetic import ZERO, number
from pulsar_spark.schema.arrow.arrays import integers
from pulsar_spark.schema.arrow.value_hashes import hash_column, hash_numbers, hash_values

DIGEST_VERSION = 1
"""Which algorithm made a digest: digests of different versions cannot be compared."""

_UINT64 = pa.uint64()
_WRAP = 2**64
# A seed for each field: digits of pi.
_TOPIC = 0x243F6A8885A308D3
_EVENT_TIME = 0x13198A2E03707344
_PROPERTIES = 0xA4093822299F31D0
_PROPERTY_NAME = 0x082EFA98EC4E6C89
_PROPERTY_VALUE = 0x452821E638D01377
_KEY = 0xBE5466CF34E90C6C
_ORDERING_KEY = 0xC0AC29B7C97C50DD
_VALUE = 0x3F84D5B5B5470917


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
    hashes = hash_values([topic.encode()], _TOPIC)[0].as_py()
    if event_times is not None or properties is not None:
        hashes = pa.repeat(number(hashes, _UINT64), len(values))
    if event_times is not None:
        times = pc.fill_null(event_times, ZERO)
        there = pc.not_equal(times, ZERO)
        hashes = pc.if_else(there, hash_numbers(times, _EVENT_TIME, hashes), hashes)
    if properties is not None:
        sums, there = _property_sums(properties)
        hashes = pc.if_else(there, hash_numbers(sums, _PROPERTIES, hashes), hashes)
    for column, seed in ((keys, _KEY), (ordering_keys, _ORDERING_KEY), (values, _VALUE)):
        if column is not None:
            of = hash_column if isinstance(column, pa.Array) else hash_values
            hashes = of(column, seed, hashes)
    return Digest(len(hashes), pc.sum(hashes).as_py())


def _property_sums(column: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """Return the sum of the hashes of each row's properties, and whether it has any."""
    offsets = column.offsets
    start, end = offsets[0].as_py(), offsets[len(column)].as_py()
    names = hash_column(column.keys.slice(start, end - start), _PROPERTY_NAME)
    hashes = hash_column(column.items.slice(start, end - start), _PROPERTY_VALUE, names)
    sums = pa.concat_arrays([integers([0], pa.int64()).cast(_UINT64), pc.cumulative_sum(hashes)])
    sums = sums.take(pc.subtract(offsets, offsets[0]))
    ends, starts = offsets.slice(1), offsets.slice(0, len(column))
    there = pc.not_equal(starts, ends)
    if column.null_count:
        there = pc.and_(there, column.is_valid())
    return pc.subtract(sums.slice(1), sums.slice(0, len(column))), there
