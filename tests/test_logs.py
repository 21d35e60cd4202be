"""What a broker says or names is one line of a log, whatever is in it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.errors import UNPRINTABLE, DataLossError
from pulsar_spark.logs import get_logger
from pulsar_spark.spark.options.stream import Caps
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.streams import queries
from tests.spark.topics import store_many
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fault(151)

HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\n2026-11-27 10:00:00 ERROR root: all is lost\u202e\x9b31m"

pytestmark = pytest.mark.fault(148, 151)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a handler like that of Spark's workers writes, the whole package logging at INFO."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    root, own = logging.getLogger(), logging.getLogger("pulsar_spark")
    level = own.level
    root.addHandler(handler)
    own.setLevel(logging.DEBUG)
    yield written
    root.removeHandler(handler)
    own.setLevel(level)


def harmless(lines: io.StringIO) -> list[str]:
    """Return the lines that were written; fail if any of them is not one of ours."""
    found = lines.getvalue().splitlines()
    for line in found:
        assert not UNPRINTABLE.search(line), repr(line)
        assert line.split(" ")[1].startswith("pulsar_spark."), repr(line)
    return found


def test_names_and_texts_of_a_hostile_broker_are_escaped_in_log_lines(lines: io.StringIO) -> None:
    with EmbeddedBroker() as broker:
        topics = [f"persistent://public/default/t{number}{HOSTILE}" for number in range(3)]
        broker.create_topic(topics[0])
        with queries(broker.service_url) as make:
            query = make(
                None,
                topicsPattern=r"persistent://public/default/t[\s\S]*",
                startingOffsets="earliest",
                subscription="mine" + HOSTILE,
                failOnDataLoss="false",
            )
            assert query.batch() == []
            for topic in topics[1:]:
                broker.create_topic(topic)
            stored = store_many(broker, topics[1], 10, batch_size=1)
            assert query.batch(Caps(max_messages=2)) == stored[:2]
            # What a subscription passed, and what is gone with its topic.
            broker.expire_messages(topics[1], "mine" + HOSTILE, -1e9)
            assert query.batch() == stored[2:]
            # Refusals when it comes back.
            broker.faults.error("SUBSCRIBE", "ServiceNotReady", HOSTILE, times=2)
            broker.unload(topics[0])
            wait_until(lambda: "cannot subscribe again yet" in lines.getvalue())
            for topic in topics[1:]:
                broker.delete_topic(topic)
            query.batch()
        with PulsarClient(broker.service_url) as client:
            producer = client.create_producer(topics[0])
            broker.faults.error("PRODUCER", "ServiceNotReady", HOSTILE, times=3)
            broker.close_clients(topics[0])
            producer.send(b"1")
    found = harmless(lines)
    text = "\n".join(found)
    assert {line.split(" ")[1] for line in found} >= {
        "pulsar_spark.spark.streaming.topics:",
        "pulsar_spark.spark.streaming.source:",
        "pulsar_spark.spark.reading.data_loss:",
        "pulsar_spark.engine.attaching:",
    }
    assert "t1\\x1b[2J\\x1b]0;owned\\x07\\r\\n2026-11-27" in text
    assert "mine\\x1b[2J" in text


def test_a_traceback_keeps_its_lines_and_nothing_else_that_cannot_be_printed(
    lines: io.StringIO,
) -> None:
    try:
        raise DataLossError(HOSTILE) from ValueError("cause " + HOSTILE)
    except DataLossError:
        get_logger("pulsar_spark.test").exception("%s: 100 %% of %s", "t" + HOSTILE, {"a": 1})
    found = lines.getvalue().split("\n")
    assert found[0].startswith("ERROR pulsar_spark.test: t\\x1b[2J")
    assert found[0].endswith("100 % of {'a': 1}")
    assert "Traceback (most recent call last):" in found
    assert not UNPRINTABLE.search("".join(found))
