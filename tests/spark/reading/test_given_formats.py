"""Values of topics without a schema, read in the format that the options give."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Type
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from pulsar_spark.errors import CorruptMessage, OptionError, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value
from pulsar_spark.schema.table.names import KEY
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.spark.options.read import parse_read_options
from pulsar_spark.spark.reading.batch_reader import infer_schema
from pulsar_spark.testing import EmbeddedBroker
from tests.schema.protobuf.cases import add, class_of, new_file
from tests.spark.topics import full, read, reader, rows_of, set_schema, store

JSON = {"topic": "t", "valueFormat": "json"}
STRING = SchemaInfo(pb.Schema.String, "String")
FIRST = bytes(8)

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}
AVRO_OPTIONS = {"topic": "t", "valueFormat": "avro", "valueSchema": json.dumps(AVRO)}

FILE = new_file("shop")
ORDER = FILE.message_type.add(name="Order")
add(ORDER, "id", 1, Type.TYPE_INT64)
add(ORDER, "name", 2, Type.TYPE_STRING)
DESCRIPTOR = FileDescriptorSet(file=[FILE]).SerializeToString()
PROTOBUF_OPTIONS = {
    "topic": "t",
    "valueFormat": "protobuf",
    "valueSchema": base64.b64encode(DESCRIPTOR).decode(),
    "valueMessage": "Order",
}


def struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def avro_bytes(**values: Any) -> bytes:
    data = BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(AVRO), values)
    return data.getvalue()


def protobuf_bytes(**values: Any) -> bytes:
    data: bytes = class_of(FILE, "Order")(**values).SerializeToString()
    return data


@pytest.fixture
def topic(broker: EmbeddedBroker) -> Callable[..., None]:
    """Store messages without a schema on the topic t."""

    def topic(*payloads: bytes | None, name: str = "t", **fields: Any) -> None:
        broker.create_topic(name)
        store(broker, name, payloads, **fields)

    return topic


Topic = Callable[..., None]

# --- json -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind,text,value",
    [
        (BooleanType(), "true", True),
        (ByteType(), "-128", -128),
        (ShortType(), "32767", 32767),
        (IntegerType(), "-2147483648", -(2**31)),
        (LongType(), "9223372036854775807", 2**63 - 1),
        (FloatType(), "0.5", 0.5),
        (DoubleType(), "1e300", 1e300),
        (DecimalType(10, 2), "12345678.9", Decimal("12345678.90")),
        (DecimalType(38, 0), "1" * 38, Decimal("1" * 38)),
        (StringType(), '"grün"', "grün"),
        (BinaryType(), '"AAH/"', b"\0\1\xff"),
        (DateType(), '"2026-11-20"', date(2026, 11, 20)),
        (
            TimestampType(),
            '"2026-11-20T10:00:00.123456+01:00"',
            datetime(2026, 11, 20, 9, 0, 0, 123456, timezone.utc),
        ),
        (TimestampType(), "1000001", datetime(1970, 1, 1, 0, 0, 1, 1, timezone.utc)),
        (TimestampNTZType(), '"2026-11-20T10:00:00"', datetime(2026, 11, 20, 10)),
        (ArrayType(ShortType()), "[1,null,-3]", [1, None, -3]),
        (MapType(StringType(), ByteType()), '{"b":2,"a":null}', [("a", None), ("b", 2)]),
        (struct(a=ByteType(), b=StringType()), '{"a":5}', {"a": 5, "b": None}),
        (
            ArrayType(struct(x=MapType(StringType(), ArrayType(ByteType())))),
            '[{"x":{"k":[7]}}]',
            [{"x": [("k", [7])]}],
        ),
    ],
    ids=lambda given: given.simpleString() if isinstance(given, DataType) else "",
)
def test_columns_have_exactly_the_declared_types(
    broker: EmbeddedBroker, topic: Topic, kind: DataType, text: str, value: Any
) -> None:
    topic(b'{"c": %s, "other": [1]}' % text.encode(), b'{"c": null}', b"{}", None, b"null")
    rows = read(broker, JSON, struct(c=kind))
    assert [row["c"] for row in rows] == [value, None, None, None, None]


@pytest.mark.parametrize(
    "kind,told",
    [
        (DayTimeIntervalType(), "'c' is interval day to second"),
        (CalendarIntervalType(), "'c' is interval"),
        (NullType(), "'c' is void"),
        (VariantType(), "'c' is variant"),
        (MapType(IntegerType(), StringType()), "'c' is map<int,string>"),
        (ArrayType(struct(d=MapType(LongType(), LongType()))), r"'c\[\].d' is map"),
        (struct(d=NullType()), "'c.d' is void"),
        (ArrayType(LongType(), containsNull=False), "'c' .* parts that are NOT NULL"),
        (StructType([StructField("d", LongType(), False)]), "'c' .* parts that are NOT NULL"),
    ],
)
def test_a_type_that_json_lacks_is_told_by_its_column_without_asking_a_broker(
    kind: DataType, told: str
) -> None:
    parsed = parse_read_options({**JSON, "service.url": "pulsar://127.0.0.1:1"})
    with pytest.raises(OptionError, match=told):
        PulsarDataSource({**JSON, "service.url": "pulsar://127.0.0.1:1"}).reader(struct(c=kind))
    with pytest.raises(OptionError, match=r"valueFormat=json needs the columns .*\.schema\("):
        infer_schema(parsed)


def test_values_of_another_kind_are_read_where_nothing_is_lost_or_as_java_does(
    broker: EmbeddedBroker, topic: Topic
) -> None:
    topic(b'{"n":"5","s":1.50,"b":"true"}', b'{"n":"","s":true,"b":""}', b'{"n":1.9,"b":1} {}')
    wanted = struct(n=LongType(), s=StringType(), b=BooleanType())
    read_as = [
        {"n": 5, "s": "1.50", "b": True},
        {"n": None, "s": "true", "b": None},
        {"n": 1, "s": None, "b": True},
    ]
    options = {**JSON, "mode": "DROPMALFORMED"}
    assert read(broker, options, wanted) == read_as[:2]
    assert read(broker, {**options, "jsonCoercion": "java"}, wanted) == read_as
    with pytest.raises(OptionError, match="jsonCoercion"):
        read(broker, {**options, "jsonCoercion": "jackson"}, wanted)


def test_of_keys_and_values_both_are_read_as_java_does(broker: EmbeddedBroker) -> None:
    part = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
    schema = SchemaInfo(pb.Schema.Json, "R", json.dumps(part).encode())
    broker.create_topic("t")
    set_schema(broker, "t", join_key_value(schema, schema, separated=False))
    pair = b"".join(len(part).to_bytes(4, "big") + part for part in (b'{"n":1.9}', b'{"n":2.9}x'))
    store(broker, "t", [pair], schema_version=FIRST)
    options = {"topic": "t", "jsonCoercion": "java"}
    assert read(broker, options, struct(__key=struct(n=LongType()), n=LongType())) == [
        {"__key": {"n": 1}, "n": 2}
    ]


def test_any_name_is_the_name_of_a_field(broker: EmbeddedBroker, topic: Topic) -> None:
    names = ["order-id", "@type", "a.b", "größe", "2x", "class", "with space"]
    topic(json.dumps({name: number for number, name in enumerate(names)}).encode())
    wanted = struct(**{name: ByteType() for name in names}, more=struct(**{"x-y": LongType()}))
    (row,) = read(broker, JSON, wanted)
    assert row == {name: number for number, name in enumerate(names)} | {"more": None}


@pytest.mark.parametrize(
    "columns,told",
    [
        ({"": LongType()}, "the schema has a column without a name"),
        ({"a": struct(**{"": LongType()})}, "column 'a' has a field without a name"),
        (
            {"a": MapType(StringType(), ArrayType(struct(b=struct(**{"": LongType()}))))},
            r"column 'a\{\}\[\].b' has a field without a name",
        ),
    ],
)
def test_a_field_without_a_name_is_told_by_its_place_and_is_left_to_from_json(
    broker: EmbeddedBroker, columns: dict[str, DataType], told: str
) -> None:
    with pytest.raises(OptionError, match=rf"{told}.*from_json"):
        reader(broker, JSON, struct(**columns))


def test_names_that_spark_takes_for_one_are_an_error(broker: EmbeddedBroker) -> None:
    with pytest.raises(OptionError, match="'A' twice"):
        reader(broker, JSON, struct(a=LongType(), A=LongType()))


def test_metadata_columns_are_those_of_the_message(broker: EmbeddedBroker, topic: Topic) -> None:
    topic(b'{"id":1,"__key":2}', batched=False, partition_key="k")
    wanted = struct(__topic=StringType(), id=IntegerType(), __entryId=LongType())
    wanted.add(KEY, BinaryType())
    assert read(broker, JSON, wanted) == [
        {"__topic": full("t"), "id": 1, "__entryId": 0, KEY: b"k"}
    ]
    assert read(broker, JSON, struct(__entryId=LongType())) == [{"__entryId": 0}]
    with pytest.raises(OptionError, match="'__entryId' is string, but this read returns bigint"):
        reader(broker, JSON, struct(__entryId=StringType()))


@pytest.mark.parametrize(
    "bad", [b"", b"{", b"[]", b'{"a":300}', b'{"a":1,"b":[-129]}', b'{"a":"x"}', b"\xff"]
)
@pytest.mark.fault(95)
def test_damaged_objects_follow_the_mode(broker: EmbeddedBroker, topic: Topic, bad: bytes) -> None:
    topic(b'{"a":1,"b":[2]}', bad, None, b'{"a":-3}')
    wanted = struct(a=ByteType(), b=ArrayType(ByteType()))
    with pytest.raises(CorruptMessage, match="does not decode as JSON") as caught:
        read(broker, JSON, wanted)
    assert caught.value.message_id is not None
    dropped = read(broker, {**JSON, "mode": "DROPMALFORMED"}, wanted)
    assert [row["a"] for row in dropped] == [1, None, -3]
    kept = read(broker, {**JSON, "mode": "PERMISSIVE"}, wanted.add("_corrupt_record", "string"))
    assert [row["a"] for row in kept] == [1, None, None, -3]
    assert [row["b"] for row in kept] == [[2], None, None, None]
    records = [row["_corrupt_record"] for row in kept]
    assert records == [None, bad.decode("utf-8", "replace"), None, None]
    named = {**JSON, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}
    rows = read(broker, named, struct(a=ByteType(), b=ArrayType(ByteType()), bad=BinaryType()))
    assert [row["bad"] for row in rows] == [None, bad, None, None]


# --- string, avro, protobuf -----------------------------------------------------------------


def test_text_is_a_string(broker: EmbeddedBroker, topic: Topic) -> None:
    topic("grün".encode(), None, b"\xff", b"")
    options = {"topic": "t", "valueFormat": "string", "mode": "PERMISSIVE"}
    rows = read(broker, options)
    assert [row["value"] for row in rows] == ["grün", None, None, ""]
    assert [row["_corrupt_record"] for row in rows] == [None, None, b"\xff", None]
    assert read(broker, options, struct(value=StringType()))[0] == {"value": "grün"}
    with pytest.raises(OptionError, match="'value' is bigint, but this read returns string"):
        reader(broker, options, struct(value=LongType()))


@pytest.mark.parametrize(
    "options,encode",
    [(AVRO_OPTIONS, avro_bytes), (PROTOBUF_OPTIONS, protobuf_bytes)],
    ids=["avro", "protobuf"],
)
def test_records_have_the_columns_of_the_given_schema(
    broker: EmbeddedBroker,
    topic: Topic,
    options: dict[str, str],
    encode: Callable[..., bytes],
) -> None:
    bad = b"\x0f" * 3
    topic(encode(id=1, name="a"), None, encode(id=-2, name="b"), bad)
    with pytest.raises(CorruptMessage, match="does not decode as"):
        read(broker, options)
    rows = read(broker, {**options, "mode": "DROPMALFORMED", "includeMetadata": "true"})
    assert [(row["id"], row["name"], row["__batchIndex"]) for row in rows] == [
        (1, "a", 0),
        (None, None, 1),
        (-2, "b", 2),
    ]
    kept = read(broker, {**options, "mode": "PERMISSIVE"})
    assert [row["_corrupt_record"] for row in kept] == [None, None, None, bad]
    wanted = struct(name=StringType(), __batchIndex=IntegerType(), ID=LongType())
    projected = read(broker, {**options, "mode": "DROPMALFORMED"}, wanted)
    assert [list(row.values()) for row in projected] == [["a", 0, 1], [None, 1, None], ["b", 2, -2]]
    with pytest.raises(OptionError, match="'id' is string, but this read returns bigint"):
        reader(broker, options, struct(id=StringType()))
    with pytest.raises(OptionError, match=r"'Name_'.*no such column"):
        reader(broker, options, struct(Name_=StringType()))


def test_the_file_is_read_once_and_not_by_tasks(
    broker: EmbeddedBroker, topic: Topic, tmp_path: Path
) -> None:
    topic(protobuf_bytes(id=7, name="x"), avro_bytes(id=7, name="x"))
    given = {"avro": json.dumps(AVRO).encode(), "protobuf": DESCRIPTOR}
    for options in (AVRO_OPTIONS, PROTOBUF_OPTIONS):
        file = tmp_path / options["valueFormat"]
        file.write_bytes(given[file.name])
        options = {name: text for name, text in options.items() if name != "valueSchema"}
        options |= {"service.url": broker.service_url, "valueschema": str(file)}
        source = PulsarDataSource({**options, "mode": "DROPMALFORMED"})
        schema = source.schema()
        file.unlink()
        batch = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(source)).reader(schema)))
        rows = rows_of(made for part in batch.partitions() for made in batch.read(part))
        assert [row["id"] for row in rows] == [7]
        with pytest.raises(OptionError, match="cannot be read"):
            PulsarDataSource(options).reader(schema)


# --- topics with a schema -------------------------------------------------------------------


def record(name: str, kind: Any) -> bytes:
    fields = [{"name": name, "type": kind, "default": 0}]
    return json.dumps({"type": "record", "name": "Order", "fields": fields}).encode()


@pytest.mark.parametrize(
    "options,schema",
    [
        (JSON, SchemaInfo(pb.Schema.Avro, "r", record("a", "long"))),
        (JSON, SchemaInfo(pb.Schema.Int32, "INT32")),
        (JSON, join_key_value(STRING, STRING, separated=True)),
        ({**JSON, "valueFormat": "string"}, SchemaInfo(pb.Schema.Int32, "INT32")),
        (AVRO_OPTIONS, SchemaInfo(pb.Schema.Json, "r", record("a", "long"))),
        (AVRO_OPTIONS, STRING),
        (PROTOBUF_OPTIONS, STRING),
    ],
)
def test_a_format_that_contradicts_the_topics_schema_is_an_error(
    broker: EmbeddedBroker, topic: Topic, options: dict[str, str], schema: SchemaInfo
) -> None:
    topic(b"x")
    set_schema(broker, "t", schema)
    name = "value" if options["valueFormat"] == "string" else "name"
    given = reader(broker, options, struct(**{name: StringType()}))
    with pytest.raises(OptionError, match=rf"valueFormat does not fit.*{schema.type_name}") as told:
        given.partitions()
    assert "auto" in (told.value.remedy or "")
    assert told.value.topic == full("t")


@pytest.mark.parametrize("schema", [STRING, SchemaInfo(pb.Schema.Json, "r", record("a", "long"))])
def test_text_and_json_are_read_as_each_other(
    broker: EmbeddedBroker, topic: Topic, schema: SchemaInfo
) -> None:
    topic(b'{"a":1}', schema_version=FIRST)
    set_schema(broker, "t", schema)
    store(broker, "t", [b'{"a":2}'])
    assert [row["a"] for row in read(broker, JSON, struct(a=DecimalType(3, 1)))] == [1, 2]
    text = read(broker, {"topic": "t", "valueFormat": "string"}, struct(value=StringType()))
    assert [row["value"] for row in text] == ['{"a":1}', '{"a":2}']


def test_messages_with_a_version_are_read_with_it(broker: EmbeddedBroker, topic: Topic) -> None:
    topic(b"\x04", schema_version=FIRST)
    set_schema(broker, "t", SchemaInfo(pb.Schema.Avro, "Order", record("id", "int")))
    store(broker, "t", [avro_bytes(id=3, name="c")])
    assert [row["id"] for row in read(broker, AVRO_OPTIONS)] == [2, 3]


def test_a_version_of_another_type_is_told(
    broker: EmbeddedBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the strategy ALWAYS_COMPATIBLE allows.
    monkeypatch.setattr("pulsar_spark.testing.schemas._check_fits", lambda *_: None)
    topic(b"\x02", schema_version=FIRST)
    for kind in (pb.Schema.Avro, pb.Schema.Json):
        set_schema(broker, "t", SchemaInfo(kind, "Order", record("a", "long")))
    with pytest.raises(SchemaMismatch, match=r"version 0.*the type AVRO, the query has JSON"):
        read(broker, JSON, struct(a=LongType()))


def test_topics_are_read_together_whatever_their_schemas(
    broker: EmbeddedBroker, topic: Topic
) -> None:
    topic(b'{"a":1}', name="none")
    topic(b'{"a":2}', name="text", schema_version=FIRST)
    set_schema(broker, "text", STRING)
    topic(b'{"b":3}', name="other", schema_version=FIRST)
    set_schema(broker, "other", SchemaInfo(pb.Schema.Json, "r", record("b", "long")))
    for given in ({"topics": "none,text,other"}, {"topicsPattern": ".*"}):
        options = {**given, "valueFormat": "json"}
        rows = read(broker, options, struct(a=LongType(), __topic=StringType()))
        assert {row["__topic"].rpartition("/")[2]: row["a"] for row in rows} == {
            "none": 1,
            "text": 2,
            "other": None,
        }
