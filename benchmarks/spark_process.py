"""A Spark session in its own process, which runs jobs on request.

Each contender that is a data source has one. So both of our implementations, which are chosen once
per process, and other connectors, which need another Spark, can take turns in one run. Jobs and
answers are lines of JSON. ``python -m benchmarks.spark_process`` is the far side, and must run
where only Spark is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.measure import Measurement

ROOT = Path(__file__).parent.parent


class JobFailed(Exception):
    """A job failed; the text is its traceback."""


class SparkProcess:
    """The near side: starts the process, sends it one job at a time, and ends it."""

    def __init__(
        self, python: str = sys.executable, *, implementation: str = "", conf: str = "{}"
    ) -> None:
        """`conf` is JSON: further settings of Spark."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": python}
        environment["PYSPARK_DRIVER_PYTHON"] = python
        if implementation:
            environment["PULSAR_SPARK_IMPL"] = implementation
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.spark_process", conf],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.versions: dict[str, str] = self._answer()
        except JobFailed:
            self.close()
            raise

    def __enter__(self) -> SparkProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, job: str, **arguments: Any) -> Any:
        """Run a job of `spark_jobs` and return its answer. Raises JobFailed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"job": job, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def measure(self, job: str, **arguments: Any) -> Measurement:
        """Run a job whose answer is a measurement."""
        return Measurement(**self.ask(job, **arguments))

    def close(self) -> None:
        """End the process and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "the process ended"}
        if "error" in answer:
            raise JobFailed(answer["error"])
        return answer["answer"]


def main() -> None:
    """The far side: answer each line of the standard input."""
    # Spark's JVM writes to the inherited standard output, so answers use a copy.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    from benchmarks import spark_jobs

    spark = spark_jobs.session(json.loads(sys.argv[1]))
    print(json.dumps({"answer": spark_jobs.versions(spark)}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        job = spark_jobs.JOBS[request.pop("job")]
        try:
            answer = {"answer": job(spark, **request)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers)
    spark.stop()


if __name__ == "__main__":
    main()
