"""The query of a soak, in a process of its own that can be killed: ``python -m tests.soak.query``.

Arguments: a folder, and the source's options as JSON. Each line of standard input is a command as
JSON; each line of standard output is an event as JSON. A query that ends or fails is restarted from
its checkpoint at once, as a supervisor would do.
"""

from __future__ import annotations

import faulthandler
import json
import os
import selectors
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.soak.job import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_SECONDS = 0.2


def tell(event: str, **more: Any) -> None:
    """Send an event to the soak."""
    print(json.dumps({"event": event, **more}), flush=True)


def session() -> SparkSession:
    """A small Spark that retries killed tasks."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "600m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.log.level": "WARN",
    }
    builder = SparkSession.builder.master("local[2,100]").appName("soak")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Sink:
    """Stores each micro-batch in a file named by its id; running it again replaces the file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write a micro-batch, all or nothing; if it ran before, its rows must be the same."""
        table = frame.select(*COLUMNS).toArrow()
        path = self._folder / f"{batch_id:08d}.arrow"
        if path.exists():
            with pa.ipc.open_file(path) as reader:
                before = reader.read_all()
            if not before.equals(table):
                tell("differs", batch=batch_id, before=before.num_rows, now=table.num_rows)
        part = path.with_suffix(".part")
        with pa.ipc.new_file(part, table.schema) as writer:
            writer.write_table(table)
        os.replace(part, path)


class Runner:
    """Runs the query as the last command says, again and again."""

    def __init__(self, spark: SparkSession, folder: Path, options: dict[str, str]) -> None:
        self._spark = spark
        self._checkpoint = str(folder / "checkpoint")
        self._sink = Sink(folder / "sink")
        self._options = options
        self._command: dict[str, Any] | None = None
        self._query: StreamingQuery | None = None

    def obey(self, command: dict[str, Any]) -> None:
        """Stop the query, and start it again if the command is not to stop it."""
        if self._query is not None:
            self._query.stop()
            self._query = None
        self._command = command if command["do"] == "start" else None
        tell("stopped")
        self.look()

    def look(self) -> None:
        """Start the query unless it runs."""
        if self._query is not None and self._query.isActive:
            return
        if self._query is not None:
            error = self._query.exception()
            self._query = None
            if error is not None:
                tell("failed", why=str(error))
        if self._command is not None:
            try:
                self._query = self._start(self._command)
            except Exception as error:
                tell("failed", why=str(error))

    def _start(self, command: dict[str, Any]) -> StreamingQuery:
        reader = self._spark.readStream.format("pulsar").options(**self._options)
        if command["cap"]:
            reader = reader.option("maxMessagesPerTrigger", command["cap"])
        writer = reader.load().writeStream.foreachBatch(self._sink)
        writer = writer.option("checkpointLocation", self._checkpoint)
        if command["available_now"]:
            return writer.trigger(availableNow=True).start()
        return writer.start()


def commands() -> Iterator[dict[str, Any] | None]:
    """Yield commands, and None now and then, until the other end closes."""
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    waiting = b""
    while True:
        if not selector.select(_LOOK_SECONDS):
            yield None
            continue
        data = os.read(0, 65536)
        if not data:
            return
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            yield json.loads(line)


def serve(kind: type[Runner], folder: str, options: str) -> None:
    """Run a query until standard input ends."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    runner = kind(session(), Path(folder), json.loads(options))
    tell("ready")
    for command in commands():
        if command is None:
            runner.look()
        else:
            runner.obey(command)
    runner.obey({"do": "stop"})


if __name__ == "__main__":
    serve(Runner, *sys.argv[1:])
