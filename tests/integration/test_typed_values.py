"""Typed values between ours and the official Python client, both ways, across versions."""

from __future__ import annotations

import enum
import json
import uuid
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

import pytest

import pulsar_spark.client as ours
from tests.integration.brokers import Broker
from tests.integration.typed import read as read_as_spark
from tests.support.pulsar_distribution import VERSION
from tests.support.real_broker import RealBroker

official = pytest.importorskip("pulsar", reason="pulsar-client is not installed")
official_schema = pytest.importorskip("pulsar.schema")

FIRST = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "sensor", "type": "string"},
        {"name": "value", "type": ["null", "double"], "default": None},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
SECOND = {
    **FIRST,
    "fields": [
        *FIRST["fields"],
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 0},
        {"name": "either", "type": ["null", "long", "string"], "default": None},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}, "default": 0},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            "default": "\u0000",
        },
    ],
}
AT = datetime(2024, 2, 29, 12, 0, 0, 123000, tzinfo=timezone.utc)
OLD: dict[str, Any] = {"sensor": "grün", "value": 1.5, "tags": {"a": 1}, "at": AT}
NEW: dict[str, Any] = {
    "sensor": "s",
    "value": None,
    "tags": {},
    "at": AT,
    "day": date(2024, 2, 29),
    "either": "word",
    "clock": time(23, 59, 59, 1),
    "price": Decimal("12.34"),
}
DEFAULTS = {"day": date(1970, 1, 1), "either": None, "clock": time(0), "price": Decimal("0.00")}


@pytest.fixture(params=["ours to official", "official to ours", "ours to ours"])
def packages(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """The packages of the writer and of the reader."""
    return {
        "ours to official": (ours, official),
        "official to ours": (official, ours),
        "ours to ours": (ours, ours),
    }[request.param]


@pytest.fixture
def clients(packages: tuple[Any, Any], broker: Broker) -> Iterator[tuple[Any, Any]]:
    writer, reader = (package.Client(broker.service_url) for package in packages)
    yield writer, reader
    writer.close()
    reader.close()


def write(client: Any, topic: str, schema: Any, *values: Any, **options: Any) -> None:
    producer = client.create_producer(topic, schema=schema, **options)
    for value in values:
        producer.send_async(value, lambda result, message_id: None)
    producer.flush()
    producer.close()


def received(package: Any, client: Any, topic: str, schema: Any, count: int) -> list[Any]:
    consumer = client.subscribe(
        topic, "typed", schema=schema, initial_position=package.InitialPosition.Earliest
    )
    found = [consumer.receive(timeout_millis=60_000) for _ in range(count)]
    values = [message.value() for message in found]
    consumer.close()
    return values


def avro(package: Any, definition: Any) -> Any:
    # The official codec modifies the definition that it is given.
    return package.schema.AvroSchema(None, schema_definition=json.loads(json.dumps(definition)))


def test_avro_records_evolve(
    broker: Broker, packages: tuple[Any, Any], clients: tuple[Any, Any]
) -> None:
    topic = broker.create_topic()
    writing, reading = packages
    writer, reader = clients
    write(writer, topic, avro(writing, FIRST), OLD, OLD, batching_enabled=True)
    write(writer, topic, avro(writing, SECOND), NEW)
    found = received(reading, reader, topic, avro(reading, SECOND), 3)
    # The official client returns defaults as they are in the definition.
    defaults = (
        DEFAULTS if reading is ours else {"day": 0, "either": None, "clock": 0, "price": "\0"}
    )
    assert found == [OLD | defaults, OLD | defaults, NEW]


def test_a_reader_with_the_old_version_reads_the_new_one(
    broker: Broker, packages: tuple[Any, Any], clients: tuple[Any, Any]
) -> None:
    topic = broker.create_topic()
    writing, reading = packages
    writer, reader = clients
    write(writer, topic, avro(writing, FIRST), OLD)
    write(writer, topic, avro(writing, SECOND), NEW)
    found = received(reading, reader, topic, avro(reading, FIRST), 2)
    assert found == [OLD, {name: NEW[name] for name in OLD}]


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class Inner(official_schema.Record):  # type: ignore[name-defined,misc]
    n = official_schema.Integer()


class Row(official_schema.Record):  # type: ignore[name-defined,misc]
    text = official_schema.String()
    number = official_schema.Long(required=True)
    ratio = official_schema.Double()
    raw = official_schema.Bytes()
    tags = official_schema.Array(official_schema.String())
    counts = official_schema.Map(official_schema.Long())
    inner = Inner()


def row(number: int) -> Any:
    return Row(
        text="grün", number=number, ratio=0.5, raw=b"bytes", tags=["a", "b"], counts={"x": 1},
        inner=Inner(n=3),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["AvroSchema", "JsonSchema"])
def test_records_of_the_official_package(
    broker: Broker, packages: tuple[Any, Any], clients: tuple[Any, Any], kind: str
) -> None:
    topic = broker.create_topic()
    schemas = [getattr(package.schema, kind)(Row) for package in packages]
    write(clients[0], topic, schemas[0], row(1), row(2), batching_enabled=True)
    found = received(packages[1], clients[1], topic, schemas[1], 2)
    assert [each.number for each in found] == [1, 2]
    for each in found:
        assert isinstance(each, Row)
        assert (each.text, each.ratio, each.tags, each.counts) == (
            "grün",
            0.5,
            ["a", "b"],
            {"x": 1},
        )
        assert each.inner == Inner(n=3)
        assert each.raw == b"bytes"


class Blob(official_schema.Record):  # type: ignore[misc,name-defined]
    raw = official_schema.Bytes()


def test_json_has_the_layout_of_its_writer_and_is_read_by_the_version_it_was_written_with(
    broker: Broker, official_client: Callable[..., Any]
) -> None:
    topic = broker.create_topic()
    raw = {"name": "raw", "type": ["null", "bytes"], "default": None}
    definition = {"type": "record", "name": "Blob", "fields": [raw]}
    mine = ours.JsonSchema(schema_definition=definition)
    theirs = official_client(broker.service_url)
    write(theirs, topic, official_schema.JsonSchema(Blob), Blob(raw=b"text"))
    with ours.PulsarClient(broker.service_url) as client:
        write(client, topic, mine, {"raw": b"\x00\xff"})
        write(client, topic, ours.JsonSchema(Blob), Blob(raw=b"more"))
        expected = [{"raw": b"text"}, {"raw": b"\x00\xff"}, {"raw": b"more"}]
        for schema in (mine, ours.schema.AutoConsumeSchema()):
            with client.create_reader(topic, ours.MessageId.earliest, schema=schema) as reader:
                found = [reader.read_next(60_000) for _ in range(3)]
            assert [message.value() for message in found] == expected
            stored = [json.loads(message.data())["raw"] for message in found]
        # Text from the Python client, base64 from Java's and from a definition given as a dict.
        assert stored == ["text", "AP8=", "more"]


def test_text_and_bytes(
    broker: Broker, packages: tuple[Any, Any], clients: tuple[Any, Any]
) -> None:
    for kind, value in (("StringSchema", "grün"), ("BytesSchema", b"\x00\xff")):
        topic = broker.create_topic()
        schemas = [getattr(package.schema, kind)() for package in packages]
        write(clients[0], topic, schemas[0], value)
        assert received(packages[1], clients[1], topic, schemas[1], 1) == [value]


def test_a_protobuf_class(
    broker: Broker, packages: tuple[Any, Any], clients: tuple[Any, Any]
) -> None:
    from google.protobuf.wrappers_pb2 import StringValue

    topic = broker.create_topic()
    schemas = [package.schema.ProtobufNativeSchema(StringValue) for package in packages]
    write(clients[0], topic, schemas[0], StringValue(value="x"))
    assert received(packages[1], clients[1], topic, schemas[1], 1) == [StringValue(value="x")]


def test_spark_reads_what_the_client_writes(broker: Broker) -> None:
    topic = broker.create_topic()
    schema = ours.AvroSchema(None, schema_definition=SECOND)
    with ours.PulsarClient(broker.service_url) as client:
        write(client, topic, schema, NEW)
    (found,) = read_as_spark(broker, topic)
    assert found["sensor"] == "s"
    assert found["price"] == Decimal("12.34")
    assert found["either"] == {"member0": None, "member1": "word"}


def test_pairs_and_what_the_topic_says(broker: Broker) -> None:
    for separated in (False, True):
        topic = broker.create_topic()
        schema = ours.KeyValueSchema(
            ours.StringSchema(), ours.AvroSchema(None, schema_definition=FIRST), separated
        )
        pairs: list[Any] = [("k", OLD), (None, OLD), ("gone", None)]
        with ours.PulsarClient(broker.service_url) as client:
            write(client, topic, schema, *pairs)
            assert received(ours, client, topic, schema, 3) == pairs
            auto = ours.AutoConsumeSchema()
            with client.create_reader(topic, ours.MessageId.earliest, auto) as reader:
                assert [reader.read_next(60_000).value() for _ in pairs] == pairs


@pytest.mark.parametrize(
    "name,value",
    [
        ("BOOLEAN", True),
        ("INT8", -5),
        ("INT64", 2**40),
        ("DOUBLE", 0.1),
        ("LOCAL_DATE", date(2024, 2, 29)),
        ("TIME", time(1, 2, 3, 4000)),
        ("INSTANT", datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=timezone.utc)),
        ("LOCAL_DATE_TIME", datetime(2024, 2, 29, 1, 2, 3, 4)),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_primitives(broker: Broker, name: str, value: Any) -> None:
    topic = broker.create_topic()
    with ours.PulsarClient(broker.service_url) as client:
        write(client, topic, ours.PrimitiveSchema(name), value)
        assert received(ours, client, topic, ours.PrimitiveSchema(name), 1) == [value]
        assert received(ours, client, topic, ours.AutoConsumeSchema(), 0) == []


def test_a_schema_that_is_not_compatible_is_refused(broker: Broker) -> None:
    topic = broker.create_topic()
    breaking = {**FIRST, "fields": [*FIRST["fields"], {"name": "must", "type": "int"}]}
    with ours.PulsarClient(broker.service_url) as client:
        write(client, topic, avro(ours, FIRST), OLD)
        refused = avro(ours, breaking)
        for attempt in (
            lambda: client.create_producer(topic, schema=refused),
            lambda: client.subscribe(topic, "s", schema=ours.PrimitiveSchema("INT32")),
            lambda: client.create_reader(
                topic, ours.MessageId.earliest, ours.PrimitiveSchema("INT32")
            ).read_next(60_000),
        ):
            with pytest.raises(ours.IncompatibleSchema):
                attempt()


def test_a_dead_letter_has_the_version_it_was_written_with(broker: Broker) -> None:
    topic = broker.create_topic()
    client = ours.Client(broker.service_url)
    with client:
        dead = client.subscribe(f"{topic}-s-DLQ", "watch", schema=avro(ours, SECOND))
        consumer = client.subscribe(
            topic,
            "s",
            ours.ConsumerType.Shared,
            schema=avro(ours, SECOND),
            initial_position=ours.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=20,
            dead_letter_policy=ours.ConsumerDeadLetterPolicy(1),
        )
        write(client, topic, avro(ours, FIRST), OLD)
        write(client, topic, avro(ours, SECOND), NEW)
        for _ in range(4):
            consumer.negative_acknowledge(consumer.receive(60_000))
        letters = [dead.receive(60_000) for _ in range(2)]
        values = {letter.value()["sensor"]: letter.value() for letter in letters}
        assert values == {OLD["sensor"]: OLD | DEFAULTS, NEW["sensor"]: NEW}


@pytest.mark.skipif(VERSION >= "4.2", reason="Pulsar 4.2 takes such names for those of version 1")
def test_names_with_a_slash_are_looked_up_by_rest_too(real_broker: RealBroker) -> None:
    # The second part of such a name is a cluster.
    topic = f"persistent://public/default/a/{uuid.uuid4().hex}/b"
    with ours.Client(real_broker.admin_url) as client:
        assert client.get_topic_partitions(topic) == [topic]
        with client.create_producer(topic, schema=ours.StringSchema()) as producer:
            producer.send("x")
        schema = ours.AutoConsumeSchema()
        reader = client.create_reader(topic, ours.MessageId.earliest, schema=schema)
        assert reader.read_next(60_000).value() == "x"
