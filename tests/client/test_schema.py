"""The schemas of `pulsar_spark.client.schema`, alone and on the embedded broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import pytest

from pulsar_spark.client import MessageId, PulsarClient
from pulsar_spark.client.schema import (
    AutoConsumeSchema,
    AvroSchema,
    BytesSchema,
    JsonSchema,
    KeyValueSchema,
    PrimitiveSchema,
    ProtobufNativeSchema,
    Schema,
    StringSchema,
    check_schema,
)
from pulsar_spark.errors import (
    CorruptMessage,
    IncompatibleSchema,
    InvalidRow,
    OptionError,
    SchemaMismatch,
    UnsupportedFeature,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker

USER = {
    "type": "record",
    "name": "User",
    "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "int"}],
}
NEWER = {
    "type": "record",
    "name": "User",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "age", "type": "int"},
        {"name": "city", "type": ["null", "string"], "default": None},
    ],
}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running
        assert running.internal_errors == ()


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[PulsarClient]:
    with PulsarClient(broker.service_url) as made:
        yield made


def read(client: PulsarClient, topic: str, schema: Any) -> list[Any]:
    with client.create_reader(topic, MessageId.earliest, schema) as reader:
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(60_000))
    return found


def write(client: PulsarClient, topic: str, schema: Schema, *values: Any, **options: Any) -> None:
    with client.create_producer(topic, schema=schema, **options) as producer:
        for value in values:
            producer.send_async(value, None)


def test_bytes_are_what_they_are_and_no_schema_is_told() -> None:
    schema = BytesSchema()
    assert schema.decode(schema.encode(b"\x00\xff")) == b"\x00\xff"
    assert schema.registered() is None


def test_text_is_utf8() -> None:
    schema = StringSchema()
    assert schema.encode("ü") == b"\xc3\xbc"
    assert schema.decode(b"\xc3\xbc") == "ü"
    info = schema.registered()
    assert info is not None
    assert info.to_pb().type == pb.Schema.String


@pytest.mark.parametrize(
    "schema,value",
    [
        (BytesSchema(), "text"),
        (BytesSchema(), 5),
        (StringSchema(), b"x"),
        (StringSchema(), "\ud800"),
        (PrimitiveSchema("INT8"), 128),
        (KeyValueSchema(StringSchema(), StringSchema()), "no pair"),
        (ProtobufNativeSchema(pb.KeyValue), {"key": "a"}),
    ],
    ids=lambda given: repr(given)[:40],
)
def test_a_value_of_another_type_is_refused(schema: Any, value: Any) -> None:
    with pytest.raises(InvalidRow):
        schema.encode(value)


def test_what_is_no_schema_is_refused_by_name() -> None:
    assert isinstance(check_schema(None), BytesSchema)
    schema = StringSchema()
    assert check_schema(schema) is schema
    with pytest.raises(OptionError, match=r"builtins\.object"):
        check_schema(object())


@pytest.mark.parametrize(
    "make,message",
    [
        (AvroSchema, "NoneType"),
        (lambda: AvroSchema(int), "schema_definition="),
        (lambda: AvroSchema(None, {"type": {1, 2}}), "not JSON"),
        (lambda: PrimitiveSchema("AVRO"), "INT8"),
        (lambda: KeyValueSchema(StringSchema(), AutoConsumeSchema()), "value"),
        (lambda: ProtobufNativeSchema(int), "class of messages"),  # type: ignore[arg-type]
    ],
)
def test_a_schema_that_cannot_be_is_told_where_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_a_definition_that_is_none_is_told_where_it_is_given(kind: Any) -> None:
    with pytest.raises(SchemaMismatch, match="fields"):
        kind(None, {"type": "record", "name": "R"})


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_a_mismatch_names_the_field(kind: Any) -> None:
    with pytest.raises(InvalidRow, match="the field age: it is of the type str"):
        kind(None, USER).encode({"name": "ann", "age": "5"})


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_records_are_dicts_both_ways(client: PulsarClient, kind: Any) -> None:
    topic = f"records-{kind.__name__}"
    rows = [{"name": f"user {number}", "age": number} for number in range(50)]
    write(client, topic, kind(None, schema_definition=USER), *rows, None, batching_enabled=True)
    found = read(client, topic, kind(None, schema_definition=json.dumps(USER)))
    assert [message.value() for message in found] == [*rows, None]


def test_each_message_is_decoded_by_its_version(client: PulsarClient) -> None:
    write(client, "versions", AvroSchema(None, USER), {"name": "a", "age": 1})
    write(client, "versions", AvroSchema(None, NEWER), {"name": "b", "age": 2, "city": "X"})
    old = [message.value() for message in read(client, "versions", AvroSchema(None, USER))]
    new = [message.value() for message in read(client, "versions", AvroSchema(None, NEWER))]
    auto = [message.value() for message in read(client, "versions", AutoConsumeSchema())]
    assert old == [{"name": "a", "age": 1}, {"name": "b", "age": 2}]
    assert new == [{"name": "a", "age": 1, "city": None}, {"name": "b", "age": 2, "city": "X"}]
    assert auto == [{"name": "a", "age": 1}, {"name": "b", "age": 2, "city": "X"}]


@pytest.mark.parametrize("separated", [False, True])
def test_pairs_have_a_key_of_their_own_schema(client: PulsarClient, separated: bool) -> None:
    topic = f"pairs-{separated}"
    schema = KeyValueSchema(PrimitiveSchema("INT32"), AvroSchema(None, USER), separated)
    pairs: list[Any] = [(1, {"name": "a", "age": 1}), (None, {"name": "b", "age": 2}), (3, None)]
    write(client, topic, schema, *pairs, batching_enabled=True)
    write(client, topic, schema, *pairs)
    found = [message.value() for message in read(client, topic, schema)]
    assert found == pairs * 2
    assert found[0].key == 1
    with client.create_producer(topic, schema=schema) as producer:
        if separated:
            with pytest.raises(OptionError, match="partition_key"):
                producer.send(pairs[0], partition_key="k")
        with pytest.raises(InvalidRow, match=r"value\.age"):
            producer.send((1, {"name": "a", "age": "x"}))


def test_a_protobuf_class_is_a_schema(client: PulsarClient) -> None:
    write(client, "native", ProtobufNativeSchema(pb.KeyValue), pb.KeyValue(key="a", value="b"))
    (found,) = read(client, "native", ProtobufNativeSchema(pb.KeyValue))
    assert found.value() == pb.KeyValue(key="a", value="b")
    (auto,) = read(client, "native", AutoConsumeSchema())
    assert auto.value() == {"key": "a", "value": "b"}


def test_without_a_schema_of_the_topic_values_are_bytes(client: PulsarClient) -> None:
    write(client, "plain", BytesSchema(), b"\x00\xff")
    assert [message.value() for message in read(client, "plain", AutoConsumeSchema())] == [
        b"\x00\xff"
    ]
    with pytest.raises(UnsupportedFeature, match="reading"):
        client.create_producer("plain", schema=AutoConsumeSchema())


def test_brokers_hold_the_schema_against_the_topics(client: PulsarClient) -> None:
    write(client, "held", AvroSchema(None, USER), {"name": "a", "age": 1})
    other = PrimitiveSchema("INT64")
    for attempt in (
        lambda: client.create_producer("held", schema=other),
        lambda: client.subscribe("held", "s", schema=other),
        lambda: read(client, "held", other),
        lambda: client.create_table_view("held", schema=other),
    ):
        with pytest.raises(IncompatibleSchema):
            attempt()


def test_a_value_that_does_not_decode_names_topic_message_and_field(client: PulsarClient) -> None:
    class Raw(AvroSchema):
        """Declares Avro, but sends any bytes."""

        def encode(self, value: Any) -> bytes:
            return bytes(value)

    good = AvroSchema(None, USER).encode({"name": "a", "age": 1})
    write(client, "damaged", Raw(None, USER), good, good[:-1], good, batching_enabled=True)
    first, bad, last = read(client, "damaged", AvroSchema(None, USER))
    assert first.value() == last.value() == {"name": "a", "age": 1}
    for _ in range(2):
        with pytest.raises(CorruptMessage, match=r"schema version 0 .*: the field age") as caught:
            bad.value()
        assert caught.value.topic == "persistent://public/default/damaged"
        assert caught.value.message_id == str(bad.message_id())
    assert bad.data() == good[:-1]


def test_a_table_view_has_typed_values(client: PulsarClient) -> None:
    schema = AvroSchema(None, USER)
    with client.create_producer("table", schema=schema) as producer:
        producer.send({"name": "old", "age": 1}, partition_key="a")
        producer.send({"name": "new", "age": 2}, partition_key="a")
    with client.create_table_view("table", schema=schema) as view:
        assert view.get("a") == {"name": "new", "age": 2}
        seen: dict[str, Any] = {}
        view.for_each(seen.__setitem__)
    assert seen == {"a": {"name": "new", "age": 2}}


def test_records_of_the_official_package_are_objects_both_ways(client: PulsarClient) -> None:
    official = pytest.importorskip("pulsar.schema")

    class Row(official.Record):  # type: ignore[name-defined,misc]
        name = official.String()
        age = official.Integer()

    for number, kind in enumerate((AvroSchema, JsonSchema)):
        row = Row(name="a", age=5)
        write(client, f"objects-{number}", kind(Row), row)
        (found,) = read(client, f"objects-{number}", kind(Row))
        assert found.value() == row
        assert isinstance(found.value(), Row)
        with pytest.raises(InvalidRow, match="Row"):
            kind(Row).encode({"name": "a", "age": 5})


@pytest.mark.parametrize(
    "text",
    [
        '{"number": 1, "color": 2}',
        '{"number": 1, "color": "dark", "inner": {"x": 3}}',
        '{"number": 1, "inners": [{"x": 1}, {}], "named": {"a": {"x": 5, "color": 1}}}',
        '{"number": 1, "text": null, "tags": null, "named": null}',
        '{"number": 1, "unknown": 5}',
    ],
)
def test_json_of_the_official_client_is_what_its_records_make_of_it(text: str) -> None:
    """Values of enums, not their names; and what is absent has its default."""
    official = pytest.importorskip("pulsar.schema")
    colors = Enum("colors", {"red": 1, "dark": 2})

    class Inner(official.Record):  # type: ignore[name-defined,misc]
        x = official.Integer()
        color = official.CustomEnum(colors)

    class Outer(official.Record):  # type: ignore[name-defined,misc]
        number = official.Integer(required=True)
        text = official.String(default="none")
        tags = official.Array(official.Integer(), default=[1, 2])
        inner = Inner()
        inners = official.Array(Inner())
        named = official.Map(Inner())
        color = official.CustomEnum(colors)

    theirs, ours = official.JsonSchema(Outer), JsonSchema(Outer)
    expected = theirs.decode(text.encode())
    assert ours.decode(text.encode()).__dict__ == expected.__dict__
    assert theirs.decode(ours.encode(expected)) == expected


def test_a_value_that_the_class_does_not_take_is_an_error_of_ours() -> None:
    official = pytest.importorskip("pulsar.schema")
    colors = Enum("colors", {"red": 1})

    class Row(official.Record):  # type: ignore[name-defined,misc]
        color = official.CustomEnum(colors)

    with pytest.raises(CorruptMessage, match=r"^a value is no Row: .*9"):
        JsonSchema(Row).decode(b'{"color": 9}')
    with pytest.raises(CorruptMessage, match="is no Row"):
        KeyValueSchema(StringSchema(), JsonSchema(Row)).decode(
            b"\0\0\0\1k\0\0\0\x0c" + b'{"color": 9}'
        )


def test_a_required_field_may_be_absent_as_for_the_official_client() -> None:
    official = pytest.importorskip("pulsar.schema")

    class Row(official.Record):  # type: ignore[name-defined,misc]
        number = official.Integer(required=True)

    assert JsonSchema(Row).decode(b"{}") == official.JsonSchema(Row).decode(b"{}")


def test_other_classes_than_the_official_clients_get_all_fields() -> None:
    @dataclass
    class Person:
        name: str
        age: int | None

        @staticmethod
        def schema() -> Any:
            fields = [{"name": "name", "type": "string"}, {"name": "age", "type": ["null", "int"]}]
            return {"type": "record", "name": "Person", "fields": fields}

    class Pair(NamedTuple("Pair", [("name", str), ("age", Any)])):
        schema = staticmethod(Person.schema)

    for kind in (Person, Pair):
        assert JsonSchema(kind).decode(b'{"name":"a","age":null}') == kind("a", None)
