"""Topics that drivers take over from each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.spark.writing.fenced_topic import Fence, FencedTopic, begin_together
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import full

RECORD = {"kind": "fence"}


def refuse(broker: EmbeddedBroker) -> None:
    broker.faults.error("PRODUCER", "TopicTerminatedError", topic=full("beside"))


def end_at_once(broker: EmbeddedBroker) -> None:
    broker.terminate_topic("beside")


def nothing(broker: EmbeddedBroker) -> None:
    """Do nothing."""


@pytest.mark.parametrize("trouble", [nothing, refuse, end_at_once])
def test_the_end_of_a_topic_that_is_taken_over_is_behind_the_fence(
    trouble: Callable[[EmbeddedBroker], None],
) -> None:
    """Whoever was there before may have written until then."""
    with EmbeddedBroker() as broker, ClientContext(ClientOptions(broker.service_url)) as context:
        for name in ("records", "beside"):
            with FencedTopic(context, full(name), "the test") as first:
                first.attach()
                first.append(RECORD)
        trouble(broker)
        with (
            FencedTopic(context, full("records"), "the test") as records,
            FencedTopic(context, full("beside"), "the test") as beside,
        ):
            begin_together([Fence(records, RECORD), Fence(beside, RECORD, EARLIEST_POSITION)])
            records.attach()
            stored = records.fence(RECORD)
            last = records.end().last
            assert Position.after(last) >= Position.after(stored)
            assert len(records.read(EARLIEST_POSITION, last)) >= 2
