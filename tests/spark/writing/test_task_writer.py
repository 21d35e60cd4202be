"""One task's write."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from pulsar_spark.engine.producers.batch_accumulator import BatchAccumulator
from pulsar_spark.engine.producers.partitioned_producer import (
    Locate,
    PartitionedProducer,
)
from pulsar_spark.errors import (
    IncompatibleSchema,
    IncompleteWrite,
    InvalidRow,
    MessageTooLarge,
    OperationTimeout,
    PulsarError,
    SchemaMismatch,
    TopicNotFound,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.outgoing_messages import OutgoingMessages
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.avro import codec as avro_codec
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.writing import schemas, task_writer
from pulsar_spark.spark.writing.columns import plan_columns
from pulsar_spark.spark.writing.row_digest import Digest
from pulsar_spark.spark.writing.row_encoder import EncodedRows, RowEncoder
from pulsar_spark.spark.writing.task_writer import (
    PulsarCommitMessage,
    TaskPlan,
    find_targets,
    write_task,
)
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import full, read, set_schema, values
from tests.support.waiting import finish, wait_until

KINDS: dict[str, Any] = {
    "value": (BinaryType(), pa.binary()),
    "text": (StringType(), pa.string()),
    "number": (LongType(), pa.int64()),
    "__key": (BinaryType(), pa.binary()),
    "__topic": (StringType(), pa.string()),
    "__orderingKey": (BinaryType(), pa.binary()),
    "__eventTime": (LongType(), pa.int64()),
    "__deliverAt": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "__sequenceId": (LongType(), pa.int64()),
    "__messageProperties": (
        MapType(StringType(), StringType()),
        pa.map_(pa.string(), pa.string()),
    ),
}


def write(
    broker: EmbeddedBroker,
    columns: dict[str, list[Any]],
    options: dict[str, str] | None = None,
    *,
    batch_rows: int = 1000,
    killed_at: int | None = None,
    in_stream: bool = False,
) -> PulsarCommitMessage:
    given = {"service.url": broker.service_url, **(options or {})}
    if "__topic" not in columns:
        given.setdefault("topic", "t")
    parsed = parse_write_options(given)
    schema = StructType()
    for name in columns:
        schema.add(name, KINDS[name][0])
    planned = plan_columns(
        schema, topic_given=parsed.topic is not None, value_format=parsed.schema.value_format
    )
    arrays = {name: pa.array(data, KINDS[name][1]) for name, data in columns.items()}
    table = pa.RecordBatch.from_pydict(arrays)

    def batches() -> Iterator[pa.RecordBatch]:
        yield table.slice(0, 0)
        for start in range(0, table.num_rows, batch_rows):
            if killed_at is not None and start + batch_rows > killed_at:
                yield table.slice(start, killed_at - start)
                raise RuntimeError("killed")
            yield table.slice(start, batch_rows)

    return write_task(TaskPlan(parsed, planned, in_stream), batches())


def test_a_task_returns_when_all_is_acknowledged(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    payloads = [b"%d" % number for number in range(2500)]
    done = write(broker, {"value": payloads})
    assert values(broker, {"topic": "t"}) == payloads
    assert (done.messages, done.acknowledged, done.failed) == (2500, 2500, 0)
    last = broker.stats("t").last
    assert last is not None
    ((topic, message_id),) = done.last_ids
    assert topic == full("t")
    assert message_id.startswith(f"{last.ledger_id}:{last.entry_id}:")
    assert broker.stats("t").producers == ()


def test_all_that_a_message_can_have_is_written_and_read_back(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    columns: dict[str, list[Any]] = {
        "value": [b"a", None, b""],
        "__key": [b"k", None, b"\xff"],
        "__orderingKey": [b"o", None, None],
        "__eventTime": [1500, None, 0],
        "__messageProperties": [[("a", "1"), ("b", "2")], None, []],
        "__sequenceId": [10, 11, 20],
    }
    write(broker, columns)
    rows = read(broker, {"topic": "t", "includeMetadata": "true"})
    assert [row["value"] for row in rows] == [b"a", None, b""]
    assert [row["__key"] for row in rows] == [b"k", None, b"\xff"]
    assert [row["__orderingKey"] for row in rows] == [b"o", None, None]
    assert [row["__eventTime"] and row["__eventTime"].timestamp() for row in rows] == [
        1.5,
        None,
        None,
    ]
    assert [row["__messageProperties"] for row in rows] == [[("a", "1"), ("b", "2")], [], []]
    assert [row["__sequenceId"] for row in rows] == [10, 11, 20]


@pytest.mark.fault(95)
@pytest.mark.parametrize("encoding", ["auto", "bytes"])
def test_keys_are_read_back_as_they_were(broker: EmbeddedBroker, encoding: str) -> None:
    broker.create_topic("t", 3)
    keys = [b"", b"a", b"\0", b"\xff\xfe", "ключ 😀".encode(), bytes(10_000), None]
    write(broker, {"value": [b""] * len(keys), "__key": keys}, {"keyEncoding": encoding})
    rows = read(broker, {"topic": "t"})
    assert sorted(row["__key"] or b"none" for row in rows) == sorted(key or b"none" for key in keys)


def test_equal_keys_meet_in_one_partition_in_their_order(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 4)
    keys = [b"k%d" % (number % 13) for number in range(1000)]
    payloads = [b"%d" % number for number in range(1000)]
    write(broker, {"value": payloads, "__key": keys}, batch_rows=100)
    rows = read(broker, {"topic": "t", "includeMetadata": "true"})
    assert len(rows) == 1000
    for key in set(keys):
        own = [row for row in rows if row["__key"] == key]
        assert len({row["__partition"] for row in own}) == 1
        numbers = [int(row["value"]) for row in own]
        assert numbers == sorted(numbers)


def test_rows_name_their_topics_and_partitions(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 3)
    broker.create_topic("u")
    topics = [full("t-partition-2"), "u", full("t-partition-2"), full("t-partition-0")]
    write(broker, {"value": [b"0", b"1", b"2", b"3"], "__topic": topics})
    assert values(broker, {"topic": "t-partition-2"}) == [b"0", b"2"]
    assert values(broker, {"topic": "t-partition-0"}) == [b"3"]
    assert values(broker, {"topic": "u"}) == [b"1"]


@pytest.mark.parametrize("batching", ["true", "false"])
@pytest.mark.parametrize("partitions", [0, 3])
def test_properties_and_event_times_are_written_by_the_column(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, batching: str, partitions: int
) -> None:
    broker.create_topic("t", partitions)
    # This adds messages one by one.
    monkeypatch.delattr(BatchAccumulator, "add")
    count = 2000
    columns: dict[str, list[Any]] = {
        "value": [b"%d" % number for number in range(count)],
        "__key": [b"k%d" % (number % 50) for number in range(count)],
        "__eventTime": [None if number % 7 == 1 else 10**12 + number for number in range(count)],
        "__messageProperties": [
            None if number % 5 == 1 else [("n", str(number)), ("source", "web")][: number % 3]
            for number in range(count)
        ],
    }
    write(broker, columns, {"pulsar.producer.batchingEnabled": batching})
    found = read(broker, {"topic": "t"})
    rows = sorted(found, key=lambda row: int(row["value"]))
    assert [row["value"] for row in rows] == columns["value"]
    assert [row["__key"] for row in rows] == columns["__key"]
    assert [row["__messageProperties"] for row in rows] == [
        pairs or [] for pairs in columns["__messageProperties"]
    ]
    times = [row["__eventTime"] and round(row["__eventTime"].timestamp() * 1000) for row in rows]
    assert times == columns["__eventTime"]


@pytest.mark.parametrize("value_format", ["avro", "json"])
def test_what_a_write_spread_over_topics_is_read_together(
    broker: EmbeddedBroker, value_format: str
) -> None:
    for name in ("alice", "bob"):
        broker.create_topic(name)
    rows: dict[str, list[Any]] = {
        "__topic": ["alice", "bob", "alice"],
        "text": ["a", "b", "c"],
        "number": [1, 2, 3],
    }
    write(broker, rows, {"valueFormat": value_format})
    for options in ({"topics": "alice,bob"}, {"topicsPattern": "alice|bob"}):
        found = read(broker, options)
        assert sorted((row["text"], row["number"]) for row in found) == [
            ("a", 1),
            ("b", 2),
            ("c", 3),
        ]


def test_delayed_messages_carry_their_time(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    moment = 1_900_000_000_000
    write(broker, {"value": [b"a", b"b"], "__deliverAt": [moment * 1000, None]})
    assert broker.faults.seen("SEND") == 2
    assert values(broker, {"topic": "t"}) == [b"a", b"b"]


@pytest.mark.parametrize(
    "name,value",
    [
        ("compressionType", "LZ4"),
        ("compressionType", "ZLIB"),
        ("compressionType", "ZSTD"),
        ("compressionType", "SNAPPY"),
        ("batchingEnabled", "false"),
        ("batchingMaxMessages", "3"),
        ("batchingMaxBytes", "100"),
    ],
)
def test_the_producers_options_are_followed(broker: EmbeddedBroker, name: str, value: str) -> None:
    broker.create_topic("t")
    payloads = [b"payload %d" % number for number in range(10)]
    write(broker, {"value": payloads}, {f"pulsar.producer.{name}": value})
    assert values(broker, {"topic": "t"}) == payloads
    if name == "batchingEnabled":
        assert broker.stats("t").entries == 10
    if value == "3":
        assert broker.stats("t").entries == 4


def test_text_registers_its_schema_and_reads_back_as_text(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 2)
    write(broker, {"text": ["grün", None]})
    assert sorted(values(broker, {"topic": "t"}), key=str) == [None, "grün"]
    write(broker, {"text": ["again"]})
    with pytest.raises(SchemaMismatch, match="STRING"):
        write(broker, {"value": [b"bytes"]})
    write(broker, {"value": [b"raw"]}, {"valueFormat": "raw"})
    assert sorted(values(broker, {"topic": "t"}), key=str) == [None, "again", "grün", "raw"]


@pytest.mark.fault(64)
def test_a_topic_of_another_schema_is_refused_before_anything_is_sent(
    broker: EmbeddedBroker,
) -> None:
    broker.create_topic("t")
    set_schema(broker, "t", SchemaInfo(pb.Schema.Int32, "INT32"))
    with pytest.raises(SchemaMismatch, match="INT32"):
        write(broker, {"value": [b"x"]})
    assert broker.faults.seen("SEND") == 0


@pytest.mark.fault(64)
def test_a_schema_that_the_broker_refuses_is_told_with_the_topic(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    broker.faults.error("PRODUCER", pb.IncompatibleSchema, times=None)
    with pytest.raises(IncompatibleSchema) as caught:
        write(broker, {"text": ["x"]})
    assert caught.value.topic == full("t")
    assert "compatibility" in caught.value.remedy
    assert broker.faults.seen("SEND") == 0


@pytest.mark.fault(64)
def test_what_was_decided_on_the_driver_is_not_asked_again(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    options = parse_write_options({"service.url": broker.service_url, "topic": "t"})
    planned = plan_columns(
        StructType().add("a", LongType()).add("b", StringType()),
        topic_given=True,
        value_format="auto",
    )
    plan = TaskPlan(options, planned, targets=find_targets(options, planned))
    asked = broker.faults.seen("GET_SCHEMA")
    batch = pa.RecordBatch.from_pydict({"a": [1, 2, None], "b": ["x", None, None]})
    for _ in range(2):
        write_task(plan, [batch])
    assert broker.faults.seen("GET_SCHEMA") == asked == 1
    rows = read(broker, {"topic": "t", "includeMetadata": "true"})
    assert [(row["a"], row["b"]) for row in rows] == [(1, "x"), (2, None), (None, None)] * 2
    assert {row["__schemaVersion"] for row in rows} == {bytes(8)}


def test_topics_of_one_schema_and_the_tasks_that_follow_share_an_encoder(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[SchemaInfo] = []
    encoder = avro_codec.encoder

    def counted(info: SchemaInfo, columns: pa.Schema) -> Any:
        made.append(info)
        return encoder(info, columns)

    monkeypatch.setattr(avro_codec, "encoder", counted)
    schemas._targets.clear()
    schemas._encoders.clear()
    names = [f"t{number}" for number in range(30)]
    for name in names:
        broker.create_topic(name)
    columns = {"__topic": names * 2, "text": ["x"] * 60, "number": [*range(60)]}
    for _ in range(3):
        write(broker, columns)
        assert len(made) == 1
    rows = read(broker, {"topics": ",".join(names)})
    assert sorted(row["number"] for row in rows) == sorted([*range(60)] * 3)
    write(broker, {"text": ["x"], "__topic": ["t0"], "number": [1]}, {"valueFormat": "avro"})
    # In another order columns are others.
    assert len(made) == 2


@pytest.mark.fault(136)
def test_a_task_fails_that_has_fewer_messages_than_rows(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")

    def write_some(self: RowEncoder, *given: Any) -> EncodedRows:
        found = encode(self, *given)
        return EncodedRows(list(found.payloads)[:-1])

    encode = RowEncoder.encode
    with monkeypatch.context() as patch:
        patch.setattr(RowEncoder, "encode", write_some)
        with pytest.raises(IncompleteWrite, match="3 rows were given, and 2 messages made"):
            write(broker, {"value": [b"a", b"b", b"c"]})
    assert values(broker, {"topic": "t"}) == []


@pytest.mark.fault(136)
def test_a_task_fails_that_has_fewer_receipts_than_rows(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    write_all = PartitionedProducer.write

    def write_some(self: PartitionedProducer, messages: OutgoingMessages, locate: Locate) -> None:
        write_all(self, messages.part(0, len(messages) - 1), locate)

    monkeypatch.setattr(PartitionedProducer, "write", write_some)
    with pytest.raises(IncompleteWrite, match="3 rows were given, and 2 messages acknowledged"):
        write(broker, {"value": [b"a", b"b", b"c"]})
    # Without a guarantee it is counted.
    done = write(broker, {"value": [b"a", b"b", b"c"]}, {"deliveryGuarantee": "none"})
    assert (done.messages, done.failed) == (3, 1)


@pytest.mark.fault(77, 86)
def test_a_row_that_is_too_large_is_named(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    payloads = [b"x"] * 15
    payloads[12] = bytes(6 * 1024 * 1024)
    with pytest.raises(MessageTooLarge, match="row 12"):
        write(broker, {"value": payloads}, batch_rows=10)


@pytest.mark.fault(77, 86)
def test_a_row_that_is_too_large_is_named_where_rows_name_their_topics(
    broker: EmbeddedBroker,
) -> None:
    broker.create_topic("t")
    broker.create_topic("u")
    payloads = [bytes(6 * 1024 * 1024) if number == 7 else b"x" for number in range(10)]
    columns: dict[str, list[Any]] = {"value": payloads, "__topic": ["t", "u"] * 5}
    with pytest.raises(MessageTooLarge, match="row 7:"):
        write(broker, columns, batch_rows=4)


@pytest.mark.fault(77)
def test_a_wrong_row_fails_before_its_batch_is_sent(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    with pytest.raises(InvalidRow, match="row 1"):
        write(broker, {"value": [b"a", b"b"], "__topic": ["t", None]})
    assert broker.faults.seen("SEND") == 0


@pytest.mark.fault(89)
def test_a_refusal_of_the_last_message_fails_the_task(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    broker.faults.error("SEND", pb.NotAllowedError, after=4)
    options = {"pulsar.producer.batchingEnabled": "false"}
    with pytest.raises(PulsarError):
        write(broker, {"value": [b"x"] * 5}, options)


@pytest.mark.fault(8, 87)
def test_nothing_is_lost_when_the_connection_goes(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    broker.faults.close("SEND", after=3, reset=True)
    payloads = [b"%d" % number for number in range(5000)]
    done = write(broker, {"value": payloads})
    assert done.acknowledged == 5000
    assert list(dict.fromkeys(values(broker, {"topic": "t"}))) == payloads


def test_a_missing_topic_is_an_error_where_none_is_created(broker: EmbeddedBroker) -> None:
    with pytest.raises(TopicNotFound):
        write(broker, {"value": [b"x"]})


def test_no_rows_need_no_connection(broker: EmbeddedBroker) -> None:
    done = write(broker, {"value": []})
    assert done == PulsarCommitMessage(0, 0, 0, ())
    assert broker.faults.seen("CONNECT") == 0


def test_without_a_guarantee_receipts_are_not_waited_for_and_failures_counted(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    none = {"deliveryGuarantee": "none"}
    with broker.faults.drop("SEND_RECEIPT", times=None):
        started = time.monotonic()
        done = write(broker, {"value": [b"a", b"b"]}, none)
        # The wait for receipts is as long as the send timeout, 30 seconds.
        assert time.monotonic() - started < 15
    assert done.acknowledged == 0
    assert values(broker, {"topic": "t"}) == [b"a", b"b"]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        done = write(broker, {"value": [b"a", bytes(6 * 1024 * 1024), b"b"]}, none, batch_rows=1)
    assert done.failed == 1
    assert "deliveryGuarantee none" in caplog.text
    assert values(broker, {"topic": "t"}) == [b"a", b"b", b"a", b"b"]


@pytest.mark.fault(137)
@pytest.mark.parametrize("partitions", [0, 3])
def test_without_a_guarantee_what_is_refused_after_the_last_row_is_sent_in_smaller_batches(
    broker: EmbeddedBroker, partitions: int
) -> None:
    broker.create_topic("t", partitions)
    payloads = [b"%d" % row for row in range(200)]
    rows: dict[str, list[Any]] = {"value": payloads, "__key": [b"k%d" % row for row in range(200)]}
    with (
        broker.faults.error("SEND", "NotAllowedError", "Exceed maximum message size"),
        broker.faults.delay("SEND_ERROR", 0.2),
    ):
        done = write(broker, rows, {"deliveryGuarantee": "none"})
    assert done.failed == 0
    assert set(values(broker, {"topic": "t"})) == set(payloads)


@pytest.mark.fault(86)
@pytest.mark.parametrize("batching", ["true", "false"])
@pytest.mark.parametrize("columns", [(), ("__key",), ("__sequenceId",), ("__topic",)])
@pytest.mark.parametrize("partitions", [0, 3])
def test_without_a_guarantee_only_rows_that_are_too_large_are_lost(
    broker: EmbeddedBroker,
    caplog: pytest.LogCaptureFixture,
    batching: str,
    columns: tuple[str, ...],
    partitions: int,
) -> None:
    for topic in ("t", "u"):
        broker.create_topic(topic, partitions)
    large, count = (0, 7, 8, 249), 250
    payloads = [bytes(6 << 20) if row in large else b"%d" % row for row in range(count)]
    made: dict[str, list[Any]] = {
        "__key": [str(row % 20) for row in range(count)],
        "__sequenceId": list(range(count)),
        "__topic": ["t", "u"] * (count // 2),
    }
    options = {"deliveryGuarantee": "none", "pulsar.producer.batchingEnabled": batching}
    with caplog.at_level(logging.WARNING):
        done = write(broker, {"value": payloads, **{name: made[name] for name in columns}}, options)
    assert done.failed == len(large)
    assert "row 0:" in caplog.text
    topics = {"topics": "t,u"}
    wait_until(lambda: len(values(broker, topics)) == count - len(large))
    found = values(broker, topics)
    assert sorted(found, key=int) == [b"%d" % row for row in range(count) if row not in large]


@pytest.mark.parametrize(
    "partition,attempt,expected",
    [(0, 0, "me"), (3, 0, "me-3"), (0, 2, "me-0-2"), (3, 2, "me-3-2")],
)
def test_no_two_tasks_have_producers_of_one_name(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    partition: int,
    attempt: int,
    expected: str,
) -> None:
    class Context:
        @staticmethod
        def get() -> Context:
            return Context()

        def partitionId(self) -> int:
            return partition

        def attemptNumber(self) -> int:
            return attempt

    monkeypatch.setattr(task_writer, "TaskContext", Context)
    broker.create_topic("t")
    write(broker, {"value": [b"x"]}, {"pulsar.producer.producerName": "me"})
    (row,) = read(broker, {"topic": "t", "includeMetadata": "true"})
    assert row["__producerName"] == expected


EXACTLY_ONCE = {
    "deliveryGuarantee": "exactly-once",
    "sinkId": "s",
    "sinkStateTopic": "public/default/state",
}


@pytest.mark.fault(155)
@pytest.mark.parametrize(
    "options",
    [
        {"pulsar.producer.batchingEnabled": "false"},
        {"pulsar.producer.compressionType": "ZSTD"},
        {"pulsar.producer.batchingMaxMessages": "2"},
        {"keyEncoding": "bytes"},
        {"topic": "public/default/t"},
        {"topic": "persistent://public/default/t"},
    ],
    ids=str,
)
@pytest.mark.parametrize("keys", [None, [b"k", b"l", b""], [b"k", None, b""], [b"\xff", None, b""]])
def test_a_digest_does_not_depend_on_how_the_rows_are_sent(
    broker: EmbeddedBroker, options: dict[str, str], keys: list[bytes | None] | None
) -> None:
    broker.create_topic("t", 2)
    columns: dict[str, list[Any]] = {"value": [b"a", None, b"c" * 1000]}
    if keys is not None:
        columns |= {"__key": keys, "__eventTime": [5, None, 7]}
    expected = write(broker, columns, EXACTLY_ONCE).digest
    assert expected is not None
    assert expected.rows == 3
    done = write(broker, columns, EXACTLY_ONCE | options, batch_rows=2)
    assert done.digest == expected
    columns["value"][0] = b"b"
    assert write(broker, columns, EXACTLY_ONCE | options).digest != expected


@pytest.mark.fault(155)
def test_tasks_add_up_to_the_digest_of_all_rows(broker: EmbeddedBroker) -> None:
    for topic in ("t", "u"):
        broker.create_topic(topic)
    values_ = [b"%d" % number for number in range(100)]
    topics = ["t", "u"] * 50
    whole = write(broker, {"value": values_, "__topic": topics}, EXACTLY_ONCE)
    tasks = [
        write(broker, {"value": values_[part], "__topic": topics[part]}, EXACTLY_ONCE)
        for part in (slice(30, None), slice(0, 7), slice(7, 30), slice(0, 0))
    ]
    total = task_writer.sum_up(task_writer.successful([*tasks, None]))
    assert (total.digest, total.schemas) == (whole.digest, whole.schemas)
    assert total.schemas == ((full("t"), ""), (full("u"), ""))
    assert tasks[-1].digest == Digest()
    for guarantee in ("at-least-once", "none"):
        done = write(broker, {"value": [b"a"]}, {"deliveryGuarantee": guarantee})
        assert done.digest is None
        assert task_writer.sum_up([done]).digest is None


@pytest.mark.fault(155)
def test_a_commit_message_names_the_schema_that_producers_were_told(
    broker: EmbeddedBroker,
) -> None:
    for partitions in (0, 3):
        topic = f"t{partitions}"
        broker.create_topic(topic, partitions)
        columns: dict[str, list[Any]] = {"text": ["a", "b", "c"]}
        options = {**EXACTLY_ONCE, "topic": topic, "valueFormat": "json"}
        first = write(broker, columns, options)
        ((name, version),) = first.schemas
        assert name == full(topic)
        assert bytes.fromhex(version)
        assert write(broker, columns, options).schemas == first.schemas
        one = {**EXACTLY_ONCE, "topic": f"{topic}-partition-0"} if partitions else options
        assert write(broker, columns, {**options, **one}).schemas == first.schemas


@pytest.mark.fault(98)
@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_a_commit_message_is_plain_data(pickler: Any) -> None:
    message = PulsarCommitMessage(
        1, 2, 3, (("t", "1:2:3:4"),), digest=Digest(1, 2**63), schemas=(("t", "00"),)
    )
    assert pickler.loads(pickler.dumps(message)) == message


@pytest.mark.fault(10)
def test_tasks_of_a_process_write_over_one_connection_and_leave_no_producer(
    broker: EmbeddedBroker,
) -> None:
    broker.create_topic("t", 3)
    written = [b"%d" % number for number in range(400)]

    def task() -> None:
        write(broker, {"value": written})

    for _ in range(3):
        tasks = [threading.Thread(target=task) for _ in range(4)]
        for thread in tasks:
            thread.start()
        finish(*tasks)
        assert broker.clients == 0
    assert sorted(values(broker, {"topic": "t"})) == sorted(written * 12)
    # A plan reads it back over the same connection.
    assert broker.faults.seen("CONNECT") == 1


@pytest.mark.fault(78)
def test_a_task_that_fails_leaves_no_producer_on_the_connection_of_others(
    broker: EmbeddedBroker,
) -> None:
    broker.create_topic("t")
    options = {"pulsar.producer.producerName": "mine", "pulsar.producer.sendTimeoutMs": "500"}
    for _ in range(3):
        with broker.faults.drop("SEND_RECEIPT"), pytest.raises(PulsarError):
            write(broker, {"value": [b"x"]}, options)
        wait_until(lambda: broker.clients == 0)
    # The name is free again.
    write(broker, {"value": [b"y"]}, options)
    assert broker.faults.seen("CONNECT") == 1


@pytest.fixture
def deduplicating() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(deduplication=True) as broker:
        broker.create_topic("t")
        yield broker


FOREIGN: dict[str, list[Any]] = {
    "value": [b"%d" % number for number in range(450)],
    "__sequenceId": [number % 150 for number in range(450)],
}


@pytest.mark.fault(87)
def test_a_task_whose_rows_a_deduplicating_broker_drops_fails(
    deduplicating: EmbeddedBroker,
) -> None:
    # The task fails with the first duplicate's receipt; the second run of ids may be in flight.
    told = r"dropped (150|300) .*__sequenceId.*producerName"
    with pytest.raises(InvalidRow, match=told) as caught:
        write(deduplicating, FOREIGN)
    assert caught.value.topic == full("t")


@pytest.mark.fault(87)
@pytest.mark.parametrize(
    "ids",
    [[5, 3, 4], [9, *range(9)], [None, 0, 1], [*range(100), *range(50, 150)]],
    ids=["falling", "older behind newer", "without an id first", "overlapping"],
)
@pytest.mark.parametrize("batch_rows", [1, 1000])
def test_an_error_names_ids_that_do_not_grow_whatever_the_broker_made_of_them(
    deduplicating: EmbeddedBroker, ids: list[int | None], batch_rows: int
) -> None:
    columns: dict[str, list[Any]] = {"value": [b"x"] * len(ids), "__sequenceId": ids}
    with pytest.raises(InvalidRow, match="__sequenceId are not higher"):
        write(deduplicating, columns, batch_rows=batch_rows)


@pytest.mark.fault(87)
def test_rows_that_are_meant_to_be_deduplicated_are_counted(
    deduplicating: EmbeddedBroker,
) -> None:
    options = {"pulsar.producer.producerName": "again"}
    columns: dict[str, list[Any]] = {
        "value": FOREIGN["value"][:150],
        "__sequenceId": list(range(150)),
    }
    for duplicates in (0, 150):
        done = write(deduplicating, columns, options)
        assert (done.messages, done.acknowledged, done.duplicates) == (150, 150, duplicates)
    assert values(deduplicating, {"topic": "t"}) == columns["value"]


def test_null_sequence_ids_are_those_of_the_producer(deduplicating: EmbeddedBroker) -> None:
    columns: dict[str, list[Any]] = {"value": [b"a", b"b"], "__sequenceId": [None, None]}
    assert write(deduplicating, columns).duplicates == 0
    assert values(deduplicating, {"topic": "t"}) == [b"a", b"b"]


@pytest.mark.fault(87)
def test_duplicates_are_logged_where_receipts_are_not_waited_for(
    deduplicating: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    # Each row is sent alone, and the task continues while receipts arrive.
    done = write(deduplicating, FOREIGN, {"deliveryGuarantee": "none"}, batch_rows=1)
    assert done.messages == 450
    assert done.duplicates <= 300
    if done.duplicates:
        assert "dropped" in caplog.text


# --- tasks that are run again -------------------------------------------------------------------

NAMED = {"pulsar.producer.producerName": "job"}


def rows(ids: Sequence[int]) -> dict[str, list[Any]]:
    return {"value": [b"%d" % own for own in ids], "__sequenceId": list(ids)}


@pytest.mark.fault(13, 78)
@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("batching", ["true", "false"])
def test_a_task_that_is_run_again_writes_what_is_missing(partitions: int, batching: str) -> None:
    ids = range(10, 2510)
    expected = [b"%d" % own for own in ids]
    options = {**NAMED, "pulsar.producer.batchingEnabled": batching}
    with EmbeddedBroker(deduplication=True) as broker:
        broker.create_topic("t", partitions)
        small = {**options, "pulsar.producer.batchingMaxMessages": "70"}
        with pytest.raises(RuntimeError, match="killed"):
            write(broker, rows(ids), small, killed_at=1700)
        written = len(values(broker, {"topic": "t"}))
        assert 0 < written < 2500
        done = write(broker, rows(ids), options, batch_rows=300)
        assert (done.messages, done.acknowledged) == (2500, 2500)
        assert done.duplicates >= written
        assert sorted(values(broker, {"topic": "t"})) == sorted(expected)
        # The next attempt leaves nothing missing.
        assert write(broker, rows(ids), options).duplicates == 2500
        assert sorted(values(broker, {"topic": "t"})) == sorted(expected)


@pytest.mark.parametrize(
    "partitions, changed",
    [
        (3, {}),
        (2, {"pulsar.producer.hashingScheme": "Murmur3_32Hash"}),
        (2, {"pulsar.producer.messageRoutingMode": "SinglePartition"}),
    ],
    ids=["more partitions", "other hashes", "one partition"],
)
def test_rows_that_belong_to_other_partitions_meanwhile_are_doubled_and_never_dropped(
    partitions: int, changed: Mapping[str, str]
) -> None:
    ids = range(6000)
    columns = rows(ids)
    columns["__key"] = [None if own % 3 else b"k%d" % (own % 41) for own in ids]
    with EmbeddedBroker(deduplication=True) as broker:
        broker.create_topic("t", 2)
        # One partition gets its rows, and the other one gets none.
        with (
            broker.faults.drop("SEND", topic="t-partition-1", times=None),
            pytest.raises(OperationTimeout),
        ):
            write(broker, columns, {**NAMED, "pulsar.producer.sendTimeoutMs": "500"})
        if partitions > 2:
            broker.add_partitions("t", partitions)
        done = write(broker, columns, {**NAMED, **changed})
        assert (done.acknowledged, done.duplicates) == (6000, 0)
        assert set(values(broker, {"topic": "t"})) == {b"%d" % own for own in ids}


def test_rows_that_are_dealt_to_other_tasks_are_doubled_and_never_dropped(
    deduplicating: EmbeddedBroker,
) -> None:
    # One of two tasks had every second row, and was killed; now one task has all rows.
    with pytest.raises(RuntimeError):
        write(deduplicating, rows(range(0, 4000, 2)), NAMED, killed_at=1500)
    before = values(deduplicating, {"topic": "t"})
    assert before
    write(deduplicating, rows(range(4000)), NAMED)
    found = values(deduplicating, {"topic": "t"})
    assert found == [*before, *(b"%d" % own for own in range(4000))]


@pytest.mark.parametrize(
    "ids, told",
    [
        ([1, 2, 2], "row 2: __sequenceId is 2, behind one that has 2"),
        ([3, 1], "row 1: __sequenceId is 1, behind one that has 3"),
        ([0, None], "row 1: __sequenceId is null"),
    ],
)
def test_ids_to_deduplicate_by_have_to_grow(
    deduplicating: EmbeddedBroker, ids: list[int | None], told: str
) -> None:
    columns: dict[str, list[Any]] = {"value": [b""] * len(ids), "__sequenceId": list(ids)}
    with pytest.raises(InvalidRow, match=told) as caught:
        write(deduplicating, columns, NAMED)
    assert "sortWithinPartitions" in str(caught.value)
    assert values(deduplicating, {"topic": "t"}) == []


@pytest.mark.fault(83)
def test_a_topic_that_does_not_deduplicate_is_told_of(
    broker: EmbeddedBroker, deduplicating: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    done = write(broker, rows(range(10)), NAMED)
    assert done.forgetful == (full("t"),)
    task_writer.warn_of_duplicates(task_writer.sum_up([done, done]))
    assert "does not deduplicate" in caplog.text
    assert write(deduplicating, rows(range(10)), NAMED).forgetful == ()
    # With the producer's own ids, deduplication was not requested.
    assert write(broker, {"value": [b"x"]}, NAMED).forgetful == ()


def test_every_attempt_of_a_task_has_the_name_that_goes_with_its_rows(
    deduplicating: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = [3, 0]

    class Context:
        @staticmethod
        def get() -> Context:
            return Context()

        def partitionId(self) -> int:
            return place[0]

        def attemptNumber(self) -> int:
            return place[1]

        def getLocalProperty(self, key: str) -> str | None:
            return None

    monkeypatch.setattr(task_writer, "TaskContext", Context)
    for attempt in range(2):
        place[1] = attempt
        write(deduplicating, rows(range(1500)), NAMED, batch_rows=400 + 300 * attempt)
    write(deduplicating, rows(range(1, 1500)), NAMED)
    place[0] = 4
    write(deduplicating, rows(range(1500)), NAMED)
    found = read(deduplicating, {"topic": "t", "includeMetadata": "true"})
    counts = Counter(row["__producerName"] for row in found)
    assert sorted(counts.values()) == [1499, 1500, 1500]
    assert sorted(name.rpartition("-")[0] for name in counts) == ["job-3", "job-3", "job-4"]


@pytest.mark.fault(135)
@pytest.mark.parametrize("in_stream", [True, False])
def test_each_micro_batch_is_deduplicated_by_itself(
    deduplicating: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, in_stream: bool
) -> None:
    told = {"sql.streaming.queryId": "a", "streaming.sql.batchId": "0"}

    class Context:
        @staticmethod
        def get() -> Context:
            return Context()

        def partitionId(self) -> int:
            return 0

        def getLocalProperty(self, key: str) -> str | None:
            return told.get(key)

    monkeypatch.setattr(task_writer, "TaskContext", Context)
    # The second run of each is a retry, perhaps after a restart of the query. In foreachBatch the
    # writer is that of a batch.
    for query, batch in (("a", "0"), ("a", "1"), ("a", "1"), ("b", "1"), ("a", "0")):
        told.update({"sql.streaming.queryId": query, "streaming.sql.batchId": batch})
        write(deduplicating, rows(range(5)), NAMED, in_stream=in_stream)
    assert values(deduplicating, {"topic": "t"}) == [b"%d" % own for own in range(5)] * 3


@pytest.mark.fault(135)
def test_where_nobody_names_the_micro_batch_its_rows_tell_it_from_others(
    deduplicating: EmbeddedBroker,
) -> None:
    for first in (0, 5, 5, 10):
        columns: dict[str, list[Any]] = {
            "value": [b"%d" % (first + own) for own in range(5)],
            "__sequenceId": list(range(5)),
        }
        write(deduplicating, columns, NAMED, in_stream=True)
    assert values(deduplicating, {"topic": "t"}) == [b"%d" % own for own in range(15)]
