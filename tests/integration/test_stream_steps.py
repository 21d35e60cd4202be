"""A stream and random changes of its topics: it reports every loss, and only losses.

A model tracks what was written and what happened to it. Some losses look like ledgers that were
read and deleted: those of messages that were gone before the query looked.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from pulsar_spark.errors import DataLossError
from pulsar_spark.protocol.message_id import EARLIEST_POSITION
from pulsar_spark.spark.options.stream import Caps
from tests.integration.brokers import Broker, Embedded
from tests.integration.streams import Feed
from tests.spark.streams import NO_CAPS, Make, Query

TOPICS = 5
PARTITIONS = 4


class Steps:
    """Random steps of topics and of the query that reads them."""

    def __init__(self, broker: Broker, make: Make, feed: Feed, seed: int, strict: bool) -> None:
        self.broker = broker
        self.feed = feed
        self.rng = random.Random(seed)
        self.namespace = broker.create_namespace("steps")
        self.strict = strict
        self._make = make
        self._ledgers = itertools.count(1000, 1000)
        self.topics: dict[str, int] = {}
        self.deleted: set[str] = set()
        # By partition: messages stored and not read, and those of them that the query has seen.
        self.unread: dict[str, list[bytes]] = {}
        self.seen: set[str] = set()
        # Partitions whose loss must be reported at the next look, and those whose loss may be.
        self.must: set[str] = set()
        self.may: set[str] = set()
        self.read: set[bytes] = set()
        self.alarms = 0
        self.query = self.started(strict)

    def started(self, strict: bool, before: Query | None = None) -> Query:
        """Start the query, from another one's checkpoint."""
        if before is not None:
            before.source.close()
        return self._make(
            None,
            None if before is None else before.committed,
            topicsPattern=f"persistent://{self.namespace}/s-.*",
            startingOffsets="earliest",
            waitingForNonExistedTopic="true",
            subscription="mine",
            failOnDataLoss=str(strict).lower(),
        )

    def partitions_of(self, topic: str) -> list[str]:
        return self.broker.partitions_of(topic, self.topics[topic])

    def is_begun(self, partition: str) -> bool:
        """Whether the query has read anything of a partition."""
        committed = self.query.committed
        at = EARLIEST_POSITION
        if committed is not None:
            at = committed.positions.get(partition, at)
        return not at.begins_ledger

    # --- steps of topics ------------------------------------------------------------------------

    def create(self) -> None:
        free = sorted(
            {f"persistent://{self.namespace}/s-{n}" for n in range(TOPICS)}.difference(self.topics)
        )
        if not free:
            return
        topic, count = self.rng.choice(free), self.rng.randrange(PARTITIONS)
        if isinstance(self.broker, Embedded):
            # As on real brokers, no two ledgers have the same id.
            self.broker.own.create_topic(topic, count, ledger_id=next(self._ledgers))
        else:
            self.broker.create_topic(topic, count)
        self.topics[topic] = count
        for partition in self.partitions_of(topic):
            self.unread[partition] = []
            if partition in self.must and partition not in self.seen:
                # The old one looks as if it had been read to its end.
                self.must.discard(partition)
                self.may.add(partition)

    def delete(self) -> None:
        if not self.topics:
            return
        topic = self.rng.choice(sorted(self.topics))
        for partition in self.partitions_of(topic):
            # It may report one of which it has neither read nor seen anything.
            known = self.is_begun(partition) or partition in self.seen
            (self.must if known else self.may).add(partition)
            del self.unread[partition]
        self.broker.delete_topic(topic)
        del self.topics[topic]

    def grow(self) -> None:
        partitioned = sorted(topic for topic, count in self.topics.items() if 0 < count < 6)
        if partitioned:
            topic = self.rng.choice(partitioned)
            self.topics[topic] += 1
            self.broker.add_partitions(topic, self.topics[topic])
            self.unread[self.partitions_of(topic)[-1]] = []

    def trim(self) -> None:
        if not self.unread:
            return
        partition = self.rng.choice(sorted(self.unread))
        self.broker.trim(partition)
        if self.unread[partition]:
            (self.must if partition in self.seen else self.may).add(partition)
        self.unread[partition] = []

    def write(self) -> None:
        if self.unread:
            partition = self.rng.choice(sorted(self.unread))
            sizes = [self.rng.choice([0, 1, 7]) for _ in range(self.rng.randrange(1, 5))]
            self.unread[partition] += self.feed(partition, sizes)

    def unload(self) -> None:
        if self.unread:
            partition = self.rng.choice(sorted(self.unread))
            self.rng.choice([self.broker.unload, self.broker.roll_ledger])(partition)

    # --- steps of the query -----------------------------------------------------------------------

    def restart(self) -> None:
        self.query = self.started(self.strict, self.query)
        # What it knew is forgotten.
        self.may |= self.must & set(self.unread)
        self.must -= set(self.unread)
        self.seen.clear()

    def batch(self) -> None:
        caps = self.rng.choice([NO_CAPS, Caps(5), Caps(20)])
        told: DataLossError | None = None
        try:
            values = self.query.batch(caps)
        except DataLossError as error:
            told = error
            # As the error says: continue without the lost messages, and be strict from there on.
            self.query = self.started(False, self.query)
            values = self.query.batch()
            self.query = self.started(True, self.query)
        if told is not None:
            assert self.strict
            assert told.topic in self.must | self.may, f"a false alarm: {told}"
            self.alarms += 1
        else:
            assert not (self.must and self.strict), f"a loss was not told of: {self.must}"
        # While it is before the gap, another start of the query can report it again.
        self.may |= self.must
        self.must.clear()
        self.account(values)

    def account(self, values: list[bytes]) -> None:
        assert len(set(values)) == len(values)
        assert not self.read.intersection(values), "read twice"
        self.read.update(values)
        taken = set(values)
        known = {value for unread in self.unread.values() for value in unread}
        assert taken <= known, "what is read was not there any more"
        for partition, unread in self.unread.items():
            if taken.intersection(unread):
                self.may.discard(partition)
            self.unread[partition] = [value for value in unread if value not in taken]
        self.seen = {partition for partition, unread in self.unread.items() if unread}

    def run(self, count: int) -> None:
        """Take this many steps, then read everything."""
        steps: list[Callable[[], None]] = [self.create, self.delete, self.grow, self.trim]
        steps += [self.restart, self.unload] + [self.write] * 6 + [self.batch] * 6
        self.create()
        for _ in range(count):
            self.rng.choice(steps)()
        for _ in range(200):
            self.batch()
            if not any(self.unread.values()):
                return
        raise AssertionError(f"never read: {self.unread}")


@pytest.mark.fault(54, 55, 57, 58)
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strict", [True, False])
def test_random_steps_lose_nothing_quietly_and_double_nothing(
    broker: Broker, make: Make, feed: Feed, strict: bool
) -> None:
    seeds, count = (5, 200) if isinstance(broker, Embedded) else (3, 150)
    alarms = 0
    for seed in range(seeds):
        steps = Steps(broker, make, feed, seed, strict)
        steps.run(count)
        alarms += steps.alarms
    assert (alarms > 0) is strict
