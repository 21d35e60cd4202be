"""A soak of the exactly-once sink: ``python -m tests.soak.sink``.

A query writes numbered rows to a cluster of two brokers, while everything involved is killed or
moved. A consumer of the official client must see each row once, in the order of its key, and whole
micro-batches.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pulsar_spark.spark.writing.crash_points import VARIABLE
from tests.soak.job import Job
from tests.soak.processes import kill
from tests.soak.soak import SoakFailed, chosen_seed, conduct, say, schedule
from tests.soak.witness import Witness
from tests.support.crash_points import DRIVER_POINTS, TASK_POINTS
from tests.support.pulsar_distribution import BrokerUnavailable
from tests.support.real_broker import AdminError, prepare
from tests.support.real_cluster import ClusterBroker, RealCluster

T = TypeVar("T")

PARTITIONS = 4
STATE = "persistent://public/default/soak-sink-records"
COORDINATORS = [
    f"persistent://pulsar/system/transaction_coordinator_assign-partition-{number}"
    for number in range(2)
]

# How often each kind of fault comes.
FAULTS = {
    "task": 6,  # tasks are killed, and run again
    "commit": 4,  # the committing process is killed while it commits, and with it the query
    "unload": 3,  # a topic or the state topic is unloaded
    "move": 3,  # a topic moves to the other broker
    "move coordinator": 3,  # a bundle of pulsar/system moves
    "query": 2,  # the query is stopped and restarted
    "driver": 2,  # all of Spark is killed, while a task writes
    "broker": 1,  # the broker of a partition is killed
    "coordinator": 1,  # the broker of a transaction coordinator is killed
}

# This must not appear: no driver is away for as long as a transaction may be open.
_GRAVE = ("TornBatch", "SinkStateError", "TransactionExpired")
# From a commit until a consumer has its rows, also while brokers start.
_WITHHELD_SECONDS = 120.0
_LOOK_SECONDS = 0.1
_ADMIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Duration and faults. Two soaks with the same seed have the same faults in the same order."""

    batches: int
    rows_per_batch: int
    faults: int
    seed: int = 0
    stall_seconds: float = 300.0
    limit_seconds: float | None = None


@dataclass(slots=True)
class Report:
    """The result. `problems` is empty after a success."""

    rows: int = 0
    batches: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    redelivered: int = 0
    seconds: float = 0.0
    drained: float = 0.0
    longest_pause: float = 0.0
    longest_wait: float = 0.0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        failures = ", ".join(f"{kind} {count}" for kind, count in sorted(self.failures.items()))
        done = (
            f"{self.rows:,} rows in {self.batches} micro-batches, {self.faults.total()} faults "
            f"({kinds}), the query failed {self.failures.total()} times ({failures}), "
            f"{self.redelivered} messages delivered again, {self.seconds:.0f} s, all was seen "
            f"{self.drained:.0f} s after the last micro-batch, which a consumer saw "
            f"{self.longest_wait:.1f} s after its commit at the latest, and nothing new for "
            f"{self.longest_pause:.1f} s at most"
        )
        if self.problems:
            return f"FAILED: {done}\n" + "\n".join(f"  {problem}" for problem in self.problems)
        return f"PASSED: 0 rows lost, 0 doubled, 0 micro-batches torn, keys in order; {done}"


class SinkSoak:
    """One soak. `run` it once, on the main thread."""

    def __init__(
        self,
        cluster: RealCluster,
        folder: Path,
        settings: Settings,
        say: Callable[[str], object] = print,
    ) -> None:
        self.report = Report()
        self._cluster = cluster
        self._settings = settings
        self._say = say
        self._rng = random.Random(settings.seed)
        self._topic = cluster.create_topic(cluster.unique_topic("soak-sink"), PARTITIONS)
        self._partitions = [f"{self._topic}-partition-{number}" for number in range(PARTITIONS)]
        self._commits = folder / "checkpoint" / "commits"
        options = {
            "service.url": cluster.service_url,
            "topic": self._topic,
            "deliveryGuarantee": "exactly-once",
            "sinkId": "soak",
            "sinkStateTopic": STATE,
            "rowsPerBatch": str(settings.rows_per_batch),
            # A broker takes long to start on a busy machine.
            "pulsar.client.operationTimeoutMs": "60000",
        }
        self._crash = folder / "crash"
        self._crash.mkdir()
        environment = {VARIABLE: str(self._crash)}
        self._job = Job(folder, options, "tests.soak.sink_query", environment)
        self._witness = Witness(cluster.service_url, self._partitions, settings.rows_per_batch)
        self._batches = 0
        self._committed_at: dict[int, float] = {}
        self._finished = False
        self._started = self._moved_at = time.monotonic()

    def run(self) -> Report:
        """Return the report, whatever has happened."""
        try:
            with self._running():
                self._strike_all()
                self._finish()
        except SoakFailed as error:
            self.report.problems.append(str(error))
        self.report.problems += self._witness.problems
        self.report.rows = self._witness.rows
        self.report.batches = self._batches
        self.report.redelivered = self._witness.redelivered
        self.report.longest_pause = self._witness.longest_pause
        self.report.longest_wait = self._longest_wait()
        if self.report.longest_wait > _WITHHELD_SECONDS:
            self.report.problems.append("rows were withheld")
        self.report.seconds = time.monotonic() - self._started
        return self.report

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._job.launch()
        try:
            self._witness.start()
            self._job.tell(do="start")
            yield
        finally:
            self._witness.stop()
            self._job.kill()

    # --- what happens -------------------------------------------------------------------------

    def _strike_all(self) -> None:
        self._wait_for(lambda: self._batches > 0)
        faults = schedule(self._settings, self._rng, FAULTS)
        for number, kind in enumerate(faults):
            portion = (self._settings.batches - self._batches) / (len(faults) - number + 1)
            due = self._batches + max(1, round((0.2 + 0.7 * self._rng.random()) * portion))
            self._wait_for(lambda due=due: self._batches >= due)  # type: ignore[misc]
            if self._is_late():
                self.report.problems.append("time was up before all faults had struck")
                break
            self._pause(1.5 * self._rng.random())
            self._strike(kind)
            self.report.faults[kind] += 1
            self._say(self._progress(kind))
        self._wait_for(lambda: self._batches >= self._settings.batches or self._is_late())

    def _is_late(self) -> bool:
        limit = self._settings.limit_seconds
        return limit is not None and time.monotonic() - self._started > limit

    def _strike(self, kind: str) -> None:
        if kind == "task" and self._rng.random() < 0.5:
            self._kill_workers()
        elif kind == "task":
            self._crash_at(self._rng.choice(TASK_POINTS))
        elif kind == "commit":
            self._crash_at(self._rng.choice(DRIVER_POINTS))
        elif kind == "query":
            self._job.tell(do="start")
        elif kind == "driver":
            self._kill_driver(self._rng.choice(TASK_POINTS))
            self._job.launch()
            self._job.tell(do="start")
        elif kind == "unload":
            topic = self._rng.choice([*self._partitions, STATE, STATE])
            self._patiently(lambda: self._cluster.unload(topic))
        elif kind == "move":
            self._move(self._rng.choice([*self._partitions, STATE]))
        elif kind == "move coordinator":
            self._move(self._rng.choice(COORDINATORS))
        else:
            topics = COORDINATORS if kind == "coordinator" else self._partitions
            self._restart(self._owner(self._rng.choice(topics)))

    def _kill_workers(self) -> None:
        """Kill some of the processes that run tasks."""

        def killed() -> bool:
            victims = self._job.workers()
            some = self._rng.sample(victims, self._rng.randint(1, len(victims))) if victims else []
            return kill(some) > 0

        self._wait_for(killed)

    def _crash_at(self, point: str) -> None:
        """Have a process of the query die at a crash point."""
        armed = self._crash / point
        armed.touch()
        self._wait_for(lambda: not armed.exists())

    def _kill_driver(self, point: str) -> None:
        """Kill all of Spark while a task is at a crash point."""
        armed, held = self._crash / point, self._crash / f"{point}.held"
        (self._crash / "part").write_text("1 hold")
        (self._crash / "part").rename(armed)
        self._wait_for(held.exists)
        self._wait_for(lambda: bool(held.read_text()))
        self._job.kill()
        kill([int(held.read_text())])
        held.unlink()

    def _move(self, topic: str) -> None:
        def move() -> None:
            self._cluster.move(topic, self._cluster.other(self._cluster.owner(topic)))

        self._patiently(move)

    def _owner(self, topic: str) -> ClusterBroker:
        return self._patiently(lambda: self._cluster.owner(topic))

    def _restart(self, broker: ClusterBroker) -> None:
        if self._rng.random() < 0.7:
            broker.kill()
        else:
            broker.stop()
        self._pause(2.0 * self._rng.random())
        for attempts_left in (2, 1, 0):
            try:
                broker.launch()
                broker.wait_until_ready()
                break
            except BrokerUnavailable:
                broker.kill()
                if not attempts_left:
                    raise
        self._cluster.restore()
        self._moved_at = time.monotonic()

    def _patiently(self, call: Callable[[], T]) -> T:
        """Call the admin REST, which cannot always answer while topics move."""
        deadline = time.monotonic() + _ADMIN_SECONDS
        while True:
            try:
                return call()
            except (AdminError, OSError, http.client.HTTPException, StopIteration) as error:
                if time.monotonic() > deadline:
                    raise SoakFailed(f"the cluster does not answer: {error!r}") from error
            self._pause(0.5)

    def _finish(self) -> None:
        self._job.tell(do="finish")
        self._wait_for(lambda: self._finished)
        self._count()
        expected = self._batches * self._settings.rows_per_batch
        ended = time.monotonic()
        deadline = ended + _WITHHELD_SECONDS
        while self._witness.rows < expected and time.monotonic() < deadline:
            self._pause(0.2)
        self.report.drained = time.monotonic() - ended
        # Duplicates would have time to arrive.
        self._pause(3.0)
        self._job.stop()
        self._witness.end(expected)

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

    def _count(self) -> None:
        # Spark deletes old ones.
        for path in self._commits.glob("[0-9]*"):
            if path.name.isdigit() and int(path.name) not in self._committed_at:
                self._committed_at[int(path.name)] = path.stat().st_mtime
        batches = max(self._committed_at, default=-1) + 1
        if batches > self._batches:
            self._batches, self._moved_at = batches, time.monotonic()

    def _longest_wait(self) -> float:
        """How long after its commit the last row of a micro-batch was seen, at most.

        Spark logs a commit when the sink has done it: rows that are seen before did not wait.
        """
        seen_at = self._witness.seen_at
        waits = (seen_at[one] - at for one, at in self._committed_at.items() if one in seen_at)
        return max(0.0, max(waits, default=math.inf))

    def _look(self) -> None:
        self._count()
        for event in self._job.events():
            self._hear(event)
        if self._witness.error is not None:
            raise SoakFailed(f"the consumer failed: {self._witness.error!r}")
        if self._witness.wrong:
            raise SoakFailed("rows are missing or come again")
        if time.monotonic() - self._moved_at > self._settings.stall_seconds:
            self._job.dump()
            time.sleep(3.0)
            raise SoakFailed(
                f"no micro-batch for {self._settings.stall_seconds:.0f} s:\n{self._job.log_tail()}"
            )

    def _hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "finished":
            self._finished = True
        elif event["event"] == "failed":
            found = [kind for kind in _GRAVE if f"errors.{kind}" in event["why"]]
            self.report.failures[found[0] if found else "a process or a broker was lost"] += 1
            if found:
                self.report.problems.append(f"the query failed by itself: {event['why']}")

    def _progress(self, kind: str) -> str:
        return (
            f"[{time.monotonic() - self._started:6.0f} s] fault {self.report.faults.total()}"
            f"/{self._settings.faults}: {kind:16} · batches {self._batches} "
            f"· rows seen {self._witness.rows:,} · failures {self.report.failures.total()}"
        )


def main() -> int:
    """Run a soak; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.sink", description=__doc__)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--rows-per-batch", type=int, default=4200)
    parser.add_argument("--faults", type=int, default=110)
    parser.add_argument("--seed", type=int, help="default: another one each time")
    parser.add_argument("--limit", type=float, help="end after so many seconds, whatever was done")
    arguments = parser.parse_args()
    settings = Settings(
        arguments.batches,
        arguments.rows_per_batch,
        arguments.faults,
        chosen_seed(arguments.seed),
        limit_seconds=arguments.limit,
    )

    def soak(folder: Path) -> Report:
        with contextlib.closing(RealCluster(prepare())) as cluster:
            cluster.start()
            return SinkSoak(cluster, folder, settings, say).run()

    return conduct(settings, "pulsar-spark-soak-sink-", soak)


if __name__ == "__main__":
    sys.exit(main())
