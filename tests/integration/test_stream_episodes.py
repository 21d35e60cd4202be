"""Hundreds of short, random lives of a topic and of the stream that reads it, on both brokers.

Whatever happens to the topic, to its subscription and to the query: no message is read twice, and
each one is read, or the stream said that the partition lost messages. It says so only if something
happened that can lose some.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from pulsar_spark.errors import DataLossError
from pulsar_spark.spark.options.stream import Caps
from tests.integration.brokers import Broker
from tests.integration.streams import POINTS, Checkpoint, Feed, remove_subscription, run_query
from tests.spark.streams import NO_CAPS, Make, Query

EPISODES = 150
STEPS = 12
SUBSCRIPTION = "mine"


class Episode:
    """One topic, and a query whose restarts and crashes go through its checkpoint."""

    def __init__(self, broker: Broker, make: Make, feed: Feed, namespace: str, seed: int) -> None:
        self.broker = broker
        self.feed = feed
        self.rng = random.Random(seed)
        self._make = make
        self.topic = f"persistent://{namespace}/e-{seed}"
        self.partitions = self.rng.choice([0, 0, 1, 2])
        broker.create_topic(self.topic, self.partitions)
        self.exists = True
        # What was written to each partition, and how much of it was there at each error of a loss.
        self.sent: dict[str, list[bytes]] = {name: [] for name in self.names}
        self.told: dict[str, int] = {}
        # Partitions to which something happened that can lose messages.
        self.may_lose: set[str] = set()
        self.checkpoint = Checkpoint()
        self.done: list[str] = []
        self.query = self.started(strict=True)

    @property
    def names(self) -> list[str]:
        return self.broker.partitions_of(self.topic, self.partitions)

    def started(self, *, strict: bool) -> Query:
        namespace = self.topic.rpartition("/")[0]
        name = self.topic.rpartition("/")[2]
        return self._make(
            None,
            self.checkpoint.end_of(self.checkpoint.last),
            topicsPattern=f"{namespace}/{name}",
            startingOffsets="earliest",
            waitingForNonExistedTopic="true",
            subscription=SUBSCRIPTION,
            failOnDataLoss=str(strict).lower(),
        )

    # --- what happens to the topic --------------------------------------------------------------

    def send(self) -> None:
        if self.exists:
            name = self.rng.choice(self.names)
            sizes = [self.rng.choice([0, 1, 7]) for _ in range(self.rng.randrange(1, 4))]
            self.sent.setdefault(name, []).extend(self.feed(name, sizes))

    def unload(self) -> None:
        if self.exists:
            self.rng.choice([self.broker.unload, self.broker.roll_ledger])(
                self.rng.choice(self.names)
            )

    def grow(self) -> None:
        if self.exists and self.partitions:
            self.partitions += 1
            self.broker.add_partitions(self.topic, self.partitions)

    def truncate(self) -> None:
        self._harm(self.broker.trim)

    def delete(self) -> None:
        if self.exists:
            self.may_lose.update(self.names)
            self.broker.delete_topic(self.topic)
            self.exists = False

    def create(self) -> None:
        if not self.exists:
            self.partitions = self.rng.choice([0, 1, 2])
            self.broker.create_topic(self.topic, self.partitions)
            self.exists = True

    def make_again(self) -> None:
        self.delete()
        self.create()

    # --- what happens to the subscription ---------------------------------------------------------

    def expire(self) -> None:
        self._harm(lambda name: self.broker.expire(name, None, 0))

    def skip(self) -> None:
        self._harm(lambda name: self.broker.reset_subscription(name, SUBSCRIPTION, to_end=True))

    def remove(self) -> None:
        self._harm(self._remove)

    def reset(self) -> None:
        self._harm(lambda name: self.broker.reset_subscription(name, SUBSCRIPTION, to_end=False))

    def _remove(self, name: str) -> None:
        if SUBSCRIPTION in self.broker.subscriptions(name):
            remove_subscription(self.broker, name, SUBSCRIPTION)

    def _harm(self, what: Callable[[str], None]) -> None:
        if self.exists:
            name = self.rng.choice(self.names)
            self.may_lose.add(name)
            what(name)

    # --- the query --------------------------------------------------------------------------------

    def read(self) -> None:
        self._run(lambda: self._batch(self.rng.choice([NO_CAPS, Caps(5)])))

    def restart(self) -> None:
        self._restart(strict=True)
        self._run(lambda: run_query(self.query, self.checkpoint))

    def crash(self) -> None:
        point = self.rng.choice(POINTS)
        self._run(lambda: run_query(self.query, self.checkpoint, point))
        self._restart(strict=True)

    def _batch(self, caps: Caps = NO_CAPS) -> bool:
        """Run one more batch of a query that is running; return whether there was one."""
        last = self.checkpoint.last
        if last not in self.checkpoint.committed:
            return run_query(self.query, self.checkpoint, caps=caps)
        source = self.query.source
        start = self.checkpoint.end_of(last)
        assert start is not None
        end = source.latest(start, caps)
        if end == start:
            return False
        self.checkpoint.offsets[last + 1] = json.dumps(end.to_json())
        source.commit(start)
        self.checkpoint.sink[last + 1] = self.query.values(source.plan(start, end))
        self.checkpoint.committed.add(last + 1)
        return True

    def _restart(self, *, strict: bool) -> None:
        self.query.source.close()
        self.query = self.started(strict=strict)

    def _run(self, what: Callable[[], bool]) -> bool:
        try:
            return what()
        except DataLossError as error:
            lost = {name for name in self.may_lose if error.topic in (name, self.topic)}
            assert lost, f"a false alarm: {error}"
            for name in self.sent:
                if error.topic in (name, self.topic):
                    self.told[name] = len(self.sent[name])
            # As the error says: go on with what is there, and be strict again.
            self._restart(strict=False)
            run_query(self.query, self.checkpoint)
            self._restart(strict=True)
            return True

    # --- the verdict --------------------------------------------------------------------------------

    def live(self) -> None:
        steps = [self.send] * 6 + [self.read] * 5 + [self.restart, self.crash] * 2
        steps += [self.unload, self.grow, self.truncate, self.delete, self.create, self.make_again]
        steps += [self.expire, self.skip, self.remove, self.reset]
        for _ in range(STEPS):
            step = self.rng.choice(steps)
            self.done.append(step.__name__)
            step()
        self.done.append("the end")
        for _ in range(100):
            if not self._run(self._batch):
                break
        else:
            raise AssertionError("it never comes to an end")
        self.judge()

    def judge(self) -> None:
        read = self.checkpoint.values
        assert len(set(read)) == len(read), "read twice"
        for name, sent in self.sent.items():
            missing = [number for number, value in enumerate(sent) if value not in set(read)]
            assert max(missing, default=-1) < self.told.get(name, 0), f"{name}: silently lost"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.fault(54, 55, 58, 126)
@pytest.mark.parametrize("part", [0, 1])
def test_random_episodes_lose_nothing_in_silence_and_double_nothing(
    broker: Broker, make: Make, feed: Feed, part: int
) -> None:
    for retained in (True, False):
        namespace = broker.create_namespace("episodes", retained=retained)
        for seed in range(EPISODES // 2):
            number = (2 * part + retained) * EPISODES + seed
            episode = Episode(broker, make, feed, namespace, number)
            try:
                episode.live()
            except Exception as error:
                raise AssertionError(f"episode {number}: {', '.join(episode.done)}") from error
            finally:
                episode.query.source.close()
