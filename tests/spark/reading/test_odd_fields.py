"""Topics with fields that cannot be columns of their type or name: the others are typed."""

from __future__ import annotations

import json
import logging
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from pulsar_spark.errors import CorruptMessage, InvalidRow, OptionError, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value
from pulsar_spark.schema.key_value import join_pairs
from pulsar_spark.spark.compat import arrow_schema, spark_schema
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.spark.options.stream import parse_stream_options
from pulsar_spark.spark.reading.batch_reader import PulsarBatchReader, infer_schema
from pulsar_spark.spark.reading.partitions import PulsarInputPartition
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from pulsar_spark.testing import EmbeddedBroker
from tests.schema.avro.random_values import encoded
from tests.schema.kernel import choose
from tests.spark.streams import Query
from tests.spark.topics import read, reader, rows_of, set_schema, store


@pytest.fixture(params=["kernel", "one by one"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode values this way."""
    choose(monkeypatch, kernel=request.param == "kernel")


TREE: dict[str, Any] = {
    "type": "record",
    "name": "Tree",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "__key", "type": "int", "default": 7},
        {"name": "kids", "type": {"type": "array", "items": "Tree"}},
        {"name": "NAME", "type": "long", "default": 8},
    ],
}


def node(name: str, *kids: Any) -> dict[str, Any]:
    return {"name": name, "__key": 7, "kids": list(kids), "NAME": 8}


NODES = [node("a", node("b", node("c")), node("d")), node("e")]


def values_of(kind: int) -> tuple[SchemaInfo, list[bytes], list[Any], DataType]:
    """Return a schema, values of it, their column kids, and its type."""
    data: list[bytes]
    schema = SchemaInfo(kind, "", json.dumps(TREE).encode())
    if kind == pb.Schema.Avro:
        # The name has two bytes in front, its key one; a long behind.
        data = encoded(TREE, NODES)
        return schema, data, [each[3:-1] for each in data], BinaryType()
    texts = [json.dumps(each["kids"], separators=(",", ":")) for each in NODES]
    data = [json.dumps(each, separators=(",", ":")).encode() for each in NODES]
    return schema, data, texts, StringType()


@pytest.fixture(params=[pb.Schema.Avro, pb.Schema.Json], ids=["avro", "json"])
def kind(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


def fill(broker: EmbeddedBroker, schema: SchemaInfo, data: list[Any], topic: str = "t") -> None:
    broker.create_topic(topic)
    set_schema(broker, topic, schema)
    if data:
        store(broker, topic, data, schema_version=bytes(8))


def test_all_columns_are_read_but_those_whose_name_is_taken(
    broker: EmbeddedBroker, kind: int, caplog: pytest.LogCaptureFixture
) -> None:
    schema, data, kids, column = values_of(kind)
    fill(broker, schema, [*data, None])
    with caplog.at_level(logging.WARNING):
        source = reader(broker, {"topic": "t"})
    (told,) = [text for text in caplog.messages if "no columns" in text]
    assert "'__key'" in told
    assert "'NAME', because it differs from 'name' only in case" in told
    assert source._schema["kids"].dataType == column
    rows = read(broker, {"topic": "t"})
    assert list(rows[0])[:3] == ["name", "kids", "__key"]
    assert [(row["name"], row["kids"], row["__key"]) for row in rows] == [
        ("a", kids[0], None),
        ("e", kids[1], None),
        (None, None, None),
    ]


def test_a_schema_that_the_user_gives_is_read_alike(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    schema, data, kids, _ = values_of(pb.Schema.Avro)
    broker.create_topic("t")
    store(broker, "t", data)
    options = {"topic": "t", "valueFormat": "avro", "valueSchema": schema.schema_data.decode()}
    with caplog.at_level(logging.WARNING):
        assert [row["kids"] for row in read(broker, options)] == kids
    (told,) = [text for text in caplog.messages if "no columns" in text]
    assert "'__key'" in told


@pytest.mark.parametrize("corrupt", [False, True])
def test_a_projection_has_what_it_asks_for(
    broker: EmbeddedBroker, kind: int, corrupt: bool
) -> None:
    schema, data, kids, column = values_of(kind)
    fill(broker, schema, data)
    options = {"topic": "t", "mode": "PERMISSIVE" if corrupt else "FAILFAST"}
    for wanted, found in (
        (StructType().add("name", StringType()), [{"name": "a"}, {"name": "e"}]),
        (StructType().add("Name", StringType()), [{"Name": "a"}, {"Name": "e"}]),
        (StructType().add("NAME", LongType()), [{"NAME": 8}] * 2),
        (
            StructType().add("kids", column).add("__key", BinaryType()),
            [{"kids": kids[0], "__key": None}, {"kids": kids[1], "__key": None}],
        ),
    ):
        assert read(broker, options, wanted) == found
    with pytest.raises(OptionError, match=f"is int, but this read returns {column.simpleString()}"):
        read(broker, options, StructType().add("kids", IntegerType()))


def test_a_damaged_value_is_named_with_its_field_or_its_bytes_are_kept(
    broker: EmbeddedBroker,
) -> None:
    schema, data, kids, _ = values_of(pb.Schema.Avro)
    bad = data[0].replace(b"c", b"\xff")
    fill(broker, schema, [bad, data[1]])
    with pytest.raises(CorruptMessage, match="field kids: a text is not UTF-8"):
        read(broker, {"topic": "t"})
    rows = read(broker, {"topic": "t", "mode": "PERMISSIVE"})
    assert [(row["kids"], row["_corrupt_record"]) for row in rows] == [(None, bad), (kids[1], None)]
    # Like others, a field that is not asked for is not looked at.
    wanted = StructType().add("name", StringType())
    assert [row["name"] for row in read(broker, {"topic": "t"}, wanted)] == ["a", "e"]


def save(
    broker: EmbeddedBroker, topic: str, rows: list[dict[str, Any]], schema: StructType
) -> None:
    options = {"service.url": broker.service_url, "topic": topic}
    found = PulsarDataSource(options).writer(schema, False)
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema))
    found.commit([found.write(iter([batch]))])


def raw(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    return [row["value"] for row in read(broker, {"topic": topic, "valueFormat": "raw"})]


def test_what_is_read_is_written_back_with_defaults_for_the_rest(
    broker: EmbeddedBroker, kind: int
) -> None:
    schema, data, kids, column = values_of(kind)
    fill(broker, schema, data)
    fill(broker, schema, [], "u")
    wanted = StructType().add("name", StringType()).add("kids", column)
    rows = read(broker, {"topic": "t"}, wanted)
    save(broker, "u", rows, wanted)
    if kind == pb.Schema.Avro:
        assert raw(broker, "u") == data
    else:
        texts = [f'{{"name":"{row["name"]}","kids":{row["kids"]}}}' for row in rows]
        assert [value.decode() for value in raw(broker, "u")] == texts
    other = StructType().add("Name", StringType()).add("kids", column)
    save(broker, "u", [{"Name": row["name"], "kids": row["kids"]} for row in rows], other)
    assert raw(broker, "u")[2:] == raw(broker, "u")[:2]
    bad = {"name": "x", "kids": kids[0][:-1]}
    with pytest.raises(InvalidRow, match="row 1 cannot be written: the field kids: it is n"):
        save(broker, "u", [*rows[:1], bad], wanted)
    required = json.loads(schema.schema_data)
    del required["fields"][1]["default"]
    fill(broker, SchemaInfo(kind, "", json.dumps(required).encode()), [], "v")
    with pytest.raises(SchemaMismatch, match="__key is missing, and has no default"):
        save(broker, "v", rows, wanted)


def test_keys_and_values_of_pairs_are_read_and_written_alike(
    broker: EmbeddedBroker, kind: int
) -> None:
    schema, data, kids, _ = values_of(kind)
    pair = join_key_value(schema, schema, separated=False)
    payloads = join_pairs(pa.array(data), pa.array(data[::-1])).to_pylist()
    fill(broker, pair, payloads)
    fill(broker, pair, [], "u")
    source = reader(broker, {"topic": "t"})
    # Within a struct, no name is taken.
    names = [field.name for field in source._schema["__key"].dataType.fields]  # type: ignore[attr-defined]
    assert names == ["name", "__key", "kids", "NAME"]
    wanted = StructType([source._schema[each] for each in ("name", "kids", "__key")])
    rows = read(broker, {"topic": "t"}, wanted)
    assert [row["kids"] for row in rows] == kids[::-1]
    assert [row["__key"]["kids"] for row in rows] == kids
    assert [row["__key"]["__key"] for row in rows] == [7, 7]
    save(broker, "u", rows, wanted)
    if kind == pb.Schema.Avro:
        assert raw(broker, "u") == payloads
    again = read(broker, {"topic": "u"}, wanted)
    assert again == rows


class Rows(Query):
    """A query whose batches are rows."""

    def values(self, partitions: Any) -> list[Any]:
        found: list[PulsarInputPartition] = partitions
        source = PulsarBatchReader(self.options.read, infer_schema(self.options.read))
        return rows_of([batch for each in found for batch in source.read(each)])


def test_a_stream_is_restarted(broker: EmbeddedBroker, kind: int) -> None:
    schema, data, kids, _ = values_of(kind)
    fill(broker, schema, data[:1])
    given = {"service.url": broker.service_url, "topic": "t", "startingOffsets": "earliest"}
    query = Rows(parse_stream_options(given))
    assert [row["kids"] for row in query.batch()] == kids[:1]
    assert query.committed is not None
    query.source.close()
    store(broker, "t", data[1:], schema_version=bytes(8))
    again = Rows(query.options, StreamOffset.from_json(query.committed.to_json()))
    assert [(row["name"], row["kids"]) for row in again.batch()] == [("e", kids[1])]
    again.source.close()


def test_versions_that_change_the_odd_field_are_read_without_it(broker: EmbeddedBroker) -> None:
    schema, data, _, _ = values_of(pb.Schema.Avro)
    fill(broker, schema, data)
    newer = json.loads(schema.schema_data)
    newer["fields"].append({"name": "size", "type": "int", "default": 0})
    set_schema(broker, "t", SchemaInfo(pb.Schema.Avro, "", json.dumps(newer).encode()))
    wanted = StructType().add("name", StringType()).add("size", IntegerType())
    rows = read(broker, {"topic": "t"}, wanted)
    assert rows == [{"name": "a", "size": 0}, {"name": "e", "size": 0}]
    with pytest.raises(SchemaMismatch, match=r"version 0 .* the field kids contains itself"):
        read(broker, {"topic": "t"})


@pytest.mark.parametrize("way", ["kernel"], indirect=True)
def test_spark_reads_and_writes_them(
    spark: SparkSession, broker: EmbeddedBroker, kind: int
) -> None:
    schema, data, kids, _ = values_of(kind)
    fill(broker, schema, data)
    fill(broker, schema, [], "u")
    source = spark.read.format("pulsar").option("service.url", broker.service_url)
    frame = source.load("t")
    assert frame.columns[:3] == ["name", "kids", "__key"]
    found = [row["kids"] for row in frame.select("kids").collect()]
    assert [bytes(each) if isinstance(each, bytearray) else each for each in found] == kids
    target = frame.select("name", "kids").coalesce(1).write.format("pulsar").mode("append")
    target.option("service.url", broker.service_url).save("u")
    assert read(broker, {"topic": "u"}, spark_schema(pa.schema([("name", pa.string())]))) == [
        {"name": "a"},
        {"name": "e"},
    ]
