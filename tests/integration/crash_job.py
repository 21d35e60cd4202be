"""Queries that write exactly once, in a Spark of their own that is killed at crash points.

``python -m tests.integration.crash_job MODE URL FOLDER TOPIC NAME…``: for each name of `QUERIES`
there is a query with a topic (`TOPIC-NAME`) and a checkpoint of its own.
``strike`` runs each until its Python process has died at the point, and then until its batch is
done. ``hold`` holds all of them at their points at the same time, to be killed with the JVM.
``finish`` runs each to the end of its next micro-batch, and prints its name and the time before.
The job prints "done" after a success.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

import pulsar_spark
from tests.integration.test_spark_stream_sink import TASKS, Job
from tests.support.crash_points import POINTS, TASK_POINTS

# The test's time limit is shorter.
_NEVER_SECONDS = 3600

QUERIES = {point: point for point in POINTS} | {"between-ends-again": "between-ends"}
"""The names of queries, and where they are killed: behind each of two ends there is a place."""


def session() -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "600m",
        "spark.log.level": "OFF",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    # Tasks that are held keep their slots.
    slots = len(TASK_POINTS) + TASKS
    builder = SparkSession.builder.master(f"local[{slots},8]").appName("crash points")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def arm(folder: Path, name: str, point: str, how: str) -> Path:
    """Kill the next process that reaches the point; return the file that it leaves."""
    place = folder / "crash"
    time_of_it = 2 if name == "between-ends-again" else 1
    (place / "part").write_text(f"{time_of_it} {how}")
    return (place / "part").rename(place / point)


def run(job: Job, name: str, attempts: int = 1) -> None:
    """Run the next micro-batch, again if it fails: a process that dies ends the query."""
    for _ in range(attempts):
        try:
            job.run()
        except Exception as error:
            print("failed", name, type(error).__name__, str(error)[:1000], flush=True)
        else:
            return


class Held:
    """A query that is held at its crash point.

    Only one process may reach a point while it is armed. So a query that is held in a task has no
    other task, and the next query starts when this one is held.
    """

    def __init__(self, job: Job, name: str, point: str) -> None:
        self._job = job
        self._name = name
        job.tasks = 1 if point in TASK_POINTS else TASKS
        self._thread = threading.Thread(target=self._run, daemon=True)

    def wait(self, armed: Path) -> None:
        """Return when it is held there."""
        self._thread.start()
        held = armed.with_suffix(".held")
        while not held.exists():
            self.check()
            time.sleep(0.05)
        held.rename(armed.with_name(f"{self._name}.pid"))

    def check(self) -> None:
        """Check that it has neither failed nor ended."""
        assert self._thread.is_alive(), f"{self._name} is not held"

    def _run(self) -> None:
        # Spark looks for sinks in the active session, which a new thread does not have.
        pulsar_spark.register(self._job.spark)
        run(self._job, self._name)


def main(mode: str, url: str, place: str, topic: str, *names: str) -> None:
    folder = Path(place)
    spark = session()
    all_held: list[Held] = []
    for name in names:
        point = QUERIES[name]
        options = {"topic": f"{topic}-{name}", "deliveryGuarantee": "exactly-once"}
        job = Job(spark, folder / name, url, **options)
        job.seconds = _NEVER_SECONDS
        if mode == "finish":
            print(name, time.time(), flush=True)
            run(job, name, 3)
            continue
        armed = arm(folder, name, point, mode)
        if mode == "strike":
            run(job, name, 4)
            assert not armed.exists(), f"{point} was not reached"
            continue
        held = Held(job, name, point)
        held.wait(armed)
        all_held.append(held)
    for held in all_held:
        held.check()
    print("done", flush=True)
    if mode == "hold":
        time.sleep(_NEVER_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
