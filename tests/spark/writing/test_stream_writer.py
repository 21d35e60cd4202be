"""The writer of a stream's micro-batches."""

from __future__ import annotations

import datetime
import inspect
import logging
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    LongType,
    MapType,
    NullType,
    Row,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from pyspark.sql.worker import write_into_data_source

from pulsar_spark.errors import (
    IncompleteWrite,
    InvalidRow,
    OptionError,
    PulsarError,
    SchemaMismatch,
    UnsupportedFeature,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.spark.options.table import Scope
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.writing import writers as module
from pulsar_spark.spark.writing.task_writer import PulsarCommitMessage
from pulsar_spark.spark.writing.writers import (
    ArrowStreamWriter,
    PulsarStreamWriter,
    RowStreamWriter,
    stream_writer,
)
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import read, set_schema, values

NOWHERE = "pulsar://127.0.0.1:1"
VALUE = StructType().add("value", BinaryType())
TEXT = StructType().add("value", StringType())
WORKER = "pyspark.sql.worker.python_streaming_sink_runner"


def writer(
    kind: type[PulsarStreamWriter], url: str, schema: StructType = VALUE, **options: str
) -> Any:
    given = {"service.url": url, "topic": "t", **options}
    return kind(parse_write_options(given, Scope.STREAM_WRITE), schema)


def source(url: str, **options: str) -> PulsarDataSource:
    return PulsarDataSource({"service.url": url, "topic": "t", **options})


def rows_of(*payloads: bytes) -> list[Row]:
    # Spark passes binary values as bytearray.
    return [Row(value=bytearray(payload)) for payload in payloads]


# --- what Spark gets --------------------------------------------------------------------------


def test_spark_gets_the_writer_that_it_can_drive(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = parse_write_options({"service.url": NOWHERE, "topic": "t"}, Scope.STREAM_WRITE)
    monkeypatch.setattr(module, "streams_are_arrow", lambda: True)
    assert isinstance(stream_writer(parsed, VALUE), ArrowStreamWriter)
    monkeypatch.setattr(module, "streams_are_arrow", lambda: False)
    found = stream_writer(parsed, VALUE)
    assert type(found) is RowStreamWriter
    assert isinstance(found, DataSourceStreamWriter)


@pytest.mark.fault(98)
@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
@pytest.mark.parametrize("kind", [RowStreamWriter, ArrowStreamWriter])
def test_a_writer_that_was_pickled_writes(
    broker: EmbeddedBroker, pickler: Any, kind: type[PulsarStreamWriter]
) -> None:
    broker.create_topic("t")
    copy = pickler.loads(pickler.dumps(writer(kind, broker.service_url)))
    rows: list[Any] = rows_of(b"a", b"b")
    if kind is ArrowStreamWriter:
        rows = [pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"])})]
    done = pickler.loads(pickler.dumps(copy.write(iter(rows))))
    assert isinstance(done, WriterCommitMessage)
    assert done.acknowledged == 2  # type: ignore[attr-defined]
    assert values(broker, {"topic": "t"}) == [b"a", b"b"]


# --- checks -----------------------------------------------------------------------------------


@pytest.mark.fault(99)
def test_options_and_columns_are_checked_without_asking_any_broker() -> None:
    text = StructType().add("__key", StringType())
    with pytest.raises(InvalidRow, match="no column is left"):
        source(NOWHERE).streamWriter(text, False)
    with pytest.raises(OptionError, match="needs sinkId"):
        source(NOWHERE, deliveryGuarantee="exactly-once").streamWriter(VALUE, False)
    with pytest.raises(OptionError, match="no topic"):
        PulsarDataSource({"service.url": NOWHERE}).streamWriter(VALUE, False)
    with pytest.raises(OptionError, match="Did you mean"):
        source(NOWHERE, deliveryGuarantees="none").streamWriter(VALUE, False)


@pytest.mark.fault(64)
@pytest.mark.parametrize("overwrite", [False, True])
def test_the_topics_schema_is_held_against_the_values_before_a_micro_batch(
    broker: EmbeddedBroker, overwrite: bool
) -> None:
    broker.create_topic("t")
    source(broker.service_url).streamWriter(TEXT, overwrite)
    set_schema(broker, "t", SchemaInfo(pb.Schema.Int32, "INT32"))
    with pytest.raises(SchemaMismatch, match="INT32"):
        source(broker.service_url).streamWriter(TEXT, overwrite)
    source(broker.service_url, valueFormat="raw").streamWriter(VALUE, overwrite)
    assert broker.faults.seen("PRODUCER") == 0


def test_topics_of_rows_are_not_asked_about_beforehand() -> None:
    schema = StructType().add("value", BinaryType()).add("__topic", StringType())
    PulsarDataSource({"service.url": NOWHERE}).streamWriter(schema, False)


def test_a_micro_batch_is_committed_without_asking_a_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pulsar_spark.spark.datasource.ends_micro_batch", lambda: True)
    source(NOWHERE).streamWriter(VALUE, False).commit([DONE], 1)


# --- rows -------------------------------------------------------------------------------------


def test_rows_become_the_messages_that_record_batches_become(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    schema = (
        StructType()
        .add("value", BinaryType())
        .add("__key", StringType())
        .add("__eventTime", TimestampType())
        .add("__messageProperties", MapType(StringType(), StringType()))
        .add("__sequenceId", LongType())
        .add("__publishTime", TimestampType())
    )
    moment = datetime.datetime(2026, 10, 24, 12, 30, tzinfo=datetime.timezone.utc)
    # Spark passes times in the process's zone, without a zone.
    local = moment.astimezone().replace(tzinfo=None)
    names = schema.fieldNames()
    rows = [
        Row(*names)(bytearray(b"a"), "k", local, {"x": "1"}, 7, local),
        Row(*names)(None, None, None, None, 8, None),
    ]
    writer(RowStreamWriter, broker.service_url, schema).write(iter(rows))
    found = read(broker, {"topic": "t", "includeMetadata": "true"})
    assert [row["value"] for row in found] == [b"a", None]
    assert [row["__key"] for row in found] == [b"k", None]
    assert [row["__eventTime"] for row in found] == [moment, None]
    assert [dict(row["__messageProperties"]) for row in found] == [{"x": "1"}, {}]
    assert [row["__sequenceId"] for row in found] == [7, 8]


def test_more_rows_than_are_held_at_once_are_written_in_order(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    payloads = [b"%d" % number for number in range(2500)]
    done = writer(RowStreamWriter, broker.service_url).write(iter(rows_of(*payloads)))
    assert done.acknowledged == 2500
    assert values(broker, {"topic": "t"}) == payloads


def test_a_task_without_rows_needs_no_connection() -> None:
    for kind in (RowStreamWriter, ArrowStreamWriter):
        assert writer(kind, NOWHERE).write(iter([])) == PulsarCommitMessage(0, 0, 0, ())


@pytest.mark.fault(77)
def test_a_wrong_row_is_named_and_fails_the_task(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    schema = StructType().add("value", BinaryType()).add("__sequenceId", LongType())
    rows = [Row("value", "__sequenceId")(b"", number) for number in range(2000)]
    rows.append(Row("value", "__sequenceId")(b"", -1))
    with pytest.raises(InvalidRow, match="row 2000: __sequenceId is negative"):
        writer(RowStreamWriter, broker.service_url, schema).write(iter(rows))
    # The first batches of rows may have been sent, the last one was not.
    assert len(values(broker, {"topic": "t"})) <= 2000


# --- delivery ---------------------------------------------------------------------------------


@pytest.mark.fault(89)
def test_a_task_fails_when_its_last_message_is_refused(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b", b"c"])})
    options: dict[str, Any] = {"pulsar.producer.batchingEnabled": "false"}
    with (
        broker.faults.error("SEND", "NotAllowedError", after=2, times=None),
        pytest.raises(PulsarError, match="refused on demand"),
    ):
        writer(ArrowStreamWriter, broker.service_url, **options).write(iter([batch]))


@pytest.mark.fault(78)
def test_a_task_does_not_end_while_a_receipt_is_missing(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"a"])})
    options: dict[str, Any] = {"pulsar.producer.sendTimeoutMs": "300"}
    with (
        broker.faults.drop("SEND_RECEIPT", times=None),
        pytest.raises(PulsarError, match=r"0\.3 s"),
    ):
        writer(ArrowStreamWriter, broker.service_url, **options).write(iter([batch]))


def test_without_a_guarantee_all_is_sent_though_receipts_are_not_waited_for(
    broker: EmbeddedBroker,
) -> None:
    broker.create_topic("t")
    payloads = [b"%d" % number * 100 for number in range(30_000)]
    batch = pa.RecordBatch.from_pydict({"value": pa.array(payloads)})
    with broker.faults.drop("SEND_RECEIPT", times=None):
        done = writer(ArrowStreamWriter, broker.service_url, deliveryGuarantee="none").write(
            iter([batch])
        )
    assert (done.messages, done.acknowledged, done.failed) == (30_000, 0, 0)
    assert values(broker, {"topic": "t"}) == payloads


# --- commit and abort -------------------------------------------------------------------------

DONE = PulsarCommitMessage(messages=5, acknowledged=5, failed=0, last_ids=(("t", "1:2"),))
WEAK = PulsarCommitMessage(messages=5, acknowledged=3, failed=1, last_ids=())


def test_commit_and_abort_say_what_was_written(caplog: pytest.LogCaptureFixture) -> None:
    found = writer(RowStreamWriter, NOWHERE)
    with caplog.at_level(logging.INFO):
        found.commit([DONE, DONE], 7)
    assert "micro-batch 7 is committed: 10 messages written by 2 tasks" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        found.abort([DONE, None, DONE], 8)
    assert "micro-batch 8 failed; 10 messages of 2 successful tasks" in caplog.text
    caplog.clear()
    found.abort([], 9)
    assert "micro-batch 9 failed; 0 messages of 0 successful tasks" in caplog.text


@pytest.mark.parametrize("guarantee", ["none", "at-least-once", "exactly-once"])
def test_rows_that_a_continuous_trigger_keeps_from_the_sink_are_not_committed(
    guarantee: str,
) -> None:
    options = {"deliveryGuarantee": guarantee}
    if guarantee == "exactly-once":
        options["sinkId"] = "s"
    found = writer(ArrowStreamWriter, NOWHERE, VALUE, **options)
    with pytest.raises(UnsupportedFeature, match="continuous trigger"):
        found.commit([None], 7)


def test_what_was_lost_without_a_guarantee_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    found = writer(RowStreamWriter, NOWHERE, deliveryGuarantee="none")
    with caplog.at_level(logging.WARNING):
        found.commit([DONE], 1)
        assert caplog.text == ""
        found.commit([WEAK, WEAK], 2)
    assert "10 messages of 2 tasks" in caplog.text
    assert "6 were acknowledged" in caplog.text
    assert "2 could not be written" in caplog.text


@pytest.mark.fault(136)
@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_micro_batch_is_not_committed_whose_rows_are_not_all_acknowledged(guarantee: str) -> None:
    options = {"deliveryGuarantee": guarantee}
    if guarantee == "exactly-once":
        options["sinkId"] = "s"
    found = writer(ArrowStreamWriter, NOWHERE, VALUE, **options)
    with pytest.raises(IncompleteWrite, match="3 rows were given, and 0 messages"):
        found.commit([PulsarCommitMessage(3, 0, 0, ())], 7)


@pytest.mark.fault(136)
@pytest.mark.parametrize("value_format", ["auto", "json"])
@pytest.mark.parametrize("kind", [RowStreamWriter, ArrowStreamWriter])
def test_empty_structs_and_lists_of_void_are_written(
    broker: EmbeddedBroker, kind: type[PulsarStreamWriter], value_format: str
) -> None:
    broker.create_topic("t")
    broker.create_topic("u")

    def write(topic: str, schema: StructType, array: pa.Array, rows: list[Any]) -> None:
        given: list[Any] = [Row(*schema.names)(row) for row in rows]
        if kind is ArrowStreamWriter:
            given = [pa.record_batch([array], schema.names)]
        options = {"topic": topic, "valueFormat": value_format}
        found = writer(kind, broker.service_url, schema, **options)
        found.commit([found.write(iter(given))], 0)

    nothing = pa.array([{}, {}, {}], pa.struct([]))
    write("t", StructType().add("nothing", StructType()), nothing, [Row()] * 3)
    assert len(read(broker, {"topic": "t"})) == 3
    texts = StructType().add("list", ArrayType(StringType()))
    write("u", texts, pa.array([["a"]]), [["a"]])
    void = pa.array([[], None, [None]], pa.list_(pa.null()))
    write("u", StructType().add("list", ArrayType(NullType(), False)), void, void.to_pylist())
    assert [row["list"] for row in read(broker, {"topic": "u"})] == [["a"], [], None, [None]]


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is in a zone whose clocks are set back on 1 November 2026, from 2 to 1."""
    if not hasattr(time, "tzset"):
        pytest.skip("this system cannot change a process's time zone")
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


TIMES: dict[str, Any] = {
    "ts": (TimestampType(), lambda moment: moment),
    "__eventTime": (TimestampType(), lambda moment: moment),
    "__deliverAt": (TimestampType(), lambda moment: moment),
    "list": (ArrayType(TimestampType()), lambda moment: [None, moment]),
    "pairs": (MapType(StringType(), TimestampType()), lambda moment: {"a": moment}),
    "struct": (StructType().add("at", TimestampType()), Row("at")),
}


@pytest.mark.fault(139)
@pytest.mark.usefixtures("new_york")
@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize(
    "moment, told",
    [
        (datetime.datetime(2026, 11, 1, 1, 30), "one of two, because clocks were set back"),
        (datetime.datetime(9999, 12, 31, 23, 59), "cannot be converted to UTC"),
    ],
)
def test_a_time_that_rows_cannot_express_is_named(
    broker: EmbeddedBroker, name: str, moment: datetime.datetime, told: str
) -> None:
    broker.create_topic("t")
    kind, make = TIMES[name]
    schema = StructType().add("id", LongType()).add(name, kind)
    fine = datetime.datetime(2026, 11, 1, 3, 30)
    rows = [
        Row("id", name)(0, make(fine)),
        Row("id", name)(1, None),
        Row("id", name)(2, make(moment)),
    ]
    with pytest.raises(InvalidRow, match=rf"row 2: the time .* in {name}.*{told}"):
        writer(RowStreamWriter, broker.service_url, schema).write(iter(rows))
    assert broker.faults.seen("SEND") == 0


@pytest.mark.fault(139)
@pytest.mark.usefixtures("new_york")
def test_times_that_rows_can_express_are_written(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    schema = StructType().add("ts", TimestampType()).add("day", DateType())
    schema.add("plain", TimestampNTZType()).add("__publishTime", TimestampType())
    first, last = datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 31, 23, 59, 59)
    hour = datetime.datetime(2026, 11, 1, 1, 30)
    rows = [
        # The second of the two hours, if it is told; without zones, and in columns that are not
        # written, there is only one.
        Row(*schema.names)(hour.replace(fold=1), last.date(), last, hour),
        Row(*schema.names)(datetime.datetime(2026, 3, 8, 3, 0), first.date(), first, None),
        Row(*schema.names)(hour.replace(tzinfo=datetime.timezone.utc), hour.date(), hour, None),
    ]
    writer(RowStreamWriter, broker.service_url, schema).write(iter(rows))
    found = read(broker, {"topic": "t"})
    utc = datetime.timezone.utc
    assert [row["ts"] for row in found] == [
        datetime.datetime(2026, 11, 1, 6, 30, tzinfo=utc),
        datetime.datetime(2026, 3, 8, 7, 0, tzinfo=utc),
        datetime.datetime(2026, 11, 1, 1, 30, tzinfo=utc),
    ]
    assert [row["plain"] for row in found] == [last, first, hour]
    assert [row["day"] for row in found] == [last.date(), first.date(), hour.date()]


@pytest.mark.fault(139)
@pytest.mark.usefixtures("new_york")
def test_a_row_that_spark_cannot_make_is_told_with_its_columns(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    moments = [datetime.datetime(2020, 1, 1), datetime.datetime(1, 1, 1)]
    utc = datetime.timezone.utc
    rows = (Row("ts")(moment.replace(tzinfo=utc).astimezone()) for moment in moments)
    schema = StructType().add("ts", TimestampType())
    with pytest.raises(InvalidRow, match=r"row 1 or a later one .* a time in ts"):
        writer(RowStreamWriter, broker.service_url, schema).write(rows)


@pytest.mark.fault(139)
@pytest.mark.usefixtures("new_york")
def test_the_record_batches_that_spark_makes_rows_of_are_written(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    schema = StructType().add("ts", TimestampType())
    utc = datetime.timezone.utc
    moments = [
        datetime.datetime(1, 1, 1, tzinfo=utc),
        datetime.datetime(2026, 11, 1, 5, 30, tzinfo=utc),
        datetime.datetime(2026, 11, 1, 6, 30, tzinfo=utc),
    ]

    def spark(iterator: Iterator[pa.RecordBatch]) -> Any:
        def batch_to_rows() -> Iterator[Row]:
            for batch in iterator:
                yield from (
                    Row("ts")(value.astimezone().replace(tzinfo=None))
                    for value in batch.column(0).to_pylist()
                )

        return writer(RowStreamWriter, broker.service_url, schema).write(batch_to_rows())

    batch = pa.record_batch({"ts": pa.array(moments, pa.timestamp("us", "UTC"))})
    assert spark(iter([batch])).acknowledged == 3
    assert [row["value"] for row in read(broker, {"topic": "t"})] == moments
    # As in the module of Spark that makes the rows.
    source = inspect.getsource(write_into_data_source)
    assert "def batch_to_rows(" in source
    assert "for batch in iterator:" in source
