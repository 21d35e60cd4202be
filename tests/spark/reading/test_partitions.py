"""The input partition that a task gets."""

from __future__ import annotations

import pickle

import pytest
from pyspark import cloudpickle

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.table.record_batches import PublishTimes
from pulsar_spark.spark.reading.partitions import PulsarInputPartition

STRING = SchemaInfo(pb.Schema.String, "String", b"", {"a": "b"})
PART = PulsarInputPartition(
    "persistent://a/b/t", Position(1, 2), Position(3, 4, 5), PublishTimes(7), schema=STRING
)


@pytest.mark.fault(98)
def test_a_partition_is_plain_data() -> None:
    for pickler in (pickle, cloudpickle):
        copy = pickler.loads(pickler.dumps(PART))
        assert copy == PART
        assert copy.range == (Position(1, 2), Position(3, 4, 5))


@pytest.mark.fault(96)
def test_a_partition_says_what_it_is_and_nothing_secret() -> None:
    assert "persistent://a/b/t" in repr(PART)
    assert set(vars(PART)) == {
        "topic",
        "start",
        "end",
        "times",
        "schema",
        "first",
        "continues",
        "written",
        "era",
    }


def test_partitions_are_equal_if_they_read_the_same() -> None:
    assert PulsarInputPartition("persistent://a/b/t", Position(1, 2), Position(3, 4, 5)) != PART
    assert PART != "something else"
