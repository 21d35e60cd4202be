"""Random columns of any type: nulls anywhere, extremes, and values that no topic takes."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema.arrow.arrays import build_array, pair_type, struct_array
from pulsar_spark.schema.codec import Encoder, Mismatch
from tests.schema.kernel import choose

UUID = "6f1f2a52-9d0e-4B4C-a0cb-0e4b8e1d0000"
TEXTS = (
    "", "a", "Zürich", "日本", "😀" * 9, "S0", "S1", "A", "ZERO", "ONE", "0", "-7", "x" * 200,
    '"\\\n\t\x01/', UUID, f"{{{UUID}}}", UUID.replace("-", ""), '{"a":1}', "[1,2]",
)  # fmt: skip
_SIZES = (0, 1, 2, 3, 7, 12, 16, 90)
_DAY = 86_400 * 10**9
_NUMBERS = (0, 1, -1, 127, 128, -129, 10**18, _DAY - 1, _DAY)
_DOUBLES = (0.0, -0.0, 1.5, 0.1, 1e16, 1e-7, 5e-324, 1.7976931348623157e308, math.inf, -math.inf)
_NANS = {32: (0x7FC00000, 0x7FA00001, 0xFFC12345), 64: (0x7FF8000000000000, 0xFFF8000000012345)}


class Columns:
    """Makes columns of `rows` rows; `nulls` is the share of values that are null."""

    def __init__(self, rng: Random, *, nulls: float = 0.02) -> None:
        self._rng = rng
        self._nulls = nulls
        self._makers: dict[pa.DataType, Callable[[], Any]] = {
            pa.bool_(): lambda: rng.random() < 0.5,
            pa.string(): lambda: rng.choice(TEXTS).encode(),
            pa.binary(): lambda: rng.randbytes(rng.choice(_SIZES)),
        }

    def batch(self, columns: pa.Schema, rows: int) -> pa.RecordBatch:
        """Return a batch of such columns; some are parts of larger ones."""
        arrays = [self.column(field.type, rows + 5) for field in columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=columns)
        return batch.slice(self._rng.choice((0, 3)), rows)

    def column(self, kind: pa.DataType, rows: int) -> pa.Array:
        """Return a column; what lies under a null is random, too."""
        rng = self._rng
        present = self._validity(rows)
        if pa.types.is_struct(kind):
            parts = [self.column(field.type, rows) for field in kind]
            return struct_array(rows, parts, kind, present)
        if pa.types.is_list(kind) or pa.types.is_map(kind):
            sizes = [rng.choice((0, 0, 1, 2, 5)) for _ in range(rows)]
            offsets = array("i", accumulate(sizes, initial=0))
            is_map = pa.types.is_map(kind)
            make = self._pairs if is_map else self.column
            items = make(pair_type(kind) if is_map else kind.value_type, offsets[-1])
            buffers = [present, pa.py_buffer(offsets)]
            return pa.Array.from_buffers(kind, rows, buffers, children=[items])
        return build_array([self._cell(kind) for _ in range(rows)], kind)

    def _pairs(self, kind: pa.DataType, count: int) -> pa.Array:
        keys = [self._cell(kind[0].type, nulls=0) for _ in range(count)]
        parts = [build_array(keys, kind[0].type), self.column(kind[1].type, count)]
        return struct_array(count, parts, kind)

    def _validity(self, rows: int) -> pa.Buffer | None:
        flags = [self._rng.random() >= self._nulls for _ in range(rows)]
        return None if all(flags) else pa.array(flags, pa.bool_()).buffers()[1]

    def _cell(self, kind: pa.DataType, nulls: float | None = None) -> Any:
        rng = self._rng
        if pa.types.is_null(kind) or rng.random() < (self._nulls if nulls is None else nulls):
            return None
        if pa.types.is_decimal(kind):
            return rng.choice((1, -1)) * rng.randrange(10 ** rng.randint(1, kind.precision))
        make = self._makers.get(kind)
        return self._number(kind) if make is None else make()

    def _number(self, kind: pa.DataType) -> Any:
        rng = self._rng
        bits = kind.bit_width
        if pa.types.is_floating(kind):
            return self._floating(bits)
        number: int = rng.choice((rng.getrandbits(rng.randint(1, bits)), *_NUMBERS))
        half: int = 2 ** (bits - 1)
        return (number + half) % (2 * half) - half

    def _floating(self, bits: int) -> bytes:
        rng = self._rng
        if rng.random() < 0.1:
            return rng.choice(_NANS[bits]).to_bytes(bits // 8, "little")
        number = rng.choice((*_DOUBLES, rng.gauss(0, 1), rng.random() * 10 ** rng.randint(-20, 20)))
        if bits == 64:
            return struct.pack("<d", number)
        return struct.pack("<f", number if abs(number) < 1e38 else math.inf)


def outcome(encoder: Encoder, batch: pa.RecordBatch) -> Any:
    """Return the values that an encoder makes of a batch, or what it says about a row."""
    try:
        found = encoder.encode(batch)
    except Mismatch as mismatch:
        return mismatch.row, mismatch.field, mismatch.reason
    found.validate(full=True)
    return found.to_pylist()


def both(make: Callable[[], Encoder], batch: pa.RecordBatch) -> Any:
    """Return what the kernel makes of a batch, which is what the reference makes of it.

    `make` is called with the kernel, and without it.
    """
    found = []
    for kernel in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            choose(patch, kernel=kernel)
            found.append(outcome(make(), batch))
    assert found[0] == found[1]
    return found[0]
