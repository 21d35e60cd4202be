"""Hundreds of short, random lives of a topic and of the stream that reads it, on both brokers.

Whatever happens to the topic, to its subscription and to the query: no message is read twice, and
each one is read, or the stream said that the partition lost messages. It says so only if something
happened that can lose some. It cannot know what it never saw: messages of a partition at which it
had never looked, or that was empty and was deleted, and those that were gone from a topic that is
there when it starts again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from pulsar_spark.errors import DataLossError, TopicNotFound
from pulsar_spark.spark.options.stream import Caps
from tests.integration.brokers import Broker, Embedded
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
        # Partitions to which something happened that can lose messages; how many they had when it
        # did since the query looked; and how many of them it cannot know.
        self.may_lose: set[str] = set()
        self.harmed: dict[str, int] = {}
        self.unknown: dict[str, int] = {}
        self.checkpoint = Checkpoint()
        self.done: list[str] = []
        self.was_told = False
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
        if isinstance(self.broker, Embedded):
            # This broker leaves subscriptions where they are when all was read.
            self._forget()

    def delete(self) -> None:
        if self.exists:
            for name in self.names:
                self._note(name, begun=True)
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
        self._harm(self._reset)

    def _reset(self, name: str) -> None:
        # If the query did not look before, nothing shows any more what the subscription passed.
        if name in self.harmed:
            self.unknown[name] = self.harmed.pop(name)
        self.broker.reset_subscription(name, SUBSCRIPTION, to_end=False)

    def _remove(self, name: str) -> None:
        if SUBSCRIPTION in self.broker.subscriptions(name):
            remove_subscription(self.broker, name, SUBSCRIPTION)

    def _harm(self, what: Callable[[str], None]) -> None:
        if self.exists:
            name = self.rng.choice(self.names)
            self._note(name)
            what(name)

    def _note(self, name: str, *, begun: bool = False) -> None:
        """Something happens to a partition that can lose its messages.

        The query knows of it if it has looked at the partition, or, if it must have `begun`, read
        something of it.
        """
        self.may_lose.add(name)
        end = self.checkpoint.end_of(self.checkpoint.last)
        position = None if end is None else end.positions.get(name)
        is_known = position is not None and not (begun and position.begins_ledger)
        counts = self.harmed if is_known else self.unknown
        counts[name] = len(self.sent.get(name, ()))

    # --- the query --------------------------------------------------------------------------------

    def read(self) -> None:
        self._run(lambda: self._batch(self.rng.choice([NO_CAPS, Caps(5)])))

    def restart(self) -> None:
        self._forget()
        self._restart(strict=True)
        self._run(lambda: run_query(self.query, self.checkpoint))

    def crash(self) -> None:
        point = self.rng.choice(POINTS)
        if point == "started":
            self._forget()
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

    def _forget(self) -> None:
        """The query ends before it looked at what happened to a topic that is there."""
        for name in self.names if self.exists else ():
            if name in self.harmed:
                self.unknown[name] = self.harmed.pop(name)

    def _restart(self, *, strict: bool) -> None:
        self.query.source.close()
        self.query = self.started(strict=strict)

    def _run(self, what: Callable[[], bool]) -> bool:
        told: DataLossError | TopicNotFound | None = None
        try:
            found = what()
        except (DataLossError, TopicNotFound) as error:
            told = error
        self.harmed.clear()
        self.was_told = told is not None
        if told is None:
            return found
        lost = {name for name in self.may_lose if told.topic in (name, self.topic)}
        assert lost, f"a false alarm: {told}"
        # As the error says: go on with what is there, which warns of every loss, and be strict
        # again.
        self.told.update({name: len(sent) for name, sent in self.sent.items()})
        self._restart(strict=False)
        run_query(self.query, self.checkpoint)
        self._restart(strict=True)
        return True

    # --- the verdict ------------------------------------------------------------------------------

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
            last = self.checkpoint.last
            # A loss at the end of a topic is told again until there is something behind it.
            if not self._run(self._batch) or (self.was_told and self.checkpoint.last == last):
                break
        else:
            raise AssertionError("it never comes to an end")
        self.judge()

    def judge(self) -> None:
        read = self.checkpoint.values
        assert len(set(read)) == len(read), "read twice"
        for name, sent in self.sent.items():
            missing = [number for number, value in enumerate(sent) if value not in set(read)]
            known = max(self.told.get(name, 0), self.unknown.get(name, 0))
            assert max(missing, default=-1) < known, f"{name}: {missing} are lost in silence"


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
