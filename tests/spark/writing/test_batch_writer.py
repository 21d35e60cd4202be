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

from pulsar_spark.errors import InvalidRow, OptionError, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.writing.batch_writer import PulsarBatchWriter
from pulsar_spark.spark.writing.task_writer import PulsarCommitMessage
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import set_schema, values

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
