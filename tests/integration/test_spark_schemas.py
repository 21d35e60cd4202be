"""Topics with schemas: what official clients wrote, `spark.read` shows, and the reverse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import BinaryType, LongType, StructType

from pulsar_spark.client.message_columns import MessageColumns
from pulsar_spark.client.options import ProducerOptions
from pulsar_spark.client.topic_writer import TopicWriter
from pulsar_spark.errors import CorruptMessage
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema import column_names as names
from pulsar_spark.schema.registry import latest_schemas
from tests.integration.brokers import Broker
from tests.integration.messages import clustered
from tests.integration.spark_io import load, official
from tests.integration.typed import Reading, plain, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")
schemas = pytest.importorskip("pulsar.schema")

pytestmark = pytest.mark.timeout(300)

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


class Address(schemas.Record):  # type: ignore[misc]
    """A record within another."""

    city = schemas.String()
    zip = schemas.Integer()


NULL = {"default": None, "required_default": True}


class Order(schemas.Record):  # type: ignore[misc]
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
    """Return the value's columns of all rows, in the order in which they were read."""
    columns = [name for name in frame.columns if name not in METADATA]
    return [plain(row.asDict(recursive=True)) for row in frame.select(*columns).collect()]


def send(broker: Broker, topic: str, schema: Any, values: list[Any], **options: Any) -> None:
    """Write values by an official producer."""
    with official(broker) as client:
        producer = client.create_producer(topic, schema=schema, **options)
        for value in values:
            producer.send_async(value, lambda *result: None)
        producer.flush()
        producer.close()


def receive(broker: Broker, topic: str, schema: Any, count: int) -> list[Any]:
    """Return the first messages of a topic, as an official reader decodes them."""
    with official(broker) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=schema)
        found = [reader.read_next(30_000) for _ in range(count)]
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


class OrderV2(schemas.Record):  # type: ignore[misc]
    """A later version: two fields are new, most are gone."""

    id = schemas.Long(required=True)
    name = schemas.String(**NULL)
    currency = schemas.String(**NULL)
    tags = schemas.Array(schemas.String(), **NULL)
    discount = schemas.Integer(default=5, required=True, required_default=True)
    paid = schemas.Boolean()


# Records are known by the names of their classes.
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
        # JSON knows no defaults: what is not there is null.
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
    with clustered(broker) as cluster:
        writer = TopicWriter(cluster, topic)
        writer.write(MessageColumns([None, None], ["a", "b"]))
        writer.close()
    rows = read(broker, topic)
    assert [row["id"] for row in rows] == [0, None, None]
    assert rows[0].keys() == rows[1].keys()
    assert [row["__key"] for row in rows] == [b"a", b"a", b"b"]
    assert all(rows[1][name] is None for name in ORDERS[0])


def spoiled(broker: Broker, kind: str) -> str:
    """Return a topic with values that do not decode among those that do: rows 1 and 3."""
    topic = broker.create_topic()
    schema = getattr(schemas, kind)(Order)
    send(broker, topic, schema, [official_order(ORDERS[0])], batching_enabled=False)
    with clustered(broker) as cluster, official(broker) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        good = reader.read_next(30_000).data()
        reader.close()
        info = latest_schemas(cluster.lookup, [topic])[topic]
        assert isinstance(info, SchemaInfo)
        bad = good[: len(good) // 2]
        with TopicWriter(cluster, topic, ProducerOptions(schema=info)) as writer:
            writer.write(MessageColumns([bad, good, b"\xff", None]))
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
    # No record takes values of another.
    assert [row["id"] for row in rows] == [0, None, 0, None, None]
    assert [row["tags"] for row in rows] == [[], None, [], None, None]
    assert [row["name"] for row in rows] == ["order 0 ✓", None, "order 0 ✓", None, None]
    dropped = read(broker, topic, {"mode": "DROPMALFORMED"})
    assert [row["id"] for row in dropped] == [0, 0, None]
    schema = StructType().add("_corrupt_record", BinaryType()).add("id", LongType())
    corrupt = read(broker, topic, permissive, schema)
    assert [row["_corrupt_record"] is None for row in corrupt] == [True, False, True, False, True]
    assert corrupt[3]["_corrupt_record"] == b"\xff"
