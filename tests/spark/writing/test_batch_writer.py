"""The writer that Spark checks on the driver and sends to its tasks."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
)

from pulsar_spark.errors import IncompleteWrite, InvalidRow, OptionError, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value
from pulsar_spark.schema.codec import record_definition
from pulsar_spark.spark.compat import spark_schema
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.writing.task_writer import PulsarCommitMessage
from pulsar_spark.spark.writing.writers import PulsarBatchWriter
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import read, set_schema, values

VALUE = StructType().add("value", BinaryType())
TEXT = StructType().add("value", StringType())


def writer(
    url: str, schema: StructType = VALUE, *, overwrite: bool = False, **options: str
) -> PulsarBatchWriter:
    parsed = parse_write_options({"service.url": url, "topic": "t", **options})
    return PulsarBatchWriter(parsed, schema, overwrite=overwrite)


def test_columns_and_mode_are_checked_without_asking_any_broker() -> None:
    nowhere = "pulsar://127.0.0.1:1"
    with pytest.raises(OptionError, match=r"only mode append.* INSERT INTO"):
        writer(nowhere, overwrite=True)
    with pytest.raises(InvalidRow, match="no column is left"):
        writer(nowhere, StructType().add("__key", StringType()))
    with pytest.raises(InvalidRow, match="__topic"):
        writer(nowhere, StructType().add("value", BinaryType()).add("__topic", BinaryType()))


@pytest.mark.fault(64)
def test_the_topics_schema_is_held_against_the_values_beforehand(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    writer(broker.service_url, TEXT).check()
    set_schema(broker, "t", SchemaInfo(pb.Schema.Int32, "INT32"))
    for schema in (VALUE, TEXT):
        with pytest.raises(SchemaMismatch, match="INT32"):
            writer(broker.service_url, schema).check()
    writer(broker.service_url, valueFormat="raw").check()


@pytest.mark.parametrize(
    "named, fate", [(True, "left out where their topics deduplicate"), (False, "be there twice")]
)
def test_a_failure_says_what_becomes_of_what_was_written(
    named: bool, fate: str, caplog: pytest.LogCaptureFixture
) -> None:
    schema = StructType().add("value", BinaryType()).add("__sequenceId", LongType())
    options = {"pulsar.producer.producerName": "job"} if named else {}
    parsed = parse_write_options({"service.url": "pulsar://127.0.0.1:1", "topic": "t", **options})
    PulsarBatchWriter(parsed, schema, overwrite=False).abort([None])
    assert fate in caplog.text


def test_topics_of_rows_are_not_asked_about_beforehand() -> None:
    schema = StructType().add("value", BinaryType()).add("__topic", StringType())
    parsed = parse_write_options({"service.url": "pulsar://127.0.0.1:1"})
    PulsarBatchWriter(parsed, schema, overwrite=False).check()


@pytest.mark.fault(98)
@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_a_writer_that_was_pickled_writes(broker: EmbeddedBroker, pickler: Any) -> None:
    broker.create_topic("t")
    copy = pickler.loads(pickler.dumps(writer(broker.service_url)))
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"])})
    done = copy.write(iter([batch]))
    assert done.acknowledged == 2
    assert values(broker, {"topic": "t"}) == [b"a", b"b"]


LONGEST, LARGEST = "36500d", f"{2**33 - 1}g"


def test_the_largest_times_and_sizes_are_written_and_read_with(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    client = {
        "pulsar.client.operationTimeoutMs": LONGEST,
        "pulsar.client.connectionTimeoutMs": LONGEST,
        "pulsar.client.memoryLimitBytes": LARGEST,
    }
    producer = {
        "pulsar.producer.sendTimeoutMs": LONGEST,
        "pulsar.producer.batchingMaxBytes": LARGEST,
    }
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"])})
    options = {"service.url": broker.service_url, "topic": "t", **client, **producer}
    PulsarDataSource(options).writer(VALUE, overwrite=False).write(iter([batch]))
    tolerant = {"pollTimeout": LONGEST, "startingTime": "-1h", "publishTimeTolerance": LONGEST}
    assert values(broker, {"topic": "t", **client, **tolerant}) == [b"a", b"b"]


DONE = PulsarCommitMessage(messages=5, acknowledged=4, failed=1, last_ids=())


def test_commit_and_abort_say_what_was_written(caplog: pytest.LogCaptureFixture) -> None:
    found = writer("pulsar://127.0.0.1:1")
    messages: list[WriterCommitMessage | None] = [DONE, None, DONE]
    with caplog.at_level(logging.INFO):
        found.commit(messages)
    assert "10 messages written by 2 tasks" in caplog.text
    assert "2 messages could not be written" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        found.abort(messages)
    assert "8 messages of 2 successful tasks" in caplog.text


@pytest.mark.fault(136)
def test_a_write_is_not_committed_whose_rows_are_not_all_acknowledged() -> None:
    lacking = PulsarCommitMessage(5, 4, 0, (("persistent://a/b/t-partition-1", "1:2:1"),))
    with pytest.raises(IncompleteWrite, match=r"5 rows .* 4 messages") as caught:
        writer("pulsar://127.0.0.1:1").commit([DONE, lacking])
    assert caught.value.topic == "persistent://a/b/t"
    writer("pulsar://127.0.0.1:1", deliveryGuarantee="none").commit([DONE, lacking])


def save(
    broker: EmbeddedBroker, batch: pa.RecordBatch, schema: StructType | None = None, **more: str
) -> None:
    """Write a record batch to the topic t; `schema` is Spark's, if it is not the batch's."""
    options = {"service.url": broker.service_url, "topic": "t", **more}
    found = PulsarDataSource(options).writer(schema or spark_schema(batch.schema), False)
    found.commit([found.write(iter([batch]))])


@pytest.mark.fault(136)
@pytest.mark.parametrize("value_format", ["auto", "avro", "json"])
@pytest.mark.parametrize("nulls", [False, True])
def test_an_empty_struct_is_a_record_without_fields(
    broker: EmbeddedBroker, value_format: str, nulls: bool
) -> None:
    broker.create_topic("t")
    rows: list[Any] = [{}, None if nulls else {}, {}]
    batch = pa.record_batch(
        {"nothing": pa.array(rows, pa.struct([])), "__key": pa.array([b"a", b"b", b"c"])}
    )
    for columns in (batch, batch.select(["nothing"])):
        save(broker, columns, valueFormat=value_format)
    found = read(broker, {"topic": "t"})
    assert [row["__key"] for row in found] == [b"a", b"b", b"c", None, None, None]
    record = b"{}" if value_format == "json" else b""
    wanted = [None if row is None else record for row in rows]
    assert values(broker, {"topic": "t", "valueFormat": "raw"}) == wanted * 2


@pytest.mark.fault(136)
def test_an_empty_struct_takes_the_defaults_of_the_topics_record(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    record = record_definition(pb.Schema.Avro, pa.schema([("a", pa.int64())]), "r", None)
    set_schema(broker, "t", record)
    save(broker, pa.record_batch({"nothing": pa.array([{}, {}], pa.struct([]))}))
    assert values(broker, {"topic": "t", "valueFormat": "raw"}) == [b"\0", b"\0"]


VOIDS = {
    "id": pa.array([2, 3]),
    "list": pa.array([[], None], pa.list_(pa.null())),
    "pairs": pa.MapArray.from_arrays(
        pa.array([0, 0, 0], pa.int32()), pa.array([], pa.string()), pa.nulls(0)
    ),
    "inside": pa.array(
        [{"list": [], "gone": None}, None],
        pa.struct([("list", pa.list_(pa.null())), ("gone", pa.null())]),
    ),
    "lists": pa.array([[[], None], []], pa.list_(pa.list_(pa.null()))),
    "gone": pa.nulls(2),
}
EMPTY = ArrayType(NullType(), False)
VOID_COLUMNS = (
    StructType()
    .add("id", LongType())
    .add("list", EMPTY)
    .add("pairs", MapType(NullType(), NullType(), False))
    .add("inside", StructType().add("list", EMPTY).add("gone", NullType()))
    .add("lists", ArrayType(EMPTY))
    .add("gone", NullType())
)


@pytest.mark.fault(136)
@pytest.mark.parametrize("value_format", ["avro", "json"])
@pytest.mark.parametrize("required", [False, True])
def test_what_is_void_is_written_as_the_topics_fields(
    broker: EmbeddedBroker, value_format: str, required: bool
) -> None:
    broker.create_topic("t")
    pair = pa.struct([pa.field("x", pa.int32(), not required)])
    kinds = {
        "list": pa.list_(pa.field("element", pair, not required)),
        "pairs": pa.map_(pa.string(), pa.field("value", pair, not required)),
        "inside": pa.struct(
            [
                ("list", pa.list_(pa.field("element", pa.decimal128(5, 1), not required))),
                ("gone", pa.timestamp("us", tz="UTC")),
            ]
        ),
        "lists": pa.list_(pa.list_(pa.field("element", pa.string(), not required))),
        "gone": pa.map_(pa.string(), pa.list_(pa.string())),
    }
    first = pa.record_batch(
        {"id": pa.array([1]), **{name: pa.nulls(1, kind) for name, kind in kinds.items()}}
    )
    for given in (value_format, "auto"):
        save(broker, first, valueFormat=given)
        save(broker, pa.record_batch(VOIDS), VOID_COLUMNS, valueFormat=given)
    found = [{name: row[name] for name in VOIDS} for row in read(broker, {"topic": "t"})]
    rows = [*first.to_pylist(), *pa.record_batch(VOIDS).to_pylist()]
    assert found == rows * 2


@pytest.mark.fault(136)
def test_a_void_item_is_refused_where_the_topic_wants_a_value(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    texts = StructType().add("id", LongType()).add("list", ArrayType(StringType(), False))
    save(broker, pa.record_batch({"id": pa.array([1]), "list": pa.array([["a"]])}), texts)
    columns = {"id": pa.array([1, 2]), "list": pa.array([[], [None]], pa.list_(pa.null()))}
    with pytest.raises(
        InvalidRow, match=r"row 1 cannot be written: the field list\[\]: it is null"
    ):
        save(broker, pa.record_batch(columns))


@pytest.mark.fault(136)
def test_a_void_value_or_key_is_null(broker: EmbeddedBroker) -> None:
    integers = SchemaInfo(pb.Schema.Int32, "INT32")
    record = record_definition(pb.Schema.Avro, pa.schema([("a", pa.int64())]), "r", None)
    schemas = [
        integers,
        *(join_key_value(record, integers, separated=each) for each in (False, True)),
    ]
    for number, schema in enumerate(schemas):
        topic = f"t-{number}"
        broker.create_topic(topic)
        set_schema(broker, topic, schema)
        save(broker, pa.record_batch({"value": pa.nulls(2), "__key": pa.nulls(2)}), topic=topic)
        found = read(broker, {"topic": topic})
        assert [(row["value"], row["__key"]) for row in found] == [(None, None)] * 2


@pytest.mark.fault(136)
@pytest.mark.parametrize("value_format", ["avro", "json"])
def test_empty_structs_beside_or_in_other_values_are_written(
    broker: EmbeddedBroker, value_format: str
) -> None:
    broker.create_topic("t")
    none = pa.struct([])
    columns = {
        "id": pa.array([1, 2, 3]),
        "nothing": pa.array([{}, None, {}], none),
        "inside": pa.array([{"a": {}}, {"a": None}, None], pa.struct([("a", none)])),
        "items": pa.array([[{}, {}], [], None], pa.list_(none)),
        "pairs": pa.array([[("k", {})], [], None], pa.map_(pa.string(), none)),
    }
    batch = pa.record_batch(columns)
    save(broker, batch, valueFormat=value_format)
    rows = [{name: row[name] for name in columns} for row in read(broker, {"topic": "t"})]
    assert rows == batch.to_pylist()
