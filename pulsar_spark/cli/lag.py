"""``lag``: how far a query is behind, from its checkpoint and the topics' ends."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pulsar_spark.cli.arguments import (
    FOLDER,
    Commands,
    add_command,
    add_connection,
    complete_with,
    given_options,
    resolved,
    whole_number,
)
from pulsar_spark.cli.checkpoint import check_topic, folder_of, is_of, stream_offsets
from pulsar_spark.cli.connection import connected
from pulsar_spark.cli.output import (
    About,
    live_table,
    print_json,
    print_json_line,
    print_note,
    progress,
)
from pulsar_spark.errors import OptionError, PulsarError, TopicNotFound

if TYPE_CHECKING:
    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.protocol.message_id import Position
    from pulsar_spark.spark.streaming.backlog import Lag

_DESCRIPTION = """\
Show what a query has not read yet: the messages, the bytes as stored, and the age of the oldest
unread message in seconds, for each topic partition after the last micro-batch that was committed.
Numbers with ~ are estimated from samples. The query need not run, and is not touched.

--watch looks again and again, until Ctrl-C; `rate` is then by how many messages a second the lag
grows, or shrinks if it is negative, over the last minute.
"""

_INTERVAL = 5
_RATE_SECONDS = 60.0
_COLUMNS = ("partition", "messages", "bytes", "seconds")
_TOTAL = "total"

Row = dict[str, Any]
Spans = dict[str, "tuple[Position, Position]"]


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(commands, "lag", "show how far a query is behind", _DESCRIPTION, run)
    add_connection(parser, "only this topic, or one of its partitions")
    checkpoint = parser.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        required=True,
        help="the query's checkpoint, a folder on this machine",
    )
    complete_with(checkpoint, FOLDER)
    parser.add_argument("--watch", action="store_true", help="look again until Ctrl-C")
    parser.add_argument(
        "--interval",
        type=whole_number(1, 3600),
        metavar="SECONDS",
        help=f"time between two looks of --watch ({_INTERVAL})",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show the lag; with --watch it runs until KeyboardInterrupt."""
    from pulsar_spark.spark.options.read import single_topic
    from pulsar_spark.spark.options.table import Scope

    if arguments.interval is not None and not arguments.watch:
        raise OptionError("--interval is for --watch", "Add --watch, or leave --interval out.")
    values = resolved(given_options(arguments), Scope.READS, uses=("topic",))
    topic = single_topic(values)
    # Before anything is connected.
    check_topic(stream_offsets(arguments.checkpoint, committed=True), topic)
    if not (folder_of(arguments.checkpoint) / "commits").is_dir():
        print_note(
            "the checkpoint has no folder commits: the lag counts from its last micro-batch, "
            "done or not"
        )
    with connected(values, quiet=arguments.json) as context:
        looker = _Looker(context, arguments.checkpoint, topic)
        with progress("asking", quiet=arguments.json):
            rows = looker.look()
        if looker.gone:
            print_note(
                f"{looker.gone} topic partitions do not exist on this cluster: they were deleted, "
                "or the service URL is another cluster's"
            )
        if arguments.watch:
            _watch(looker, rows, arguments)
        elif arguments.json:
            print_json(rows)
        else:
            with live_table(_COLUMNS) as show:
                show(_cells(rows, _COLUMNS))
    return 0


def _watch(looker: _Looker, rows: list[Row], arguments: argparse.Namespace) -> None:
    """Show the lag again and again; a broker that does not answer is asked again."""
    rates = _Rates()
    columns = (*_COLUMNS, "rate")
    failure: PulsarError | None = None
    with live_table(columns, quiet=arguments.json) as show:
        while True:
            rates.add(rows)
            if arguments.json:
                told = {} if failure is None else {"error": str(failure)}
                print_json_line({"at": round(time.time(), 3), "partitions": rows, **told})
            elif failure is None:
                show(_cells(rows, columns))
            else:
                show([(f"no answer: {failure.what}", *[None] * len(columns[1:]))])
            wait(arguments.interval or _INTERVAL)
            try:
                rows, failure = looker.look(), None
            except PulsarError as error:
                if not error.retryable:
                    raise
                rows, failure = [], error


def wait(seconds: float) -> None:
    """Pause between two looks."""
    time.sleep(seconds)


class _Looker:
    """Looks at a checkpoint and at the ends of its topic partitions."""

    def __init__(self, context: ClientContext, checkpoint: str, topic: str | None) -> None:
        from pulsar_spark.spark.streaming.backlog import Backlogs

        self._context = context
        self._checkpoint = checkpoint
        self._topic = topic
        self._backlogs = Backlogs()
        self.gone = 0
        """How many topic partitions did not exist at the last look."""

    def look(self) -> list[Row]:
        """Return a row for each topic partition; raises the broker's error.

        A topic partition that is gone has no lag that is known.
        """
        from pulsar_spark.engine.consumers.probe import Probe
        from pulsar_spark.spark.offsets import entry_end
        from pulsar_spark.spark.streaming.backlog import SAMPLE_SECONDS, Lag

        starts = self._positions()
        ends = self._context.lookup.last_message_ids(starts)
        spans: Spans = {}
        for topic, start in starts.items():
            last = ends[topic]
            if isinstance(last, PulsarError):
                if isinstance(last, TopicNotFound):
                    continue
                raise last
            spans[topic] = (start, entry_end(last))
        self.gone = len(starts) - len(spans)
        probe = Probe(self._context.pool, SAMPLE_SECONDS)
        behind = self._backlogs.lag(spans, probe, int(time.time() * 1000))
        nothing = Lag(0, 0, 0, 0.0)
        return [
            _row(topic, behind.get(topic, nothing) if topic in spans else Lag())
            for topic in sorted(starts)
        ]

    def _positions(self) -> dict[str, Position]:
        return {
            partition: position
            for offset in stream_offsets(self._checkpoint, committed=True)
            for partition, position in offset.positions.items()
            if is_of(partition, self._topic)
        }


def _row(topic: str, lag: Lag) -> Row:
    return {
        "partition": topic,
        "messages": lag.messages,
        "bytes": lag.size,
        "seconds": None if lag.seconds is None else round(lag.seconds, 3),
        "messages_estimated": lag.messages_estimated,
        "bytes_estimated": lag.size_estimated,
    }


class _Rates:
    """By how many messages a second each lag changes, over the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def add(self, rows: list[Row]) -> None:
        """Add the lags of one look, and write each row's `rate`: None before the second look."""
        now = self._clock()
        for row in rows:
            seen = self._seen.setdefault(row["partition"], deque())
            row["rate"] = None
            if row["messages"] is None:
                seen.clear()
                continue
            seen.append((now, row["messages"]))
            # The one before the last minute began is where it begins.
            while len(seen) > 2 and seen[1][0] <= now - _RATE_SECONDS:
                seen.popleft()
            since, before = seen[0]
            if now > since:
                row["rate"] = round((row["messages"] - before) / (now - since), 1)


def _cells(rows: list[Row], columns: tuple[str, ...]) -> list[tuple[object, ...]]:
    """Return a table's rows: the longest lag first, and the total of several."""
    rows = sorted(rows, key=lambda row: -1 if row["messages"] is None else -row["messages"])
    return [
        tuple(_cell(row, name) for name in columns)
        for row in ([*rows, _total(rows)] if len(rows) > 1 else rows)
    ]


def _cell(row: Row, name: str) -> object:
    value = row[name]
    return About(value) if row.get(f"{name}_estimated") and value is not None else value


def _total(rows: list[Row]) -> Row:
    """Return the sum of the rows, and the greatest age; None where one is unknown."""
    total: Row = {"partition": _TOTAL}
    for name in ("messages", "bytes", "seconds", "rate"):
        found = [row.get(name) for row in rows]
        known = [value for value in found if value is not None]
        whole = len(known) == len(found)
        total[name] = (max if name == "seconds" else sum)(known) if whole else None
        total[f"{name}_estimated"] = any(row.get(f"{name}_estimated") for row in rows)
    return total
