"""The reader that Spark plans with and sends to its tasks."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import datasource as spark
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pulsar_spark.errors import (
    CorruptMessage,
    DecompressionError,
    EncryptedMessage,
    IncompleteMessage,
    OptionError,
    PulsarError,
    SchemaMismatch,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.spark.options.read import parse_read_options
from pulsar_spark.spark.reading.batch_reader import (
    PulsarBatchReader,
    infer_schema,
)
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import stored_entry
from tests.spark.topics import NOW, full, read, reader, set_schema, store, store_many, values

STRING = SchemaInfo(pb.Schema.String, "String")
VALUE = StructType().add("value", BinaryType())


def infer(broker: EmbeddedBroker, **options: str) -> StructType:
    return infer_schema(parse_read_options({"service.url": broker.service_url, **options}))


def test_the_schema_follows_the_topics_schema(broker: EmbeddedBroker) -> None:
    broker.create_topic("bytes")
    broker.create_topic("text")
    set_schema(broker, "text", STRING)
    assert infer(broker, topic="bytes")["value"].dataType == BinaryType()
    assert infer(broker, topic="text")["value"].dataType == StringType()
    assert infer(broker, topic="text", valueFormat="raw")["value"].dataType == BinaryType()
    assert len(infer(broker, topic="bytes").fields) == 7
    assert len(infer(broker, topic="bytes", includeMetadata="true").fields) == 19


def test_every_column_says_what_was_stored(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 2)
    first = store(broker, "t-partition-1", [b"a", None], partition_key="of the first")
    store(
        broker,
        "t-partition-1",
        [b"b"],
        batched=False,
        partition_key="k",
        event_time=NOW - 5,
        properties=[pb.KeyValue(key="p", value="q")],
        ordering_key=b"o",
    )
    rows = read(broker, {"topic": "t", "includeMetadata": "true"})
    published = datetime.fromtimestamp(NOW / 1000, timezone.utc)
    assert rows[0] == {
        "value": b"a",
        "__key": None,
        "__topic": full("t-partition-1"),
        "__messageId": MessageIdAdv(first.ledger_id, first.entry_id, 1, 0, 2).serialize(),
        "__publishTime": published,
        "__eventTime": None,
        "__messageProperties": [],
        "__partition": 1,
        "__ledgerId": first.ledger_id,
        "__entryId": first.entry_id,
        "__batchIndex": 0,
        "__producerName": "test",
        "__sequenceId": 0,
        "__orderingKey": None,
        "__schemaVersion": None,
        "__redeliveryCount": 0,
        "__size": 1,
        "__index": None,
        "__replicatedFrom": None,
    }
    assert rows[1]["value"] is None
    assert rows[1]["__batchIndex"] == 1
    assert rows[2]["__key"] == b"k"
    assert (
        rows[2]["__messageId"] == MessageIdAdv(first.ledger_id, first.entry_id + 1, 1).serialize()
    )
    assert rows[2]["__eventTime"] == datetime.fromtimestamp((NOW - 5) / 1000, timezone.utc)
    assert rows[2]["__messageProperties"] == [("p", "q")]
    assert rows[2]["__orderingKey"] == b"o"
    assert rows[2]["__batchIndex"] == -1


def test_a_projection_is_read_in_its_own_order(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"a", b"b"])
    schema = StructType().add("__batchIndex", IntegerType()).add("__entryId", LongType())
    rows = read(broker, {"topic": "t"}, schema)
    assert [list(row.items()) for row in rows] == [
        [("__batchIndex", 0), ("__entryId", 0)],
        [("__batchIndex", 1), ("__entryId", 0)],
    ]


def test_a_schema_that_fits_no_topic_is_told_without_asking_any_broker() -> None:
    given = {"service.url": "pulsar://127.0.0.1:1", "topic": "t"}
    with pytest.raises(OptionError, match="'__topic' is timestamp"):
        PulsarBatchReader(parse_read_options(given), StructType().add("__topic", TimestampType()))
    raw = parse_read_options({**given, "valueFormat": "raw"})
    with pytest.raises(OptionError, match="colour"):
        PulsarBatchReader(raw, StructType().add("colour", StringType()))


def test_a_schema_that_does_not_fit_these_topics_is_told_when_planning(
    broker: EmbeddedBroker,
) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"x"])
    text = reader(broker, {"topic": "t"}, StructType().add("value", StringType()))
    with pytest.raises(OptionError, match="'value' is string, but this read returns binary"):
        text.partitions()
    set_schema(broker, "t", STRING)
    with pytest.raises(OptionError, match="'value' is binary, but this read returns string"):
        reader(broker, {"topic": "t"}, VALUE).partitions()
    assert values(broker, {"topic": "t"}) == ["x"]
    assert read(broker, {"topic": "t", "valueFormat": "raw"}, VALUE) == [{"value": b"x"}]


@pytest.mark.fault(95)
def test_text_that_is_none_follows_the_mode(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"a", b"\xff", None, b"b"])
    set_schema(broker, "t", STRING)
    with pytest.raises(CorruptMessage, match="not UTF-8"):
        values(broker, {"topic": "t"})
    assert values(broker, {"topic": "t", "mode": "DROPMALFORMED"}) == ["a", None, "b"]
    assert "1 rows were dropped by a task" in caplog.text
    assert values(broker, {"topic": "t", "mode": "permissive"}) == ["a", None, None, "b"]
    assert "the values of 1 rows of a task are null" in caplog.text
    kept = read(broker, {"topic": "t", "mode": "PERMISSIVE"})
    assert [row["_corrupt_record"] for row in kept] == [None, b"\xff", None, None]
    schema = StructType().add("value", StringType()).add("bad", BinaryType())
    raw = read(broker, {"topic": "t", "mode": "PERMISSIVE", "valueFormat": "raw"})
    assert [row["_corrupt_record"] for row in raw] == [None] * 4
    options = {"topic": "t", "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}
    assert [row["bad"] for row in read(broker, options, schema)] == [None, b"\xff", None, None]


def test_values_of_other_schemas_are_bytes_with_a_warning(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"\x02"])
    set_schema(broker, "t", SchemaInfo(pb.Schema.External, "x"))
    assert values(broker, {"topic": "t"}) == [b"\x02"]
    assert "EXTERNAL" in caplog.text
    caplog.clear()
    assert values(broker, {"topic": "t", "valueFormat": "raw"}) == [b"\x02"]
    assert caplog.text == ""


def test_values_have_the_type_of_the_schema(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 2)
    set_schema(broker, "t", SchemaInfo(pb.Schema.Int32, "INT32"))
    version = bytes(8)
    store(broker, "t-partition-0", [b"\0\0\0\2", None], schema_version=version)
    store(broker, "t-partition-1", [b"\xff\xff\xff\xff"], schema_version=version)
    assert infer(broker, topic="t")["value"].dataType == IntegerType()
    assert values(broker, {"topic": "t"}) == [2, None, -1]
    long = StructType().add("value", LongType())
    with pytest.raises(OptionError, match="'value' is bigint, but this read returns int"):
        reader(broker, {"topic": "t"}, long).partitions()


@pytest.mark.fault(64)
def test_a_deleted_version_is_an_error_that_names_it(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    set_schema(broker, "t", SchemaInfo(pb.Schema.Int32, "INT32"))
    store(broker, "t", [b"\0\0\0\2"], schema_version=(5).to_bytes(8, "big"))
    with pytest.raises(SchemaMismatch, match="version 5") as caught:
        values(broker, {"topic": "t"})
    assert caught.value.topic == full("t")
    assert values(broker, {"topic": "t", "valueFormat": "raw"}) == [b"\0\0\0\2"]
    assert values(broker, {"topic": "t", "mode": "PERMISSIVE"}) == [None]
    assert values(broker, {"topic": "t", "mode": "DROPMALFORMED"}) == []


@pytest.mark.fault(64)
def test_messages_of_a_version_of_another_type_are_told_apart(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the strategy ALWAYS_COMPATIBLE allows.
    monkeypatch.setattr("pulsar_spark.testing.schemas._check_fits", lambda *_: None)
    broker.create_topic("t")
    definition = b'{"type":"record","name":"R","fields":[{"name":"a","type":["null","int"]}]}'
    for kind in (pb.Schema.Json, pb.Schema.Avro):
        set_schema(broker, "t", SchemaInfo(kind, "R", definition))
    old, new = (number.to_bytes(8, "big") for number in (0, 1))
    store(broker, "t", [b'{"a":0}', None], schema_version=old)
    store(broker, "t", [b"\2\6"], schema_version=new)
    with pytest.raises(
        SchemaMismatch, match=r"version 0.*the type JSON, the query has AVRO"
    ) as why:
        read(broker, {"topic": "t"})
    assert why.value.message_id is not None
    kept = read(broker, {"topic": "t", "mode": "PERMISSIVE"})
    assert [row["a"] for row in kept] == [None, None, 3]
    assert [row["_corrupt_record"] for row in kept] == [b'{"a":0}', None, None]
    assert [row["a"] for row in read(broker, {"topic": "t", "mode": "DROPMALFORMED"})] == [None, 3]


def test_a_topic_without_anything_to_read_has_no_partitions_and_no_rows(
    broker: EmbeddedBroker,
) -> None:
    broker.create_topic("t")
    empty = reader(broker, {"topic": "t"})
    assert empty.partitions() == []
    # If there are none, Spark makes one.
    assert list(empty.read(spark.InputPartition(None))) == []


@pytest.mark.fault(98)
@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_a_reader_that_was_pickled_reads_the_same(broker: EmbeddedBroker, pickler: Any) -> None:
    broker.create_topic("t")
    payloads = store_many(broker, "t", 100)
    source = reader(broker, {"topic": "t"})
    parts = source.partitions()
    copy, copied_parts = pickler.loads(pickler.dumps((source, parts)))
    rows = [row for part in copied_parts for batch in copy.read(part) for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == payloads


def test_a_query_keeps_the_columns_that_it_was_planned_with(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    set_schema(broker, "t", SchemaInfo(pb.Schema.Avro, "r", _record("a")))
    options = parse_read_options({"service.url": broker.service_url, "topic": "t"})
    schema = infer_schema(options)
    set_schema(broker, "t", SchemaInfo(pb.Schema.Avro, "r", _record("b", "a")))
    store(broker, "t", [b"\x02"], schema_version=(0).to_bytes(8, "big"))
    store(broker, "t", [b"\x04\x06", None], schema_version=(1).to_bytes(8, "big"))
    store(broker, "t", [b"\x08"])
    source = PulsarBatchReader(replace(options, inferred=True), schema)
    rows = [
        row
        for part in source.partitions()
        for batch in source.read(part)
        for row in batch.to_pylist()
    ]
    assert [row["a"] for row in rows] == [1, 3, None, 4]
    assert "b" not in rows[0]
    with pytest.raises(CorruptMessage):
        # A message without a version counts as the newest version's.
        read(broker, {"topic": "t"})


def _record(*names: str) -> bytes:
    fields = [{"name": name, "type": "int", "default": 0} for name in names]
    return json.dumps({"type": "record", "name": "r", "fields": fields}).encode()


@pytest.mark.fault(64)
@pytest.mark.parametrize("typed", [True, False])
def test_a_topic_that_gets_its_first_message_while_a_read_is_planned_has_a_say(
    broker: EmbeddedBroker, typed: bool
) -> None:
    schema = SchemaInfo(pb.Schema.Avro, "r", _record("a"))
    for name in ("t-1", "t-2"):
        broker.create_topic(name)
    set_schema(broker, "t-1", schema)
    store(broker, "t-1", [b"\2"], schema_version=bytes(8))
    options = {"service.url": broker.service_url, "topicsPattern": "t-.*"}
    columns = StructType([StructField("a", IntegerType())])
    planned = PulsarBatchReader(parse_read_options(options), columns)
    planned.look_ahead()
    if typed:
        set_schema(broker, "t-2", schema)
    store(broker, "t-2", [b"\4"], schema_version=bytes(8) if typed else b"")
    if typed:
        found = [batch for each in planned.partitions() for batch in planned.read(each)]
        assert [row["a"] for batch in found for row in batch.to_pylist()] == [1, 2]
    else:
        with pytest.raises(OptionError, match="different schemas"):
            planned.partitions()


@pytest.mark.fault(64)
def test_a_topic_of_which_only_the_compacted_view_is_left_has_a_say(
    broker: EmbeddedBroker,
) -> None:
    for name in ("t-1", "t-2"):
        broker.create_topic(name)
    set_schema(broker, "t-1", SchemaInfo(pb.Schema.Avro, "r", _record("a")))
    store(broker, "t-1", [b"\2"], schema_version=bytes(8))
    store(broker, "t-2", [b"x"], batched=False, partition_key="k")
    broker.compact("t-2")
    broker.roll_ledger(full("t-2"))
    broker.trim("t-2")
    options = {"service.url": broker.service_url, "topicsPattern": "t-.*", "readCompacted": "true"}
    columns = StructType([StructField("a", IntegerType())])
    with pytest.raises(OptionError, match="different schemas"):
        PulsarBatchReader(parse_read_options(options), columns).partitions()


@pytest.mark.fault(36, 38, 39)
@pytest.mark.parametrize("action", ["FAIL", "DISCARD", "CONSUME"])
@pytest.mark.parametrize(
    "entry, kind",
    [
        ({"encryption_keys": [pb.EncryptionKeys(key="k", value=b"v")]}, EncryptedMessage),
        (
            {"uuid": "u", "chunk_id": 1, "num_chunks_from_msg": 2, "total_chunk_msg_size": 9},
            IncompleteMessage,
        ),
        ({"compression": pb.ZLIB, "uncompressed_size": 100}, DecompressionError),
        ({"compression": pb.LZ4, "uncompressed_size": 100}, DecompressionError),
    ],
)
def test_messages_outside_the_times_need_not_be_readable(
    broker: EmbeddedBroker, entry: dict[str, Any], kind: type[PulsarError], action: str
) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"before"])
    broker.append(full("t"), stored_entry(b"outside", publish_time=NOW + 1000, **entry))
    store(broker, "t", [b"after"], publish_time=NOW + 2000)
    options = {"topic": "t", "pulsar.reader.cryptoFailureAction": action}
    assert values(broker, {**options, "startingTime": str(NOW + 1001)}) == [b"after"]
    assert values(broker, {**options, "endingTime": str(NOW + 1000)}) == [b"before"]
    if kind is not EncryptedMessage or action == "FAIL":
        for bound in ({"startingTime": str(NOW + 1000)}, {"endingTime": str(NOW + 1001)}, {}):
            with pytest.raises(kind):
                values(broker, {**options, **bound})
