"""A soak: rows are written under many faults, and the query's result is checked row by row.

If the broker can be configured so, only the query's subscription retains the rows: those that are
acknowledged too early are lost, which the check notices.
"""

from __future__ import annotations

import http.client
import os
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from pulsar_spark.errors import PulsarError
from tests.integration.brokers import Broker, Real
from tests.integration.streams import backlog
from tests.soak.job import Job, Results
from tests.soak.processes import connected, kill
from tests.soak.producers import Producers
from tests.support.real_broker import AdminError

PARTITIONS = 4
SUBSCRIPTION = "soak"

# How often each kind of fault comes, in addition to unloading topics every second.
FAULTS = {
    "task": 4,  # tasks are killed, and run again
    "query": 3,  # the query is stopped, and continues from its checkpoint
    "source": 2,  # the driver's part of the source is killed, and with it the query
    "broker": 2,  # the broker is stopped cleanly and restarted
    "broker killed": 1,
    "driver": 1,  # all of Spark is killed
}

# Each of these faults may fail the query once.
_FAILS = frozenset({"task", "source"})
# Our own errors, by which a query has failed by itself.
_OWN = "pulsar_spark.errors"
# Spark gives a Python worker ten seconds to start, which a busy machine may not have for it.
_TOO_SLOW = "Python worker failed to connect back"

_LOOK_SECONDS = 0.1
_UNLOAD_SECONDS = 1.0
_DRAIN_SECONDS = 90.0
# How long to wait for a task to kill, and the part of that to wait for one that is reading.
_VICTIM_SECONDS = 120.0
_BUSY_SECONDS = 20.0


class SoakFailed(Exception):
    """The soak cannot continue; the report says why."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Duration and faults. Two soaks with the same seed have the same faults in the same order.

    `rate` is in rows a second; `stall_seconds` is how long the query may read nothing.
    """

    rows: int
    faults: int
    seed: int = 0
    rate: float = 8000.0
    stall_seconds: float = 240.0


@dataclass(slots=True)
class Report:
    """The result. `problems` is empty after a success."""

    rows: int = 0
    batches: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    unloads: int = 0
    failures: int = 0
    resent: int = 0
    seconds: float = 0.0
    longest_pause: float = 0.0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        done = (
            f"{self.rows:,} rows in {self.batches} micro-batches, {self.faults.total()} faults "
            f"({kinds}), {self.unloads} unloads, the query failed {self.failures} times, "
            f"{self.resent} entries sent again, {self.seconds:.0f} s, longest pause "
            f"{self.longest_pause:.0f} s"
        )
        if self.problems:
            return f"FAILED: {done}\n" + "\n".join(f"  {problem}" for problem in self.problems)
        return f"PASSED: each row once and in order of its key; {done}"


class _Seeded(Protocol):
    @property
    def faults(self) -> int: ...

    @property
    def seed(self) -> int: ...


def schedule(
    settings: _Seeded, rng: random.Random, weights: Mapping[str, int] = FAULTS
) -> list[str]:
    """Return the faults in order, with each kind among them if there are enough."""
    once = [kind for kind, weight in weights.items() for _ in range(weight)]
    found: list[str] = []
    while len(found) < settings.faults:
        part = list(once)
        rng.shuffle(part)
        if len(part) > settings.faults - len(found):
            # The rest of a round: the rare kinds before the frequent ones.
            part = sorted(dict.fromkeys(part), key=weights.__getitem__) + part
        found += part
    return found[: settings.faults]


class _Judged(Protocol):
    @property
    def problems(self) -> list[str]: ...


def chosen_seed(given: int | None) -> int:
    """Return the given seed, or a random one."""
    return random.SystemRandom().randrange(10**6) if given is None else given


def conduct(settings: _Seeded, prefix: str, soak: Callable[[Path], _Judged]) -> int:
    """Run a soak in a folder of its own and print its report; return the exit status.

    After a failure the folder stays.
    """
    print(f"{settings}: --seed {settings.seed} strikes the same way again", flush=True)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    report = soak(folder)
    print(report, flush=True)
    if report.problems:
        print(f"What it has left is in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def say(line: str) -> None:
    """Print a line of progress at once."""
    print(line, flush=True)


class Unloader:
    """Unloads all partitions of a topic every second."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.unloads = 0
        self._broker = broker
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soak-unloader")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Return when no more topics will be unloaded."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_UNLOAD_SECONDS):
            try:
                self._broker.unload(self._topic)
            except (AdminError, OSError, http.client.HTTPException, PulsarError):
                # The broker is down, or starting.
                continue
            self.unloads += 1


class Soak:
    """One soak. `run` it once, on the main thread."""

    def __init__(
        self, broker: Broker, folder: Path, settings: Settings, say: Callable[[str], object] = print
    ) -> None:
        self.report = Report()
        self._broker = broker
        self._settings = settings
        self._say = say
        self._rng = random.Random(settings.seed)
        self._topic = broker.create_topic(_topic_name(broker), PARTITIONS)
        options = {
            "service.url": broker.service_url,
            "topic": self._topic,
            "subscription": SUBSCRIPTION,
            "startingOffsets": "earliest",
            # A broker takes long to start on a busy machine.
            "pulsar.client.operationTimeoutMs": "120000",
        }
        self._job = Job(folder, options)
        self._results = Results(folder)
        self._producers = Producers(broker, self._topic, settings.rows, settings.rate)
        self._unloader = Unloader(broker, self._topic)
        self._started = self._moved_at = time.monotonic()
        self._excused = 0

    def run(self) -> Report:
        """Return the report, whatever has happened."""
        try:
            with self._running():
                self._strike_all()
                self._finish()
        except SoakFailed as error:
            self.report.problems.append(str(error))
        self.report.problems += self._results.checker.problems
        self.report.rows = self._results.rows
        self.report.batches = self._results.batches
        self.report.unloads = self._unloader.unloads
        self.report.resent = self._producers.resent
        self.report.seconds = time.monotonic() - self._started
        return self.report

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._job.launch()
        try:
            self._start_query()
            # Nothing would retain messages written earlier.
            self._wait_for(self._is_subscribed)
            self._producers.start()
            self._unloader.start()
            try:
                yield
            finally:
                self._unloader.stop()
                self._producers.stop()
        finally:
            self._job.kill()

    def _is_subscribed(self) -> bool:
        partitions = self._broker.partitions_of(self._topic, PARTITIONS)
        return all(SUBSCRIPTION in self._broker.subscriptions(topic) for topic in partitions)

    # --- what happens -------------------------------------------------------------------------

    def _strike_all(self) -> None:
        faults = schedule(self._settings, self._rng)
        for number, kind in enumerate(faults):
            read = self._results.rows
            portion = (self._settings.rows - read) / (len(faults) - number + 1)
            # There is always something to read during a fault.
            self._producers.allowed = round(read + 2 * portion)
            due = read + (0.2 + 0.7 * self._rng.random()) * portion
            self._wait_for(lambda due=due: self._results.rows >= due)  # type: ignore[misc]
            self._pause(0.4 * self._rng.random())
            self._strike(kind)
            self.report.faults[kind] += 1
            self._say(self._progress(kind))

    def _strike(self, kind: str) -> None:
        if kind in _FAILS:
            self._excused += 1
        if kind == "task":
            self._kill_tasks()
        elif kind == "source":
            self._wait_for(lambda: self._job.kill_source() > 0)
        elif kind == "query":
            self._start_query()
        elif kind == "driver":
            self._job.kill()
            self._job.launch()
            self._start_query()
        else:
            self._broker.restart(kill=kind == "broker killed")
            self._moved()

    def _kill_tasks(self) -> None:
        """Kill a process that is reading from the broker, or else one that waits for a task."""
        port = urlsplit(self._broker.service_url).port or 6650
        started = time.monotonic()
        while (waited := time.monotonic() - started) < _VICTIM_SECONDS:
            workers = self._job.workers()
            victims = connected(workers, port) or (workers if waited > _BUSY_SECONDS else [])
            if victims and kill(self._rng.sample(victims, self._rng.randint(1, len(victims)))):
                return
            self._look()
        raise SoakFailed("no task is run")

    def _start_query(self) -> None:
        portion = self._settings.rows // self._settings.faults
        cap = self._rng.choice((None, portion // 2, portion // 3, portion // 5))
        self._job.tell(do="start", cap=cap, available_now=self._rng.random() < 0.3)

    def _finish(self) -> None:
        self._producers.allowed = self._settings.rows
        self._wait_for(lambda: self._results.rows >= self._settings.rows)
        self._unloader.stop()
        self._producers.join()
        self._job.tell(do="start", cap=None, available_now=False)
        deadline = time.monotonic() + _DRAIN_SECONDS
        while left := self._unacknowledged():
            self._pause(0.5)
            if time.monotonic() > deadline:
                raise SoakFailed(f"all is read, but entries are not acknowledged: {left}")
        self._job.tell(do="stop")
        self._job.stop()
        self._look()
        self._results.look(all_final=True)
        self._results.checker.end(self._settings.rows)

    def _unacknowledged(self) -> dict[str, int]:
        found = {
            topic: backlog(self._broker, topic, SUBSCRIPTION)
            for topic in self._broker.partitions_of(self._topic, PARTITIONS)
        }
        return {topic: entries for topic, entries in found.items() if entries}

    # --- what is seen -------------------------------------------------------------------------

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._pause(_LOOK_SECONDS)

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._look()
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
            self._look()

    def _look(self) -> None:
        before = self._results.rows
        self._results.look()
        if self._results.rows != before:
            self._moved()
        for event in self._job.events():
            self._hear(event)
        if self._producers.error is not None:
            raise SoakFailed(f"a writer failed: {self._producers.error!r}")
        if self._results.checker.wrong:
            raise SoakFailed("rows are missing or come again")
        if time.monotonic() - self._moved_at > self._settings.stall_seconds:
            self._job.dump()
            time.sleep(3.0)
            raise SoakFailed(
                f"nothing was read for {self._settings.stall_seconds:.0f} s, with "
                f"{self._producers.written} rows written and {self._results.rows} read:\n"
                + self._job.log_tail()
            )

    def _moved(self) -> None:
        now = time.monotonic()
        self.report.longest_pause = max(self.report.longest_pause, now - self._moved_at)
        self._moved_at = now

    def _hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "differs":
            self.report.problems.append(f"a batch that was run again has other rows: {event}")
        elif event["event"] == "failed":
            self.report.failures += 1
            self._excused -= _TOO_SLOW not in event["why"]
            if self._excused < 0 or _OWN in event["why"]:
                self.report.problems.append(f"the query failed by itself: {event['why']}")

    def _progress(self, kind: str) -> str:
        return (
            f"[{time.monotonic() - self._started:6.0f} s] fault {self.report.faults.total()}"
            f"/{self._settings.faults}: {kind:13} · written {self._producers.written:,} "
            f"· read {self._results.rows:,} · batches {self._results.batches} "
            f"· unloads {self._unloader.unloads} · failures {self.report.failures}"
        )


def _topic_name(broker: Broker) -> str:
    """Return a topic name, in a namespace without retention if possible."""
    if not isinstance(broker, Real):
        return broker.unique_topic("soak")
    namespace = f"public/soak-{time.time_ns()}"
    broker.own.admin("PUT", f"namespaces/{namespace}")
    return broker.unique_topic("soak", namespace)
