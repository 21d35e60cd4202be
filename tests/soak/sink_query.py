"""The query of a soak of the sink, in a process of its own that can be killed.

Arguments, commands and events are those of `tests.soak.query`. It writes numbered rows exactly
once, each key's in order; ``finish`` lets it end after the current micro-batch, or one more.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tests.soak.query import Runner, serve, tell
from tests.soak.rows import KEYS

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# Each task has all rows of its keys, in order: the source distributes numbers to tasks in turn,
# starting anew with each micro-batch, whose number of rows is a multiple of this.
TASKS = 4


class SinkRunner(Runner):
    """Runs the query as the last command says; a query that is to finish is not run again."""

    def obey(self, command: dict[str, Any]) -> None:
        """Stop the query, and start it again if the command is not to stop it."""
        finish = command["do"] == "finish"
        super().obey({"do": "start", "finish": True} if finish else command)

    def look(self) -> None:
        """Start the query unless it runs, or has finished."""
        query = self._query
        if query is not None and not query.isActive and query.exception() is None:
            assert self._command is not None
            if self._command.get("finish"):
                self._query = self._command = None
                tell("finished")
        super().look()

    def _start(self, command: dict[str, Any]) -> StreamingQuery:
        options = dict(self._options)
        source = self._spark.readStream.format("rate-micro-batch")
        source = source.option("rowsPerBatch", int(options.pop("rowsPerBatch")))
        rows = source.option("numPartitions", TASKS).load()
        frame = rows.selectExpr(
            f"concat('key-', value % {KEYS}) AS __key",
            f"lpad(string(value div {KEYS}), 16, '0') AS value",
        )
        writer = frame.writeStream.format("pulsar").options(**options)
        writer = writer.option("checkpointLocation", self._checkpoint)
        if command.get("finish"):
            return writer.trigger(availableNow=True).start()
        return writer.start()


if __name__ == "__main__":
    serve(SinkRunner, *sys.argv[1:])
