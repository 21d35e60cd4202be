"""Read limits that Spark passes for a batch."""

from __future__ import annotations

import gc
import json
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource", reason="Spark tells no limits before 4.2")

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import BinaryType, StructField, StructType

from pulsar_spark.progress import lag
from pulsar_spark.spark.options.stream import Caps, parse_stream_options
from pulsar_spark.spark.streaming import reader as stream_reader
from pulsar_spark.spark.streaming.admission_reader import AdmissionStreamReader, caps_within
from pulsar_spark.spark.streaming.backlog import Backlogs
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import full, store_many
from tests.support.waiting import wait_until

VALUE = StructType([StructField("value", BinaryType())])


@pytest.fixture
def reader(broker: EmbeddedBroker) -> Iterator[AdmissionStreamReader]:
    broker.create_topic("t")
    store_many(broker, "t", 20)
    options = {"service.url": broker.service_url, "topic": "t", "startingOffsets": "earliest"}
    made = AdmissionStreamReader(parse_stream_options(options), VALUE)
    yield made
    made.stop()


@pytest.mark.parametrize(
    "caps,limit,expected",
    [
        (Caps(5, 6, 2, 1.0), ReadAllAvailable(), Caps()),
        (Caps(5, 6, 2, 1.0), ReadMaxRows(9), Caps(5, 6, 2, 1.0)),
        (Caps(5, 6, 2, 1.0), ReadMaxRows(3), Caps(3, 6, 2, 1.0)),
        (Caps(), ReadMaxRows(3), Caps(3)),
        (Caps(5), ReadMaxBytes(3), Caps(5, 3)),
        (Caps(min_messages=3), ReadMinRows(3), Caps(min_messages=3)),
    ],
)
def test_the_caps_of_the_options_hold_within_sparks_limit(
    caps: Caps, limit: ReadLimit, expected: Caps
) -> None:
    assert caps_within(caps, limit) == expected


@pytest.mark.parametrize(
    "given,expected",
    [
        ({}, ReadAllAvailable()),
        ({"maxMessagesPerTrigger": "5", "maxBytesPerTrigger": "1k"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "1k", "minMessagesPerTrigger": "2"}, ReadMaxBytes(1024)),
        ({"minMessagesPerTrigger": "2"}, ReadMinRows(2)),
    ],
)
def test_the_default_limit_is_that_of_the_options(
    given: dict[str, str], expected: ReadLimit
) -> None:
    options = parse_stream_options({"service.url": "pulsar://h", "topic": "t", **given})
    reader = AdmissionStreamReader(options, VALUE)
    assert reader.getDefaultReadLimit() == expected
    assert isinstance(reader, SupportsTriggerAvailableNow)


def test_the_topics_ends_are_reported_without_asking_again(
    broker: EmbeddedBroker, reader: AdmissionStreamReader
) -> None:
    assert reader.reportLatestOffset() is None
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    asked = broker.faults.seen("GET_LAST_MESSAGE_ID")
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["positions"] == end["positions"] == {full("t"): "1:2:0"}
    assert broker.faults.seen("GET_LAST_MESSAGE_ID") == asked


def test_available_now_reads_what_there_is_now(
    broker: EmbeddedBroker, reader: AdmissionStreamReader
) -> None:
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    store_many(broker, "t", 20)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end["positions"] == {full("t"): "1:2:0"}
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def test_what_is_left_behind_a_batch_is_reported_and_part_of_no_offset(
    broker: EmbeddedBroker, reader: AdmissionStreamReader
) -> None:
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(10))
    assert "lag" not in end
    store_many(broker, "t", 10, batch_size=1)
    assert reader.latestOffset(end, ReadMaxRows(10))["positions"] == {full("t"): "1:2:0"}
    report = reader.reportLatestOffset()
    assert report is not None
    told = report["lag"][full("t")]
    assert (told["entries"], told["messages"]) == (10, 10)
    assert told["estimated"] == ["messages", "bytes"]
    seen = broker.faults.seen("SUBSCRIBE")
    assert reader.reportLatestOffset() is not None
    assert broker.faults.seen("SUBSCRIBE") == seen
    offset = json.loads(json.dumps(end))
    (found,) = lag({"endOffset": offset, "latestOffset": json.loads(json.dumps(report))}).partitions
    assert (found.topic, found.entries, found.messages) == (full("t"), 10, 10)
    assert found.messages_estimated


def test_where_everything_is_read_nothing_is_asked_for_the_report(
    broker: EmbeddedBroker, reader: AdmissionStreamReader
) -> None:
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    broker.faults.forget()
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["lag"] == {}
    assert lag({"endOffset": end, "latestOffset": report}).entries == 0
    assert broker.faults.seen("SUBSCRIBE") == 0


@pytest.mark.parametrize("command", ["SUBSCRIBE", "FLOW", "CONSUMER_STATS"])
def test_a_batch_goes_on_where_what_is_left_cannot_be_told(
    broker: EmbeddedBroker, reader: AdmissionStreamReader, command: str
) -> None:
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    broker.roll_ledger("t")
    store_many(broker, "t", 10)
    later = reader.latestOffset(end, ReadMaxRows(5))
    broker.faults.on(command, "close", times=None)
    report = reader.reportLatestOffset()
    broker.faults.clear()
    assert report is not None
    found = lag({"endOffset": later, "latestOffset": report})
    assert found.partitions[0].latest is not None
    assert found.entries is None or found.seconds is None
    assert reader.latestOffset(later, ReadAllAvailable())["positions"] == report["positions"]


def test_a_fault_in_the_report_is_logged_and_nothing_else(
    reader: AdmissionStreamReader,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Backlogs, "lag", broken)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["lag"] == {full("t"): {}}
    assert lag({"endOffset": end, "latestOffset": report}).messages is None
    assert "cannot be determined" in caplog.text


# --- long runs ----------------------------------------------------------------------------------


class Used(NamedTuple):
    """This process's resources; `memory` is resident memory in KiB."""

    threads: int
    files: int
    memory: int


def used_by_process() -> Used:
    gc.collect()
    (memory,) = re.findall(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return Used(threading.active_count(), len(os.listdir("/proc/self/fd")), int(memory))


@pytest.mark.fault(76)
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_thousands_of_triggers_without_news_cost_no_memory_threads_or_files(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "_WAIT_SECONDS", 0.0)
    broker.create_topic("t", 4)
    store_many(broker, "t-partition-0", 10)
    options = {"service.url": broker.service_url, "topic": "t", "startingOffsets": "earliest"}
    reader = AdmissionStreamReader(
        parse_stream_options({**options, "maxMessagesPerTrigger": "100"}), VALUE
    )
    limit = reader.getDefaultReadLimit()
    end = json.loads(json.dumps(reader.latestOffset(reader.initialOffset(), limit)))

    def trigger() -> None:
        # As Spark does: offsets are passed as JSON.
        assert json.loads(json.dumps(reader.latestOffset(end, limit))) == end
        json.dumps(reader.reportLatestOffset())

    # By then the broker's own logs have their full size.
    for _ in range(1500):
        trigger()
    before = used_by_process()
    for _ in range(2_000):
        trigger()
    after = used_by_process()
    assert after.files <= before.files
    # Every ten seconds the stream checks for open transactions, which starts the timers' thread.
    wait_until(lambda: used_by_process().threads <= before.threads, "no thread is left")
    reader.stop()
    # Measured: some 10 KiB. One of 100 bytes a trigger would be 200 KiB.
    assert after.memory - before.memory < 190


# --- a stream without news --------------------------------------------------------------------


@pytest.fixture
def end(reader: AdmissionStreamReader) -> dict[str, Any]:
    """The latest offset, of which brokers would report a later one; no look was after it yet."""
    limit = ReadAllAvailable()
    found = reader.latestOffset(reader.initialOffset(), limit)
    reader.commit(found)

    def rests() -> bool:
        return reader.latestOffset(found, limit) == found and reader._source.rests()

    wait_until(rests, "it does not rest")
    reader.commit(found)
    return found


@pytest.fixture
def waits(
    reader: AdmissionStreamReader, end: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """How long it waits for news, each time; it does not really wait."""
    found: list[float] = []
    rests = reader._source.rests

    def recorded(wait: float = 0.0) -> bool:
        found.extend([wait] if wait else [])
        return rests()

    monkeypatch.setattr(reader._source, "rests", recorded)
    return found


def test_it_waits_at_each_look_without_news_after_the_first_one(
    reader: AdmissionStreamReader, end: dict[str, Any], waits: list[float]
) -> None:
    for looks in range(5):
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        assert waits == [0.05] * looks


def test_it_does_not_wait_after_a_micro_batch_of_another_source(
    reader: AdmissionStreamReader, end: dict[str, Any], waits: list[float]
) -> None:
    for _ in range(3):
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        reader.commit(end)
    assert waits == []


def test_news_ends_the_wait_and_is_in_the_offset_that_was_asked_for(
    broker: EmbeddedBroker,
    reader: AdmissionStreamReader,
    end: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Longer than the test may take.
    monkeypatch.setattr(stream_reader, "_WAIT_SECONDS", 600.0)
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(reader.latestOffset, end, ReadAllAvailable())
        # One entry: the look that ends the wait may come between two.
        store_many(broker, "t", 10)
        assert asked.result(60)["positions"] == {full("t"): "1:3:0"}


def test_it_never_waits_for_the_end_of_available_now(
    reader: AdmissionStreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "_WAIT_SECONDS", 600.0)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, ReadAllAvailable())
    for _ in range(3):
        assert reader.latestOffset(end, ReadAllAvailable()) == end
