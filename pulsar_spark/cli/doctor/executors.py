"""The doctor's steps on every executor: a small Spark job whose tasks run them.

An executor may lack something that the driver has: the package, a file, a route, a DNS name.
Spark gives each free slot a task, so one task per slot reaches all executors.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pulsar_spark.cli.doctor.steps import FAILED, Step
from pulsar_spark.cli.environment import environment
from pulsar_spark.errors import OptionError, redact

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_COLUMNS = "host string, executor long, report string"
# More than a cluster has slots: an empty partition would be left out.
_ROWS = 1_000_000
_NO_JOB = "Check --master, and whether a job of yours runs with it; Spark's log says more."
_MISSING = (
    "Install pulsar-spark on every machine that runs tasks, or ship it with --py-files or "
    "spark.archives."
)


def examine_executors(
    options: dict[str, str], admin_url: str | None, master: str | None, tasks: int | None
) -> list[dict[str, Any]]:
    """Return what each executor found: its host, versions, `ok` and `steps`.
    `master` is for a new session; without it, the current session is used, or a new one as Spark
    is configured. `tasks` is how many tasks to run, None for one per slot.
    """
    try:
        with _session(master) as spark:
            # By default Spark makes as many partitions as there are slots.
            frame = spark.range(0, tasks or _ROWS, numPartitions=tasks)
            rows = frame.mapInArrow(task(options, admin_url), _COLUMNS).collect()
    except Exception as error:
        # From Spark, Py4J or gRPC: the user needs to know whatever stops the job.
        what = redact(str(error).strip().partition("\n")[0]) or type(error).__name__
        steps = [_not_begun(f"the job could not be run: {what}", _NO_JOB)]
        return [{"host": "-", "executor": 0, "ok": False, "steps": steps, "environment": {}}]
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        report = {"host": row.host, "executor": row.executor, **json.loads(row.report)}
        known = found.setdefault((row.host, row.executor), report)
        if known["ok"]:
            # If tasks of one executor disagree, the one that found a fault tells more.
            found[row.host, row.executor] = report
    return [found[place] for place in sorted(found)]


def report(options: dict[str, str], admin_url: str | None) -> dict[str, Any]:
    """Run the steps in this process; return their results, and the versions here."""
    from pulsar_spark.cli.doctor.examination import examine

    try:
        steps = [step.to_json() for step in examine(options, admin_url)]
    except OptionError as error:
        # For example, a class of the user cannot be imported here.
        steps = [_not_begun(error.what, error.remedy)]
    ok = all(step["status"] != FAILED for step in steps)
    return {"ok": ok, "steps": steps, "environment": environment(with_java=False)}


def _not_begun(detail: str, remedy: str) -> dict[str, Any]:
    """Return the JSON of the first step, when no step can run."""
    return Step("resolve", FAILED, 0.0, detail, remedy).to_json()


def task(
    options: dict[str, str], admin_url: str | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a task's function. It is pickled whole: this package may be missing there."""
    missing = _not_begun("pulsar_spark cannot be imported", _MISSING)

    def take(batches: Iterator[Any]) -> Iterator[Any]:
        import contextlib
        import json
        import os
        import socket

        import pyarrow as pa

        for _ in batches:
            pass
        try:
            from pulsar_spark.cli.doctor.executors import report

            found = report(options, admin_url)
        except ImportError as error:
            missing["detail"] += f": {error}"
            with contextlib.suppress(ImportError):
                from pulsar_spark.errors import missing_package

                if (package := missing_package(error)) is not None:
                    missing["detail"], missing["remedy"] = package.what, package.remedy
            found = {"ok": False, "steps": [missing], "environment": {}}
        # Python workers are children of a daemon; each executor has one.
        row = {"host": socket.gethostname(), "executor": os.getppid(), "report": json.dumps(found)}
        yield pa.RecordBatch.from_pylist([row])

    return take


@contextlib.contextmanager
def _session(master: str | None) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None and master is None:
        yield active
        return
    # As in the demo: workers run this process's interpreter, unless that is configured.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("pulsar_spark doctor")
    if master is not None and master.startswith("sc://"):
        builder = builder.remote(master)
    else:
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        if master is not None:
            builder = builder.master(master)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
