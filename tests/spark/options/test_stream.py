"""Options of a stream, checked against each other."""

from __future__ import annotations

import pickle
import re

import pytest

from pulsar_spark.errors import OptionError
from pulsar_spark.spark.offsets import EARLIEST_BOUND, LATEST_BOUND
from pulsar_spark.spark.options.stream import Caps, StreamOptions, parse_stream_options


def parse(**more: str) -> StreamOptions:
    return parse_stream_options({"service.url": "pulsar://localhost", "topic": "t", **more})


def test_a_stream_starts_at_the_end_and_has_no_caps() -> None:
    options = parse()
    assert options.read.starting.default == LATEST_BOUND
    assert options.read.waiting is False
    assert options.subscription is None
    assert not options.caps.bounded
    assert options.caps == Caps(max_delay=900.0)
    assert pickle.loads(pickle.dumps(options)) == options


def test_topics_that_are_left_out_start_at_the_end_too() -> None:
    options = parse(startingOffsets='{"t": "earliest"}')
    assert dict(options.read.starting.by_topic) == {"persistent://public/default/t": EARLIEST_BOUND}
    assert options.read.starting.default == LATEST_BOUND


def test_the_name_of_the_subscription_is_given_or_made_up() -> None:
    assert parse(predefinedSubscription="mine").subscription_name() == "mine"
    names = {parse().subscription_name() for _ in range(3)}
    assert len(names) == 3
    assert all(re.fullmatch(r"spark-pulsar-[0-9a-f]{16}", name) for name in names)
    assert parse(subscriptionPrefix="p").subscription_name().startswith("p-")


@pytest.mark.parametrize("key", ["endingOffsets", "ENDINGOFFSETS", "endingTime"])
def test_an_end_is_an_error(key: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OptionError, match=r"(?i)^ending(Offsets|Time) is for batches"):
        parse(**{key: "latest" if key.lower() == "endingoffsets" else "-1h"})
    assert not caplog.records


def test_caps_are_parsed() -> None:
    options = parse(
        maxMessagesPerTrigger="1000",
        maxBytesPerTrigger="10m",
        minMessagesPerTrigger="10",
        maxTriggerDelay="30s",
    )
    assert options.caps == Caps(1000, 10 * 1024 * 1024, 10, 30.0)
    assert options.caps.bounded
    assert parse(maxBytesPerTrigger="0").caps.max_bytes is None


def test_a_least_that_is_more_than_the_most_is_an_error() -> None:
    with pytest.raises(OptionError, match="minMessagesPerTrigger=5 is more"):
        parse(maxMessagesPerTrigger="4", minMessagesPerTrigger="5")


@pytest.mark.parametrize("key", ["maxMessagesPerTrigger", "minMessagesPerTrigger"])
def test_a_cap_of_nothing_is_an_error(key: str) -> None:
    with pytest.raises(OptionError, match=key):
        parse(**{key: "0"})
