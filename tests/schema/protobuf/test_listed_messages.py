"""PROTOBUF schemas do not describe nested messages, which are read as bytes."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Type

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.protobuf import codec
from pulsar_spark.schema.protobuf.definition import PARSING_INFO
from tests.schema.protobuf.cases import add, class_of, info_of, new_file

FIELDS = (
    (1, "id", "INT64", "LABEL_OPTIONAL"),
    (2, "name", "STRING", "LABEL_OPTIONAL"),
    (3, "place", "MESSAGE", "LABEL_OPTIONAL"),
    (4, "items", "MESSAGE", "LABEL_REPEATED"),
    (5, "old", "GROUP", "LABEL_OPTIONAL"),
)


def info(fields: Any = FIELDS) -> SchemaInfo:
    """Return the schema as Java's client registers it."""
    entries = [
        {"number": number, "name": name, "type": kind, "label": label, "definition": None}
        for number, name, kind, label in fields
    ]
    avro = {"type": "record", "name": "M", "namespace": "t", "fields": []}
    return SchemaInfo(
        pb.Schema.Protobuf, "", json.dumps(avro).encode(), {PARSING_INFO: json.dumps(entries)}
    )


def file() -> Any:
    found = new_file(syntax="proto2")
    place = found.message_type.add(name="Place")
    add(place, "lat", 1, Type.TYPE_DOUBLE)
    add(place, "names", 2, Type.TYPE_STRING, label=Type.LABEL_REPEATED)
    message = found.message_type.add(name="M")
    add(message, "id", 1, Type.TYPE_INT64)
    add(message, "name", 2, Type.TYPE_STRING)
    add(message, "place", 3, Type.TYPE_MESSAGE, type_name=".t.Place")
    repeated = {"label": Type.LABEL_REPEATED, "type_name": ".t.Place"}
    add(message, "items", 4, Type.TYPE_MESSAGE, **repeated)
    message.nested_type.add(name="Old").field.add(
        name="x", number=1, type=Type.TYPE_INT32, label=Type.LABEL_OPTIONAL
    )
    add(message, "old", 5, Type.TYPE_GROUP, type_name=".t.M.Old")
    return found


MESSAGE = class_of(file())
PLACE = type(MESSAGE().place)


def random_message(rng: random.Random) -> Any:
    message = MESSAGE(id=1 + rng.getrandbits(40), name=rng.choice(["a", "Zürich"]))
    for _ in range(rng.randrange(3)):
        message.items.add(lat=rng.random(), names=["x"] * rng.randrange(3))
    if rng.random() < 0.6:
        message.place.lat = rng.random()
    if rng.random() < 0.1:
        message.place.SetInParent()
    if rng.random() < 0.3:
        message.old.x = rng.getrandbits(20)
    return message


def decode(schema: SchemaInfo, values: list[bytes], *names: str) -> list[dict[str, Any]]:
    wanted = names or tuple(codec.arrow_schema(schema).names)
    found = codec.decoder(schema, schema, wanted).decode(pa.array(values, pa.binary()))
    assert not found.bad
    for column in found.columns:
        column.validate(full=True)
    rows: list[dict[str, Any]] = pa.table(list(found.columns), list(wanted)).to_pylist()
    return rows


def test_a_message_within_is_a_binary_column() -> None:
    assert codec.arrow_schema(info()) == pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("place", pa.binary()),
            ("items", pa.list_(pa.field("element", pa.binary()))),
            ("old", pa.binary()),
        ]
    )


def test_its_bytes_are_the_message_and_all_else_is_read_as_ever() -> None:
    rng = random.Random(1)
    messages = [random_message(rng) for _ in range(500)]
    rows = decode(info(), [message.SerializeToString() for message in messages])
    for row, message in zip(rows, messages, strict=True):
        assert (row["id"], row["name"]) == (message.id, message.name)
        assert [PLACE.FromString(item) for item in row["items"]] == list(message.items)
        assert (row["place"] is None) == (not message.HasField("place"))
        if row["place"] is not None:
            assert row["place"] == message.place.SerializeToString()
        old = message.old.SerializeToString() if message.HasField("old") else None
        assert row["old"] == old


def test_scalars_alone_are_read_whatever_is_within() -> None:
    value = MESSAGE(id=7, name="a", place={"lat": 1.5}).SerializeToString()
    assert decode(info(), [value], "name", "id") == [{"name": "a", "id": 7}]


def test_of_a_message_that_comes_in_parts_all_parts_are_kept() -> None:
    parts = [MESSAGE(place={"lat": 1.0, "names": ["a"]}), MESSAGE(place={"lat": 2.0})]
    value = b"".join(part.SerializeToString() for part in parts)
    (row,) = decode(info(), [value], "place")
    assert PLACE.FromString(row["place"]) == MESSAGE.FromString(value).place


def test_what_was_read_is_written_again_as_it_was() -> None:
    rng = random.Random(2)
    values = [random_message(rng).SerializeToString() for _ in range(300)]
    schema = codec.arrow_schema(info())
    columns = codec.decoder(info(), info(), schema.names).decode(pa.array(values)).columns
    batch = pa.RecordBatch.from_arrays(list(columns), schema=schema)
    written = codec.encoder(info(), schema).encode(batch).to_pylist()
    for value, again in zip(values, written, strict=True):
        assert MESSAGE.FromString(again) == MESSAGE.FromString(value)


@pytest.mark.parametrize("field", ["place", "old"])
def test_bytes_that_are_no_message_are_not_written(field: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), (field, pa.binary())])
    rows = [[1, 2], ["a", "b"], [b"", b"\x0b"]]
    arrays = [pa.array(items, kind) for items, kind in zip(rows, schema.types, strict=True)]
    encoder = codec.encoder(info(FIELDS[:3] + FIELDS[4:]), schema)
    with pytest.raises(Mismatch, match=f"row 1: {field}: it is not a protobuf message"):
        encoder.encode(pa.RecordBatch.from_arrays(arrays, schema=schema))


def test_versions_with_and_without_nested_definitions_are_compatible() -> None:
    native = info_of(file())
    value = MESSAGE(id=7, place={"lat": 1.5}).SerializeToString()
    found = codec.decoder(native, info(), ["place"]).decode(pa.array([value]))
    assert PLACE.FromString(found.columns[0][0].as_py()) == PLACE(lat=1.5)
    found = codec.decoder(info(), native, ["place"]).decode(pa.array([value]))
    assert found.columns[0].to_pylist() == [{"lat": 1.5, "names": []}]
