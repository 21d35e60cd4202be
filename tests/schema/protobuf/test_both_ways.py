"""The kernel and the reference read the same from any bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.arrow.varints import varint
from pulsar_spark.schema.codec import Decoded
from pulsar_spark.schema.column_decoder import ColumnDecoder
from pulsar_spark.schema.protobuf import codec
from pulsar_spark.schema.protobuf.definition import parse
from pulsar_spark.schema.protobuf.types import MessageField, Type
from tests.schema.bits import assert_same_bits
from tests.schema.damage import damage
from tests.schema.kernel import choose
from tests.schema.protobuf.cases import (
    RandomSchema,
    add,
    add_map,
    class_of,
    info_of,
    native,
    new_file,
    random_message,
)
from tests.schema.protobuf.test_listed_messages import info as listed

SYNTAXES = ("proto2", "proto3", "editions")
VARINT, FIXED64, DELIMITED, GROUP, FIXED32 = 0, 1, 2, 3, 5
_WIRES: dict[int, int] = {
    **dict.fromkeys((Type.TYPE_DOUBLE, Type.TYPE_FIXED64, Type.TYPE_SFIXED64), FIXED64),
    **dict.fromkeys((Type.TYPE_FLOAT, Type.TYPE_FIXED32, Type.TYPE_SFIXED32), FIXED32),
    **dict.fromkeys((Type.TYPE_STRING, Type.TYPE_BYTES, Type.TYPE_MESSAGE), DELIMITED),
    Type.TYPE_GROUP: GROUP,
}


class Noise:
    """Makes messages with all that is allowed and odd: any order, repeated and packed fields,
    other wire types, unknown fields, numbers that are too long."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def message(self, fields: Sequence[MessageField], most: int = 8) -> bytes:
        """Return a message of some of the fields."""
        found = b""
        for _ in range(self._rng.randrange(most + 1)):
            if not fields or self._rng.random() < 0.08:
                number, wire = self._rng.choice((1, 2, 3, 2000)), self._any_wire()
                found += self._field(number, wire, None)
                continue
            field = self._rng.choice(fields)
            wire = _WIRES.get(field.type, VARINT)
            if field.repeated and wire != GROUP and self._rng.random() < 0.5:
                wire = DELIMITED
            if self._rng.random() < 0.04:
                wire = self._any_wire()
            found += self._field(field.number, wire, field)
        return found

    def _any_wire(self) -> int:
        return self._rng.choice((VARINT, FIXED64, DELIMITED, FIXED32, FIXED32, GROUP))

    def _field(self, number: int, wire: int, field: MessageField | None) -> bytes:
        tag, rng = varint(number << 3 | wire), self._rng
        if wire == VARINT:
            return tag + self._number()
        if wire in (FIXED64, FIXED32):
            return tag + self._fixed(8 if wire == FIXED64 else 4)
        if wire == GROUP:
            return tag + self._content(field) + varint(number << 3 | 4)
        data = self._content(field)
        size = len(data) if rng.random() < 0.995 else rng.randrange(300)
        return tag + varint(size) + data

    def _content(self, field: MessageField | None) -> bytes:
        rng = self._rng
        if field is None:
            return rng.randbytes(rng.choice((0, 1, 5))) if rng.random() < 0.3 else b"\x08\x01"
        if field.message is not None:
            return self.message(field.message.fields, rng.choice((0, 2, 2, 5)))
        if field.type in (Type.TYPE_STRING, Type.TYPE_BYTES):
            return rng.choice(
                (b"", b"a", "żółć".encode(), b"text" * 5, rng.choice((b"x", b"\xff")))
            )
        kind = _WIRES.get(field.type, VARINT)
        make = self._number if kind == VARINT else lambda: self._fixed(8 if kind == FIXED64 else 4)
        return b"".join(make() for _ in range(rng.randrange(4)))

    def _number(self) -> bytes:
        rng = self._rng
        match rng.randrange(12):
            case 0:
                return varint(rng.choice((2**63, 2**64 - 1, 2**32, 2**31, 2**32 - 1, 2**32 + 1)))
            case 1:
                return varint(rng.getrandbits(64))
            case 2:
                return varint(rng.randrange(300))[:-1] + rng.choice(
                    (b"\x85\0", b"\x81\x80\0", b"\1")
                )
            case 3:
                return rng.choice(
                    (b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\xff" * 9 + b"\x7f")
                )
        return varint(rng.randrange(9))

    def _fixed(self, size: int) -> bytes:
        rng = self._rng
        if rng.random() < 0.2:
            # A number, and what is none: of those, some bits are easily lost.
            return rng.choice((b"\0", b"\xff")) * (size - 2) + rng.choice(
                (b"\xa0\x7f", b"\xf0\xff")
            )
        return rng.randbytes(size)


def damaged(rng: Random, data: bytes) -> bytes:
    return damage(rng, data, rng.choice((0, 0, 0, 0, 0, 1, 2)))


class Case:
    """A random schema, and values of all kinds."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.file = RandomSchema(self.rng, SYNTAXES[seed % 3]).file()
        if seed % 4 == 3:
            self._add_more()
        self.info = info_of(self.file)
        fields = list(parse(self.info).fields)
        self.fields = fields
        names = [field.name for field in fields]
        self.names = self.rng.sample(names, self.rng.randrange(1, len(names) + 1))

    def _add_more(self) -> None:
        """Add what is rare, and what is left to the reference."""
        message = next(each for each in self.file.message_type if each.name == "M")
        numbers = (each for each in range(50, 60))
        for name in ("Struct", "Value", "ListValue"):
            for label in (Type.LABEL_OPTIONAL, Type.LABEL_REPEATED):
                kind = f".google.protobuf.{name}"
                number = next(numbers)
                add(message, f"f{number}", number, Type.TYPE_MESSAGE, type_name=kind, label=label)
        add_map(
            message, "t.M", "f60", 60, Type.TYPE_INT32, Type.TYPE_MESSAGE, ".google.protobuf.Struct"
        )
        if self.file.syntax == "proto2":
            number = next(numbers)
            add(message, f"f{number}", number, Type.TYPE_GROUP, type_name=".t.N0")

    @cached_property
    def _class(self) -> Any:
        return class_of(self.file)

    def value(self) -> bytes | None:
        match self.rng.randrange(12):
            case 0:
                return None
            case 1:
                return self.well_formed() + self.well_formed()
            case 2 | 3:
                return damaged(self.rng, self.well_formed())
            case 4 | 5:
                return self.well_formed()
        data = Noise(self.rng).message(self.fields)
        return damaged(self.rng, data) if self.rng.random() < 0.1 else data

    def well_formed(self) -> bytes:
        data: bytes = random_message(self.rng, self._class).SerializeToString()
        return data


def both(
    monkeypatch: pytest.MonkeyPatch,
    infos: tuple[SchemaInfo, SchemaInfo],
    names: Sequence[str],
    raw: pa.Array,
    where: str = "",
) -> Decoded:
    """Decode values in both ways, and compare."""
    found = []
    for kernel in (True, False):
        choose(monkeypatch, kernel=kernel)
        found.append(codec.decoder(*infos, names).decode(raw))
    first, second = found
    assert list(first.bad) == list(second.bad), where
    for name, one, other in zip(names, first.columns, second.columns, strict=True):
        one.validate(full=True)
        assert_same_bits(one, other, f"{where}{name}")
    return first


@pytest.mark.fault(44)
@pytest.mark.parametrize("seed", range(36))
def test_both_ways_agree_on_any_bytes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(seed)
    raw = pa.array([case.value() for _ in range(300)], pa.binary())
    infos = case.info, case.info
    found = both(monkeypatch, infos, case.names, raw)
    assert 0 < len(found.bad) < 200
    # A part of an array, whose rows count from its own first one.
    both(monkeypatch, infos, case.names, raw.slice(50, 100))


@pytest.mark.slow
@pytest.mark.fault(44)
@pytest.mark.parametrize("part", range(10))
def test_both_ways_agree_on_a_million_values(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(100 * part + 1000, 100 * (part + 1) + 1000):
        case = Case(seed)
        raw = pa.array([case.value() for _ in range(1000)], pa.binary())
        both(monkeypatch, (case.info, case.info), case.names, raw, f"seed {seed}: ")


def without_enums_in_oneofs(messages: Iterable[Any]) -> None:
    """Make numbers of them: the reference reads those that are closed."""
    for message in messages:
        without_enums_in_oneofs(message.nested_type)
        for field in message.field:
            if field.HasField("oneof_index") and field.type == Type.TYPE_ENUM:
                field.type = Type.TYPE_INT32
                field.ClearField("type_name")


@pytest.mark.parametrize("seed", range(60))
def test_the_kernel_takes_whatever_is_well_formed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    file = RandomSchema(rng, SYNTAXES[seed % 2]).file()
    if file.syntax == "proto2":
        without_enums_in_oneofs(file.message_type)
    values = [random_message(rng, class_of(file)).SerializeToString() for _ in range(50)]
    info = info_of(file)
    names = codec.arrow_schema(info).names
    choose(monkeypatch, kernel=True)
    monkeypatch.delattr(ColumnDecoder, "_reads")
    assert not codec.decoder(info, info, names).decode(pa.array(values)).bad


@pytest.mark.parametrize("seed", range(6))
def test_both_ways_agree_on_values_whose_schema_lists_only_the_outermost_fields(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    kinds = [kind for kind in Type.Type.DESCRIPTOR.values_by_name if kind != "TYPE_GROUP"]
    labels = ("LABEL_OPTIONAL", "LABEL_REPEATED", "LABEL_REQUIRED")
    given = [
        (number, f"f{number}", rng.choice(kinds).removeprefix("TYPE_"), rng.choice(labels))
        for number in range(1, 12)
    ]
    info = listed(given)
    noise, fields = Noise(rng), parse(info).fields
    raw = pa.array([damaged(rng, noise.message(fields)) for _ in range(300)], pa.binary())
    both(monkeypatch, (info, info), codec.arrow_schema(info).names, raw)


def test_names_of_an_enum_come_from_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    infos = []
    for names in ({"A": 0, "B": 1, "X": -3}, {"ZERO": 0, "C": 2}):
        file = new_file()
        enum = file.enum_type.add(name="E")
        for name, number in names.items():
            enum.value.add(name=name, number=number)
        message = file.message_type.add(name="M")
        add(message, "a", 1, Type.TYPE_ENUM, type_name=".t.E")
        add(message, "b", 2, Type.TYPE_ENUM, type_name=".t.E", label=Type.LABEL_REPEATED)
        infos.append(info_of(file))
    packed = b"".join(varint(number & 2**64 - 1) for number in (0, 1, 2, 3, -3, -4, 2**32 + 1))
    raw = pa.array([b"\x08\x01\x12" + varint(len(packed)) + packed, b""])
    found = both(monkeypatch, (infos[0], infos[1]), ["a", "b"], raw)
    assert found.columns[0].to_pylist() == ["B", "ZERO"]
    assert found.columns[1].to_pylist() == [["ZERO", "B", "C", "3", "X", "-4", "B"], []]


def test_bits_of_what_is_no_number_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    file = new_file(syntax="proto2")
    message = file.message_type.add(name="M")
    add(message, "a", 1, Type.TYPE_FLOAT)
    add(message, "b", 2, Type.TYPE_DOUBLE, label=Type.LABEL_REPEATED)
    info = info_of(file)
    single, double = 0x7FA0_0001, 0x7FF4_0000_0000_0001
    value = b"\x0d" + single.to_bytes(4, "little") + b"\x11" + double.to_bytes(8, "little")
    found = both(monkeypatch, (info, info), ["a", "b"], pa.array([value, b""]))
    assert found.columns[0].view(pa.int32()).to_pylist() == [single, None]
    assert found.columns[1].flatten().view(pa.int64()).to_pylist() == [double]


def test_parts_of_a_time_are_0_where_absent_whatever_the_syntax(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = new_file("google.protobuf", "proto2")
    del file.dependency[:]
    stamp = file.message_type.add(name="Timestamp")
    add(stamp, "seconds", 1, Type.TYPE_INT64)
    add(stamp, "nanos", 2, Type.TYPE_INT32)
    message = file.message_type.add(name="M")
    add(message, "t", 1, Type.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    files = FileDescriptorSet(file=[file])
    info = native(files.SerializeToString(), "google.protobuf.M")
    raw = pa.array([b"\x0a\0", b"\x0a\x02\x08\x01", b""])
    found = both(monkeypatch, (info, info), ["t"], raw)
    assert found.columns[0].view(pa.int64()).to_pylist() == [0, 1_000_000, None]


def test_no_oneof_has_repeated_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    file = new_file()
    message = file.message_type.add(name="M")
    message.oneof_decl.add(name="choice")
    add(message, "a", 1, Type.TYPE_INT32, label=Type.LABEL_REPEATED, oneof_index=0)
    add(message, "b", 2, Type.TYPE_INT32, oneof_index=0)
    info = info_of(file)
    found = both(monkeypatch, (info, info), ["a"], pa.array([b"\x08\x01\x10\x02\x08\x03"]))
    assert found.columns[0].to_pylist() == [[1, 3]]
