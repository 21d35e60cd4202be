"""``peek``: show a topic's messages, decoded by its schema, without a trace on the broker."""

from __future__ import annotations

import argparse
import base64
import heapq
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, datetime
from datetime import time as time_of_day
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pulsar_spark.cli.arguments import (
    Commands,
    add_command,
    add_connection,
    check_columns,
    given_options,
    resolved,
    whole_number,
)
from pulsar_spark.cli.connection import checked, reach
from pulsar_spark.cli.output import Bar, print_json_line, print_table, progress
from pulsar_spark.errors import MessageTooLarge, OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.protocol.message_id import MessageIdAdv, Position
    from pulsar_spark.spark.offsets import OffsetSpec
    from pulsar_spark.spark.options.read import ReadOptions
    from pulsar_spark.spark.reading.planner import ReadRange
    from pulsar_spark.spark.value_types import ValueType

_DESCRIPTION = """\
Show messages of a topic as rows, with the columns that Spark would have: the last messages, the
first ones with --first, or the last ones and then new ones with --follow. With --json each row is
a line. Bytes are shown as text if they are UTF-8, otherwise in base64.

--option startingOffsets, startingTime, endingOffsets and endingTime limit what is shown as they
limit a batch read: it is the last or the first ones of that range. --follow takes no end.

Nothing is acknowledged, and no subscription stays. The column _corrupt_record shows values that
cannot be decoded.
"""

Row = dict[str, Any]

_COUNT = 10
_MAX_COUNT = 100_000
_FOLLOW_SECONDS = 0.5
# Memory for rows that are being sorted, and how many of them become Python objects at a time.
_MAX_BYTES = 512 << 20
_MAX_FOLLOWED_BYTES = 64 << 20
_PIECE = 1_000
# How many entries hold the last messages is found by trying, with ever more entries.
_FIRST_ENTRIES = 8
_MORE = 4
_CORRUPT = "_corrupt_record"
# Options that divide a read into tasks.
_OF_TASKS = ("minPartitions", "partitionsPerTopicPartition")
_published = itemgetter("__publishTime")
# The columns of a table; JSON has all columns.
_SHOWN = ("__publishTime", "__messageId", "__key")


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(commands, "peek", "show messages of a topic", _DESCRIPTION, run)
    add_connection(parser, "the topic, or one of its partitions")
    parser.add_argument(
        "--count",
        type=whole_number(0, _MAX_COUNT),
        default=_COUNT,
        help="how many messages (%(default)s)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--last", action="store_true", help="the last messages (the default)")
    which.add_argument("--first", action="store_true", help="the first messages")
    which.add_argument(
        "--follow", action="store_true", help="the last messages, then new ones until Ctrl-C"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show the messages; with --follow it runs until KeyboardInterrupt."""
    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.spark.options.read import read_options
    from pulsar_spark.spark.options.table import Scope
    from pulsar_spark.spark.reading.planner import Planner

    options = given_options(arguments)
    given = {name.lower() for name in options}
    if "mode" not in given:
        options["mode"] = "PERMISSIVE"
    if not given & {"receiverqueuesize", "pulsar.reader.receiverqueuesize"}:
        options["pulsar.reader.receiverQueueSize"] = str(max(arguments.count, 1))
    # Offsets and times mean what they mean for a batch read.
    values = resolved(options, Scope.READ, ignores=_OF_TASKS)
    check_columns(values)
    read = read_options(values, options, Scope.READ)
    if arguments.first:
        # More would only be thrown away.
        read = replace(read, batch_rows=min(max(arguments.count, 1), read.batch_rows))
    if arguments.follow:
        _check_endless(read.ending)
    with ClientContext.shared(checked(read.client)) as context:
        with progress("connecting", quiet=arguments.json):
            reach(context)
        planner = Planner(context, read)
        topics = planner.topics()
        topic = _Topic(context, read, planner.value_type(topics))
        show = _printer(topic.schema, as_json=arguments.json)
        total = sum(map(len, topics.values()))
        with progress("reading", total=total, quiet=arguments.json) as bar:
            ranges = planner.ranges(topics)
            look = topic.first if arguments.first else topic.last
            rows = look(ranges, arguments.count, bar)
        show(rows)
        while arguments.follow:
            wait()
            last_ids = planner.last_ids([found.topic for found in ranges])
            ranges = [_next(found, last_ids[found.topic]) for found in ranges]
            for rows in topic.all(ranges):
                show(rows)
    return 0


def _check_endless(ending: OffsetSpec) -> None:
    """Raise OptionError for a read that ends before the latest message."""
    from pulsar_spark.spark.offsets import LATEST_BOUND

    if any(bound != LATEST_BOUND for bound in (ending.default, *dict(ending.by_topic).values())):
        raise OptionError(
            f"--follow and {ending.option} cannot be used together", "Leave one of them out."
        )


def _next(found: ReadRange, last: MessageIdAdv) -> ReadRange:
    """Return what has come after a range, up to the last message."""
    from pulsar_spark.spark.offsets import end_position

    return replace(found, start=max(found.start, found.end), end=end_position(last))


def wait() -> None:
    """Pause between two checks of a followed topic."""
    time.sleep(_FOLLOW_SECONDS)


class _Topic:
    """Reads ranges of the partitions of one topic, or of several topics together."""

    def __init__(self, context: ClientContext, options: ReadOptions, kind: ValueType) -> None:
        from pulsar_spark.engine.consumers.probe import Probe
        from pulsar_spark.spark.columns import read_schema
        from pulsar_spark.spark.reading.batch_reader import PulsarBatchReader

        self.schema = read_schema(
            kind,
            include_metadata=options.include_metadata,
            corrupt_column=options.corrupt_column if options.mode == "PERMISSIVE" else None,
        )
        self._kind = kind
        self._probe = Probe(context.pool)
        self._reader = PulsarBatchReader(options, self.schema)

    def first(self, ranges: list[ReadRange], count: int, bar: Bar) -> list[Row]:
        """Return the first rows of all ranges, by publish time."""
        rows: list[Row] = []
        for found in ranges:
            rows.extend(self._rows(found, count))
            rows = _check_size(heapq.nsmallest(count, rows, _published))
            bar.advance()
        return rows

    def last(self, ranges: list[ReadRange], count: int, bar: Bar) -> list[Row]:
        """Return the last rows of all ranges, by publish time."""
        rows: list[Row] = []
        for found in ranges:
            rows = sorted([*rows, *self._tail(found, count)], key=_published)
            rows = _check_size(rows[len(rows) - min(count, len(rows)) :])
            bar.advance()
        return rows

    def all(self, ranges: list[ReadRange]) -> Iterator[list[Row]]:
        """Yield all rows of all ranges.

        They are sorted by publish time, unless there are more than fit into memory.
        """
        rows: list[Row] = []
        size = 0
        for found in ranges:
            for row in self._rows(found):
                rows.append(row)
                size += _size(row)
                if len(rows) >= _MAX_COUNT or size > _MAX_FOLLOWED_BYTES:
                    yield sorted(rows, key=_published)
                    rows, size = [], 0
        yield sorted(rows, key=_published)

    def _tail(self, found: ReadRange, count: int) -> list[Row]:
        """Return the last rows of a range. An entry may have one row, many or none."""
        if found.start >= found.end or not count:
            return []
        entries = min(count, _FIRST_ENTRIES)
        while True:
            start = max(self._back(found, entries), found.start)
            rows: deque[Row] = deque()
            size = 0
            for row in self._rows(replace(found, start=start)):
                rows.append(row)
                size += _size(row)
                if len(rows) > count:
                    size -= _size(rows.popleft())
                if size > _MAX_BYTES:
                    raise _too_large()
            if len(rows) >= count or start == found.start:
                return list(rows)
            entries *= _MORE

    def _back(self, found: ReadRange, entries: int) -> Position:
        """Return the position that is so many entries before a range's end, or its start."""
        from pulsar_spark.protocol.message_id import Position

        topic, end = found.topic, found.end
        # The number of entries of the last ledger.
        here = end.entry_id + (end.batch_index > 0)
        if here >= entries:
            return Position(end.ledger_id, here - entries)
        # A broker counts up to the end of the topic.
        entries += self._count(topic, end)
        first = self._probe.first_entry_at(topic, found.start)
        if first is None or self._count(topic, found.start) <= entries:
            return found.start
        # Only the broker can count entries, and ledger ids have gaps, so search for the ledger.
        enough, short = first.start.ledger_id, end.ledger_id
        while short - enough > 1:
            middle = (enough + short) // 2
            if self._count(topic, Position(middle, 0)) >= entries:
                enough = middle
            else:
                short = middle
        left = self._count(topic, Position(enough, 0)) - entries
        return Position(enough, max(left, 0))

    def _count(self, topic: str, position: Position) -> int:
        (count,) = self._probe.entries_from([(topic, position)])
        if isinstance(count, int):
            return count
        raise count

    def _rows(self, found: ReadRange, limit: int | None = None) -> Iterator[Row]:
        from pulsar_spark.spark.reading.partitions import PulsarInputPartition

        if found.start >= found.end:
            return
        partition = PulsarInputPartition(
            found.topic, found.start, found.end, found.times, schema=self._kind.schema
        )
        taken = size = 0
        for batch in self._reader.read(partition):
            wanted = batch.num_rows if limit is None else min(batch.num_rows, limit - taken)
            for at in range(0, wanted, _PIECE):
                yield from batch.slice(at, min(_PIECE, wanted - at)).to_pylist()
            taken += wanted
            size += batch.nbytes
            if limit is not None and taken >= limit:
                return
            if limit is not None and size > _MAX_BYTES:
                raise _too_large()


def _check_size(rows: list[Row]) -> list[Row]:
    """Return rows that fit into memory together; raises MessageTooLarge."""
    if sum(map(_size, rows)) > _MAX_BYTES:
        raise _too_large()
    return rows


def _too_large() -> MessageTooLarge:
    return MessageTooLarge(
        f"these messages are larger than {_MAX_BYTES >> 20} MiB together", "Give a smaller --count."
    )


def _size(value: object) -> int:
    """Return roughly how many bytes a value or row needs."""
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 8


def _printer(schema: StructType, *, as_json: bool) -> Callable[[list[Row]], None]:
    """Return a function that prints rows; the first call prints the column names."""
    from pulsar_spark.protocol.message_id import MessageIdAdv

    values = [name for name in schema.names if not name.startswith("__")]
    shown: list[str] = []

    def show(rows: list[Row]) -> None:
        nonlocal shown
        rows = [_objects(row, schema) for row in rows]
        for row in rows:
            row["__messageId"] = str(MessageIdAdv.deserialize(row["__messageId"]))
            row["__messageProperties"] = row["__messageProperties"] or {}
            if as_json:
                print_json_line(row, _text)
        if as_json or (shown and not rows):
            return
        empty = {_CORRUPT} if all(row.get(_CORRUPT) is None for row in rows) else set()
        columns = [name for name in (*_SHOWN, *values) if name not in empty]
        cells = [[_cell(row[name]) for name in columns] for row in rows]
        print_table(columns, cells, header=columns != shown)
        shown = columns

    return show


def _objects(value: Any, kind: DataType) -> Any:
    """Return a value with objects for its maps, which are pairs in Arrow.

    JSON's objects only have keys of text: maps with other keys stay pairs.
    """
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if value is None:
        return None
    if isinstance(kind, StructType):
        return {field.name: _objects(value[field.name], field.dataType) for field in kind.fields}
    if isinstance(kind, ArrayType):
        return [_objects(item, kind.elementType) for item in value]
    if isinstance(kind, MapType):
        pairs = [
            (_objects(key, kind.keyType), _objects(item, kind.valueType)) for key, item in value
        ]
        return dict(pairs) if isinstance(kind.keyType, StringType) else pairs
    return value


def _cell(value: object) -> object:
    if isinstance(value, dict | list):
        return json.dumps(value, default=_text, ensure_ascii=False)
    return value if value is None or isinstance(value, bool | int | float) else _text(value)


def _text(value: object) -> str:
    """Return a value as text, if JSON has no form for it."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        digits = "microseconds" if value.microsecond % 1000 else "milliseconds"
        return value.isoformat(timespec=digits).replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date | time_of_day) else str(value)
