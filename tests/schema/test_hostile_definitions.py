"""Hostile definitions: disproportionate time or memory, or unusual names.

Time is measured by counting the interpreter's steps at two sizes, not by a clock.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Type

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.codec import codec_of, typed_columns
from tests.schema.protobuf.cases import add, add_map, info_of, new_file
from tests.schema.protobuf.test_listed_messages import info as listed


def steps(function: Callable[[], object]) -> int:
    """Return how many Python instructions a function call takes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except SchemaMismatch:
        pass
    finally:
        sys.settrace(before)
    return count


def avro(tree: Any, kind: int = pb.Schema.Avro) -> SchemaInfo:
    return SchemaInfo(kind, "", json.dumps(tree).encode())


def as_json(tree: Any) -> SchemaInfo:
    return avro(tree, pb.Schema.Json)


def record(
    fields: dict[str, Any], name: str = "R", defaults: dict[str, Any] | None = None
) -> dict[str, Any]:
    given = defaults or {}
    made = [
        {"name": field, "type": kind, **({"default": given[field]} if field in given else {})}
        for field, kind in fields.items()
    ]
    return {"type": "record", "name": name, "fields": made}


def ints(count: int) -> dict[str, Any]:
    return dict.fromkeys((f"f{number}" for number in range(count)), "int")


def records(count: int, prefix: str = "A", **fields: Any) -> list[Any]:
    return [record(fields, f"{prefix}{number}") for number in range(count)]


def one(kind: Any) -> dict[str, Any]:
    return record({"u": kind})


def with_x(count: int) -> list[Any]:
    return [record({"x": "int"}, f"A{number}", {"x": 1}) for number in range(count)]


def enum(count: int) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": [f"s{number}" for number in range(count)]}


def native(count: int, what: str) -> SchemaInfo:
    file = new_file()
    message = file.message_type.add(name="M")
    if what == "enum":
        values = file.enum_type.add(name="E")
        for number in range(count):
            values.value.add(name=f"E{number}", number=number)
        add(message, "e", 1, Type.TYPE_ENUM, type_name=".t.E")
        return info_of(file)
    for number in range(count):
        name, at = f"f_{number}", number + 1
        if what == "messages":
            file.message_type.add(name=f"N{number}")
            add(message, name, at, Type.TYPE_MESSAGE, type_name=f".t.N{number}")
        elif what == "maps":
            add_map(message, "t.M", name, at, Type.TYPE_STRING, Type.TYPE_INT32)
        elif what == "oneofs":
            message.oneof_decl.add(name=f"o{number}")
            add(message, name, at, Type.TYPE_INT32, oneof_index=number)
        else:
            add(message, name, at, Type.TYPE_INT32)
    return info_of(file)


def fields_of_protobuf(count: int) -> SchemaInfo:
    return listed([(n + 1, f"f{n}", "INT32", "LABEL_OPTIONAL") for n in range(count)])


WIDE = {"logicalType": "decimal", "precision": 50}

Pair = tuple[SchemaInfo, SchemaInfo]


def alike(info: SchemaInfo) -> Pair:
    return info, info


PLANS: dict[str, Callable[[int], Pair]] = {
    "union": lambda n: alike(avro(one(records(n)))),
    "union, of the query in the opposite order": lambda n: (
        avro(one(records(n))),
        avro(one(records(n)[::-1])),
    ),
    "union, of the query with more fields": lambda n: (
        avro(one(records(n))),
        avro(one(with_x(n))),
    ),
    "union of other namespaces": lambda n: (
        avro(one(records(n))),
        avro(one([{**each, "namespace": "other"} for each in records(n)])),
    ),
    "record": lambda n: alike(avro(record(ints(n)))),
    "defaults": lambda n: (avro(record({})), avro(record(ints(n), "R", dict.fromkeys(ints(n), 1)))),
    "enum": lambda n: alike(avro(one(enum(n)))),
    "records within themselves": lambda n: alike(
        avro(record({key: ["null", "R"] for key in ints(n)}))
    ),
    "records within each other": lambda n: alike(
        avro(one([record({"a": ["null", "R"], "b": ["null", f"B{k}"]}, f"B{k}") for k in range(n)]))
    ),
    "decimals": lambda n: alike(avro(record({key: {"type": "bytes", **WIDE} for key in ints(n)}))),
    "JSON records within themselves": lambda n: alike(
        as_json(record({key: ["null", "R"] for key in ints(n)}))
    ),
    "JSON record": lambda n: alike(as_json(record(ints(n)))),
    "JSON record within": lambda n: alike(as_json(one(record(ints(n), "Q")))),
    "JSON maps": lambda n: alike(
        as_json(record({name: {"type": "map", "values": "int"} for name in ints(n)}))
    ),
    "JSON union": lambda n: alike(as_json(one(records(n)))),
    "listed protobuf": lambda n: alike(fields_of_protobuf(n)),
    **{
        f"protobuf {what}": lambda n, what=what: alike(native(n, what))  # type: ignore[misc]
        for what in ("fields", "messages", "maps", "oneofs", "enum")
    },
}


@pytest.mark.fault(113)
@pytest.mark.parametrize("name", PLANS)
def test_planning_takes_as_many_steps_as_a_definition_is_long(name: str) -> None:
    def read(writer: SchemaInfo, reader: SchemaInfo) -> None:
        codec = codec_of(reader)
        codec.decoder(writer, reader, codec.arrow_schema(reader).names)

    def write(info: SchemaInfo) -> None:
        codec = codec_of(info)
        codec.encoder(info, codec.arrow_schema(info))

    read(*PLANS[name](3))  # One-time work is not counted.
    write(PLANS[name](3)[0])
    pairs = [PLANS[name](count) for count in (150, 300)]
    few, many = (steps(lambda pair=pair: read(*pair)) for pair in pairs)  # type: ignore[misc]
    assert many < 2.5 * few
    few, many = (steps(lambda pair=pair: write(pair[0])) for pair in pairs)  # type: ignore[misc]
    assert many < 2.5 * few


@pytest.mark.fault(113)
def test_unions_that_have_nothing_in_common_are_given_up_soon() -> None:
    writer, reader = avro(one(records(2000))), avro(one(records(2000, "B", x="int")))
    codec = codec_of(reader)
    assert steps(lambda: codec.decoder(writer, reader, ["u"])) < 50_000_000
    with pytest.raises(SchemaMismatch, match="unions of two versions of a schema are too large"):
        codec.decoder(writer, reader, ["u"])


@pytest.mark.fault(44)
@pytest.mark.parametrize("kind", ["int", enum(2), {"type": "array", "items": "int"}])
def test_unions_have_each_type_once(kind: Any) -> None:
    for kinds in ([kind, kind], ["null", kind, "string", kind]):
        with pytest.raises(SchemaMismatch, match=r"the field u is a union with .* twice"):
            typed_columns(avro(one(kinds)))


@pytest.mark.fault(44)
@pytest.mark.parametrize("made", [avro, as_json])
@pytest.mark.parametrize(
    "tree",
    [
        record({"\ud800": "int"}),
        one(record({"a\udfff": "int"}, "Q")),
        record({"a": "int"}, "R\ud800"),
        {**record({"a": "int"}), "namespace": "n\ud800"},
        one({"type": "enum", "name": "E", "symbols": ["a", "\ud800"]}),
        one({"type": "fixed", "name": "F\ud800", "size": 3}),
        one("\ud800"),
        one({"type": "\ud800"}),
        [record({}), record({}, "\ud800")],
    ],
)
def test_halves_of_surrogate_pairs_in_names_are_our_own_error(made: Any, tree: Any) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        typed_columns(made(tree))
    str(caught.value).encode()


@pytest.mark.fault(44)
def test_halves_of_surrogate_pairs_elsewhere_do_no_harm() -> None:
    tree = {**record({"a": "string"}, "R", {"a": "\ud800"}), "doc": "\ud800", "aliases": ["\ud800"]}
    assert typed_columns(avro(tree)).fields == pa.schema([("a", pa.string())])


@pytest.mark.fault(44)
@pytest.mark.parametrize("doc", ['"\ud800"', '"\xff"', "[" * 900 + "]" * 900, '"é"'])
def test_a_definition_as_the_python_client_writes_them_may_hold_anything(doc: str) -> None:
    text = f'{{\n "doc":{doc},"type":"record","name":"R","fields":[{{"name":"a","type":"int"}}]}}'
    for errors in ("surrogatepass", "surrogateescape"):
        try:
            data = text.encode("utf-8", errors)
        except UnicodeEncodeError:
            continue
        made = SchemaInfo(pb.Schema.Json, "", data)
        codec_of(made).decoder(made, made, ["a"])


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    "info",
    [
        listed([(1, "\ud800", "INT32", "LABEL_OPTIONAL")]),
        listed([(1, "a", "\ud800", "LABEL_OPTIONAL")]),
        listed([(0, "\ud800", "INT32", "LABEL_OPTIONAL")]),
        listed([(1, "\ud800", "MESSAGE", "LABEL_OPTIONAL")]),
        listed([(1, "a", "INT32", "x"), (1, "\ud800", "INT32", "x")]),
        SchemaInfo(
            pb.Schema.ProtobufNative,
            "",
            json.dumps({"fileDescriptorSet": "", "rootMessageTypeName": "\ud800"}).encode(),
        ),
    ],
)
def test_nor_in_names_of_protobuf(info: SchemaInfo) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        typed_columns(info)
    str(caught.value).encode()


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    "name", ["package1", "Message1", "Enum1", "VALUE1", "field1", "choice1", "Message2"]
)
def test_names_of_protobuf_that_are_not_utf8_are_our_own_error(name: str) -> None:
    file = new_file("package1")
    message = file.message_type.add(name="Message1")
    file.message_type.add(name="Message2")
    file.enum_type.add(name="Enum1").value.add(name="VALUE1", number=0)
    message.oneof_decl.add(name="choice1")
    add(message, "field1", 1, Type.TYPE_INT32, oneof_index=0)
    add(message, "e", 2, Type.TYPE_ENUM, type_name=".package1.Enum1", oneof_index=0)
    add(message, "m", 3, Type.TYPE_MESSAGE, type_name=".package1.Message2")
    definition = json.loads(info_of(file, "Message1").schema_data)
    files = base64.b64decode(definition["fileDescriptorSet"])
    assert name.encode() in files
    damaged = files.replace(name.encode(), name[:-1].encode() + b"\xff")
    definition["fileDescriptorSet"] = base64.b64encode(damaged).decode()
    made = SchemaInfo(pb.Schema.ProtobufNative, "", json.dumps(definition).encode())
    with pytest.raises(SchemaMismatch) as caught:
        codec_of(made).decoder(made, made, codec_of(made).arrow_schema(made).names)
    str(caught.value).encode()


@pytest.mark.fault(44)
def test_oneofs_may_have_any_name() -> None:
    file = new_file()
    message = file.message_type.add(name="M")
    message.oneof_decl.add(name="no name é")
    add(message, "a", 1, Type.TYPE_INT32, oneof_index=0)
    made = info_of(file)
    found = codec_of(made).decoder(made, made, ["a"]).decode(pa.array([b"\x08\x07"]))
    assert found.columns[0].to_pylist() == [7]


@pytest.mark.fault(113)
@pytest.mark.parametrize(
    "tree",
    [
        {"type": "record", "name": "R", "namespace": "n" * 500_000, "fields": [
            {"name": f"f{n}", "type": record({}, f"A{n}")} for n in range(15_000)]},
        record({"f" * 500_000: record(ints(15_000), "Q")}),
        one({"type": "enum", "name": "E", "symbols": ["s" * 500_000]}),
    ],
)  # fmt: skip
def test_names_are_no_longer_than_names_are(tree: Any) -> None:
    for made in (avro, as_json):
        with pytest.raises(SchemaMismatch, match="more than 1000 characters"):
            typed_columns(made(tree))


@pytest.mark.fault(113)
def test_names_of_protobuf_types_are_not_all_as_long_as_their_package() -> None:
    file = new_file()
    file.package = "p" * 200_000
    for number in range(20_000):
        file.message_type.add(name=f"M{number}")
    with pytest.raises(SchemaMismatch, match="names of its types"):
        typed_columns(info_of(file, "M1"))


@pytest.mark.fault(113)
@pytest.mark.parametrize("item", [{}, {"f0": 1}])
def test_defaults_are_counted_before_they_are_made(item: Any) -> None:
    wide = record(ints(1000), "Q", dict.fromkeys(ints(1000), 1))
    kind = {"type": "array", "items": wide}
    reader = avro(record({"a": kind}, "R", {"a": [item] * 100_000}))
    codec = codec_of(reader)

    def plan() -> None:
        codec.decoder(avro(record({})), reader, ["a"])

    with pytest.raises(SchemaMismatch, match="default of the field a is too large"):
        plan()
    assert steps(plan) < 60_000_000
