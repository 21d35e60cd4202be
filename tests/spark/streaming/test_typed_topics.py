"""A running stream of typed columns, whose topics come, go, and change their schemas."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.errors import (
    DataLossError,
    OptionError,
    SchemaMismatch,
    TopicNotFound,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.spark.options.stream import parse_stream_options
from pulsar_spark.spark.streaming.reader import PulsarStreamReader
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import full, rows_of, set_schema, store
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fault(64)


def record(*names: str, name: str = "R") -> SchemaInfo:
    fields = ",".join(f'{{"name":"{each}","type":["null","int"],"default":null}}' for each in names)
    data = f'{{"type":"record","name":"{name}","fields":[{fields}]}}'
    return SchemaInfo(pb.Schema.Avro, name, data.encode())


def columns(*names: str) -> StructType:
    return StructType([StructField(name, IntegerType()) for name in names])


def make_topic(broker: EmbeddedBroker, topic: str, schema: SchemaInfo) -> None:
    broker.create_topic(topic)
    set_schema(broker, topic, schema)


def put(broker: EmbeddedBroker, topic: str, number: int, version: int = 0) -> None:
    """Store a record of one field."""
    version_bytes = struct.pack(">q", version)
    store(broker, topic, [b"\2" + bytes([2 * number])], schema_version=version_bytes)


class Stream:
    """A query, micro-batch by micro-batch."""

    def __init__(self, reader: PulsarStreamReader) -> None:
        self.reader = reader
        self.start: dict[str, Any] = {}

    def end(self) -> dict[str, Any]:
        self.start = self.start or self.reader.initialOffset()
        return self.reader.latestOffset()

    def batch(self, end: dict[str, Any] | None = None) -> list[Any]:
        """Run the next micro-batch and return its rows."""
        end = end or self.end()
        planned = self.reader.partitions(self.start, end)
        found = [batch for each in planned for batch in self.reader.read(each)]
        self.reader.commit(end)
        self.start = end
        return [tuple(row.values()) for row in rows_of(cast(Any, found))]


Open = Callable[..., Stream]


@pytest.fixture
def stream(broker: EmbeddedBroker) -> Iterator[Open]:
    readers: list[PulsarStreamReader] = []

    def open_stream(schema: StructType, *, inferred: bool = True, **more: str) -> Stream:
        given = {"service.url": broker.service_url, "startingOffsets": "earliest", **more}
        options = parse_stream_options(given)
        options = replace(options, read=replace(options.read, query=schema, inferred=inferred))
        readers.append(PulsarStreamReader(options, schema))
        return Stream(readers[-1])

    yield open_stream
    for reader in readers:
        reader.stop()


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("inferred", [False, True])
def test_a_topic_without_schema_and_messages_joins_a_typed_stream(
    broker: EmbeddedBroker, stream: Open, partitions: int, inferred: bool
) -> None:
    make_topic(broker, "t-1", record("a"))
    put(broker, "t-1", 1)
    query = stream(columns("a"), topicsPattern="t-.*", inferred=inferred)
    assert query.batch() == [(1,)]
    broker.create_topic("t-2", partitions)
    put(broker, "t-1", 2)
    assert query.batch() == [(2,)]
    # A producer registers the schema with its first message.
    set_schema(broker, "t-2", record("a"))
    put(broker, "t-2-partition-1" if partitions else "t-2", 3)
    assert query.batch() == [(3,)]


def test_messages_without_a_schema_end_a_typed_stream(broker: EmbeddedBroker, stream: Open) -> None:
    make_topic(broker, "t-1", record("a"))
    broker.create_topic("t-2")
    put(broker, "t-1", 1)
    query = stream(columns("a"), topicsPattern="t-.*")
    assert query.batch() == [(1,)]
    # The second byte would be a number.
    store(broker, "t-2", [b"\2\2"])
    with pytest.raises(OptionError, match="different schemas"):
        query.batch()


@pytest.mark.fault(58)
@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_planned_micro_batch_of_a_deleted_topic_is_a_loss(
    broker: EmbeddedBroker, stream: Open, fails: bool, others: bool, again: bool
) -> None:
    for name in ("t-1", "t-2"):
        make_topic(broker, name, record("a"))
    put(broker, "t-2", 2)
    if others:
        put(broker, "t-1", 1)
    pattern = "t-.*" if others else "t-2"
    query = stream(columns("a"), topicsPattern=pattern, failOnDataLoss=str(fails).lower())
    end = query.end()
    broker.delete_topic("t-2")
    if again:
        broker.create_topic("t-2")
    if fails:
        with pytest.raises((DataLossError, TopicNotFound)):
            query.batch(end)
    else:
        assert query.batch(end) == ([(1,)] if others else [])


def test_a_partition_of_a_topic_that_was_empty_is_read(
    broker: EmbeddedBroker, stream: Open
) -> None:
    make_topic(broker, "t-1", record("a"))
    broker.create_topic("t-2", 1)
    query = stream(columns("a"), topicsPattern="t-.*", startingOffsets="latest")
    query.end()
    put(broker, "t-1", 1)
    assert query.batch() == [(1,)]
    broker.add_partitions("t-2", 2)
    set_schema(broker, "t-2", record("a"))
    put(broker, "t-2-partition-1", 2)
    wait_until(lambda: full("t-2-partition-1") in str(query.end()))
    assert query.batch() == [(2,)]


def test_a_schema_that_comes_with_the_first_message_while_it_is_asked_for_counts(
    broker: EmbeddedBroker, stream: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t-1", "t-2"):
        broker.create_topic(name)
    set_schema(broker, "t-1", record("a"))
    put(broker, "t-1", 1)
    put(broker, "t-2", 2)
    query = stream(columns("a"), topicsPattern="t-.*")
    extents = Lookup.extents

    def late(lookup: Lookup, topics: Iterable[str], **more: Any) -> Any:
        if list(topics) == [full("t-2")]:
            set_schema(broker, "t-2", record("a"))
        return extents(lookup, topics, **more)

    monkeypatch.setattr(Lookup, "extents", late)
    assert query.batch() == [(1,), (2,)]


def test_a_topic_of_another_type_is_refused_after_a_restart_too(
    broker: EmbeddedBroker, stream: Open
) -> None:
    for number, kind in enumerate((pb.Schema.Avro, pb.Schema.Json)):
        make_topic(broker, f"t-{number}", replace(record("a"), type=kind))
    put(broker, "t-0", 1)
    options = {"topicsPattern": "t-.*", "subscription": "mine"}
    logged = stream(BYTES, valueFormat="raw", **options)
    end = logged.end()
    for _ in range(2):
        again = stream(columns("a"), inferred=False, **options)
        again.start = logged.start
        with pytest.raises(OptionError, match="different schemas"):
            again.batch(end)


BYTES = StructType([StructField("value", BinaryType())])
OTHERS = [
    replace(record("a"), type=pb.Schema.Json),
    record("x", name="Other"),
    SchemaInfo(pb.Schema.Avro, "O", b'{"type":"record","name":"O","fields":[]}'),
    replace(record("x", name="Other"), type=pb.Schema.Json),
]
OTHER_NAMES = ["JSON", "another record", "without fields", "another record in JSON"]


@pytest.mark.fault(132)
@pytest.mark.parametrize("inferred", [False, True])
@pytest.mark.parametrize("other", OTHERS, ids=OTHER_NAMES)
def test_a_topic_that_cannot_be_read_with_the_others_is_in_no_checkpoint(
    broker: EmbeddedBroker, stream: Open, other: SchemaInfo, inferred: bool
) -> None:
    make_topic(broker, "t-1", record("a"))
    put(broker, "t-1", 1)
    given: dict[str, Any] = {"subscription": "mine", "inferred": inferred}
    query = stream(columns("a"), topicsPattern="t-.*", **given)
    assert query.batch() == [(1,)]
    put(broker, "t-1", 2)
    make_topic(broker, "t-2", other)
    put(broker, "t-2", 3)
    with pytest.raises((OptionError, SchemaMismatch), match=r"t-2"):
        # The broker tells of new topics after a while.
        wait_until(lambda: full("t-2") in str(query.end()["positions"]))
    query.reader.stop()
    # A restart that leaves it out goes on.
    again = stream(columns("a"), topicsPattern="t-1", **given)
    assert again.reader.partitions(query.start, query.start) == []
    again.start = query.start
    assert again.batch() == [(2,)]
    assert full("t-2") not in again.start["positions"]


def test_a_query_that_cannot_read_its_topics_leaves_no_subscription(
    broker: EmbeddedBroker, stream: Open
) -> None:
    for name, schema in (("t-1", record("a")), ("t-2", record("x", name="Other"))):
        make_topic(broker, name, schema)
        put(broker, name, 1)
    query = stream(columns("a"), topicsPattern="t-.*", inferred=False)
    with pytest.raises(OptionError, match="different schemas"):
        query.batch()
    query.reader.stop()
    for name in ("t-1", "t-2"):
        wait_until(lambda topic=name: not broker.subscriptions(topic))  # type: ignore[misc]


@pytest.mark.fault(132)
@pytest.mark.parametrize("inferred", [False, True])
@pytest.mark.parametrize("other", OTHERS, ids=OTHER_NAMES)
def test_a_planned_micro_batch_of_a_topic_that_is_left_out_is_no_rows_of_nulls(
    broker: EmbeddedBroker, stream: Open, other: SchemaInfo, inferred: bool
) -> None:
    make_topic(broker, "t-1", record("a"))
    put(broker, "t-1", 1)
    make_topic(broker, "t-2", other)
    put(broker, "t-2", 2)
    logged = stream(BYTES, topicsPattern="t-.*", subscription="mine", valueFormat="raw")
    end = logged.end()
    logged.reader.stop()
    wanted = columns("a").add("__topic", StringType())
    given: dict[str, Any] = {"topicsPattern": "t-1", "subscription": "mine", "inferred": inferred}
    for mode in ("FAILFAST", "DROPMALFORMED"):
        query = stream(wanted, mode=mode, **given)
        query.start = logged.start
        if other == OTHERS[0] and mode == "DROPMALFORMED":
            # Its records are alike, and only their encoding differs: none of them is null.
            assert query.batch(end) == [(1, full("t-1"))]
            query.reader.stop()
            continue
        with pytest.raises(SchemaMismatch, match=r"t-2") as caught:
            query.batch(end)
        if other != OTHERS[0]:
            assert "allowDifferentTopicSchemas=true and mode=DROPMALFORMED" in caught.value.remedy
        query.reader.stop()
    # The remedy.
    query = stream(wanted, mode="DROPMALFORMED", allowDifferentTopicSchemas="true", **given)
    assert query.reader.partitions(end, end) == []
    query.start = logged.start
    assert [row for row in query.batch(end) if row[1] == full("t-1")] == [(1, full("t-1"))]
    put(broker, "t-1", 3)
    assert query.batch() == [(3, full("t-1"))]


def test_bytes_of_different_schemas_are_read_whichever_topic_has_rows_first(
    broker: EmbeddedBroker, stream: Open
) -> None:
    options = {"topicsPattern": "t-.*", "allowDifferentTopicSchemas": "true"}
    query = stream(StructType([StructField("value", BinaryType())]), inferred=False, **options)
    for number in range(3):
        make_topic(broker, f"t-{number}", record("a" * (1 + number % 2)))
        if not number:
            query.end()
        put(broker, f"t-{number}", number)
        wait_until(lambda name=f"t-{number}": full(name) in str(query.end()))  # type: ignore[misc]
        assert query.batch() == [(b"\2" + bytes([2 * number]),)]


@pytest.mark.parametrize("there", [False, True], ids=["missing", "empty"])
@pytest.mark.parametrize("kind", [record("a"), SchemaInfo(pb.Schema.String, "String")])
def test_columns_that_were_guessed_do_not_turn_typed_values_into_bytes(
    broker: EmbeddedBroker, stream: Open, kind: SchemaInfo, there: bool
) -> None:
    if there:
        broker.create_topic("t")
    query = stream(BYTES, topic="t", waitingForNonExistedTopic="true")
    assert query.batch() == []
    if not there:
        broker.create_topic("t")
    set_schema(broker, "t", kind)
    put(broker, "t", 1)
    wait_until(lambda: full("t") in str(query.end()["positions"]))
    with pytest.raises(OptionError, match=f"inferred.*{kind.type_name}: {full('t')}") as caught:
        query.batch()
    assert "Start the query again" in caught.value.remedy
    assert stream(BYTES, topic="t", valueFormat="raw").batch() == [(b"\2\2",)]


def test_a_topic_of_another_type_ends_a_stream_that_allows_it_with_an_error_that_says_why(
    broker: EmbeddedBroker, stream: Open
) -> None:
    make_topic(broker, "t-1", record("a"))
    put(broker, "t-1", 1)
    query = stream(columns("a"), topicsPattern="t-.*", allowDifferentTopicSchemas="true")
    assert query.batch() == [(1,)]
    make_topic(broker, "t-2", SchemaInfo(pb.Schema.String, "String"))
    put(broker, "t-2", 2)
    wait_until(lambda: full("t-2") in str(query.end()["positions"]))
    found = f"inferred.*AVRO: {full('t-1')}; STRING: {full('t-2')}"
    with pytest.raises(OptionError, match=found) as caught:
        query.batch()
    assert "Start the query again" in caught.value.remedy


def test_a_deleted_topic_has_no_say_in_what_another_one_may_have(
    broker: EmbeddedBroker, stream: Open
) -> None:
    make_topic(broker, "t-1", record("a", name="User"))
    put(broker, "t-1", 1)
    options = {"topicsPattern": "t-.*", "failOnDataLoss": "false"}
    query = stream(columns("a"), inferred=False, **options)
    assert query.batch() == [(1,)]
    broker.delete_topic("t-1")
    make_topic(broker, "t-2", record("a", name="Order"))
    put(broker, "t-2", 2)
    wait_until(lambda: full("t-1") not in str(query.end()["positions"]))
    assert query.batch() == [(2,)]


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
@pytest.mark.parametrize("joins", [False, True], ids=["alone", "another topic joins"])
@pytest.mark.parametrize("inferred", [False, True])
def test_a_topic_that_is_made_again_is_read_by_its_new_versions(
    broker: EmbeddedBroker, stream: Open, inferred: bool, joins: bool, mode: str
) -> None:
    make_topic(broker, "t-1", record("a", "b"))
    store(broker, "t-1", [b"\2\2\2\4"], schema_version=bytes(8))
    options = {"topicsPattern": "t-.*", "failOnDataLoss": "false", "mode": mode}
    query = stream(columns("a", "b"), inferred=inferred, **options)
    assert query.batch() == [(1, 2)]
    broker.delete_topic("t-1")
    # Its first version, as before, is another one.
    make_topic(broker, "t-1", record("b", "a"))
    store(broker, "t-1", [b"\2\6\2\10"], schema_version=bytes(8))
    expected = [(4, 3)]
    if joins:
        make_topic(broker, "t-2", record("a", "b"))
        store(broker, "t-2", [b"\2\12\2\14"], schema_version=bytes(8))
        wait_until(lambda: full("t-2") in str(query.end()["positions"]))
        expected.append((5, 6))
    assert query.batch() == expected


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
def test_a_stream_of_a_given_format_reads_records_of_any_name(
    broker: EmbeddedBroker, stream: Open, mode: str
) -> None:
    make_topic(broker, "t", record("a", "b", name="Order"))
    store(broker, "t", [b"\2\2\2\4"], schema_version=bytes(8))
    text = record("a", "b", "c", name="Mine").schema_data.decode()
    options = {"topic": "t", "valueFormat": "avro", "valueSchema": text, "mode": mode}
    assert stream(columns("a"), inferred=False, **options).batch() == [(1,)]


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
@pytest.mark.parametrize("rolled", [False, True])
def test_a_running_stream_reads_a_record_of_another_name_that_has_its_fields(
    broker: EmbeddedBroker, stream: Open, mode: str, rolled: bool
) -> None:
    make_topic(broker, "t", record("a"))
    put(broker, "t", 1)
    query = stream(columns("a"), topic="t", mode=mode)
    assert query.batch() == [(1,)]
    set_schema(broker, "t", record("a", "b", name="R2"))
    if rolled:
        broker.roll_ledger(full("t"))
    store(broker, "t", [b"\2\4\2\6"], schema_version=struct.pack(">q", 1))
    assert query.batch() == [(2,)]


def test_the_schemas_of_topics_are_asked_for_once(broker: EmbeddedBroker, stream: Open) -> None:
    for number in range(20):
        make_topic(broker, f"t-{number}", record("a"))
    put(broker, "t-0", 1)
    query = stream(columns("a"), topicsPattern="t-.*")
    assert query.batch() == [(1,)]
    make_topic(broker, "t-20", record("a"))
    asked = broker.faults.seen("GET_SCHEMA")
    for number in range(20):
        put(broker, f"t-{number}", 1)
        assert query.batch() == [(1,)]
    # One for each topic partition that goes on in another ledger, for its tasks.
    assert broker.faults.seen("GET_SCHEMA") - asked <= 20


@pytest.mark.parametrize("rolled", [False, True])
def test_rows_of_nulls_of_a_record_without_a_field_of_the_query_are_told(
    broker: EmbeddedBroker, stream: Open, rolled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    make_topic(broker, "t", record("a"))
    put(broker, "t", 1)
    query = stream(columns("a"), topic="t")
    assert query.batch() == [(1,)]
    set_schema(broker, "t", record("a", "b"))
    store(broker, "t", [b"\2\4\2\6"], schema_version=struct.pack(">q", 1))
    assert query.batch() == [(2,)]
    assert "none of the fields" not in caplog.text
    set_schema(broker, "t", record("x"))
    if rolled:
        broker.roll_ledger(full("t"))
    put(broker, "t", 3, version=2)
    assert query.batch() == [(None,)]
    assert "values of version 2 of the schema have none of the fields that are read" in caplog.text
    # The next start refuses it.
    put(broker, "t", 4, version=2)
    with pytest.raises(SchemaMismatch, match="no field of those of the query"):
        stream(columns("a"), topic="t").batch()


def test_a_stream_reads_versions_of_before_it_though_they_lack_its_fields(
    broker: EmbeddedBroker, stream: Open
) -> None:
    make_topic(broker, "t", record("a"))
    put(broker, "t", 1)
    set_schema(broker, "t", record("x"))
    put(broker, "t", 2, version=1)
    assert stream(columns("x"), topic="t").batch() == [(None,), (2,)]
