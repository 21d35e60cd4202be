"""Queries that write exactly once, in a Spark of their own that is killed at crash points.

``python -m tests.integration.crash_job MODE URL FOLDER ROUNDS TOPIC``: there are queries, each with
a topic (`TOPIC-POINT-ROUND`) and a checkpoint, for each crash point, and in as many rounds.
``strike`` runs each until its Python process has died at the point, and then until its batch is
done. ``hold`` has all of them stand at their points at the same time, to be killed with the JVM.
``finish`` runs each to the end of its next micro-batch. The test reads "done" where all went well.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

import pulsar_spark
from pulsar_spark.spark.writing.crash_points import POINTS, TASK_POINTS
from tests.integration.test_spark_stream_sink import Job

ORPHANING = (*TASK_POINTS, "before-decision")
"""The points behind which transactions stay that nobody ends."""

_HELD_SECONDS = 120.0


def queries(rounds: int) -> list[tuple[str, str]]:
    """Return the names of queries, and at which point they are killed."""
    found = [(f"{point}-{number}", point) for number in range(rounds) for point in POINTS]
    # Behind each end there is another place.
    return found + [(f"between-ends-again-{number}", "between-ends") for number in range(rounds)]


def session() -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "600m",
        "spark.log.level": "OFF",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    # Tasks that are held stay in their slots.
    builder = SparkSession.builder.master("local[14,8]").appName("crash points")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def arm(folder: Path, name: str, point: str, how: str) -> None:
    """Have the next process that comes to the point die there."""
    place = folder / "crash"
    time_of_it = 2 if "again" in name else 1
    (place / "part").write_text(f"{time_of_it} {how}")
    (place / "part").rename(place / point)


def run(job: Job, name: str, attempts: int = 1) -> None:
    for _ in range(attempts):
        try:
            job.run()
        except Exception as error:
            print("failed", name, type(error).__name__, str(error)[:1000], flush=True)
        else:
            return


def hold(spark: SparkSession, job: Job, name: str) -> None:
    # A thread of its own has no active session, in which Spark looks for sinks.
    pulsar_spark.register(spark)
    run(job, name, 3)


def main(mode: str, url: str, place: str, rounds: str, topic: str) -> None:
    folder = Path(place)
    spark = session()
    for name, point in queries(int(rounds)):
        own = folder / name
        timeout = "20s" if point in ORPHANING else "1h"
        job = Job(
            spark, own, url, topic=f"{topic}-{name}", deliveryGuarantee="exactly-once",
            transactionTimeout=timeout,
        )  # fmt: skip
        if mode == "finish":
            run(job, name, 3)
            continue
        arm(folder, name, point, mode)
        if mode == "strike":
            run(job, name, 4)
            assert not (folder / "crash" / point).exists(), f"{point} was not reached"
            continue
        threading.Thread(target=hold, args=(spark, job, name), daemon=True).start()
        held = folder / "crash" / f"{point}.held"
        deadline = time.monotonic() + _HELD_SECONDS
        while not held.exists():
            assert time.monotonic() < deadline, f"{point} was not reached"
            time.sleep(0.05)
        held.rename(folder / "crash" / f"{name}.pid")
    print("done", flush=True)
    if mode == "hold":
        time.sleep(_HELD_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
