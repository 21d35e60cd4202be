"""Which columns are written as which scalars, and what does not fit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.protobuf import codec
from pulsar_spark.schema.protobuf.fitting import accepts
from pulsar_spark.schema.protobuf.types import MessageField, Type, type_name
from tests.schema.protobuf.cases import add, class_of, info_of, new_file

pytestmark = pytest.mark.usefixtures("way")

SHORT: tuple[int, ...] = (Type.TYPE_INT32, Type.TYPE_SINT32, Type.TYPE_SFIXED32)
LONG: tuple[int, ...] = (Type.TYPE_INT64, Type.TYPE_SINT64, Type.TYPE_SFIXED64)
UNSIGNED_SHORT: tuple[int, ...] = (Type.TYPE_UINT32, Type.TYPE_FIXED32)
UNSIGNED_LONG: tuple[int, ...] = (Type.TYPE_UINT64, Type.TYPE_FIXED64)
RANGES: dict[int, tuple[int, int]] = (
    dict.fromkeys(SHORT, (-(2**31), 2**31 - 1))
    | dict.fromkeys(LONG, (-(2**63), 2**63 - 1))
    | dict.fromkeys(UNSIGNED_SHORT, (0, 2**32 - 1))
    | dict.fromkeys(UNSIGNED_LONG, (0, 2**64 - 1))
)
DECIMAL = pa.decimal128(20, 0)


def write(kind: int, values: list[Any], column: pa.DataType, **more: Any) -> list[Any]:
    file = new_file()
    enum = file.enum_type.add(name="E")
    for name, number in (("ZERO", 0), ("ONE", 1), ("MINUS", -5)):
        enum.value.add(name=name, number=number)
    field = add(file.message_type.add(name="M"), "a", 1, kind, **more)
    if kind == Type.TYPE_ENUM:
        field.type_name = ".t.E"
    columns = pa.schema([pa.field("a", column)])
    batch = pa.record_batch([pa.array(values, column)], schema=columns)
    encoded = codec.encoder(info_of(file), columns).encode(batch)
    read = class_of(file)
    return [read.FromString(value).a for value in encoded.to_pylist()]


@pytest.mark.parametrize("kind", RANGES, ids=type_name)
def test_integers_up_to_the_ends_of_their_ranges(kind: int) -> None:
    low, high = RANGES[kind]
    values = [low, 0, 1, 300, high]
    assert write(kind, values, DECIMAL) == values
    fitting = [value for value in values if -(2**63) <= value < 2**63]
    assert write(kind, fitting, pa.int64()) == fitting
    assert write(kind, [1, 100], pa.int8()) == [1, 100]


@pytest.mark.parametrize("kind", RANGES, ids=type_name)
def test_integers_beyond_their_ranges_are_refused_with_row_and_range(kind: int) -> None:
    low, high = RANGES[kind]
    for value in (low - 1, high + 1):
        message = f"row 2: a: it is {value}, and the schema's {type_name(kind)} ranges from"
        with pytest.raises(Mismatch, match=message):
            write(kind, [1, low, value, value], DECIMAL)


def test_enums_by_name_and_open_ones_by_number() -> None:
    names = ["ONE", "ZERO", "MINUS", "7", "-3"]
    assert write(Type.TYPE_ENUM, names, pa.string()) == [1, 0, -5, 7, -3]
    for name in ("TWO", "", "1.5", "2147483648", "-", "١", "one"):  # noqa: RUF001
        with pytest.raises(
            Mismatch, match=r"row 1: a: it is .* not a symbol of the enum"
        ) as raised:
            write(Type.TYPE_ENUM, ["ONE", name], pa.string())
        assert "ZERO, ONE, MINUS" in raised.value.remedy


def test_closed_enums_have_no_other_numbers() -> None:
    file = new_file(syntax="proto2")
    file.enum_type.add(name="E").value.add(name="ZERO", number=0)
    add(file.message_type.add(name="M"), "a", 1, Type.TYPE_ENUM, type_name=".t.E")
    columns = pa.schema([pa.field("a", pa.string())])
    encoder = codec.encoder(info_of(file), columns)
    assert encoder.encode(pa.record_batch([["ZERO"]], schema=columns)).to_pylist() == [b"\x08\x00"]
    with pytest.raises(Mismatch):
        encoder.encode(pa.record_batch([["7"]], schema=columns))


def test_floating_point_numbers_keep_their_bits() -> None:
    values = [0.0, -0.0, 1.5, float("inf"), 5e-324]
    assert repr(write(Type.TYPE_DOUBLE, values, pa.float64())) == repr(values)
    assert repr(write(Type.TYPE_DOUBLE, [-0.0, 1.5], pa.float32())) == "[-0.0, 1.5]"
    assert repr(write(Type.TYPE_FLOAT, [-0.0, 1.5], pa.float32())) == "[-0.0, 1.5]"
    assert repr(write(Type.TYPE_FLOAT, [float("nan")], pa.float32())) == "[nan]"


@pytest.mark.parametrize(
    "kind, columns",
    [
        (Type.TYPE_INT32, [pa.int8(), pa.int32(), pa.int64(), pa.decimal128(10, 0)]),
        (Type.TYPE_FLOAT, [pa.float32()]),
        (Type.TYPE_DOUBLE, [pa.float32(), pa.float64()]),
        (Type.TYPE_BOOL, [pa.bool_()]),
        (Type.TYPE_STRING, [pa.string()]),
        (Type.TYPE_BYTES, [pa.binary()]),
        (Type.TYPE_ENUM, [pa.string()]),
    ],
)
def test_columns_that_are_accepted(kind: int, columns: list[pa.DataType]) -> None:
    every = [
        pa.int8(), pa.int32(), pa.int64(), pa.decimal128(10, 0), pa.decimal128(10, 2),
        pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32(),
        pa.timestamp("us"), pa.list_(pa.int32()), pa.null(),
    ]  # fmt: skip
    assert [each for each in every if accepts(MessageField(1, "a", kind), each)] == columns


def test_decimals_are_written_as_they_are() -> None:
    assert write(Type.TYPE_UINT64, [Decimal(2**64 - 1)], DECIMAL) == [2**64 - 1]
