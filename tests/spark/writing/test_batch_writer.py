"""The writer that Spark checks on the driver and sends to its tasks."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from pulsar_spark.errors import IncompleteWrite, InvalidRow, OptionError, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.spark.compat import spark_schema
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.writing.batch_writer import PulsarBatchWriter
from pulsar_spark.spark.writing.task_writer import PulsarCommitMessage
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
    with pytest.raises(OptionError, match="only mode append"):
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


@pytest.mark.fault(136)
@pytest.mark.parametrize("value_format", ["auto", "avro", "json"])
@pytest.mark.parametrize("key", [False, True])
def test_an_empty_struct_is_refused_by_name_before_the_first_row(
    broker: EmbeddedBroker, value_format: str, key: bool
) -> None:
    broker.create_topic("t")
    schema = StructType().add("nothing", StructType())
    if key:
        schema.add("__key", BinaryType())
    with pytest.raises(SchemaMismatch, match="nothing is a struct without fields"):
        PulsarDataSource(
            {"service.url": broker.service_url, "topic": "t", "valueFormat": value_format}
        ).writer(schema, False)
    assert broker.faults.seen("PRODUCER") == 0


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
    found = PulsarDataSource(
        {"service.url": broker.service_url, "topic": "t", "valueFormat": value_format}
    ).writer(spark_schema(batch.schema), False)
    found.commit([found.write(iter([batch]))])
    rows = [{name: row[name] for name in columns} for row in read(broker, {"topic": "t"})]
    assert rows == batch.to_pylist()
