"""Numbers of AVRO values, bit for bit: in columns, one by one, and as Java reads them."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from decimal import Decimal
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.avro import codec
from tests.schema.avro.random_values import info
from tests.schema.kernel import choose

WHOLE = {"int": 32, "long": 64}
FLOATING = {"float": "f", "double": "d"}
PROMOTIONS = [
    (written, read)
    for written, readers in {
        "int": ("int", "long", "float", "double"),
        "long": ("long", "float", "double"),
        "float": ("float", "double"),
        "double": ("double",),
    }.items()
    for read in readers
]
# Halfway between two floats except for a bit that a double does not have.
TWICE_ROUNDED = 4119866358424928257
NANS = (0x7FA00001, 0xFFC12345, 0x7F800001)


def record(kind: str, default: Any = None) -> dict[str, Any]:
    fields: list[dict[str, Any]] = [{"name": "f", "type": kind}]
    if default is not None:
        fields.append({"name": "d", "type": kind, "default": default})
    return {"type": "record", "name": "R", "fields": fields}


def encoded(kind: str, value: Any) -> bytes:
    """Return a value; a floating one is given by its bits."""
    if kind in FLOATING:
        return struct.pack("<I" if kind == "float" else "<Q", value)
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema({"type": kind}), value)
    return target.getvalue()


def bits(column: pa.Array) -> list[bytes]:
    """Return the bytes of each value of a column without nulls."""
    width = column.type.bit_width // 8
    data = column.buffers()[1].to_pybytes()[column.offset * width :]
    return [data[at * width :][:width] for at in range(len(column))]


def both_ways(written: Any, read: Any, data: Sequence[bytes], field: str = "f") -> list[pa.Array]:
    """Return the column when read in columns, and when read one by one."""
    raw = pa.array(list(data), pa.binary())
    found = []
    for kernel in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            choose(patch, kernel=kernel)
            result = codec.decoder(info(written), info(read), [field]).decode(raw)
        assert not result.bad
        found.append(result.columns[0])
    return found


def expected(written: str, read: str, value: Any) -> bytes | None:
    """Return a value's bytes by IEEE 754: rounded once, to the nearest, ties to even.

    None for NaNs that change their type: the resulting NaN depends on the machine.
    """
    if written in WHOLE:
        if read in WHOLE:
            return int(value).to_bytes(WHOLE[read] // 8, "little", signed=True)
        return struct.pack("<" + FLOATING[read], nearest(value, 24 if read == "float" else 53))
    data = encoded(written, value)
    number = struct.unpack("<" + FLOATING[written], data)[0]
    if written == read:
        return data
    return None if number != number else struct.pack("<d", number)


def nearest(number: int, precision: int) -> float:
    """Return the nearest number with this many binary digits, by integer arithmetic only."""
    size = abs(number)
    shift = max(size.bit_length() - precision, 0)
    whole, rest = size >> shift, size & ((1 << shift) - 1)
    half = (1 << shift) >> 1
    if rest > half or (rest == half and half and whole & 1):
        whole += 1
    return float((whole << shift) * (-1 if number < 0 else 1))


def numbers(kind: str) -> st.SearchStrategy[int]:
    """Return values of a type; for floating types any bits."""
    if kind in FLOATING:
        width = 32 if kind == "float" else 64
        special = {32: (0x80000000, 1, 0x7F7FFFFF, *NANS), 64: (1 << 63, 1, 0x7FF0000000000001)}
        return st.sampled_from(special[width]) | st.integers(0, 2**width - 1)
    bound = 2 ** (WHOLE[kind] - 1)
    halfway = st.builds(
        lambda whole, shift, near, sign: sign * ((2 * whole + 1 << shift) + near) % bound,
        st.integers(2**23, 2**24 - 1) | st.integers(2**52, 2**53 - 1),
        st.integers(0, 38),
        st.integers(-1, 1),
        st.sampled_from((-1, 1)),
    )
    return st.integers(-bound, bound - 1) | halfway


@pytest.mark.fault(114)
@pytest.mark.parametrize("written, read", PROMOTIONS)
@given(st.data())
def test_both_ways_give_the_bits_that_the_specification_asks_for(
    written: str, read: str, data: st.DataObject
) -> None:
    values = data.draw(st.lists(numbers(written), min_size=1, max_size=20))
    raw = [encoded(written, value) for value in values]
    in_columns, one_by_one = map(bits, both_ways(record(written), record(read), raw))
    assert in_columns == one_by_one
    for value, found in zip(values, in_columns, strict=True):
        assert found == (expected(written, read, value) or found)


@pytest.mark.fault(114)
@pytest.mark.parametrize("kind, data", [("float", "00000080"), ("double", "0000000000000080")])
def test_minus_zero_keeps_its_sign(kind: str, data: str) -> None:
    raw = bytes.fromhex(data)
    assert [bits(found) for found in both_ways(record(kind), record(kind), [raw])] == [[raw]] * 2


@pytest.mark.fault(114)
def test_a_long_is_rounded_to_a_float_once() -> None:
    raw = [encoded("long", sign * TWICE_ROUNDED) for sign in (1, -1)]
    wanted = [struct.pack("<I", 0x5E64B2D3), struct.pack("<I", 0xDE64B2D3)]
    assert [bits(c) for c in both_ways(record("long"), record("float"), raw)] == [wanted] * 2


@pytest.mark.fault(114)
@pytest.mark.parametrize("default", [-0.0, 1e-45, 3.5])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_defaults_of_fields_that_were_not_written_keep_their_bits(
    kind: str, default: float
) -> None:
    written, read = record(kind), record(kind, default)
    wanted = struct.pack("<" + FLOATING[kind], default)
    for found in both_ways(written, read, [encoded(kind, 0)] * 3, "d"):
        assert bits(found) == [wanted] * 3


@pytest.mark.fault(114)
@pytest.mark.parametrize("seed", range(4))
def test_floats_in_lists_maps_unions_and_records_keep_their_bits(seed: int) -> None:
    rng = Random(seed)
    inner = rng.choice(["float", "double"])
    shapes: list[tuple[Any, bytes, bytes]] = [
        (["null", inner], b"\2", b""),
        ({"type": "array", "items": inner}, b"\2", b"\0"),
        ({"type": "map", "values": inner}, b"\2\2k", b"\0"),
        (["null", inner, "string"], b"\2", b""),
        ({"type": "record", "name": "P", "fields": [{"name": "x", "type": inner}]}, b"", b""),
    ]
    number = bytes.fromhex("00000080" if inner == "float" else "0000000000000080")
    for kind, before, after in shapes:
        tree = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
        for found in both_ways(tree, tree, [before + number + after] * 3):
            assert leaf(found) == [number] * 3, json.dumps(kind)


def leaf(column: pa.Array) -> list[bytes]:
    """Return the bits of a column's numbers, however they are nested."""
    if pa.types.is_list(column.type):
        return leaf(column.values)
    if pa.types.is_map(column.type):
        return leaf(column.items)
    if pa.types.is_struct(column.type):
        return leaf(column.field(0))
    return bits(column)


def test_the_reference_of_these_tests_rounds_as_decimals_do() -> None:
    for number in (TWICE_ROUNDED, 2**24 + 1, 2**24 + 3, -(2**63), 2**63 - 1):
        found = Decimal(nearest(number, 24))
        neighbours = [
            Decimal(struct.unpack("<f", struct.pack("<I", at))[0])
            for at in neighbouring(float(found))
        ]
        assert all(abs(found - number) <= abs(other - number) for other in neighbours)


def neighbouring(number: float) -> tuple[int, int]:
    (at,) = struct.unpack("<I", struct.pack("<f", number))
    return at - 1, at + 1
