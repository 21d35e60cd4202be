"""Topics with schemas: Spark reads values of official clients, and they read Spark's."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from google.protobuf import any_pb2, source_context_pb2, type_pb2
from google.protobuf.any_pb2 import Any as Any_
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.type_pb2 import Field, Option
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, LongType, StructType

from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.errors import CorruptMessage
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value
from pulsar_spark.schema.registry import latest_schemas
from pulsar_spark.schema.table import names
from tests.integration.brokers import Broker
from tests.integration.messages import clustered
from tests.integration.spark_io import load, official, save
from tests.integration.typed import Reading, copy_rows, plain, read
from tests.outgoing import outgoing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")
schemas = pytest.importorskip("pulsar.schema")
Record: Any = schemas.Record

pytestmark = pytest.mark.timeout(600)

METADATA = [
    name for name in vars(names).values() if isinstance(name, str) and name.startswith("__")
]
S_COLUMNS = [
    names.KEY,
    names.TOPIC,
    names.MESSAGE_ID,
    names.PUBLISH_TIME,
    names.EVENT_TIME,
    names.PROPERTIES,
]


class Address(Record):  # type: ignore[misc]
    """A nested record."""

    city = schemas.String()
    zip = schemas.Integer()


NULL = {"default": None, "required_default": True}


class Order(Record):  # type: ignore[misc]
    """The first version of a record."""

    id = schemas.Long(required=True)
    name = schemas.String(**NULL)
    price = schemas.Double(**NULL)
    ratio = schemas.Float(**NULL)
    paid = schemas.Boolean()
    data = schemas.Bytes(**NULL)
    tags = schemas.Array(schemas.String(), **NULL)
    counts = schemas.Map(schemas.Long(), **NULL)
    address = Address(**NULL)


ORDERS: list[dict[str, Any]] = [
    {
        "id": number,
        "name": None if number % 5 == 4 else f"order {number} ✓",
        "price": number / 3,
        "ratio": number / 4,
        "paid": number % 2 == 0,
        "data": b"data %d" % number if number % 3 else None,
        "tags": [f"t{tag}" for tag in range(number % 4)],
        "counts": {f"k{key}": 2**40 + key for key in range(number % 3)},
        "address": None if number % 7 == 3 else {"city": f"c{number}", "zip": number},
    }
    for number in range(50)
]


def official_order(fields: dict[str, Any], kind: Any = Order) -> Any:
    found = dict(fields)
    if found.get("address") is not None:
        found["address"] = Address(**found["address"])
    return kind(**found)


def value_rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the value columns of all rows, in the order of reading."""
    columns = [name for name in frame.columns if name not in METADATA]
    return [plain(row.asDict(recursive=True)) for row in frame.select(*columns).collect()]


def send(broker: Broker, topic: str, schema: Any, values: list[Any], **options: Any) -> None:
    """Write values with an official producer."""
    with official(broker) as client:
        producer = client.create_producer(topic, schema=schema, **options)
        for value in values:
            producer.send_async(value, lambda *result: None)
        producer.flush()
        producer.close()


def receive(broker: Broker, topic: str, schema: Any, count: int) -> list[Any]:
    """Return the first messages of a topic, decoded by an official reader."""
    with official(broker) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=schema)
        found = [reader.read_next(60_000) for _ in range(count)]
        values = [None if message.has_null_value() else message.value() for message in found]
        reader.close()
    return values


# --- reading ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("kind", ["JsonSchema", "AvroSchema"])
def test_records_are_columns(
    spark: SparkSession, broker: Broker, kind: str, batching: bool
) -> None:
    topic = broker.create_topic()
    schema = getattr(schemas, kind)(Order)
    send(broker, topic, schema, [official_order(o) for o in ORDERS], batching_enabled=batching)
    frame = load(spark, broker, topic)
    assert set(frame.columns[: len(ORDERS[0])]) == set(ORDERS[0])
    assert frame.columns[len(ORDERS[0]) :] == S_COLUMNS
    assert value_rows(frame) == ORDERS


def test_only_the_columns_asked_for_are_read(spark: SparkSession, broker: Broker) -> None:
    topic = broker.create_topic()
    send(broker, topic, schemas.AvroSchema(Order), [official_order(o) for o in ORDERS])
    frame = load(spark, broker, topic, schema="address struct<city string, zip int>, ID bigint")
    assert [plain(row.asDict(True)) for row in frame.collect()] == [
        {"address": order["address"], "ID": order["id"]} for order in ORDERS
    ]
    assert load(spark, broker, topic, schema="__topic string").count() == len(ORDERS)


class OrderV2(Record):  # type: ignore[misc]
    """A later version: two new fields, most others removed."""

    id = schemas.Long(required=True)
    name = schemas.String(**NULL)
    currency = schemas.String(**NULL)
    tags = schemas.Array(schemas.String(), **NULL)
    discount = schemas.Integer(default=5, required=True, required_default=True)
    paid = schemas.Boolean()


# The names of the classes are the names of the records.
OrderV2.__name__ = "Order"


@pytest.mark.fault(64)
@pytest.mark.parametrize("kind", ["JsonSchema", "AvroSchema"])
def test_each_message_is_read_with_the_version_it_was_written_with(
    broker: Broker, kind: str
) -> None:
    topic = broker.create_topic(partitions=2)
    first, second = getattr(schemas, kind)(Order), getattr(schemas, kind)(OrderV2)
    old = [official_order(o) for o in ORDERS[:20]]
    new = [OrderV2(id=-n, name=f"new {n}", currency="CHF", discount=n) for n in range(20)]
    planned_before: Any = None
    for values, schema in ((old[:10], first), (new[:10], second), (old[10:], first)):
        send(broker, topic, schema, values)
        if planned_before is None:
            planned_before = Reading(broker, topic)
    send(broker, topic, second, new[10:])
    found = {row["id"]: row for row in read(broker, topic)}
    assert len(found) == 39
    for order in ORDERS[1:20]:
        row = found[order["id"]]
        assert (row["name"], row["tags"], row["currency"]) == (order["name"], order["tags"], None)
        # JSON has no defaults: missing fields are null.
        assert row["discount"] == (5 if kind == "AvroSchema" else None)
    for number in range(1, 20):
        row = found[-number]
        assert (row["name"], row["currency"]) == (f"new {number}", "CHF")
        assert (row["discount"], row["tags"]) == (number, None)
    # A query keeps the columns that it was planned with.
    rows = planned_before.rows()
    assert len(rows) == 40
    assert {"currency", "discount"}.isdisjoint(rows[0])
    assert {row["id"]: row["name"] for row in rows if row["id"] < 0} == {
        -number: f"new {number}" for number in range(1, 20)
    }


def test_tombstones_are_null_in_all_columns(broker: Broker) -> None:
    topic = broker.create_topic()
    with official(broker) as client:
        producer = client.create_producer(topic, schema=schemas.AvroSchema(Order))
        producer.send(official_order(ORDERS[0]), partition_key="a")
        producer.close()
    with clustered(broker) as context:
        writer = PartitionedProducer(context, topic)
        writer.write(outgoing([None, None], ["a", "b"]))
        writer.close()
    rows = read(broker, topic)
    assert [row["id"] for row in rows] == [0, None, None]
    assert rows[0].keys() == rows[1].keys()
    assert [row["__key"] for row in rows] == [b"a", b"a", b"b"]
    assert all(rows[1][name] is None for name in ORDERS[0])


def spoiled(broker: Broker, kind: str) -> str:
    """Return a topic whose values in rows 1 and 3 do not decode."""
    topic = broker.create_topic()
    schema = getattr(schemas, kind)(Order)
    send(broker, topic, schema, [official_order(ORDERS[0])], batching_enabled=False)
    with clustered(broker) as context, official(broker) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        good = reader.read_next(60_000).data()
        reader.close()
        info = latest_schemas(context.lookup, [topic])[topic]
        assert isinstance(info, SchemaInfo)
        bad = good[: len(good) // 2]
        with PartitionedProducer(context, topic, ProducerOptions(schema=info)) as writer:
            writer.write(outgoing([bad, good, b"\xff", None]))
    return topic


@pytest.mark.fault(44, 64)
@pytest.mark.parametrize("kind", ["JsonSchema", "AvroSchema"])
def test_what_does_not_decode_follows_the_mode(broker: Broker, kind: str) -> None:
    topic = spoiled(broker, kind)
    with pytest.raises(CorruptMessage) as caught:
        read(broker, topic)
    assert caught.value.topic == topic
    assert caught.value.message_id is not None
    assert "schema version 0" in str(caught.value)
    permissive = {"mode": "PERMISSIVE"}
    rows = read(broker, topic, permissive)
    # A record is not read as another one.
    assert [row["id"] for row in rows] == [0, None, 0, None, None]
    assert [row["tags"] for row in rows] == [[], None, [], None, None]
    assert [row["name"] for row in rows] == ["order 0 ✓", None, "order 0 ✓", None, None]
    dropped = read(broker, topic, {"mode": "DROPMALFORMED"})
    assert [row["id"] for row in dropped] == [0, 0, None]
    schema = StructType().add("_corrupt_record", BinaryType()).add("id", LongType())
    corrupt = read(broker, topic, permissive, schema)
    assert [row["_corrupt_record"] is None for row in corrupt] == [True, False, True, False, True]
    assert corrupt[3]["_corrupt_record"] == b"\xff"


@pytest.mark.fault(64)
def test_a_data_frame_keeps_the_columns_that_it_was_loaded_with(
    spark: SparkSession, broker: Broker
) -> None:
    topic = broker.create_topic()
    send(broker, topic, schemas.AvroSchema(Order), [official_order(ORDERS[0])])
    frame = load(spark, broker, topic).select("id", "price")
    send(broker, topic, schemas.AvroSchema(OrderV2), [OrderV2(id=7, discount=1)])
    assert [tuple(row) for row in frame.collect()] == [(0, 0.0), (7, None)]
    assert "price" not in load(spark, broker, topic).columns


def test_protobuf_messages_go_both_ways(broker: Broker) -> None:
    source, target = broker.create_topic(), broker.create_topic()
    schema = schemas.ProtobufNativeSchema(Field)
    options = [{"name": "o", "value": {"type_url": "t", "value": b"\0\xff"}}]
    sent = [
        Field(name="✓", number=2, kind=Field.TYPE_DOUBLE, packed=True),
        Field(
            number=-1,
            cardinality=Field.CARDINALITY_REPEATED,
            options=[Option(name="o", value=Any_(type_url="t", value=b"\0\xff"))],
        ),
        Field(),
    ]
    send(broker, source, schema, sent)
    rows = read(broker, source)
    assert [row["name"] for row in rows] == ["✓", "", ""]
    assert [row["number"] for row in rows] == [2, -1, 0]
    assert [row["kind"] for row in rows] == ["TYPE_DOUBLE", "TYPE_UNKNOWN", "TYPE_UNKNOWN"]
    assert [row["packed"] for row in rows] == [True, False, False]
    assert [row["options"] for row in rows] == [[], options, []]
    send(broker, target, schema, [])
    copy_rows(broker, source, target)
    assert receive(broker, target, schema, 3) == sent


# --- writing ----------------------------------------------------------------------------------

FRAME = (
    "id bigint, name string, price double, ratio float, paid boolean, data binary, "
    "tags array<string>, counts map<string,bigint>, address struct<city string, zip int>"
)


def order_frame(spark: SparkSession, orders: list[dict[str, Any]]) -> DataFrame:
    """Return a DataFrame of one partition, so that rows keep their order."""
    return spark.createDataFrame(orders, FRAME).coalesce(1)


def order_of(record: Any) -> dict[str, Any]:
    """Return a record of the official client as a dict."""
    found = {name: getattr(record, name) for name in ORDERS[0]}
    if found["address"] is not None:
        found["address"] = {name: getattr(found["address"], name) for name in ("city", "zip")}
    if isinstance(found["data"], str):
        found["data"] = found["data"].encode()
    return found


def schema_of(broker: Broker, topic: str) -> SchemaInfo:
    """Return the latest schema of a topic."""
    with clustered(broker) as context:
        info = latest_schemas(context.lookup, [topic])[topic]
    assert isinstance(info, SchemaInfo)
    return info


@pytest.mark.parametrize("kind", ["JsonSchema", "AvroSchema"])
def test_a_topics_schema_is_adopted(spark: SparkSession, broker: Broker, kind: str) -> None:
    topic = broker.create_topic()
    schema = getattr(schemas, kind)(Order)
    send(broker, topic, schema, [official_order(ORDERS[0])])
    frame = order_frame(spark, ORDERS[1:])
    save(frame.select(*reversed(frame.columns)), broker, topic)
    found = receive(broker, topic, schema, len(ORDERS))
    assert [order_of(record) for record in found] == ORDERS
    rows = read(broker, topic, {"includeMetadata": "true"})
    assert {row["__schemaVersion"] for row in rows} == {bytes(8)}


@pytest.mark.fault(64)
@pytest.mark.parametrize("kind", ["JsonSchema", "AvroSchema"])
def test_what_does_not_fit_the_topics_schema_is_listed_before_anything_is_sent(
    spark: SparkSession, broker: Broker, kind: str
) -> None:
    topic = broker.create_topic()
    send(broker, topic, getattr(schemas, kind)(Order), [])
    frame = spark.sql("SELECT 'x' AS id, 1 AS name, 2 AS colour, 'k' AS __key")
    with pytest.raises(PySparkException) as caught:
        save(frame, broker, topic)
    told = str(caught.value)
    assert "SchemaMismatch" in told
    assert topic in told
    for field in ("id", "name", "colour"):
        assert field in told
    assert read(broker, topic) == []


@pytest.mark.parametrize("value_format", ["auto", "avro", "json"])
def test_a_topic_without_schema_gets_one(
    spark: SparkSession, broker: Broker, value_format: str
) -> None:
    topic = broker.create_topic()
    options = {
        "valueFormat": value_format,
        "schema.name": "Order",
        "schema.namespace": "com.example",
    }
    save(order_frame(spark, ORDERS), broker, topic, options)
    assert value_rows(load(spark, broker, topic)) == ORDERS
    info = schema_of(broker, topic)
    assert info.type_name == ("JSON" if value_format == "json" else "AVRO")
    definition = json.loads(info.schema_data)
    assert (definition["name"], definition["namespace"]) == ("Order", "com.example")
    assert all(field["type"][0] == "null" for field in definition["fields"])
    assert all(field["default"] is None for field in definition["fields"])
    if value_format != "json":
        with official(broker) as client:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            found = [reader.read_next(60_000).data() for _ in ORDERS]
            reader.close()
        parsed = fastavro.parse_schema(definition)
        assert [fastavro.schemaless_reader(BytesIO(data), parsed, None) for data in found] == ORDERS


def test_a_struct_is_a_record_and_null_a_null_value(spark: SparkSession, broker: Broker) -> None:
    topic = broker.create_topic()
    frame = spark.sql(
        "SELECT k AS __key, IF(k = 'b', NULL, named_struct('x', IF(k = 'c', NULL, 1))) AS value "
        "FROM VALUES ('a'), ('b'), ('c') AS t(k)"
    ).coalesce(1)
    save(frame, broker, topic)
    rows = read(broker, topic, {"includeMetadata": "true"})
    assert [(row["__key"], row["x"]) for row in rows] == [(b"a", 1), (b"b", None), (b"c", None)]
    raw = read(broker, topic, {"valueFormat": "raw"})
    assert [row["value"] is None for row in raw] == [False, True, False]
    # A row of nulls in all columns is a null value: what was read can be written back.
    copy = broker.create_topic()
    save(load(spark, broker, topic).drop("__topic"), broker, copy)
    copied = read(broker, copy, {"valueFormat": "raw"})
    assert [(row["__key"], row["value"] is None) for row in copied] == [
        (b"a", False),
        (b"b", True),
        (b"c", True),
    ]


@pytest.mark.fault(64)
@pytest.mark.parametrize("value_format", ["avro", "json"])
def test_columns_are_added_to_a_schema(
    spark: SparkSession, broker: Broker, value_format: str
) -> None:
    topic = broker.create_topic()
    options = {"valueFormat": value_format}
    save(spark.sql("SELECT 1 AS id, 'a' AS name"), broker, topic, options)
    later = spark.sql("SELECT 2 AS id, 'b' AS name, named_struct('x', 1.5D) AS more")
    with pytest.raises(PySparkException, match=f"valueFormat={value_format} adds columns"):
        save(later, broker, topic)
    save(later, broker, topic, options)
    save(spark.sql("SELECT 3 AS id, 'c' AS name"), broker, topic)
    rows = read(broker, topic, {"includeMetadata": "true"})
    assert [(row["id"], row["name"], row["more"]) for row in rows] == [
        (1, "a", None),
        (2, "b", {"x": 1.5}),
        (3, "c", None),
    ]
    assert [row["__schemaVersion"][-1] for row in rows] == [0, 1, 1]


@pytest.mark.fault(64)
def test_a_format_that_the_topic_does_not_have_is_refused(
    spark: SparkSession, broker: Broker
) -> None:
    topic = broker.create_topic()
    send(broker, topic, schemas.AvroSchema(Order), [])
    with pytest.raises(PySparkException) as caught:
        save(spark.sql("SELECT 2L AS id, 'x' AS name"), broker, topic, {"valueFormat": "json"})
    assert "SchemaMismatch" in str(caught.value)
    assert "the topic's schema is AVRO" in str(caught.value)


@pytest.mark.parametrize("separated", [True, False])
def test_keys_of_pairs_are_columns_and_back(
    spark: SparkSession, broker: Broker, separated: bool
) -> None:
    def record(name: str, field: str, kind: str) -> bytes:
        fields = [{"name": field, "type": ["null", kind], "default": None}]
        return json.dumps({"type": "record", "name": name, "fields": fields}).encode()

    pair = join_key_value(
        SchemaInfo(pb.Schema.Json, "k", record("k", "id", "int")),
        SchemaInfo(pb.Schema.Avro, "v", record("v", "name", "string")),
        separated=separated,
    )
    topic = broker.create_topic()
    with clustered(broker) as context:
        context.pool.service().request(
            commands.request(pb.CommandGetOrCreateSchema, topic=topic, schema=pair.to_pb())
        )
    frame = spark.sql(
        "SELECT IF(id = 3, NULL, named_struct('id', id)) AS __key, IF(id = 2, NULL, 'n') AS name "
        "FROM VALUES (1), (2), (3) AS t(id)"
    ).coalesce(1)
    save(frame, broker, topic)
    found = load(spark, broker, topic)
    assert found.dtypes[:2] == [("name", "string"), ("__key", "struct<id:int>")]
    rows = [(row["name"], row["__key"] and row["__key"]["id"]) for row in found.collect()]
    assert rows == [("n", 1), (None, 2), ("n", None)]
    assert found.where("__key.id = 2").select("name").collect() == [(None,)]
    wrong = spark.sql("SELECT 'k' AS __key, 'n' AS name")
    with pytest.raises(PySparkException, match="SchemaMismatch"):
        save(wrong, broker, topic)


# --- topics without a schema ------------------------------------------------------------------


def test_topics_without_a_schema_are_typed_by_the_options(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    definition = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
    }
    (tmp_path / "order.avsc").write_text(json.dumps(definition))
    files = FileDescriptorSet()
    for module in (any_pb2, source_context_pb2, type_pb2):
        files.file.add().ParseFromString(module.DESCRIPTOR.serialized_pb)
    (tmp_path / "type.desc").write_bytes(files.SerializeToString())

    def avro(number: int) -> bytes:
        data = BytesIO()
        row = {"id": number, "name": f"n{number}"}
        fastavro.schemaless_writer(data, fastavro.parse_schema(definition), row)
        return data.getvalue()

    encoders: dict[str, Callable[[int], bytes]] = {
        "json": lambda number: json.dumps({"id": number, "name": f"n{number}"}).encode(),
        "avro": avro,
        "protobuf": lambda number: Field(number=number, name=f"n{number}").SerializeToString(),
    }
    columns: dict[str, str | None] = {
        "json": "name string, id smallint, __key binary",
        "avro": None,
        "protobuf": "name string, number int, __key binary",
    }
    given: dict[str, dict[str, object]] = {
        "json": {},
        "avro": {"valueSchema": (tmp_path / "order.avsc").as_uri()},
        "protobuf": {"valueSchema": tmp_path / "type.desc", "valueMessage": "Field"},
    }
    for value_format, encode in encoders.items():
        topic = broker.create_topic()
        with official(broker) as client:
            producer = client.create_producer(topic)
            for number in range(20):
                producer.send(encode(number), partition_key="k")
            producer.send(encode(20))
        options = {"valueFormat": value_format, **given[value_format]}
        frame = load(spark, broker, topic, options, schema=columns[value_format])
        numbers = "number" if value_format == "protobuf" else "id"
        rows = frame.select(numbers, "name", "__key").collect()
        assert sorted((row[numbers], row["name"]) for row in rows) == [
            (each, f"n{each}") for each in range(21)
        ]
        assert [bytes(row["__key"]) for row in rows if row["__key"] is not None] == [b"k"] * 20


@pytest.mark.parametrize("value_format", ["avro", "json"])
def test_what_has_no_type_or_no_fields_is_written(
    spark: SparkSession, broker: Broker, value_format: str
) -> None:
    topic, nothing = broker.create_topic(), broker.create_topic()
    options = {"valueFormat": value_format}
    for columns in (
        "1 id, array('a') list, map('k', struct(1 x)) pairs, struct(array(1) list, struct() e) s",
        "2 id, array() list, map() pairs, struct(array() list, null e) s",
    ):
        save(spark.sql(f"SELECT {columns}"), broker, topic, options)
    save(spark.sql("SELECT struct() value FROM range(3)"), broker, nothing, options)
    rows = [[row[name] for name in ("list", "pairs", "s")] for row in read(broker, topic)]
    assert rows == [
        [["a"], {"k": {"x": 1}}, {"list": [1], "e": {}}],
        [[], {}, {"list": [], "e": None}],
    ]
    assert len(read(broker, nothing)) == 3


# --- streams ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stream_keeps_its_columns_when_the_topics_schema_goes_on(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    source, target = broker.create_topic(), broker.create_topic()
    send(broker, source, schemas.AvroSchema(Order), [official_order(o) for o in ORDERS[:10]])
    options = {"service.url": broker.service_url, "startingOffsets": "earliest"}
    orders = spark.readStream.format("pulsar").options(**options).load(source)
    frame = orders.select("id", "name", "address", "__key", "__eventTime")

    def run() -> None:
        writer = frame.writeStream.format("pulsar").option("service.url", broker.service_url)
        writer = writer.option("topic", target).option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(240), "the stream does not end"
        finally:
            query.stop()

    run()
    later = [OrderV2(id=100 + n, name=f"new {n}", currency="CHF", discount=n) for n in range(5)]
    send(broker, source, schemas.AvroSchema(OrderV2), later)
    send(broker, source, schemas.AvroSchema(Order), [official_order(ORDERS[10])])
    run()
    rows = read(broker, target, {"includeMetadata": "true"})
    names = ("id", "name", "address")
    expected = [tuple(order[name] for name in names) for order in ORDERS[:10]]
    expected += [(100 + number, f"new {number}", None) for number in range(5)]
    expected += [tuple(ORDERS[10][name] for name in names)]
    found = [tuple(row[name] for name in names) for row in rows]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert {row["__schemaVersion"] for row in rows} == {bytes(8)}


@pytest.mark.parametrize("kind", ["JsonSchema", "AvroSchema"])
def test_a_stream_over_topics_restarts_in_the_middle_of_an_upgrade(
    spark: SparkSession, broker: Broker, tmp_path: Path, kind: str
) -> None:
    schema = getattr(schemas, kind)
    sources, found = [broker.create_topic(), broker.create_topic()], []
    for number, source in enumerate(sources):
        send(broker, source, schema(Order), [official_order(ORDERS[number])])

    def run() -> None:
        stream = spark.readStream.format("pulsar").option("service.url", broker.service_url)
        stream = stream.option("topics", ",".join(sources)).option("startingOffsets", "earliest")
        query = (
            stream.load()
            .writeStream.foreachBatch(lambda frame, number: found.extend(value_rows(frame)))
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(240), "the stream does not end"
        finally:
            query.stop()

    run()
    assert sorted(found, key=lambda row: row["id"]) == ORDERS[:2]
    found.clear()
    later = {"id": 100, "name": "new", "currency": "CHF", "tags": None, "discount": 3, "paid": True}
    send(broker, sources[0], schema(OrderV2), [OrderV2(**later)])
    send(broker, sources[1], schema(Order), [official_order(ORDERS[2])])
    run()
    # AVRO has a default where JSON has none.
    absent = {"currency": None, "discount": 5 if kind == "AvroSchema" else None}
    old = {name: ORDERS[2].get(name, absent.get(name)) for name in later}
    assert sorted(found, key=lambda row: row["id"]) == [old, later]
