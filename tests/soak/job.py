"""Controls the process of a soak's query: starts, commands and kills it, and reads its results."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.soak.processes import SOURCE, WORKER, kill, python_processes
from tests.soak.rows import Checker

COLUMNS = ("__key", "value", "__messageId")
"""What the sink keeps of each row."""

ROOT = Path(__file__).resolve().parent.parent.parent

_STOP_SECONDS = 120.0


class Job:
    """A process that runs the query; `launch` it again after a `kill`."""

    def __init__(
        self,
        folder: Path,
        options: dict[str, str],
        module: str = "tests.soak.query",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._module = module
        self._environment = dict(environment or {})
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self._events_read = 0

    def launch(self) -> None:
        """Start the process."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **self._environment,
        }
        command = [sys.executable, "-m", self._module, str(self._folder)]
        with (
            (self._folder / "events.jsonl").open("a") as events,
            (self._folder / "query.log").open("a") as log,
        ):
            self._process = subprocess.Popen(
                [*command, json.dumps(self._options)],
                env=environment,
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=events,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def tell(self, **command: Any) -> None:
        """Send a command."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the process since the last call."""
        path = self._folder / "events.jsonl"
        with path.open("rb") as file:
            file.seek(self._events_read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._events_read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process is None or self._process.poll() is not None

    def workers(self) -> list[int]:
        """The processes that run tasks, or wait for tasks."""
        return [] if self._process is None else python_processes(self._process.pid, WORKER)

    def kill_source(self) -> int:
        """Kill the driver's part of the source."""
        assert self._process is not None
        return kill(python_processes(self._process.pid, SOURCE))

    def kill(self) -> None:
        """Kill all of Spark: the process, its JVM and the Python processes of both."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._process = None

    def stop(self) -> None:
        """Let it end cleanly. Raises subprocess.TimeoutExpired."""
        if self._process is not None:
            self._process.communicate(timeout=_STOP_SECONDS)
            self._process = None

    def dump(self) -> None:
        """Have the process and its JVM write their threads' stacks into query.log."""
        if self._process is None:
            return
        os.kill(self._process.pid, signal.SIGUSR1)
        for pid in python_processes(self._process.pid, "org.apache.spark.deploy.SparkSubmit"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT)

    def log_tail(self, lines: int = 40) -> str:
        """Return the end of the logs of the process and of Spark."""
        path = self._folder / "query.log"
        return "\n".join(path.read_text("utf-8", "replace").splitlines()[-lines:])


class Results:
    """The sink's batches, each checked when it can no longer run again."""

    def __init__(self, folder: Path) -> None:
        self.checker = Checker()
        self.batches = 0
        self.rows = 0
        """Rows so far, with those of a batch that may be run again."""
        self._folder = folder / "sink"

    def look(self, *, all_final: bool = False) -> None:
        """Check new batches. A batch is final when there is a later one."""
        while (path := self._path(self.batches)).exists():
            last = not self._path(self.batches + 1).exists()
            with pa.ipc.open_file(path) as reader:
                table = reader.read_all()
            if last and not all_final:
                self.rows = self.checker.rows + table.num_rows
                return
            keys, values, ids = (table.column(name).to_pylist() for name in COLUMNS)
            self.checker.add(keys, values, ids, self.batches)
            self.rows = self.checker.rows
            self.batches += 1

    def _path(self, batch: int) -> Path:
        return self._folder / f"{batch:08d}.arrow"
