"""Topics and bounds → the ranges that tasks read, fixed when a batch is planned.

Each question goes to the brokers of all topic partitions at once. Planning creates nothing and
leaves no trace.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import TypeVar

from pyspark.sql.types import StructType

from pulsar_spark.engine.consumers.probe import EntryCount, FoundEntry, Probe
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.lookups.lookup import Extent
from pulsar_spark.engine.operations import value_of
from pulsar_spark.errors import (
    DataLossError,
    InvalidOffset,
    OptionError,
    PulsarError,
    SchemaMismatch,
    TopicNotFound,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.message_id import EARLIEST, EARLIEST_POSITION, MessageIdAdv, Position
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import TopicName, topic_of
from pulsar_spark.schema.registry import latest_schemas, older_schemas
from pulsar_spark.schema.table.record_batches import PublishTimes
from pulsar_spark.spark.columns import given_type, project
from pulsar_spark.spark.missing_topic import with_near_topics
from pulsar_spark.spark.offsets import (
    LATEST_BOUND,
    Bound,
    BoundKind,
    end_position,
    entry_end,
    start_position,
)
from pulsar_spark.spark.options.read import ReadOptions
from pulsar_spark.spark.reading.data_loss import report_loss
from pulsar_spark.spark.reading.partitions import PulsarInputPartition
from pulsar_spark.spark.reading.range_splitter import Question, split_ranges
from pulsar_spark.spark.value_types import (
    Columns,
    ValueType,
    check_alike,
    check_given,
    nearest,
    value_type,
    versions_of,
)

logger = get_logger(__name__)

_REMOVED = "by retention, time to live or with the topic"

_DO_LEFT_OUT = (
    "Start the query with allowDifferentTopicSchemas=true and mode=DROPMALFORMED until it is, and "
    "filter out the topic's rows by __topic: those that are not dropped are nulls."
)

T = TypeVar("T")

Topics = Mapping[str, Sequence[str]]
"""Full names of topics → full names of their partitions that are read."""


@dataclass(frozen=True, slots=True)
class FoundTopics:
    """The topics that exist, and the broker's error for each of the others."""

    topics: Topics
    missing: Mapping[str, TopicNotFound]


@dataclass(frozen=True, slots=True)
class ReadRange:
    """What to read of one topic partition: the positions [start, end).

    `first` and `continues` are as in an input partition.
    """

    topic: str
    start: Position
    end: Position
    times: PublishTimes
    first: Position | None = None
    continues: bool = False


class Planner:
    """Plans one read with a client context's connections, which it does not close."""

    def __init__(self, context: ClientContext, options: ReadOptions) -> None:
        self._options = options
        self._lookup = context.lookup
        self._probe = Probe(context.pool)
        self.schemas: Mapping[str, SchemaInfo | None] = {}
        """The latest schema of each topic, once `value_type` has asked for it."""
        self.without_messages: Mapping[str, TopicNotFound | None] = {}
        """Topics without schema and messages, which had no say in it, and why one is missing."""

    # --- topics -------------------------------------------------------------------------------

    def topics(self) -> Topics:
        """Return the topics to read with their partitions.

        Raises TopicNotFound for a missing topic, and if no topic matches.
        """
        found = self.find_topics()
        for name, error in found.missing.items():
            raise with_near_topics(self._lookup, error, name)
        if not found.topics and (pattern := self._options.pattern) is not None:
            raise TopicNotFound(
                f"no topic of the namespace {pattern.namespace} matches topicsPattern="
                f"{pattern.regex}",
                "It is a regular expression for the whole name, such as orders.* for all that "
                "begin so; system topics and non-persistent ones never match.",
            )
        return found.topics

    def find_topics(self) -> FoundTopics:
        """Return the existing topics with their partitions, and the missing ones."""
        names: Sequence[str] = self._options.topics
        pattern = self._options.pattern
        if pattern is not None:
            names = pattern.select(self._lookup.topics_of_namespace(pattern.namespace))
        return self.find_partitions(names)

    def find_partitions(self, names: Sequence[str]) -> FoundTopics:
        """As `find_topics`, of topics that are known by name."""
        results = self._lookup.partitions_many(names)
        missing = {
            name: result for name, result in results.items() if isinstance(result, TopicNotFound)
        }
        counts = _all({name: result for name, result in results.items() if name not in missing})
        if self._options.pattern is not None:
            # It was deleted after the topics were listed.
            missing.clear()
        # A partition named in addition to its topic is read once.
        seen: set[str] = set()
        topics: dict[str, list[str]] = {}
        for name in sorted(counts, key=lambda name: -counts[name]):
            topic = TopicName.parse(name)
            partitions = topic.partitions(counts[name])
            if fresh := [partition for partition in partitions if partition not in seen]:
                topics[name] = fresh
                seen.update(fresh)
        return FoundTopics(topics, missing)

    def value_type(
        self, topics: Topics, known: Mapping[str, SchemaInfo | None] = MappingProxyType({})
    ) -> ValueType:
        """Return the values' type; for a running query, the newest that has its columns.

        The schemas of `known` topics are not asked for. Raises OptionError for schemas that exclude
        each other, and for values that are decoded though they may stay encrypted; SchemaMismatch
        for one that cannot be converted to columns.
        """
        kind = self._decided_type(topics, known)
        if kind.schema is not None and self._options.reader.crypto_failure_action == "CONSUME":
            raise OptionError(
                "pulsar.reader.cryptoFailureAction=CONSUME gives encrypted bytes, which are no "
                f"{kind.schema.type_name} values",
                "Set valueFormat=raw, or cryptoFailureAction to DISCARD or FAIL.",
            )
        return kind

    def _decided_type(self, topics: Topics, known: Mapping[str, SchemaInfo | None]) -> ValueType:
        self.without_messages = {}
        given = given_type(self._options)
        if given is not None and given.schema is None:
            return given
        partitions: dict[str, list[str]] = {}
        for name, found in topics.items():
            partitions.setdefault(topic_of(name), []).extend(found)
        new = self._schemas_of([topic for topic in partitions if topic not in known])
        self.schemas = {**known, **new}
        if given is not None and given.schema is not None:
            check_given(new, given.schema)
            return given
        try:
            kind = self._type_of(self.schemas)
        except (OptionError, SchemaMismatch):
            if not self._leave_out_empty(partitions):
                raise
        else:
            query = self._options.query
            if query is None or self._columns(query, kind) or not self._leave_out_empty(partitions):
                return kind
        return self._type_of(self.schemas)

    def check_left_out(self, topics: Sequence[str], kind: ValueType) -> None:
        """Raise SchemaMismatch for a topic that the options leave out, and that is still read.

        Its values would be rows of nulls. It has no say in the type of the values.
        """
        wanted, query = kind.schema, self._options.query
        if self._options.allow_different_schemas or wanted is None or wanted.found_as is None:
            return
        try:
            check_alike(self._schemas_of(topics), wanted, _names(query))
        except SchemaMismatch as error:
            raise SchemaMismatch(
                f"{error.what}. The options leave it out, but a micro-batch with its messages was "
                "planned before, and is not committed yet",
                _DO_LEFT_OUT,
                topic=error.topic,
            ) from None

    def _schemas_of(self, topics: Sequence[str]) -> dict[str, SchemaInfo | None]:
        return _all(latest_schemas(self._lookup, topics))

    def _leave_out_empty(self, partitions: Mapping[str, Sequence[str]]) -> bool:
        """Leave topics with neither schema nor messages out of the schemas; return whether it did.

        A producer may register any schema with them: they have no say in the type of values. If
        one has just done so, its topic's schema is there now.
        """
        asked = {
            partition: topic
            for topic, schema in self.schemas.items()
            if schema is None
            for partition in partitions.get(topic, ())
        }
        empty: dict[str, TopicNotFound | None] = dict.fromkeys(asked.values())
        for partition, extent in self._extents_or_errors(list(asked)).items():
            topic = asked[partition]
            if isinstance(extent, TopicNotFound):
                if topic in empty:
                    empty[topic] = extent
            elif isinstance(extent, PulsarError) or extent.last.entry_id >= 0:
                empty.pop(topic, None)
        self.without_messages = empty
        now = self._schemas_of(sorted({*asked.values()}.difference(empty)))
        schemas = {**self.schemas, **now}
        left = {topic: schema for topic, schema in schemas.items() if topic not in empty}
        has_changed = left != self.schemas
        self.schemas = left
        return has_changed

    def _columns(self, query: StructType, kind: ValueType) -> Collection[str] | None:
        """Return the columns of a query that are read of such values, None if one is not there."""
        try:
            return project(query, kind, self._options.corrupt_column, self._options.mode)
        except (OptionError, SchemaMismatch):
            return None

    def _value_type(
        self, schemas: Mapping[str, SchemaInfo | None], columns: Columns | None = None
    ) -> ValueType:
        allow = self._options.allow_different_schemas
        return value_type(schemas, allow_different=allow, older=self._older, columns=columns)

    def _type_of(self, schemas: Mapping[str, SchemaInfo | None]) -> ValueType:
        """Return the topics' type, or the version of their schema that has the query's columns.

        Raises SchemaMismatch for a topic with other records, unless different schemas are allowed.
        With inferred columns it is the newest version with exactly these, otherwise the newest with
        all of them: a query keeps its columns while its topics' schemas evolve, each at its own
        time.
        """
        query = self._options.query
        if query is None:
            return self._value_type(schemas)
        inferred = self._options.inferred
        allowed = self._options.allow_different_schemas
        offers_bytes = self._columns(query, ValueType()) is not None
        takes_bytes = allowed and not inferred and offers_bytes
        if takes_bytes and len(versions_of(schemas)) > 1:
            return ValueType()

        def columns(schema: SchemaInfo) -> Collection[str] | None:
            return self._columns(query, ValueType(schema))

        kinds = {None if found is None else found.type for found in schemas.values()}
        if (inferred or allowed) and len(kinds) == 1:
            # They were versions of one when the columns were inferred, or the user says so.
            kind = self._value_type(dict([next(iter(schemas.items()))]))
        else:
            kind = self._value_type(schemas, None if inferred else columns)
        if kind.schema is None:
            return kind
        # Without any topic, bytes were a guess, which the topics' schemas correct.
        found_bytes = inferred and offers_bytes and not self._options.waiting
        if found_bytes or takes_bytes:
            # Its topics had no schema, or several, when it was planned; or the user takes any.
            return kind if self._columns(query, kind) else ValueType()
        found = self._inferred_version(schemas, query, columns) if inferred else None
        if found is None:
            found = next(
                (each for each in chain([kind.schema], self._all(schemas)) if columns(each)), None
            )
        if found is None:
            return kind
        if not allowed:
            check_alike(schemas, found, _names(query))
        return ValueType(found)

    def _inferred_version(
        self, schemas: Mapping[str, SchemaInfo | None], query: StructType, columns: Columns
    ) -> SchemaInfo | None:
        """Return the newest version with exactly the columns of the query, None if none has."""
        names = set(query.names)

        def is_exact(schema: SchemaInfo) -> bool:
            return bool(columns(schema)) and set(ValueType(schema).fields.names) <= names

        versions = versions_of(schemas)
        newest = [each.schema for each in versions if is_exact(each.schema)]
        if newest:
            return nearest(newest, versions, self._older, columns)
        return next(filter(is_exact, self._all(schemas)), None)

    def _all(self, schemas: Mapping[str, SchemaInfo | None]) -> Iterator[SchemaInfo]:
        """Yield the topics' newest schemas, then their older ones."""
        yield from (each for each in schemas.values() if each is not None)
        for topic in schemas:
            yield from self._older(topic)

    def _older(self, topic: str) -> Iterator[SchemaInfo]:
        yield from older_schemas(self._lookup, topic)

    # --- ranges -------------------------------------------------------------------------------

    def partitions(self, topics: Topics, kind: ValueType) -> list[PulsarInputPartition]:
        """Return what each task reads, without empty topic partitions.

        Raises InvalidOffset for bounds that do not match the topics, DataLossError for a deleted
        message id, unless failOnDataLoss is off.
        """
        ranges = self.ranges(topics)
        return self.tasks([found for found in ranges if found.start < found.end], kind)

    def tasks(self, ranges: Sequence[ReadRange], kind: ValueType) -> list[PulsarInputPartition]:
        """Split ranges into tasks, as the options ask."""
        pieces = split_ranges(
            [(found.topic, found.start, found.end, found.first) for found in ranges],
            self._options.partitions_per_topic_partition,
            self._options.min_partitions or 1,
            self._counts,
        )
        return [
            PulsarInputPartition(
                found.topic,
                start,
                end,
                found.times,
                schema=kind.schema,
                first=found.first if start == found.start else None,
                continues=found.continues,
            )
            for found, parts in zip(ranges, pieces, strict=True)
            for start, end in parts
        ]

    def first_entries(self, ranges: Mapping[str, tuple[Position, Position]]) -> dict[str, Position]:
        """Return where ranges that go on in other ledgers have their first entries.

        A ledger that was read to its end may be deleted, and then nobody knows what it had. So a
        stream asks while it is there. A range of transaction markers alone has no entry that can be
        read: its end is returned. Topics that are gone are left out.
        """
        questions = [(topic, start) for topic, (start, _) in ranges.items()]
        firsts: dict[str, Position] = {}
        for (topic, _), answer in zip(
            questions, self._probe.first_places_at(questions), strict=True
        ):
            if isinstance(answer, TopicNotFound):
                continue
            found, end = value_of(answer), ranges[topic][1]
            firsts[topic] = end if found is None else min(found, end)
        return firsts

    def starts(
        self, bounds: Mapping[str, Bound], known: Mapping[str, Extent]
    ) -> dict[str, Position]:
        """Return where a stream starts on each topic partition: in a ledger, if that is known.

        `known` are the extents that need not be asked for. Raises DataLossError for a deleted
        message id, unless failOnDataLoss is off.
        """
        asked = [topic for topic in bounds if topic not in known]
        extents = {**known, **self._extents(asked)}
        ends = dict.fromkeys(bounds, LATEST_BOUND)
        first = self._first_positions(bounds, ends)
        found = self._times_of_starts(bounds, extents)
        starts: dict[str, Position] = {}
        for topic, bound in bounds.items():
            extent = extents[topic]
            if bound.kind is BoundKind.ID:
                self._check_start(topic, bound, first[topic], extent)
            start = _start(bound, found.get(topic), entry_end(extent.last))
            starts[topic] = self._beginning(extent) if start == EARLIEST_POSITION else start
        return starts

    def beginnings(self, partitions: Sequence[str]) -> dict[str, Position]:
        """Return where topic partitions begin, EARLIEST_POSITION where that is not known."""
        if self._options.reader.read_compacted:
            return dict.fromkeys(partitions, EARLIEST_POSITION)
        return {
            # One that was just deleted has no beginning either.
            topic: EARLIEST_POSITION
            if isinstance(extent, TopicNotFound)
            else self._beginning(value_of(extent))
            for topic, extent in self._lookup.extents(partitions).items()
        }

    def _beginning(self, extent: Extent) -> Position:
        # The compacted view may begin before it.
        compacted = self._options.reader.read_compacted
        return EARLIEST_POSITION if compacted or extent.first is None else extent.first

    def ranges(self, topics: Topics) -> list[ReadRange]:
        """Return what is read of each topic partition; an empty range may end before its start.

        Raises as `partitions`.
        """
        now = int(time.time() * 1000)
        starts = self._options.starting.bounds(topics, now)
        ends = self._options.ending.bounds(topics, now)
        extents = self._extents(list(starts))
        first = self._first_positions(starts, ends)
        from_start = self._times_of_starts(starts, extents)
        # Later messages are filtered by their times.
        tolerance = self._options.publish_time_tolerance
        from_end = self._times(ends, tolerance, extents, or_later=True)
        compacted = self._options.reader.read_compacted
        ranges: list[ReadRange] = []
        for topic, extent in extents.items():
            last_end = end_position(extent.last)
            start, end = starts[topic], ends[topic]
            _check_order(topic, start, end)
            if start.kind is BoundKind.ID:
                self._check_start(topic, start, first[topic], extent)
            if end.kind is BoundKind.ID:
                self._check_end(topic, end, first[topic], extent)
            ranges.append(
                ReadRange(
                    topic,
                    _start(start, from_start.get(topic), last_end),
                    _end(end, tolerance, from_end.get(topic), last_end),
                    _times_between(start, end),
                    # The compacted view may begin before it.
                    extent.first if start.kind is BoundKind.EARLIEST and not compacted else None,
                )
            )
        return ranges

    def last_ids(self, partitions: Sequence[str]) -> dict[str, MessageIdAdv]:
        """Return each topic partition's last message, EARLIEST for an empty one."""
        return {topic: extent.last for topic, extent in self._extents(partitions).items()}

    def _extents(self, partitions: Sequence[str]) -> dict[str, Extent]:
        return {
            topic: Extent(None, EARLIEST) if is_unused(topic, result) else value_of(result)
            for topic, result in self._extents_or_errors(partitions).items()
        }

    def _extents_or_errors(self, partitions: Sequence[str]) -> dict[str, Extent | PulsarError]:
        results = self._lookup.extents(partitions)
        if not self._options.reader.read_compacted:
            return results
        # What was compacted may be deleted from the topic itself.
        left = self._lookup.extents(partitions, read_compacted=True)
        return {topic: _later(results[topic], left[topic]) for topic in results}

    def _times(
        self,
        bounds: Mapping[str, Bound],
        shift: int,
        extents: Mapping[str, Extent],
        *,
        or_later: bool = False,
    ) -> dict[str, FoundEntry | None]:
        questions = [
            (topic, max(bound.millis + shift, 0))
            for topic, bound in bounds.items()
            if bound.kind is BoundKind.TIME
        ]
        first = {topic: extents[topic].first for topic, _ in questions}
        found = self._probe.first_entries_from_time(questions, first, or_later=or_later)
        return self._answers(questions, found)

    def _times_of_starts(
        self, bounds: Mapping[str, Bound], extents: Mapping[str, Extent]
    ) -> dict[str, Position | None]:
        """Return where to start reading the topics that start by time, None for their ends."""
        whole = self._not_searched(bounds)
        searched = {topic: bound for topic, bound in bounds.items() if topic not in whole}
        tolerance = self._options.publish_time_tolerance
        entries = self._times(searched, -tolerance, extents)
        found = {topic: None if entry is None else entry.start for topic, entry in entries.items()}
        # Where nothing is found, the last entry tells. If one has no stamp, the others have none.
        rest = [topic for topic, entry in entries.items() if entry is None]
        last = self._last_entries(rest[:1], extents)
        if any(entry is not None and entry.broker_time is not None for entry in last.values()):
            last |= self._last_entries(rest[1:], extents)
        late = (topic for topic, entry in {**entries, **last}.items() if _is_fast(entry, tolerance))
        return {**found, **dict.fromkeys([*whole, *late], EARLIEST_POSITION)}

    def _last_entries(
        self, topics: Iterable[str], extents: Mapping[str, Extent]
    ) -> dict[str, FoundEntry | None]:
        places = ((topic, extents[topic].last) for topic in topics)
        questions = [
            (topic, Position(last.ledger_id, last.entry_id))
            for topic, last in places
            if last.entry_id >= 0
        ]
        return self._answers(questions, self._probe.first_entries_at(questions))

    def _not_searched(self, bounds: Mapping[str, Bound]) -> set[str]:
        """Return the topics that start by time, and whose compacted view must be read as a whole.

        Brokers only search ledgers that are not deleted.
        """
        if not self._options.reader.read_compacted:
            return set()
        timed = [topic for topic, bound in bounds.items() if bound.kind is BoundKind.TIME]
        compacted = _each(self._probe.are_compacted(timed))
        return {topic for topic, is_so in zip(timed, compacted, strict=True) if is_so}

    def _counts(self, questions: Sequence[Question]) -> list[EntryCount]:
        return _each(self._probe.counts_at(questions))

    # --- data loss ----------------------------------------------------------------------------

    def _first_positions(
        self, starts: Mapping[str, Bound], ends: Mapping[str, Bound]
    ) -> dict[str, Position | None]:
        """Return the first retained entry of partitions with a given id."""
        questions = [
            (topic, EARLIEST_POSITION)
            for topic in starts
            if BoundKind.ID in (starts[topic].kind, ends[topic].kind)
        ]
        return self._answers(questions, self._probe.first_places_at(questions))

    def _answers(
        self,
        questions: Sequence[tuple[str, object]],
        results: Sequence[T | PulsarError | None],
    ) -> dict[str, T | None]:
        return {
            topic: None if is_unused(topic, result) else value_of(result)
            for (topic, _), result in zip(questions, results, strict=True)
        }

    def _check_start(
        self, topic: str, bound: Bound, first: Position | None, extent: Extent
    ) -> None:
        assert bound.message_id is not None
        start = start_position(bound.message_id)
        if first is not None and start < Position(*first[:2]):
            self._check_before(topic, bound.message_id, first, extent)
        elif start > entry_end(extent.last):
            self._check_behind(topic, bound.message_id, first, extent)

    def _check_end(self, topic: str, bound: Bound, first: Position | None, extent: Extent) -> None:
        assert bound.message_id is not None
        end = end_position(bound.message_id)
        if first is not None and end <= Position(*first[:2]):
            self._check_before(topic, bound.message_id, first, extent)
        elif end > entry_end(extent.last):
            logger.warning(
                "%s: endingOffsets is %s, but %s: the read ends there",
                topic,
                bound.message_id,
                _end_of(extent),
            )

    def _check_before(
        self, topic: str, message_id: MessageIdAdv, first: Position, extent: Extent
    ) -> None:
        """Report a message before a topic's first one, unless it is of an aborted transaction."""
        if not extent.stores_from(Position(message_id.ledger_id, message_id.entry_id)):
            kept = f"{first.ledger_id}:{first.entry_id}"
            self._lost(topic, message_id, f"its first message that is kept is {kept}")

    def _check_behind(
        self, topic: str, message_id: MessageIdAdv, first: Position | None, extent: Extent
    ) -> None:
        """Report a message behind a topic's last one, unless it is of an aborted transaction."""
        (last,) = _each(self._probe.last_entries_in([(topic, message_id.ledger_id)]))
        # On a topic without any message left, a deleted ledger seems to be there. Where an open
        # transaction hides all messages, theirs is.
        place = Position(message_id.ledger_id, message_id.entry_id)
        is_gone = first is None and not extent.stores_from(place)
        if is_gone or last is None or message_id.entry_id > last:
            # What retention removes is before the last message.
            how = _REMOVED if extent.last.entry_id < 0 else "with the topic"
            self._lost(topic, message_id, _end_of(extent), how)

    def _lost(self, topic: str, message_id: MessageIdAdv, what: str, how: str = _REMOVED) -> None:
        if self._options.reader.read_compacted and self._probe.is_compacted(topic):
            # Compaction may have removed it, and its ledger may be deleted.
            return
        error = DataLossError(
            f"the requested message is not on the topic: {what}",
            f"It was deleted {how}, or the id is of another one. Give another offset, "
            "or set failOnDataLoss=false to read what is there.",
            topic=topic,
            message_id=message_id,
        )
        report_loss(error, fail=self._options.fail_on_data_loss)


def _names(query: StructType | None) -> list[str]:
    return [] if query is None else [name.lower() for name in query.names]


def _end_of(extent: Extent) -> str:
    """Return where a topic ends, as users write ids."""
    last = extent.last
    is_empty = last.entry_id < 0
    return "it is empty" if is_empty else f"its last message is {last.ledger_id}:{last.entry_id}"


def is_unused(topic: str, result: object) -> bool:
    """Whether an answer says that a partition is missing, which is as good as empty.

    Partitions are created lazily and removed when idle.
    """
    return isinstance(result, TopicNotFound) and TopicName.parse(topic).partition_index >= 0


def _later(one: Extent | PulsarError, other: Extent | PulsarError) -> Extent | PulsarError:
    if isinstance(one, PulsarError) or isinstance(other, PulsarError):
        return one if isinstance(one, PulsarError) else other
    return max(one, other, key=lambda extent: Position.after(extent.last))


def _check_order(topic: str, start: Bound, end: Bound) -> None:
    """Raise InvalidOffset for a given start that is certainly after the given end."""
    if start.kind is not end.kind:
        return
    options = "startingOffsets and endingOffsets"
    if start.kind is BoundKind.TIME:
        swapped = start.millis > end.millis
        options = "startingTime and endingTime"
    elif start.message_id is not None and end.message_id is not None:
        # If nothing is new, a job's start is just after its end. In another ledger it may be too.
        first, stop = start_position(start.message_id), end_position(end.message_id)
        swapped = first.ledger_id == stop.ledger_id and first > stop
    else:
        swapped = False
    if swapped:
        raise InvalidOffset(
            f"the read would start at {start}, after its end at {end}",
            f"Swap {options}, or check the offsets.",
            topic=topic,
        )


def _start(bound: Bound, found: Position | None, last_end: Position) -> Position:
    if bound.kind is BoundKind.EARLIEST:
        return EARLIEST_POSITION
    if bound.kind is BoundKind.ID and bound.message_id is not None:
        return start_position(bound.message_id)
    return last_end if found is None else found


def _is_fast(entry: FoundEntry | None, tolerance: int) -> bool:
    """Whether a producer's clock is fast beside the broker's, which it has searched by.

    Then entries before this one can be wanted, too.
    """
    if entry is None or entry.broker_time is None:
        return False
    return entry.publish_time - entry.broker_time > tolerance


def _end(bound: Bound, tolerance: int, found: FoundEntry | None, last_end: Position) -> Position:
    if bound.kind is BoundKind.ID and bound.message_id is not None:
        return min(end_position(bound.message_id), last_end)
    # Brokers look at their own times too: of ledgers that they closed, of transactions' markers,
    # and of entries, if they stamp them. Where a producer's clock was slow, they find an earlier
    # entry, behind which there is more to read.
    if found is None or found.publish_time < bound.millis + tolerance:
        return last_end
    # Messages published after planning started are not read, wherever a later search ended.
    return min(found.start, last_end)


def _times_between(start: Bound, end: Bound) -> PublishTimes:
    return PublishTimes(
        start.millis if start.kind is BoundKind.TIME else None,
        end.millis if end.kind is BoundKind.TIME else None,
    )


def _all(results: Mapping[str, T | PulsarError]) -> dict[str, T]:
    return dict(zip(results, _each(results.values()), strict=True))


def _each(results: Iterable[T | PulsarError]) -> list[T]:
    """Return the results; raises the first error among them."""
    return [value_of(result) for result in results]
