"""The reader that Spark talks to."""

from __future__ import annotations

import json
import logging
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pulsar_spark.errors import InvalidOffset, OptionError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.spark.options.stream import parse_stream_options
from pulsar_spark.spark.streaming.reader import PulsarStreamReader, RefusedStreamReader
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.streams import backlogs
from tests.spark.topics import full, rows_of, set_schema, store, store_many
from tests.support.waiting import wait_until

VALUE = StructType([StructField("value", BinaryType())])
Start = Callable[..., StreamingQuery]


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


class Sink:
    """A foreachBatch sink that keeps the values of each batch by its id."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}
        self.refuses = False

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if self.refuses:
            raise ValueError("not yet")
        self.batches[batch_id] = [_plain(row["value"]) for row in frame.select("value").collect()]

    @property
    def values(self) -> list[Any]:
        return [value for _, batch in sorted(self.batches.items()) for value in batch]

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for _, batch in sorted(self.batches.items())]


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def start(
    spark: SparkSession, broker: EmbeddedBroker, sink: Sink, tmp_path: Path
) -> Iterator[Start]:
    """Start a query on topic t from the earliest message, stopped at the end."""
    running: list[StreamingQuery] = []

    def start(
        trigger: dict[str, Any] | None = None,
        schema: str | None = None,
        checkpoint: str = "checkpoint",
        **options: str,
    ) -> StreamingQuery:
        given = {"startingOffsets": "earliest", **options}
        if "topicsPattern" not in given:
            given["topic"] = "t"
        stream = spark.readStream.format("pulsar").option("service.url", broker.service_url)
        stream = stream if schema is None else stream.schema(schema)
        writer = stream.options(**given).load().writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        running.append(writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start())
        return running[-1]

    yield start
    for query in running:
        query.stop()


def plain_reader(broker: EmbeddedBroker, **options: str) -> PulsarStreamReader:
    given = {"service.url": broker.service_url, "topic": "t", "startingOffsets": "earliest"}
    return PulsarStreamReader(parse_stream_options({**given, **options}), VALUE)


def test_nothing_is_asked_before_an_offset_is() -> None:
    options = parse_stream_options({"service.url": "pulsar://127.0.0.1:1", "topic": "t"})
    reader = PulsarStreamReader(options, VALUE)
    again = pickle.loads(cloudpickle.dumps(reader))  # type: ignore[no-untyped-call]
    assert again._options == options
    reader.stop()
    again.stop()


def test_before_spark_4_2_it_goes_on_from_what_it_gave_last(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 2)
    first = store_many(broker, "t-partition-0", 20)
    reader = plain_reader(broker)
    end = reader.latestOffset()
    begin = reader.initialOffset()
    assert begin["positions"] != end["positions"]
    batches = [batch for part in reader.partitions(begin, end) for batch in reader.read(part)]
    assert [row["value"] for row in rows_of(batches)] == first
    assert reader.latestOffset() == end
    reader.commit(end)
    wait_until(lambda: backlogs(broker, "t-partition-0") == [0])
    reader.stop()
    # A restarted query passes its position as an empty range.
    new = store_many(broker, "t-partition-1", 10)
    reader = plain_reader(broker)
    assert reader.partitions(end, end) == []
    assert reader.initialOffset()["positions"] == begin["positions"]
    acks = broker.faults.seen("ACK")
    later = reader.latestOffset()
    # That may be before its last batch is repeated.
    assert broker.faults.seen("ACK") == acks
    batches = [batch for part in reader.partitions(end, later) for batch in reader.read(part)]
    assert [row["value"] for row in rows_of(batches)] == new
    assert later["subscription"] == end["subscription"]
    reader.stop()
    assert len(backlogs(broker, "t-partition-0")) == 1


def test_before_spark_4_2_caps_bound_the_only_batch_of_available_now_and_a_warning_says_so(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 30, batch_size=1)
    reader = plain_reader(broker)
    assert reader.latestOffset()["positions"] == {full("t"): "1:30:0"}
    reader.stop()
    assert "one batch" not in caplog.text
    reader = plain_reader(broker, maxMessagesPerTrigger="10")
    assert reader.latestOffset()["positions"] == {full("t"): "1:10:0"}
    assert reader.latestOffset()["positions"] == {full("t"): "1:20:0"}
    reader.stop()
    assert caplog.text.count("Trigger.AvailableNow and Trigger.Once as one batch") == 1


@pytest.mark.fault(72)
def test_a_checkpoint_that_is_not_ours_is_refused(broker: EmbeddedBroker) -> None:
    with pytest.raises(InvalidOffset, match="another data source"):
        plain_reader(broker).partitions({"t": {"0": 1}}, {"t": {"0": 2}})


def test_a_schema_that_does_not_fit_the_topics_is_refused(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 10)
    options = parse_stream_options(
        {"service.url": broker.service_url, "topic": "t", "startingOffsets": "earliest"}
    )
    reader = PulsarStreamReader(options, StructType([StructField("value", StringType())]))
    begin, end = reader.initialOffset(), reader.latestOffset()
    with pytest.raises(OptionError, match="'value' is string, but this read returns binary"):
        reader.partitions(begin, end)
    reader.stop()


@pytest.mark.parametrize(
    "ask",
    [
        lambda reader: reader.initialOffset(),
        lambda reader: reader.latestOffset(),
        lambda reader: reader.partitions({}, {}),
        lambda reader: reader.read(InputPartition(0)),
    ],
    ids=["initialOffset", "latestOffset", "partitions", "read"],
)
def test_whatever_a_reader_that_cannot_be_is_asked_is_answered_with_the_reason(
    ask: Callable[[RefusedStreamReader], object],
) -> None:
    with pytest.raises(OptionError, match="topic is not set"):
        ask(RefusedStreamReader(OptionError("topic is not set")))


def test_a_reader_that_cannot_be_can_be_stopped() -> None:
    RefusedStreamReader(OptionError("topic is not set")).stop()


# --- in Spark -----------------------------------------------------------------------------------


@pytest.mark.fault(71)
def test_a_query_reads_on_across_restarts(
    broker: EmbeddedBroker, start: Start, sink: Sink, tmp_path: Path
) -> None:
    broker.create_topic("t", 2)
    expected = store_many(broker, "t-partition-0", 100) + store_many(broker, "t-partition-1", 50)
    query = start()
    query.processAllAvailable()
    assert sorted(sink.values) == sorted(expected)
    expected += store_many(broker, "t-partition-1", 20)
    query.processAllAvailable()
    # The idle query brings the backlog to zero.
    for partition in range(2):
        wait_until(lambda p=partition: backlogs(broker, f"t-partition-{p}") == [0])  # type: ignore[misc]
    query.stop()
    wait_until(lambda: broker.clients == 0)
    expected += store_many(broker, "t-partition-0", 30)
    query = start()
    query.processAllAvailable()
    assert sorted(sink.values) == sorted(expected)
    assert len(backlogs(broker, "t-partition-0")) == 1
    progress = query.lastProgress
    assert progress is not None
    assert full("t-partition-1") in str(progress["sources"][0]["endOffset"])
    offsets = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    assert json.loads(offsets)["version"] == 1


@pytest.mark.fault(71)
@pytest.mark.parametrize("named", [False, True], ids=["made up", "named"])
def test_a_first_batch_that_failed_comes_again_with_the_same_range(
    broker: EmbeddedBroker, start: Start, sink: Sink, named: bool
) -> None:
    broker.create_topic("t", 2)
    store_many(broker, "t-partition-0", 50)
    options = {"startingOffsets": "latest", **({"subscription": "s"} if named else {})}
    sink.refuses = True
    with pytest.raises(StreamingQueryException, match="not yet"):
        start(**options).processAllAvailable()
    wait_until(lambda: broker.clients == 0)
    sink.refuses = False
    new = store_many(broker, "t-partition-1", 30)
    query = start(**options)
    query.processAllAvailable()
    assert (sink.sizes, sink.values) == ([0, 30], new)
    for number in range(2):
        assert len(backlogs(broker, f"t-partition-{number}")) == 1
        wait_until(lambda n=number: backlogs(broker, f"t-partition-{n}") == [0])  # type: ignore[misc]


def test_an_idle_query_runs_no_empty_batches(
    broker: EmbeddedBroker, start: Start, sink: Sink
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 10)
    query = start()
    query.processAllAvailable()
    asked = broker.faults.seen("GET_LAST_MESSAGE_ID")
    wait_until(lambda: broker.faults.seen("GET_LAST_MESSAGE_ID") > asked + 20)
    assert sink.sizes == [10]


@pytest.mark.fault(74)
def test_available_now_ends_at_what_was_there_while_data_keeps_coming(
    broker: EmbeddedBroker, start: Start, sink: Sink
) -> None:
    broker.create_topic("t")
    expected = store_many(broker, "t", 100, batch_size=1)
    query = start({"availableNow": True}, maxMessagesPerTrigger="60")

    def ends_while_data_comes() -> bool:
        store_many(broker, "t", 10, batch_size=1)
        return not query.isActive

    wait_until(ends_while_data_comes, seconds=240)
    assert query.exception() is None
    assert sink.values[:100] == expected
    assert max(sink.sizes) == 60
    assert len(sink.values) < broker.stats("t").messages_in


def test_the_backlog_is_zero_when_available_now_has_ended(
    broker: EmbeddedBroker, start: Start, sink: Sink
) -> None:
    broker.create_topic("t")
    for _ in range(2):
        store_many(broker, "t", 10)
        assert start({"availableNow": True}).awaitTermination(240)
        wait_until(lambda: backlogs(broker, "t") == [0])
    assert len(sink.values) == 20


def test_once_reads_everything_in_one_batch(
    broker: EmbeddedBroker, start: Start, sink: Sink
) -> None:
    broker.create_topic("t")
    expected = store_many(broker, "t", 100, batch_size=1)
    assert start({"once": True}, maxMessagesPerTrigger="60").awaitTermination(240)
    assert sink.batches == {0: expected}


def test_a_query_ends_with_a_clear_error(
    broker: EmbeddedBroker, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 10)
    caplog.set_level(logging.CRITICAL)
    query = start()
    query.processAllAvailable()
    broker.delete_topic("t")
    with pytest.raises(StreamingQueryException, match="the topic partition is gone"):
        query.awaitTermination(240)


def test_a_query_that_cannot_be_ends_with_nothing_but_the_reason(
    broker: EmbeddedBroker, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    caplog.set_level(logging.CRITICAL)
    with pytest.raises(StreamingQueryException) as caught:
        start(endingOffsets="latest").awaitTermination(240)
    told = str(caught.value)
    assert "endingOffsets" in told
    # Spark's own error when it stops a reader that was never created.
    assert "UnboundLocalError" not in told


@pytest.mark.fault(71)
def test_nothing_is_acknowledged_that_a_checkpoint_written_now_and_then_does_not_hold(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    broker.create_topic("t")
    stream = spark.readStream.format("pulsar").option("service.url", broker.service_url)
    stream = stream.options(topic="t", startingOffsets="earliest", subscription="mine")
    query = (
        stream.load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("asyncProgressTrackingEnabled", "true")
        .option("asyncProgressTrackingCheckpointIntervalMs", "600000")
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        for _ in range(3):
            store_many(broker, "t", 10, batch_size=1)
            query.processAllAvailable()
        asked = broker.faults.seen("GET_LAST_MESSAGE_ID")
        wait_until(lambda: broker.faults.seen("GET_LAST_MESSAGE_ID") > asked + 50)
    finally:
        query.stop()
    logged = {path.name for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")}
    assert "0" in logged
    assert query.lastProgress is not None
    assert len(logged) < query.lastProgress["batchId"] + 1
    last = max(logged, key=int)
    text = (tmp_path / "checkpoint" / "offsets" / last).read_text().splitlines()[-1]
    durable = StreamOffset.from_json(json.loads(text)).positions[full("t")]
    view = broker.subscriptions("t")["mine"]
    assert view.backlog >= 30 - durable.entry_id


def test_the_backlog_of_an_idle_query_goes_to_zero_after_its_first_batch(
    broker: EmbeddedBroker, start: Start
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 10)
    query = start()
    query.processAllAvailable()
    wait_until(lambda: backlogs(broker, "t") == [0])
    store_many(broker, "t", 10)
    query.processAllAvailable()
    wait_until(lambda: backlogs(broker, "t") == [0])


RECORD_OF_META = (
    "value int, __key binary, __topic string, __messageId binary, __publishTime timestamp, "
    "__eventTime timestamp, __messageProperties map<string,string>"
)


def record(name: str, *fields: str) -> SchemaInfo:
    described = [{"name": field, "type": ["null", "int"], "default": None} for field in fields]
    data = json.dumps({"type": "record", "name": name, "fields": described})
    return SchemaInfo(pb.Schema.Avro, name, data.encode())


@pytest.mark.fault(64)
def test_a_topic_of_another_record_that_appears_ends_the_query(
    broker: EmbeddedBroker, start: Start, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("s-order")
    set_schema(broker, "s-order", record("Order", "value", "b"))
    version = (0).to_bytes(8, "big")
    store(broker, "s-order", [b"\x02\x02\x02\x02"], schema_version=version)
    query = start(topicsPattern="s-.*", mode="FAILFAST")
    query.processAllAvailable()
    caplog.set_level(logging.CRITICAL)
    broker.create_topic("s-user")
    set_schema(broker, "s-user", record("User", "c"))
    store(broker, "s-user", [b"\x02\x02"], schema_version=version)
    with pytest.raises(StreamingQueryException, match=r"'User'.*'Order'.*s-user"):
        query.awaitTermination(240)


@pytest.mark.fault(64)
def test_whether_the_columns_are_the_users_choice_is_known(
    broker: EmbeddedBroker, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    # The same columns as inferred, but given by the user. If they were inferred, the schemas would
    # have been alike then.
    for name, kind in (("a", b"int"), ("b", b"string")):
        broker.create_topic(f"s-{name}")
        schema = record("Order", "value", "other")
        definition = schema.schema_data.replace(b"int", kind, 1)
        set_schema(broker, f"s-{name}", replace(schema, schema_data=definition))
        store(broker, f"s-{name}", [b"\x02\x02\x02\x02"], schema_version=(0).to_bytes(8, "big"))
    caplog.set_level(logging.CRITICAL)
    with pytest.raises(StreamingQueryException, match="different schemas"):
        start(schema=RECORD_OF_META, topicsPattern="s-.*").awaitTermination(240)


def test_a_topic_without_a_schema_is_a_stream_of_typed_columns(
    broker: EmbeddedBroker, start: Start, sink: Sink, tmp_path: Path
) -> None:
    broker.create_topic("t")
    store(broker, "t", [b'{"value":1}', b"[]", None])
    schema = "value tinyint, __topic string"
    options = {"valueFormat": "json", "mode": "DROPMALFORMED"}
    start({"availableNow": True}, schema, **options).awaitTermination(240)
    assert sink.values == [1, None]
    store(broker, "t", [b'{"value":-2}'])
    start({"availableNow": True}, schema, **options).awaitTermination(240)
    assert sink.values == [1, None, -2]
    definition = tmp_path / "value.avsc"
    definition.write_text('{"type":"record","name":"R","fields":[{"name":"value","type":"int"}]}')
    broker.create_topic("u")
    store(broker, "u", [b"\x06"])
    read = {"valueFormat": "avro", "valueSchema": str(definition), "topicsPattern": "u"}
    start({"availableNow": True}, checkpoint="other", **read).awaitTermination(240)
    assert sink.batches[0] == [3]


@pytest.mark.slow
@pytest.mark.fault(10)
def test_each_process_has_one_connection_whatever_the_number_of_tasks(
    broker: EmbeddedBroker, start: Start, sink: Sink
) -> None:
    partitions, batches = 20, 11
    broker.create_topic("t", partitions)
    expected: list[bytes] = []
    query = None
    for _ in range(batches):
        for number in range(partitions):
            expected += store_many(broker, f"t-partition-{number}", 2)
        query = query or start()
        query.processAllAvailable()
    assert sorted(sink.values) == sorted(expected)
    # The query's own process, and Spark's workers: one for each core, with room for some that a
    # busy machine may need beside them. There are 220 tasks.
    assert broker.faults.seen("CONNECT") <= 1 + 4 * (os.cpu_count() or 1)
