"""What Spark says a batch may have."""

from __future__ import annotations

from collections.abc import Iterator

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

from pulsar_spark.spark.admission_reader import AdmissionStreamReader, caps_within
from pulsar_spark.spark.stream_options import Caps, parse_stream_options
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import full, store_many

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
