"""Which ranges of which topic partitions a read is made of."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from pyspark.sql.types import IntegerType, StructField, StructType

from pulsar_spark.client import PulsarClient
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.errors import (
    CorruptMessage,
    DataLossError,
    InvalidOffset,
    OptionError,
    SchemaMismatch,
    TopicNotFound,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import MessageIdAdv, Position
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value
from pulsar_spark.schema.table.record_batches import PublishTimes
from pulsar_spark.spark.columns import read_schema
from pulsar_spark.spark.options.read import parse_read_options
from pulsar_spark.spark.reading.partitions import PulsarInputPartition
from pulsar_spark.spark.reading.planner import Planner, Topics
from pulsar_spark.spark.value_types import ValueType
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing import topic as topic_module
from tests.schema.protobuf.cases import add, info_of, new_file
from tests.spark.topics import NOW, full, set_schema, store, store_many, values
from tests.support.waiting import wait_until

STRING = SchemaInfo(pb.Schema.String, "String")
AVRO = SchemaInfo(pb.Schema.Avro, "r", b'{"type":"record","name":"r","fields":[]}')


def plan(
    broker: EmbeddedBroker,
    options: dict[str, Any],
) -> list[PulsarInputPartition]:
    given = {
        key: json.dumps(value) if isinstance(value, dict) else str(value)
        for key, value in options.items()
    }
    parsed = parse_read_options({"service.url": broker.service_url, **given})
    with ClientContext(parsed.client) as context:
        planner = Planner(context, parsed)
        return planner.partitions(planner.topics(), ValueType())


def topics(broker: EmbeddedBroker, **options: str) -> Topics:
    parsed = parse_read_options({"service.url": broker.service_url, **options})
    with ClientContext(parsed.client) as context:
        return Planner(context, parsed).topics()


def kind(broker: EmbeddedBroker, **options: str) -> ValueType:
    parsed = parse_read_options({"service.url": broker.service_url, **options})
    with ClientContext(parsed.client) as context:
        planner = Planner(context, parsed)
        return planner.value_type(planner.topics())


def ranges(planned: list[PulsarInputPartition]) -> list[tuple[str, Position, Position]]:
    return [(part.topic.rpartition("/")[2], *part.range) for part in planned]


# --- topics -----------------------------------------------------------------------------------


def test_a_topic_is_its_partitions_and_a_partition_is_read_once(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 3)
    broker.create_topic("u")
    found = topics(broker, topics="t-partition-1,u,t")
    assert found == {
        full("t"): [full(f"t-partition-{i}") for i in range(3)],
        full("u"): [full("u")],
    }
    assert topics(broker, topic="t-partition-1") == {full("t-partition-1"): [full("t-partition-1")]}


def test_a_pattern_is_the_topics_that_match_it(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders-a", 2)
    broker.create_topic("orders-b")
    broker.create_topic("__orders")
    broker.create_topic("other")
    assert list(topics(broker, topicsPattern="orders.*")) == [full("orders-a"), full("orders-b")]


def test_topics_that_do_not_exist_are_errors_and_are_not_created(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    with pytest.raises(TopicNotFound) as caught:
        topics(broker, topics="t,missing")
    assert caught.value.topic == full("missing")
    with pytest.raises(TopicNotFound, match=r"topicsPattern=order\*\. .* the whole name"):
        topics(broker, topicsPattern="order*")
    assert broker.topics() == [full("t")]


@pytest.mark.fault(65)
@pytest.mark.parametrize("name", ["a%2Fb", "tö-pic", "a-partition-b"])
def test_odd_names_are_read(broker: EmbeddedBroker, name: str) -> None:
    broker.create_topic(name)
    store(broker, name, [b"x"])
    assert values(broker, {"topic": name}) == [b"x"]


# --- ranges -----------------------------------------------------------------------------------


@pytest.mark.fault(63)
def test_empty_topics_are_left_out(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 3)
    assert plan(broker, {"topic": "t"}) == []
    store(broker, "t-partition-1", [b"x"])
    assert ranges(plan(broker, {"topic": "t"})) == [
        ("t-partition-1", Position(-1, -1), plan(broker, {"topic": "t"})[0].range[1])
    ]
    broker.trim("t")
    assert plan(broker, {"topic": "t"}) == []


def test_the_end_is_fixed_when_the_read_is_planned(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    last = store(broker, "t", [b"a", b"b"])
    (part,) = plan(broker, {"topic": "t"})
    store(broker, "t", [b"c"])
    assert part.range[1] == Position(last.ledger_id, last.entry_id, 2)


def test_a_single_message_ends_behind_its_entry(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    last = store(broker, "t", [b"a"], batched=False)
    (part,) = plan(broker, {"topic": "t"})
    assert part.range[1] == Position(last.ledger_id, last.entry_id + 1)


@pytest.mark.fault(62)
@pytest.mark.parametrize(
    "start,end,expected",
    [
        ("{0}", "{0}", [b"0", b"1", b"2"]),
        ("{0}:-1:1", "{1}:-1:0", [b"1", b"2", b"3"]),
        ("{0}:-1:2", "{0}:-1:2", [b"2"]),
        ("{1}", "{2}:-1:9", [b"3", b"4", b"5", b"6", b"7", b"8"]),
        ("{2}:-1:2", None, [b"8"]),
        (None, "{0}:-1:0", [b"0"]),
        ("{1}", "{0}", []),
        ("{0}:-1:2", "{0}:-1:1", []),
    ],
)
def test_given_ids_are_read_at_both_ends(
    broker: EmbeddedBroker, start: str | None, end: str | None, expected: list[bytes]
) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"0", b"1", b"2"])
    store(broker, "t", [b"3", b"4", b"5"])
    store(broker, "t", [b"6", b"7", b"8"])
    ledger = broker.stats("t").first.ledger_id
    entries = [f"{ledger}:{entry}" for entry in range(3)]
    options = {"topic": "t"}
    if start is not None:
        options["startingOffsets"] = json.dumps({"t": start.format(*entries)})
    if end is not None:
        options["endingOffsets"] = json.dumps({"t": end.format(*entries)})
    assert values(broker, options) == expected


def test_bytes_of_the_scala_connector_are_read_too(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    for number in range(4):
        last = store(broker, "t", [b"%d" % number])
    data = MessageIdAdv(last.ledger_id, 2, -1, 0, 1).serialize()
    signed = [byte - 256 if byte > 127 else byte for byte in data]
    options = {"topic": "t", "startingOffsets": json.dumps({full("t"): signed})}
    assert values(broker, options) == [b"2", b"3"]


def test_offsets_of_a_topic_that_is_not_read_are_an_error(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 2)
    with pytest.raises(InvalidOffset, match="does not include it"):
        plan(broker, {"topic": "t", "startingOffsets": {"u": "earliest"}})
    with pytest.raises(InvalidOffset, match="2 partitions"):
        plan(broker, {"topic": "t", "startingOffsets": {"t": "1:2"}})


# --- times ------------------------------------------------------------------------------------


def test_times_are_met_to_the_millisecond(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    for offset in range(0, 10_000, 1000):
        store(broker, "t", [b"%d" % offset], publish_time=NOW + offset)
    options = {"topic": "t", "startingTime": str(NOW + 3000), "endingTime": str(NOW + 6000)}
    assert values(broker, options) == [b"3000", b"4000", b"5000"]
    options = {"topic": "t", "startingTime": str(NOW + 3001)}
    assert values(broker, options)[0] == b"4000"
    options = {"topic": "t", "endingTime": str(NOW + 3001)}
    assert values(broker, options)[-1] == b"3000"


@pytest.mark.fault(93, 94)
def test_times_out_of_order_within_the_tolerance_are_found(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    times = [0, 40_000, 20_000, 60_000, 50_000, 90_000, 70_000, 120_000, 200_000]
    for offset in times:
        store(broker, "t", [b"%d" % offset], publish_time=NOW + offset)
    options = {"topic": "t", "startingTime": str(NOW + 50_000), "endingTime": str(NOW + 100_000)}
    wanted = [b"%d" % offset for offset in times if 50_000 <= offset < 100_000]
    assert values(broker, options) == wanted


@pytest.mark.parametrize("skew", [-3600_000, 3600_000])
def test_times_are_the_producers_though_the_broker_searches_by_its_own(
    monkeypatch: pytest.MonkeyPatch, skew: int
) -> None:
    """Publish times are in order, of a clock that is wrong by an hour; an entry in ten minutes."""
    times = [NOW + 600_000 * number for number in range(20)]
    payloads = [b"%d" % number for number in range(20)]
    stamps = (1_000_000 * millis for millis in times)
    monkeypatch.setattr(topic_module, "time", SimpleNamespace(time_ns=lambda: next(stamps)))
    with EmbeddedBroker(expose_entry_metadata=True) as broker:
        broker.create_topic("t")
        for payload, millis in zip(payloads, times, strict=True):
            store(broker, "t", [payload], publish_time=millis + skew)
        since = {"topic": "t", "startingTime": str(times[4] + skew)}
        until = {"topic": "t", "endingTime": str(times[9] + skew)}
        assert values(broker, since) == payloads[4:]
        assert values(broker, until) == payloads[:9]
        assert values(broker, {**since, **until}) == payloads[4:9]
        # With a fast clock, all of it was stored before that time.
        late = {"topic": "t", "startingTime": str(times[18] + skew)}
        assert values(broker, late) == payloads[18:]


def test_a_range_of_time_does_not_read_the_whole_topic(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    ids = [store(broker, "t", [b"x"], publish_time=NOW + 1000 * n) for n in range(1000)]
    options = {
        "topic": "t",
        "startingTime": NOW + 500_000,
        "endingTime": NOW + 510_000,
        "publishTimeTolerance": "2s",
    }
    (part,) = plan(broker, options)
    assert part.range == (
        Position(ids[498].ledger_id, ids[498].entry_id),
        Position(ids[512].ledger_id, ids[512].entry_id),
    )
    assert part.times == PublishTimes(NOW + 500_000, NOW + 510_000)


def test_times_beyond_the_topic_are_no_trouble(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 2)
    store(broker, "t-partition-0", [b"x"])
    late, early = str(NOW + 10**7), str(NOW - 10**7)
    assert values(broker, {"topic": "t", "startingTime": late}) == []
    assert values(broker, {"topic": "t", "endingTime": early}) == []
    assert values(broker, {"topic": "t", "startingTime": early, "endingTime": late}) == [b"x"]


@pytest.mark.parametrize(
    "start,end", [("-1h", "-2h"), (NOW + 1, NOW), ("2026-01-02", "2026-01-01T23:00Z")]
)
def test_a_time_to_start_at_behind_the_end_is_an_error(
    broker: EmbeddedBroker, start: object, end: object
) -> None:
    broker.create_topic("t")
    with pytest.raises(InvalidOffset, match="after its end") as caught:
        values(broker, {"topic": "t", "startingTime": str(start), "endingTime": str(end)})
    assert "startingTime" in caught.value.remedy
    ages = {"startingOffsets": '{"t": "-1h"}', "endingOffsets": '{"t": "-2h"}'}
    with pytest.raises(InvalidOffset, match="after its end"):
        values(broker, {"topic": "t", **ages})
    store(broker, "t", [b"x"], publish_time=NOW)
    assert values(broker, {"topic": "t", "startingTime": str(NOW), "endingTime": str(NOW)}) == []


@pytest.mark.parametrize("start,end", [("{2}", "{0}"), ("{1}:-1:2", "{1}:-1:0")])
def test_an_id_to_start_at_behind_the_end_is_an_error(
    broker: EmbeddedBroker, start: str, end: str
) -> None:
    broker.create_topic("t")
    ids = [store(broker, "t", [b"1", b"2", b"3"]) for _ in range(3)]
    named = [f"{found.ledger_id}:{found.entry_id}" for found in ids]
    options = {
        "topic": "t",
        "startingOffsets": json.dumps({"t": start.format(*named)}),
        "endingOffsets": json.dumps({"t": end.format(*named)}),
    }
    with pytest.raises(InvalidOffset, match="after its end") as caught:
        values(broker, options)
    assert "Swap startingOffsets and endingOffsets" in caught.value.remedy


def test_an_age_and_times_per_topic(broker: EmbeddedBroker) -> None:
    now = int(time.time() * 1000)
    for name in "tu":
        broker.create_topic(name)
        store(broker, name, [b"old"], publish_time=now - 7_200_000)
        store(broker, name, [b"new"], publish_time=now - 60_000)
    assert values(broker, {"topic": "t", "startingTime": "-1h"}) == [b"new"]
    found = values(broker, {"topics": "t,u", "startingTime": '{"u": "-1h"}'})
    assert sorted(found) == [b"new", b"new", b"old"]
    found = values(broker, {"topic": "t", "endingOffsets": '{"t": "-1h"}'})
    assert found == [b"old"]


# --- data loss --------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [STRING, None])
def test_encrypted_bytes_are_never_decoded_as_values(
    broker: EmbeddedBroker, schema: SchemaInfo | None
) -> None:
    broker.create_topic("t")
    if schema is not None:
        set_schema(broker, "t", schema)
    store(broker, "t", [b"x"])
    consume = {"topic": "t", "pulsar.reader.cryptoFailureAction": "CONSUME"}
    assert values(broker, {**consume, "valueFormat": "raw"}) == [b"x"]
    for options in (consume, {**consume, "valueFormat": "string"}):
        if options is consume and schema is None:
            assert values(broker, options) == [b"x"]
            continue
        with pytest.raises(OptionError, match="CONSUME gives encrypted bytes") as caught:
            values(broker, options)
        assert "valueFormat=raw" in caught.value.remedy


@pytest.mark.fault(40)
@pytest.mark.parametrize("tasks", ["1", "2"])
def test_a_read_that_is_told_to_start_in_a_batch_that_stays_encrypted_gets_it(
    broker: EmbeddedBroker, tasks: str
) -> None:
    broker.create_topic("t")
    for _ in range(2):
        store(broker, "t", [b"m"] * 10, encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
    options = {
        "topic": "t",
        "startingOffsets": '{"t": "1:0:-1:5"}',
        "endingOffsets": '{"t": "1:1:-1:8"}',
        "partitionsPerTopicPartition": tasks,
        "pulsar.reader.cryptoFailureAction": "CONSUME",
    }
    assert len(values(broker, options)) == 2
    options["endingOffsets"] = '{"t": "1:0:-1:9"}'
    assert len(values(broker, options)) == 1


def in_two_ledgers(broker: EmbeddedBroker, first: int, second: int) -> list[MessageIdAdv]:
    """Store so many messages in each of two ledgers, numbered, with two keys in turn."""
    broker.create_topic("t")
    ids = []
    for number in range(first + second):
        if number == first:
            broker.roll_ledger("t")
        key = f"k{number % 2}"
        ids.append(store(broker, "t", [b"%d" % number], batched=False, partition_key=key))
    return ids


@pytest.mark.fault(58, 62)
def test_a_start_that_was_deleted_is_data_loss(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    ids = in_two_ledgers(broker, 3, 3)
    start = {"topic": "t", "startingOffsets": json.dumps({"t": f"{ids[1].ledger_id}:1"})}
    assert values(broker, start) == [b"1", b"2", b"3", b"4", b"5"]
    broker.trim("t", Position(ids[3].ledger_id, ids[3].entry_id))
    with pytest.raises(DataLossError) as caught:
        plan(broker, start)
    assert caught.value.topic == full("t")
    assert caught.value.message_id == f"{ids[1].ledger_id}:1:-1:-1"
    with caplog.at_level(logging.WARNING):
        found = values(broker, {**start, "failOnDataLoss": "false"})
    assert found == [b"3", b"4", b"5"]
    assert "not on the topic" in caplog.text


@pytest.mark.fault(55, 58)
def test_ids_that_the_topic_has_not_are_data_loss(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    last = store(broker, "t", [b"x"])
    told = f"is not on the topic: its last message is {last.ledger_id}:{last.entry_id} "
    for start in (f"{last.ledger_id + 5}:0", f"{last.ledger_id}:7", f"{last.ledger_id}:2"):
        with pytest.raises(DataLossError, match=told) as caught:
            plan(broker, {"topic": "t", "startingOffsets": {"t": start}})
        assert "retention" not in caught.value.remedy
    broker.create_topic("empty")
    with pytest.raises(DataLossError, match="is not on the topic: it is empty"):
        plan(broker, {"topic": "empty", "startingOffsets": {"empty": "1:0"}})
    # An incremental read continues right after the last message.
    behind = f"{last.ledger_id}:{last.entry_id + 1}"
    assert plan(broker, {"topic": "t", "startingOffsets": {"t": behind}}) == []


@pytest.mark.fault(33)
@pytest.mark.parametrize("entry", [b"\x00\x00\xff\xff", b"", b"\x00\x00\x00\x02\xff\xff"])
def test_a_start_behind_a_damaged_first_entry_is_read(broker: EmbeddedBroker, entry: bytes) -> None:
    broker.create_topic("t")
    first = broker.append("t", entry, messages=1)
    others = [store(broker, "t", [b"%d" % number], batched=False) for number in range(4)]
    for number, start in enumerate(others):
        for tasks in ("1", "2"):
            options = {
                "topic": "t",
                "startingOffsets": json.dumps({"t": f"{start.ledger_id}:{start.entry_id}"}),
                "partitionsPerTopicPartition": tasks,
            }
            assert values(broker, options) == [b"0", b"1", b"2", b"3"][number:]
    with pytest.raises(CorruptMessage, match=f"message id {first.ledger_id}:{first.entry_id}"):
        values(broker, {"topic": "t"})
    before = {"topic": "t", "startingOffsets": {"t": f"{first.ledger_id - 1}:0"}}
    with pytest.raises(DataLossError, match=f"kept is {first.ledger_id}:{first.entry_id} "):
        plan(broker, before)


@pytest.mark.fault(58, 61)
@pytest.mark.parametrize("before", [0, 1])
def test_a_start_behind_an_open_transaction_is_no_data_loss(
    broker: EmbeddedBroker, before: int
) -> None:
    broker.create_topic("t")
    with PulsarClient(broker.service_url) as client, client.create_producer("t") as producer:
        for _ in range(before):
            producer.send(b"before")
        with client.new_transaction() as txn:
            producer.send(b"inside", txn=txn)
            wanted = producer.send(b"wanted")
            ledger, entry = wanted.ledger_id(), wanted.entry_id()
            start = {"topic": "t", "startingOffsets": json.dumps({"t": f"{ledger}:{entry}"})}
            assert values(broker, start) == []
            parsed = parse_read_options({"service.url": broker.service_url, **start})
            with ClientContext(parsed.client) as context:
                planner = Planner(context, parsed)
                bounds = parsed.starting.bounds({"t": [full("t")]}, NOW)
                assert planner.starts(bounds, {}) == {full("t"): Position(ledger, entry)}
            for missing in (f"{ledger}:{entry + 1}", f"{ledger + 1}:0"):
                with pytest.raises(DataLossError, match="is not on the topic"):
                    plan(broker, {"topic": "t", "startingOffsets": {"t": missing}})
        assert values(broker, start) == [b"wanted"]


@pytest.mark.fault(60)
def test_a_start_that_was_deleted_is_data_loss_of_a_compacted_view_unless_it_was_compacted(
    broker: EmbeddedBroker,
) -> None:
    ids = in_two_ledgers(broker, 2, 4)
    first, behind = f"{ids[0].ledger_id}:0", f"{ids[-1].ledger_id}:9"
    starts = [
        {"topic": "t", "readCompacted": "true", "startingOffsets": {"t": start}}
        for start in (first, behind)
    ]
    broker.trim("t", Position(ids[2].ledger_id, ids[2].entry_id))
    for start in starts:
        with pytest.raises(DataLossError):
            plan(broker, start)
    broker.compact("t")
    broker.roll_ledger("t")
    broker.trim("t")
    assert [part.start for part in plan(broker, starts[0])] == [(ids[0].ledger_id, 0, 0)]
    assert plan(broker, starts[1]) == []


@pytest.mark.fault(60)
def test_a_compacted_view_is_read_after_its_ledgers_are_deleted(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 2)
    for number in range(6):
        key = f"k{number % 2}"
        store(broker, "t-partition-0", [b"%d" % number], batched=False, partition_key=key)
    broker.compact("t-partition-0")
    broker.roll_ledger("t-partition-0")
    broker.trim("t-partition-0")
    compacted = {"topic": "t", "readCompacted": "true"}
    assert values(broker, compacted) == [b"4", b"5"]
    assert values(broker, {**compacted, "partitionsPerTopicPartition": "2"}) == [b"4", b"5"]
    store(broker, "t-partition-0", [b"6"], batched=False, partition_key="k0")
    assert values(broker, compacted) == [b"4", b"5", b"6"]


@pytest.mark.fault(60)
def test_times_apply_to_what_is_compacted_after_its_ledgers_are_deleted(
    broker: EmbeddedBroker,
) -> None:
    broker.create_topic("t")

    def write(number: int) -> None:
        key, time = f"k{number}", NOW + 1000 * number
        payload = b"%d" % number
        store(broker, "t", [payload], batched=False, partition_key=key, publish_time=time)

    for number in range(6):
        write(number)
    broker.compact("t")
    broker.roll_ledger("t")
    broker.trim("t")
    compacted = {"topic": "t", "readCompacted": "true", "publishTimeTolerance": "0"}
    since = {**compacted, "startingTime": str(NOW + 3000)}
    assert values(broker, since) == [b"3", b"4", b"5"]
    write(6)
    assert values(broker, since) == [b"3", b"4", b"5", b"6"]
    assert values(broker, {**since, "endingTime": str(NOW + 5000)}) == [b"3", b"4"]


@pytest.mark.fault(58)
def test_an_end_that_was_deleted_is_data_loss(broker: EmbeddedBroker) -> None:
    ids = in_two_ledgers(broker, 2, 2)
    broker.trim("t", Position(ids[2].ledger_id, ids[2].entry_id))
    end = {"topic": "t", "endingOffsets": json.dumps({"t": f"{ids[1].ledger_id}:1"})}
    with pytest.raises(DataLossError):
        plan(broker, end)
    assert values(broker, {**end, "failOnDataLoss": "false"}) == []


def test_an_end_behind_the_topic_is_the_topics_end(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"x"])
    with caplog.at_level(logging.WARNING):
        found = values(broker, {"topic": "t", "endingOffsets": '{"t": "9999999:5"}'})
    assert found == [b"x"]
    assert "endingOffsets" in caplog.text


@pytest.mark.fault(61, 63)
def test_gaps_in_the_ids_are_no_data_loss(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"a"])
    broker.skip_entries("t", 3)
    broker.roll_ledger("t")
    middle = store(broker, "t", [b"b"])
    broker.skip_entries("t", 5)
    assert values(broker, {"topic": "t"}) == [b"a", b"b"]
    start = {"topic": "t", "startingOffsets": f'{{"t": "{middle.ledger_id}:0"}}'}
    assert values(broker, start) == [b"b"]


# --- pieces -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options,count",
    [
        ({"partitionsPerTopicPartition": 4}, 8),
        ({"minPartitions": 7}, 7),
        ({"minPartitions": 2}, 2),
        ({"partitionsPerTopicPartition": 3, "minPartitions": 10}, 10),
    ],
)
def test_ranges_are_cut_and_every_message_is_in_one_piece(
    broker: EmbeddedBroker, options: dict[str, Any], count: int
) -> None:
    broker.create_topic("t", 2)
    expected: list[bytes] = []
    for partition in range(2):
        name = f"t-partition-{partition}"
        expected += store_many(broker, name, 300)
        broker.roll_ledger(name)
        broker.skip_entries(name, 7)
        expected += [payload + b"+" for payload in store_many(broker, name, 0)]
        for number in range(50):
            payload = b"%d/%d" % (partition, number)
            store(broker, name, [payload])
            expected.append(payload)
    given = {"topic": "t", **{key: str(value) for key, value in options.items()}}
    assert len(plan(broker, given)) == count
    assert sorted(values(broker, given)) == sorted(expected)


def test_pieces_keep_start_end_and_filter(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    payloads = store_many(broker, "t", 100)
    ledger = broker.stats("t").first.ledger_id
    options = {
        "topic": "t",
        "startingOffsets": json.dumps({"t": f"{ledger}:2:-1:3"}),
        "endingOffsets": json.dumps({"t": f"{ledger}:7:-1:4"}),
        "partitionsPerTopicPartition": "3",
    }
    assert len(plan(broker, options)) == 3
    assert values(broker, options) == payloads[23:75]


# --- schemas ----------------------------------------------------------------------------------


def test_the_topics_schema_decides_on_the_values(broker: EmbeddedBroker) -> None:
    broker.create_topic("bytes")
    broker.create_topic("text", 2)
    set_schema(broker, "text", STRING)
    assert kind(broker, topic="bytes") == ValueType()
    for name in ("text", "text-partition-1"):
        schema = kind(broker, topic=name).schema
        assert schema is not None
        assert schema.type == pb.Schema.String
    assert kind(broker, topic="text", valueFormat="raw") == ValueType()


@pytest.mark.fault(64)
def test_different_schemas_are_an_error_unless_they_are_allowed(broker: EmbeddedBroker) -> None:
    broker.create_topic("bytes")
    broker.create_topic("text")
    set_schema(broker, "text", STRING)
    store(broker, "bytes", [b"x"])
    with pytest.raises(OptionError, match="allowDifferentTopicSchemas"):
        kind(broker, topics="bytes,text")
    assert kind(broker, topics="bytes,text", allowDifferentTopicSchemas="true") == ValueType()
    assert kind(broker, topics="bytes,text", valueFormat="raw") == ValueType()


def test_a_topic_without_schema_and_messages_has_no_say(broker: EmbeddedBroker) -> None:
    broker.create_topic("text")
    set_schema(broker, "text", STRING)
    broker.create_topic("empty", 2)
    options = {"topics": "empty,text"}
    schema = kind(broker, **options).schema
    assert schema is not None
    assert schema.type == pb.Schema.String
    # What was read before stays as it was.
    assert kind(broker, allowDifferentTopicSchemas="true", **options) == ValueType()
    store(broker, "empty-partition-1", [b"x"])
    with pytest.raises(OptionError, match="allowDifferentTopicSchemas"):
        kind(broker, **options)


# --- nothing is left behind, and many topics are no trouble -----------------------------------


def test_planning_leaves_nothing_behind(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 2)
    store_many(broker, "t-partition-0", 100)
    options = {"topic": "t", "startingTime": NOW, "partitionsPerTopicPartition": 3}
    plan(broker, options)
    wait_until(lambda: not any(broker.subscriptions(full(f"t-partition-{i}")) for i in range(2)))
    assert broker.faults.seen("ACK") == 0
    durable = [seen for seen in broker.faults.log("SUBSCRIBE") if seen.body.durable]
    assert durable == []


@pytest.mark.fault(65)
def test_a_thousand_partitions_are_planned_within_seconds(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 1000)
    for partition in range(0, 1000, 2):
        store(broker, f"t-partition-{partition}", [b"x"])
    started = time.monotonic()
    planned = plan(broker, {"topic": "t"})
    took = time.monotonic() - started
    assert len(planned) == 500
    # Three seconds on an idle machine; tests share theirs.
    assert took < 15


def _avro(*names: str, record: str = "r", kind: int = pb.Schema.Avro) -> SchemaInfo:
    fields = ",".join(f'{{"name":"{name}","type":"int","default":0}}' for name in names)
    data = f'{{"type":"record","name":"{record}","fields":[{fields}]}}'
    return SchemaInfo(kind, record, data.encode())


def _of_query(
    broker: EmbeddedBroker, columns: str, *, inferred: bool = True, **options: str
) -> list[str]:
    query = StructType([StructField(name, IntegerType()) for name in columns.split()])
    query = StructType([*query, *read_schema(ValueType(), include_metadata=False).fields[2:]])
    parsed = parse_read_options({"service.url": broker.service_url, **options})
    with ClientContext(parsed.client) as context:
        planner = Planner(context, replace(parsed, query=query, inferred=inferred))
        return planner.value_type(planner.topics()).fields.names


@pytest.mark.fault(64)
def test_a_query_keeps_its_columns_while_schemas_go_on(broker: EmbeddedBroker) -> None:
    for name in ("t", "u"):
        broker.create_topic(name)
        set_schema(broker, name, _avro("a", "b"))
    set_schema(broker, "t", _avro("a", "c"))
    set_schema(broker, "t", _avro("a", "d"))
    assert _of_query(broker, "a", topic="t", inferred=False) == ["a", "d"]
    assert _of_query(broker, "a", topic="t") == ["a", "d"]
    assert _of_query(broker, "d a", topic="t") == ["a", "d"]
    assert _of_query(broker, "c a", topic="t") == ["a", "c"]
    assert _of_query(broker, "b", topic="t") == ["a", "b"]
    assert _of_query(broker, "b", topic="t", inferred=False) == ["a", "b"]
    # Topics get new versions independently.
    for inferred in (True, False):
        assert _of_query(broker, "b a", topics="t,u", inferred=inferred) == ["a", "b"]
        assert _of_query(broker, "c a", topics="t,u", inferred=inferred) == ["a", "c"]
    # If no version has the columns, the newest one is used.
    assert _of_query(broker, "b c", topic="t") == ["a", "d"]


@pytest.mark.fault(64)
def test_a_query_of_bytes_goes_on_when_the_topic_gets_a_schema(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    query = read_schema(ValueType(), include_metadata=False)
    parsed = replace(
        parse_read_options({"service.url": broker.service_url, "topic": "t"}),
        query=query,
        inferred=True,
    )
    for schema in (None, _avro("a"), _avro("a", "b")):
        if schema is not None:
            set_schema(broker, "t", schema)
        with ClientContext(parsed.client) as context:
            planner = Planner(context, parsed)
            assert planner.value_type(planner.topics()) == ValueType()


@pytest.mark.fault(64)
def test_a_query_meets_no_topic_of_another_type(broker: EmbeddedBroker) -> None:
    for name, schema in (("t", _avro("a")), ("u", STRING), ("v", None)):
        broker.create_topic(name)
        if schema is not None:
            set_schema(broker, name, schema)
    assert _of_query(broker, "a", topics="t,v") == ["a"]
    store(broker, "v", [b"x"])
    for topics in ("t,u", "t,v"):
        with pytest.raises(OptionError, match="different schemas"):
            _of_query(broker, "a", topics=topics)
    assert _of_query(broker, "a", topics="t,u", allowDifferentTopicSchemas="true") == ["value"]


@pytest.mark.fault(64)
@pytest.mark.parametrize("kind", [pb.Schema.Avro, pb.Schema.Json])
@pytest.mark.parametrize("name", ["a-user", "z-user"])
def test_a_topic_of_another_record_is_refused_by_name(
    broker: EmbeddedBroker, name: str, kind: int
) -> None:
    for topic in ("m-order", "n-order", name):
        broker.create_topic(topic)
    set_schema(broker, "m-order", _avro("a", "b", record="x.Order", kind=kind))
    # The same record, in another package and a later version.
    set_schema(broker, "n-order", _avro("a", "c", record="y.Order", kind=kind))
    assert _of_query(broker, "a b", topicsPattern=".-order") == ["a", "b"]
    for columns, record in (("a c", "x.User"), ("d", "x.Order")):
        set_schema(broker, name, _avro(*columns.split(), record=record, kind=kind))
        with pytest.raises(SchemaMismatch, match=r"'User'.*'Order'|no field") as caught:
            _of_query(broker, "a b", topicsPattern=".-.*")
        assert caught.value.topic == full(name)
        for inferred in (True, False):
            allowed = {"topicsPattern": ".-.*", "allowDifferentTopicSchemas": "true"}
            assert _of_query(broker, "a b", inferred=inferred, **allowed) == ["a", "b"]


@pytest.mark.fault(64)
def test_pairs_of_another_record_are_refused_by_name(broker: EmbeddedBroker) -> None:
    for number, record in enumerate(("Order", "User")):
        broker.create_topic(f"t-{number}")
        own = _avro("a", *["b"] * number, record=record)
        set_schema(broker, f"t-{number}", join_key_value(STRING, own, separated=False))
    assert _of_query(broker, "a", topic="t-0") == ["a"]
    with pytest.raises(SchemaMismatch, match=r"'User'.*'Order'"):
        _of_query(broker, "a", topicsPattern="t-.*")


@pytest.mark.fault(64)
def test_keys_that_are_not_read_may_be_other_records(broker: EmbeddedBroker) -> None:
    for number, record in enumerate(("Order", "User")):
        broker.create_topic(f"t-{number}")
        key = _avro("k", *["l"] * number, record=record)
        set_schema(broker, f"t-{number}", join_key_value(key, _avro("a"), separated=False))
    assert _of_query(broker, "a", topicsPattern="t-.*") == ["a"]
    parsed = parse_read_options({"service.url": broker.service_url, "topicsPattern": "t-.*"})
    with ClientContext(parsed.client) as context:
        planner = Planner(context, parsed)
        with pytest.raises(OptionError, match="different schemas"):
            planner.value_type(planner.topics())


@pytest.mark.fault(64)
def test_renamed_fields_are_fields_in_common_where_the_format_says_so(
    broker: EmbeddedBroker,
) -> None:
    for number, name in enumerate(("a", "b")):
        broker.create_topic(f"proto-{number}")
        file = new_file()
        add(file.message_type.add(name="M"), name, 1, FieldDescriptorProto.TYPE_INT32)
        set_schema(broker, f"proto-{number}", info_of(file))
        broker.create_topic(f"avro-{number}")
        aliases = ',"aliases":["a"]' if number else ""
        data = (
            '{"type":"record","name":"R","fields":'
            f'[{{"name":"{name}","type":"int","default":0{aliases}}}]}}'
        )
        set_schema(broker, f"avro-{number}", SchemaInfo(pb.Schema.Avro, "R", data.encode()))
    # Protobuf goes by numbers; an Avro version reads those whose names are its aliases.
    assert _of_query(broker, "a", topicsPattern="proto-.*") == ["a"]
    assert _of_query(broker, "b", topicsPattern="proto-.*") == ["b"]
    assert _of_query(broker, "b", topicsPattern="avro-.*") == ["b"]
    with pytest.raises((SchemaMismatch, OptionError)):
        _of_query(broker, "a", topicsPattern="avro-.*")


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("kind", [pb.Schema.Avro, pb.Schema.Json])
def test_records_that_differ_in_name_alone_are_one_schema(
    broker: EmbeddedBroker, kind: int, pairs: bool
) -> None:
    for name in ("alice", "bob"):
        broker.create_topic(name)
        inner = f'{{"type":"record","name":"{name}_in","fields":[{{"name":"x","type":"long"}}]}}'
        fields = f'[{{"name":"a","type":"int"}},{{"name":"b","type":{inner}}}]'
        data = f'{{"type":"record","name":"{name}","namespace":"of.{name}","fields":{fields}}}'
        schema = SchemaInfo(kind, name, data.encode())
        set_schema(
            broker, name, join_key_value(STRING, schema, separated=True) if pairs else schema
        )
    for options in ({"topics": "alice,bob"}, {"topicsPattern": "alice|bob"}):
        parsed = parse_read_options({"service.url": broker.service_url, **options})
        with ClientContext(parsed.client) as context:
            planner = Planner(context, parsed)
            found = planner.value_type(planner.topics())
        assert found.fields.names == ["a", "b"]
    # A running query of a pattern meets a topic that was made after it had begun.
    assert _of_query(broker, "a", topicsPattern="alice|bob") == ["a", "b"]
