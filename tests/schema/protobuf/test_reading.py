"""Columns of messages: presence, paths of errors, maps, and unusual names."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.protobuf import codec
from pulsar_spark.schema.protobuf.types import Type
from tests.schema.kernel import choose
from tests.schema.protobuf.cases import SCALARS, add, add_map, class_of, info_of, new_file
from tests.schema.protobuf.test_schema import listed

pytestmark = pytest.mark.usefixtures("way")


def read(info: SchemaInfo, values: list[bytes], *names: str) -> tuple[list[Any], list[Any]]:
    decoded = codec.decoder(info, info, names).decode(pa.array(values, pa.binary()))
    for column in decoded.columns:
        column.validate(full=True)
    return [column.to_pylist() for column in decoded.columns], list(decoded.bad)


@pytest.mark.parametrize("kind", SCALARS)
def test_zero_is_there_where_it_can_be_told(kind: int) -> None:
    zeros: dict[int, Any] = {Type.TYPE_STRING: "", Type.TYPE_BYTES: b""}
    zero = zeros.get(kind, 0)
    for syntax, absent in (("proto2", None), ("proto3", zero)):
        file = new_file(syntax=syntax)
        message = file.message_type.add(name="M")
        add(message, "a", 1, kind)
        add(message, "b", 2, kind, label=Type.LABEL_REPEATED)
        values = [class_of(file)(a=zero, b=[zero, zero]).SerializeToString(), b""]
        columns, bad = read(info_of(file), values, "a", "b")
        assert columns == [[zero, absent], [[zero, zero], []]]
        assert not bad


@pytest.mark.parametrize("default", [-5, 0.5, "Infinity", True, "x"])
def test_absent_is_null_where_the_schema_lists_a_default_of_proto2(default: Any) -> None:
    kinds = {int: "INT32", float: "DOUBLE", bool: "BOOL", str: "STRING"}
    kind = "FLOAT" if default == "Infinity" else kinds[type(default)]
    info = listed([(1, "a", kind, "LABEL_OPTIONAL")], {"a": default})
    columns, bad = read(info, [b""], "a")
    assert columns == [[None]]
    assert not bad


@pytest.mark.parametrize(
    "kind,own", [("INT32", 0), ("DOUBLE", 0.0), ("BOOL", False), ("ENUM", "A")]
)
def test_absent_is_zero_where_the_schema_does_not_tell_presence(kind: str, own: Any) -> None:
    # Java's client registers `int32 a = 1` and `optional int32 a = 1` alike.
    info = listed([(1, "a", kind, "LABEL_OPTIONAL")], {"a": own})
    assert read(info, [b""], "a")[0] == [[0]]


@pytest.mark.parametrize("names", [("a",), ("e",), ("a", "e"), ("e", "b"), ("m", "a"), ("g", "e")])
@pytest.mark.parametrize("nested", [False, True])
def test_closed_enums_in_oneofs_are_read_as_protobuf_reads_them(
    names: tuple[str, ...], nested: bool
) -> None:
    file = new_file(syntax="proto2")
    enum = file.enum_type.add(name="E")
    for number, name in ((1, "ONE"), (1, "SAME"), (-2, "MINUS")):
        enum.value.add(name=name, number=number)
    enum.options.allow_alias = True
    file.message_type.add(name="N").field.add(
        name="x", number=1, type=Type.TYPE_INT32, label=Type.LABEL_OPTIONAL
    )
    message = file.message_type.add(name="I" if nested else "M")
    message.oneof_decl.add(name="o")
    add(message, "a", 1, Type.TYPE_INT32, oneof_index=0)
    add(message, "e", 2, Type.TYPE_ENUM, type_name=".t.E", oneof_index=0)
    add(message, "b", 3, Type.TYPE_STRING, oneof_index=0)
    add(message, "m", 4, Type.TYPE_MESSAGE, type_name=".t.N", oneof_index=0)
    add(message, "free", 5, Type.TYPE_ENUM, type_name=".t.E")
    message.nested_type.add(name="G").field.add(
        name="x", number=1, type=Type.TYPE_INT32, label=Type.LABEL_OPTIONAL
    )
    scope = f".t.{message.name}.G"
    add(message, "g", 6, Type.TYPE_GROUP, type_name=scope, oneof_index=0)
    if nested:
        outer = file.message_type.add(name="M")
        add(outer, "i", 1, Type.TYPE_MESSAGE, type_name=".t.I")
    parts = [b"\x08\x07", b"\x10\x01", b"\x10\x63", b"\x1a\x01x", b"\x22\x02\x08\x05"]
    parts += [b"\x33\x08\x03\x34", b"\x10\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"]
    values = [b"", *parts, *(one + other for one in parts for other in parts)]
    if nested:
        values = [bytes([10, len(value)]) + value for value in values]
    columns, bad = read(info_of(file), values, *(("i",) if nested else names))
    assert not bad
    kind, symbols = class_of(file), {1: "ONE", -2: "MINUS"}
    for row, value in enumerate(values):
        found = kind.FromString(value)
        inner = found.i if nested else found
        got = (
            columns[0][row] if nested else dict(zip(names, [c[row] for c in columns], strict=True))
        )
        for name in names:
            expected = getattr(inner, name) if inner.HasField(name) else None
            if name == "e" and expected is not None:
                expected = symbols[expected]
            if name in "mg" and expected is not None:
                expected = {"x": expected.x if expected.HasField("x") else None}
            assert got[name] == expected, (value, name)
    # Elsewhere a number is kept.
    if not nested:
        assert read(info_of(file), [b"\x28\x63"], "free")[0] == [["99"]]


def test_a_message_of_thousands_of_fields_is_read() -> None:
    file = new_file(syntax="proto2")
    message = file.message_type.add(name="M")
    message.oneof_decl.add(name="o")
    for number in range(1, 9001):
        kind = {"oneof_index": 0} if number in (1, 9000) else {}
        add(message, f"f{number}", number, Type.TYPE_STRING, **kind)
    names = [f"f{number}" for number in range(1, 9001)]
    # The last one clears the first one.
    value = b"\x0a\x01x\x12\x01y\xc2\xb2\x04\x01z"
    columns, bad = read(info_of(file), [value, b"\x0a\x01x", b"\xff"], *names)
    assert [each.row for each in bad] == [2]
    assert [columns[0], columns[1], columns[-1]] == [
        [None, "x", None],
        ["y", None, None],
        ["z", None, None],
    ]


def test_a_message_within_of_too_many_fields_is_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = new_file()
    inner = file.message_type.add(name="N")
    for number in range(1, 9001):
        add(inner, f"f{number}", number, Type.TYPE_STRING)
    add(file.message_type.add(name="M"), "n", 1, Type.TYPE_MESSAGE, type_name=".t.N")
    choose(monkeypatch, kernel=False)
    with pytest.raises(SchemaMismatch, match="more fields than protobuf can read"):
        read(info_of(file), [b"\x0a\x00"], "n")


def test_a_closed_enum_in_a_map_has_its_first_name_where_absent() -> None:
    file = new_file(syntax="proto2")
    enum = file.enum_type.add(name="E")
    enum.value.add(name="FIVE", number=5)
    enum.value.add(name="ZERO", number=0)
    message = file.message_type.add(name="M")
    add_map(message, "t.M", "m", 1, Type.TYPE_INT32, Type.TYPE_ENUM, ".t.E")
    columns, _ = read(info_of(file), [b"\x0a\x00\x0a\x04\x08\x01\x10\x00"], "m")
    assert columns == [[[(0, "FIVE"), (1, "ZERO")]]]


def test_absent_is_null_where_it_can_be_told_and_the_default_elsewhere() -> None:
    file = new_file(syntax="proto2")
    message = file.message_type.add(name="M")
    add(message, "a", 1, Type.TYPE_INT32, default_value="42")
    add(message, "b", 2, Type.TYPE_STRING, label=Type.LABEL_REQUIRED)
    add(message, "c", 3, Type.TYPE_INT32, label=Type.LABEL_REPEATED)
    assert read(info_of(file), [b""], "a", "b", "c")[0] == [[None], [None], [[]]]
    file = new_file()
    add(file.message_type.add(name="M"), "a", 1, Type.TYPE_STRING)
    assert read(info_of(file), [b""], "a")[0] == [[""]]


def test_the_error_for_text_that_is_not_utf_8_has_its_path() -> None:
    file = new_file(syntax="proto2")
    inner = file.message_type.add(name="N")
    add(inner, "text", 1, Type.TYPE_STRING)
    add(inner, "data", 2, Type.TYPE_BYTES)
    message = file.message_type.add(name="M")
    add(message, "n", 1, Type.TYPE_MESSAGE, type_name=".t.N")
    add(message, "ns", 2, Type.TYPE_MESSAGE, type_name=".t.N", label=Type.LABEL_REPEATED)
    add_map(message, "t.M", "m", 3, Type.TYPE_STRING, Type.TYPE_MESSAGE, ".t.N")
    add(message, "texts", 4, Type.TYPE_STRING, label=Type.LABEL_REPEATED)
    bad, ok = b"\x0a\x01\xff", b"\x0a\x02ok"

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    values = [
        field(1, ok) + field(2, ok),
        b"",
        field(1, bad),
        field(2, ok) + field(2, bad) + field(2, ok),
        field(3, b"\x0a\x01a" + field(2, ok)) + field(3, b"\x0a\x01b" + field(2, bad)),
        field(3, b"\x0a\x01\xff"),
        field(4, b"ok") + field(4, b"\xff"),
        field(1, b"\x12\x01\xff"),
        field(1, bad) + field(4, b"\xff"),
    ]
    columns, found = read(info_of(file), values, "n", "ns", "m", "texts")
    assert [(each.row, each.field) for each in found] == [
        (2, "n.text"),
        (3, "ns.text"),
        (4, "m.value.text"),
        (5, "m.key"),
        (6, "texts"),
        (8, "n.text"),
    ]
    for column in columns:
        assert [
            row for row, value in enumerate(column) if row in (2, 3, 4, 5, 6, 8) and value
        ] == []
    assert columns[0][0] == {"text": "ok", "data": None}
    assert columns[0][7] == {"text": None, "data": b"\xff"}


def test_of_entries_with_the_same_key_the_last_counts() -> None:
    file = new_file()
    message = file.message_type.add(name="M")
    add_map(message, "t.M", "m", 1, Type.TYPE_INT32, Type.TYPE_STRING)

    def entry(key: int, value: bytes) -> bytes:
        body = bytes([8, key, 18, len(value)]) + value
        return bytes([10, len(body)]) + body

    values = [
        entry(1, b"a") + entry(2, b"b") + entry(1, b"c"),
        entry(1, b"x"),
        b"\x0a\x00",
        entry(0, b"a") + b"\x0a\x00",
        # Text that does not count need not be valid.
        entry(1, b"\xff") + entry(1, b"c"),
    ]
    (found,), bad = read(info_of(file), values, "m")
    assert found == [[(2, "b"), (1, "c")], [(1, "x")], [(0, "")], [(0, "")], [(1, "c")]]
    assert not bad


def test_numbers_of_enums_without_a_name_are_text() -> None:
    for syntax in ("proto2", "proto3"):
        file = new_file(syntax=syntax)
        enum = file.enum_type.add(name="E")
        enum.value.add(name="ZERO", number=0)
        enum.value.add(name="", number=1)
        message = file.message_type.add(name="M")
        add(message, "a", 1, Type.TYPE_ENUM, type_name=".t.E")
        add(message, "b", 2, Type.TYPE_ENUM, type_name=".t.E", label=Type.LABEL_REPEATED)
        value = b"\x08\x05" + b"\x10\x00\x10\x01\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
        columns, _ = read(info_of(file), [value], "a", "b")
        assert columns == [["5"], [["ZERO", "", "-1"]]]


def test_groups_are_structs() -> None:
    file = new_file(syntax="proto2")
    group = file.message_type.add(name="G")
    add(group, "a", 1, Type.TYPE_INT32)
    message = file.message_type.add(name="M")
    add(message, "g", 1, Type.TYPE_GROUP, type_name=".t.G")
    add(message, "gs", 2, Type.TYPE_GROUP, type_name=".t.G", label=Type.LABEL_REPEATED)
    value = b"\x0b\x08\x05\x0c" + b"\x13\x08\x01\x14\x13\x14"
    columns, _ = read(info_of(file), [value, b""], "g", "gs")
    assert columns == [[{"a": 5}, None], [[{"a": 1}, {"a": None}], []]]


def test_a_group_clears_other_members_of_its_oneof_whatever_is_in_it() -> None:
    file = new_file(syntax="proto2")
    group = file.message_type.add(name="G")
    add(group, "a", 1, Type.TYPE_INT32)
    message = file.message_type.add(name="M")
    message.oneof_decl.add(name="choice")
    add(message, "g", 1, Type.TYPE_GROUP, type_name=".t.G", oneof_index=0)
    add(message, "x", 2, Type.TYPE_INT32, oneof_index=0)
    one, other = b"\x0b\x08\x05\x0c", b"\x10\x07"
    values = [one + other, other + one, other + b"\x0b\x0a\x01\xff\x0c"]
    assert read(info_of(file), values, "x", "g")[0] == [
        [7, None, None],
        [None, {"a": 5}, {"a": None}],
    ]
    assert read(info_of(file), values, "x")[0] == [[7, None, None]]


def test_names_that_methods_have_are_names_of_fields() -> None:
    names = ["SerializeToString", "DESCRIPTOR", "HasField", "class", "__class__", "f1", "żółć"]
    file = new_file()
    message = file.message_type.add(name="M")
    plain = new_file("p")
    other = plain.message_type.add(name="M")
    for number, name in enumerate(names, 1):
        add(message, name, number, Type.TYPE_INT32)
        add(other, f"g{number}", number, Type.TYPE_INT32)
    value = class_of(plain)(**{f"g{number}": number for number in range(1, 8)})
    info = info_of(file)
    columns, bad = read(info, [value.SerializeToString()], *names)
    assert columns == [[number] for number in range(1, 8)]
    assert not bad
    schema = codec.arrow_schema(info)
    batch = pa.RecordBatch.from_arrays([pa.array(c, pa.int32()) for c in columns], schema=schema)
    assert codec.encoder(info, schema).encode(batch).to_pylist() == [value.SerializeToString()]


def test_messages_without_fields_are_true_where_they_are_there() -> None:
    file = new_file()
    file.message_type.add(name="Empty")
    message = file.message_type.add(name="M")
    add(message, "a", 1, Type.TYPE_MESSAGE, type_name=".t.Empty")
    add(message, "b", 2, Type.TYPE_MESSAGE, type_name=".t.Empty", label=Type.LABEL_REPEATED)
    columns, _ = read(info_of(file), [b"\x0a\x00", b"\x12\x00\x12\x00"], "a", "b")
    assert columns == [[True, None], [[], [True, True]]]
