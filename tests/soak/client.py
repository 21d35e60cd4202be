"""A soak of `PulsarClient` on the embedded broker: ``python -m tests.soak.client``.

Producers, consumers, listeners, readers and table views live on while topics are unloaded, deleted
and made again, quotas and limits come and go, connections break and the broker restarts. Beside
them clients are made and dropped without `close`. In the end everything must go on, nothing that
was acknowledged on the topic that stays may be missing, and there are no more threads and sockets
than in the beginning.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pulsar_spark.client import (
    ConsumerType,
    InitialPosition,
    MessageId,
    PulsarClient,
    PulsarException,
    Result,
)
from pulsar_spark.errors import PulsarError
from pulsar_spark.testing import BacklogQuota, EmbeddedBroker, TopicPolicies
from tests.support.waiting import wait_until

STAYS, AGAIN, LIMITED = "stays", "again", "limited"
TOPICS = (STAYS, AGAIN, LIMITED)
KEYS = 20
_PAUSE = 0.005
_RECEIVE_MS = 500
_WARM_UP_SECONDS = 5.0
# A broker that restarts is back, and timers that have begun have ended.
_SPARE_THREADS, _SPARE_FILES = 4, 8
_PATIENCE = 180.0


@dataclass
class Report:
    """What a soak saw."""

    steps: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"{'FAILED' if self.problems else 'PASSED'}: {sum(self.steps.values())} disturbances",
            *(f"  {name}: {count}" for name, count in sorted(self.steps.items())),
            *(f"  sent to {name}: {count}" for name, count in sorted(self.sent.items())),
            *(f"  {name}: {count}" for name, count in sorted(self.received.items())),
            *self.problems,
        ]
        return "\n".join(lines)


class ClientSoak:
    """One soak of some seconds; `seed` chooses the disturbances."""

    def __init__(self, seconds: float, seed: int) -> None:
        self._seconds = seconds
        self._rng = random.Random(seed)
        self.report = Report()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._views: list[Any] = []
        # Numbers of each topic: those that the broker has acknowledged, and those that came.
        self._acked: dict[str, set[int]] = {topic: set() for topic in TOPICS}
        self._seen: dict[str, dict[str, set[int]]] = {}

    def run(self) -> Report:
        """Run it."""
        with EmbeddedBroker(policy_check_interval=0.2) as broker:
            self._broker = broker
            for topic in TOPICS:
                broker.create_topic(topic, 2 if topic == STAYS else 0)
            with PulsarClient(broker.service_url) as client:
                self._begin(client)
                time.sleep(_WARM_UP_SECONDS)
                threads, files = _threads(), _files()
                self._disturb()
                self._settle()
                self._judge(threads, files)
            if broker.internal_errors:
                self.report.problems.append(f"in the broker: {broker.internal_errors}")
        return self.report

    # --- who lives on -----------------------------------------------------------------------------

    def _begin(self, client: PulsarClient) -> None:
        for topic in TOPICS:
            self._start(self._send, client, topic)
            self._listen(client, topic)
            for name, made in (
                ("consumer", self._consumer(client, [topic])),
                ("reader", client.create_reader(topic, MessageId.earliest)),
            ):
                self._start(self._receive, made, {topic: self._saw(name, topic)})
            self._view(client, topic)
        several = {topic: self._saw("consumer of a list", topic) for topic in TOPICS}
        self._start(self._receive, self._consumer(client, list(TOPICS)), several)

    def _view(self, client: PulsarClient, topic: str) -> None:
        seen = self._saw("table view", topic)
        view = client.create_table_view(topic)
        view.for_each_and_listen(lambda key, value: seen.add(int(value)))
        self._views.append(view)

    def _saw(self, name: str, topic: str) -> set[int]:
        return self._seen.setdefault(topic, {}).setdefault(name, set())

    def _consumer(self, client: PulsarClient, topics: list[str]) -> Any:
        return client.subscribe(
            topics if len(topics) > 1 else topics[0],
            f"mine-{len(topics)}",
            consumer_type=ConsumerType.Shared,
            initial_position=InitialPosition.Earliest,
            unacked_messages_timeout_ms=10_000,
        )

    def _listen(self, client: PulsarClient, topic: str) -> None:
        seen = self._saw("listener", topic)

        def on_message(consumer: Any, message: Any) -> None:
            seen.add(int(message.data()))
            with contextlib.suppress(PulsarException, PulsarError):
                consumer.acknowledge(message)

        client.subscribe(
            topic, "listens", initial_position=InitialPosition.Earliest, message_listener=on_message
        )

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _send(self, client: PulsarClient, topic: str) -> None:
        producer = client.create_producer(topic, block_if_queue_full=True)
        for number in _numbers(self._stopping):

            def stored(result: Result, _: object, number: int = number) -> None:
                if result == Result.Ok:
                    self._acked[topic].add(number)

            # The quota refuses some.
            with contextlib.suppress(PulsarException, PulsarError):
                producer.send_async(b"%d" % number, stored, partition_key=str(number % KEYS))
                self.report.sent[topic] += 1

    def _receive(self, receiver: Any, seen: dict[str, set[int]]) -> None:
        take = getattr(receiver, "receive", None) or receiver.read_next
        acknowledge = getattr(receiver, "acknowledge", lambda _: None)
        while not self._stopping.is_set():
            with contextlib.suppress(PulsarException, PulsarError):
                message = take(_RECEIVE_MS)
                topic = message.topic_name().rpartition("/")[2].partition("-partition-")[0]
                seen[topic].add(int(message.data()))
                acknowledge(message)

    # --- disturbances -----------------------------------------------------------------------------

    def _disturb(self) -> None:
        steps: list[Callable[[], object]] = [
            self._unload, self._unload, self._delete, self._restart, self._break_connections,
            self._quota, self._limit, self._drop_a_client,
        ]  # fmt: skip
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            step = self._rng.choice(steps)
            self.report.steps[step.__name__.strip("_")] += 1
            step()
            time.sleep(self._rng.uniform(0.05, 1.0))

    def _unload(self) -> None:
        topic = self._rng.choice(TOPICS)
        with contextlib.suppress(PulsarError):
            self._broker.unload(f"{STAYS}-partition-1" if topic == STAYS else topic)

    def _delete(self) -> None:
        with contextlib.suppress(PulsarError):
            self._broker.delete_topic(AGAIN)
        time.sleep(self._rng.uniform(0, 0.3))
        with contextlib.suppress(PulsarError):
            self._broker.create_topic(AGAIN)

    def _restart(self) -> None:
        self._broker.restart(self._rng.uniform(0, 1.0))

    def _break_connections(self) -> None:
        self._broker.faults.disconnect(reset=self._rng.random() < 0.5)

    def _quota(self) -> None:
        quota = BacklogQuota(1, "producer_exception")
        self._broker.set_policies(LIMITED, TopicPolicies(backlog_size=quota))
        time.sleep(self._rng.uniform(0.3, 1.0))
        self._broker.set_policies(LIMITED, TopicPolicies())

    def _limit(self) -> None:
        """Refuse whoever attaches for a moment."""
        nobody = TopicPolicies(max_producers=1, max_consumers=1)
        self._broker.set_policies(LIMITED, nobody)
        self._broker.unload(LIMITED)
        time.sleep(self._rng.uniform(0.3, 1.0))
        self._broker.set_policies(LIMITED, TopicPolicies())

    def _drop_a_client(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            with contextlib.suppress(PulsarException, PulsarError):
                client = PulsarClient(self._broker.service_url, operation_timeout_seconds=10)
                client.create_producer(STAYS, batching_enabled=True)
                client.subscribe(STAYS, "dropped", consumer_type=ConsumerType.Shared)
                client.create_reader(STAYS, MessageId.latest)
                del client
            gc.collect()

    # --- the verdict ------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait until all that lives has what is sent now, which shows that it goes on."""
        marks = {topic: self.report.sent[topic] for topic in TOPICS}
        for topic, mark in marks.items():
            self._wait(partial(_is_beyond, self._acked[topic], mark + 50), topic, "sending")
            late = max(set(self._acked[topic]), default=0)
            for name, seen in self._seen[topic].items():
                self._wait(partial(_is_beyond, seen, late), topic, name)
        for name, seen in self._seen[STAYS].items():
            # A table view that was away gets the last value of a key only.
            if name != "table view":
                acked = set(self._acked[STAYS])
                self._wait(partial(acked.issubset, seen), STAYS, f"what {name} has")
        self._stopping.set()
        for thread in self._threads:
            thread.join(_PATIENCE)
            if thread.is_alive():
                self.report.problems.append(f"{thread.name} hangs")

    def _wait(self, condition: Callable[[], bool], topic: str, what: str) -> None:
        try:
            wait_until(condition, f"{what} on {topic} goes on", _PATIENCE)
        except AssertionError as error:
            self.report.problems.append(str(error))

    def _judge(self, threads: int, files: int) -> None:
        for topic, seen in self._seen.items():
            for name, numbers in seen.items():
                self.report.received[f"{name} of {topic}"] = len(numbers)
        gc.collect()
        for what, count, before, spare in (
            ("threads", _threads, threads, _SPARE_THREADS),
            ("open files", _files, files, _SPARE_FILES),
        ):
            try:
                wait_until(partial(_is_at_most, count, before + spare), what, 60)
            except AssertionError:
                self.report.problems.append(f"{count()} {what}; there were {before}")


def _numbers(stopping: threading.Event) -> Iterator[int]:
    number = 0
    while not stopping.is_set():
        yield number
        number += 1
        time.sleep(_PAUSE)


def _is_beyond(numbers: set[int], number: int) -> bool:
    # Others add to it.
    return max(set(numbers), default=-1) >= number


def _is_at_most(count: Callable[[], int], most: int) -> bool:
    return count() <= most


def _threads() -> int:
    return threading.active_count()


def _files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def main() -> int:
    """Run a soak; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.client", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    report = ClientSoak(arguments.minutes * 60, arguments.seed).run()
    print(report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
