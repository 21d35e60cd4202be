"""The reader of a stream that cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql.datasource import InputPartition

from pulsar_spark.errors import OptionError
from pulsar_spark.spark.streaming.refused_reader import RefusedStreamReader


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
def test_whatever_is_asked_is_answered_with_the_reason(
    ask: Callable[[RefusedStreamReader], object],
) -> None:
    with pytest.raises(OptionError, match="topic is not set"):
        ask(RefusedStreamReader(OptionError("topic is not set")))


def test_it_can_be_stopped() -> None:
    RefusedStreamReader(OptionError("topic is not set")).stop()
