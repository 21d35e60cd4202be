"""The driver's part of a stream: topics, ends, plans of micro-batches, and commits.

A durable subscription on each topic partition retains unread messages. It is created before the
first offset is chosen, acknowledged cumulatively up to what Spark has committed, and never moved
back while it exists, except at the first start over what nobody could read by then. Only Spark's
offsets hold the stream's position.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from pulsar_spark.engine.consumers.probe import FoundEntry, Look, Probe
from pulsar_spark.engine.consumers.subscription import (
    EARLIEST,
    LATEST,
    SubscriptionSet,
    TopicEnd,
)
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.lookups.lookup import Extent
from pulsar_spark.engine.operations import value_of
from pulsar_spark.errors import (
    ConsumerBusy,
    DataLossError,
    NotAllowed,
    PulsarError,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import topic_of
from pulsar_spark.schema.registry import latest_schemas
from pulsar_spark.schema.table.record_batches import PublishTimes
from pulsar_spark.spark.offsets import Bound, BoundKind, entry_end
from pulsar_spark.spark.options.read import ReadOptions
from pulsar_spark.spark.options.stream import Caps, StreamOptions
from pulsar_spark.spark.reading.data_loss import GO_ON, report_loss
from pulsar_spark.spark.reading.partitions import PulsarInputPartition
from pulsar_spark.spark.reading.planner import Planner, ReadRange, Topics
from pulsar_spark.spark.streaming.admission import Admission
from pulsar_spark.spark.streaming.backlog import SAMPLE_SECONDS, Backlogs, Lag
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from pulsar_spark.spark.streaming.topics import Span, StreamTopics
from pulsar_spark.spark.value_types import ValueType

logger = get_logger(__name__)
T = TypeVar("T")

# While brokers report no news, all topic partitions are looked at this often.
_REST_SECONDS = 10.0
# How long a query that ends before it has read anything may take to remove its subscription.
_ABANDON_SECONDS = 5.0
# A subscription of a generated name that cannot be removed for one of these was never made.
_NEVER_MADE = (ConsumerBusy, NotAllowed, SubscriptionNotFound, TopicNotFound)


class _OpenBatch(NamedTuple):
    """A micro-batch that Spark has not reported as committed.

    `begins` are where the ranges begin, `firsts` the first entries as in its end.
    """

    end: StreamOffset
    begins: Mapping[str, Position]
    firsts: Mapping[str, Position]


class CommitWatch:
    """Knows whether the start of a micro-batch is certainly in the checkpoint.

    Spark commits a batch when it plans the next one; for an idle query's last batch, the request
    for a next one is the only sign. With asynchronous progress tracking, batches continue while
    checkpoints are written only now and then, and commits come later than plans: the process's
    second batch shows that. The first one is written at once, but perhaps in the background.
    """

    settle_seconds = 2.0
    """How long the first micro-batch must rest before it counts as written."""

    def __init__(self) -> None:
        # The last planned batch, and the last committed offset.
        self._planned: tuple[StreamOffset, StreamOffset] | None = None
        self._committed: StreamOffset | None = None
        # Whether commits come late, None while unknown.
        self._late: bool | None = None
        # Unless they do not: the micro-batches since the last commit, the oldest one first.
        self._open: list[_OpenBatch] = []
        # The offset at which the stream rests, and since when.
        self._resting: tuple[StreamOffset, float] | None = None

    def on_commit(self, offset: StreamOffset) -> None:
        """Spark has committed an offset."""
        self._committed = offset
        ends = [each.end for each in self._open]
        if offset in ends:
            del self._open[: ends.index(offset) + 1]

    def on_plan(self, start: StreamOffset, end: StreamOffset) -> None:
        """Spark plans a batch; it may plan one again."""
        before, self._planned = self._planned, (start, end)
        if before is None or before == (start, end) or before[1] != start:
            return
        late = self._committed != start
        if late and not self._late:
            logger.warning(
                "Spark plans micro-batches before it reports the previous ones as committed "
                "(asyncProgressTrackingEnabled): messages are acknowledged when they are reported."
            )
        self._late = late
        if not late:
            self._open.clear()

    def on_fixed_end(self) -> None:
        """The trigger is AvailableNow, with which Spark refuses asynchronous progress tracking."""
        self._late = False
        self._open.clear()

    def on_end(self, batch: _OpenBatch) -> None:
        """A micro-batch's end is chosen, whose start Spark may not write into the checkpoint."""
        if self._late is not False:
            self._open.append(batch)

    def firsts(self, firsts: Mapping[str, Position]) -> Mapping[str, Position]:
        """Return a micro-batch's first entries; if commits come late, of those before it as well.

        Spark writes only some offsets then. It repeats all between two of them as one micro-batch.
        """
        found = dict(firsts)
        for batch in reversed(self._open):
            found |= batch.firsts
            found |= {topic: batch.begins[topic] for topic in found.keys() & batch.begins.keys()}
        return found

    def holds(self, start: StreamOffset) -> bool:
        """Whether the checkpoint certainly has the start of the next micro-batch."""
        if self._planned is None:
            # It comes from the checkpoint.
            return True
        if self._late is not None:
            return not self._late
        now = time.monotonic()
        if self._resting is None or self._resting[0] != start:
            self._resting = start, now
        return now - self._resting[1] >= self.settle_seconds


class StreamSchemas:
    """The schemas of a stream's topics. It forgets topics that are not `there` any more.

    Those that decided on the type of the values are kept apart from the current ones, which
    messages certainly have: a topic's schema has its say once, and may change after that. A topic
    that is deleted and made again counts its versions anew, but its ledgers are others. So what a
    topic's version is, is known for messages of ledgers that were there before it was asked for. It
    is asked for again when a partition goes on in another ledger.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.kind = ValueType()
        """The type of the values of the batch that was planned last."""
        self.decided: Mapping[str, SchemaInfo | None] | None = None
        """Those that decided on it, by topic; None at first."""
        # The positions of the micro-batch that topics were asked for last, and their answers.
        self._asked: tuple[Mapping[str, Position], Mapping[str, SchemaInfo | None]] = {}, {}
        # The last ledger of each topic partition that was seen, and each topic's schema.
        self._ledgers: dict[str, int] = {}
        self._current: dict[str, SchemaInfo | None] = {}
        self.eras: dict[str, str] = {}
        """By topic, what changes when a partition of it that was planned goes on elsewhere."""

    def decide(
        self,
        planner: Planner,
        topics: Topics,
        left_out: Sequence[str],
        positions: Mapping[str, Position],
    ) -> None:
        """Decide on the type of the values, now that these topics have a say as well.

        Those that are left out are read, too, but have none. `positions` are where a micro-batch
        ends.
        """
        there = set(map(topic_of, positions))
        known = {name: each for name, each in (self.decided or {}).items() if name in there}
        kind = planner.value_type(topics, known)
        planner.check_left_out(left_out, kind)
        self.kind = kind
        self.decided = _shared(planner.schemas)
        new = {name: each for name, each in self.decided.items() if name not in known}
        self._asked = positions, new

    def current(
        self, planned: Sequence[PulsarInputPartition], positions: Mapping[str, Position]
    ) -> Mapping[str, SchemaInfo | None]:
        """Return the current schemas of the topics of tasks that were just planned.

        `positions` are where their micro-batch ends.
        """
        if self.kind.schema is None:
            return {}
        owners = {each.topic: topic_of(each.topic) for each in planned}
        ends = {each.topic: each.end[0] for each in planned}
        for topic in self._ledgers.keys() - positions.keys():
            del self._ledgers[topic]
            self._current.pop(topic_of(topic), None)
            self.eras.pop(topic_of(topic), None)
        new = {
            owner
            for topic, owner in owners.items()
            if self._ledgers.get(topic) != ends[topic] or owner not in self._current
        }
        self.eras |= {owner: secrets.token_hex(8) for owner in new}
        asked_for, asked = self._asked
        if asked_for == positions:
            # These were asked for a moment ago. Of the others, what decided may be of an earlier
            # topic of the same name.
            self._current |= {owner: asked[owner] for owner in new & asked.keys()}
            new -= asked.keys()
        if new:
            with ClientContext.shared(self._options.client) as context:
                found = latest_schemas(context.lookup, sorted(new))
            self._current |= {
                name: None if isinstance(schema, PulsarError) else schema
                for name, schema in found.items()
            }
        self._ledgers |= ends
        return self._current


class StreamSource:
    """Chooses the offsets of one query, in one process. Call `close` at the end.

    It connects when a connection is first needed.
    """

    def __init__(self, options: StreamOptions) -> None:
        self.last: StreamOffset | None = None
        """The last offset that was chosen or learnt."""
        self._options = options
        self._context: ClientContext | None = None
        self._topics: StreamTopics | None = None
        self._initial: StreamOffset | None = None
        # Topic partitions on which a subscription of the options' name was made for that.
        self._made: Sequence[str] = ()
        # Whether the first offset after the initial one is still to be chosen.
        self._first = False
        self._target: Mapping[str, Position] | None = None
        self._admission = Admission(self._look)
        self._backlogs = Backlogs()
        # Where a batch ended inside an entry: the position, and the entry's number of messages.
        self._batch_sizes: dict[str, tuple[Position, int]] = {}
        # When the last batch's end was chosen. The first batch does not wait for more messages.
        self._batch_at = -math.inf
        self.schemas = StreamSchemas(options.read)
        # Until when nothing is to be asked, unless there is news.
        self._rests_until = -math.inf
        self.commits = CommitWatch()

    # --- the first offset ---------------------------------------------------------------------

    def initial(self) -> StreamOffset:
        """Return where the query starts, chosen once, with the subscriptions in place.

        Raises TopicNotFound, unless the stream waits for its topics, DataLossError for a deleted
        start, ConsumerBusy, and other errors of the broker.
        """
        if self._initial is None:
            self._initial = self._decide_initial()
            self._first = True
            self.last = self._initial
        return self._initial

    def _decide_initial(self) -> StreamOffset:
        planner = self._planner()
        waiting = self._options.read.waiting
        topics = planner.find_topics().topics if waiting else planner.topics()
        now = int(time.time() * 1000)
        bounds = self._options.read.starting.bounds(topics, now, waiting=waiting)
        follow = self._open(self._options.subscription_name())
        subscriptions = follow.subscriptions
        self._made = self._not_subscribed(list(bounds))
        try:
            for topic, bound in bounds.items():
                subscriptions.add(topic, LATEST if bound.kind is BoundKind.LATEST else EARLIEST)
            # Subscribe first, then choose: messages in between are retained.
            ends = follow.ends(dict.fromkeys(bounds, EARLIEST_POSITION))
            starts = planner.starts(bounds, self._extents(bounds, ends))
            follow.hold_from(starts, ends)
        except PulsarError:
            self._abandon(follow)
            raise
        logger.info(
            "the query starts with %d topic partitions, held by the subscription %s",
            len(starts),
            subscriptions.name,
        )
        published_from = {
            topic: bound.millis for topic, bound in bounds.items() if bound.kind is BoundKind.TIME
        }
        return StreamOffset(subscriptions.name, starts, published_from=published_from)

    def _extents(
        self, bounds: Mapping[str, Bound], ends: Mapping[str, TopicEnd]
    ) -> dict[str, Extent]:
        """Return where topic partitions begin and end, as far as new subscriptions show it.

        One with a name that was just made up is at the topic's beginning, unless it was told to
        begin at the end. There it is behind entries that nobody can read, which may be of open
        transactions. One partition of each topic is left out: asking about it shows whether
        policies let tasks read beside the subscription.
        """
        read = self._options.read
        if self._options.subscription is not None or read.reader.read_compacted:
            return {}
        one_each = {topic_of(topic): topic for topic in ends}
        extents: dict[str, Extent] = {}
        for topic in set(ends).difference(one_each.values()):
            end = ends[topic]
            kind, first = bounds[topic].kind, end.done
            if first is not None and first.entry_id:
                if end.last.entry_id >= 0:
                    first = None
                elif kind is BoundKind.LATEST:
                    continue
            if kind is BoundKind.LATEST or (kind is BoundKind.EARLIEST and first is not None):
                extents[topic] = Extent(first, end.last)
        return extents

    def _not_subscribed(self, topics: Sequence[str]) -> list[str]:
        """Return those topic partitions that lack the subscription that the options name."""
        name = self._options.subscription
        if name is None:
            return []
        assert self._context is not None
        found = Probe(self._context.pool).subscriptions_exist([(topic, name) for topic in topics])
        pairs = zip(topics, found, strict=True)
        return [topic for topic, it in pairs if it is False or isinstance(it, TopicNotFound)]

    def _abandon(self, follow: StreamTopics, seconds: float | None = None) -> None:
        """Close, and remove subscriptions that no checkpoint mentions."""
        subscriptions = follow.subscriptions
        if self._options.subscription is None:
            for topic, result in subscriptions.unsubscribe(seconds).items():
                if isinstance(result, PulsarError) and not isinstance(result, _NEVER_MADE):
                    logger.warning(
                        "%s: the subscription %s could not be removed: %s",
                        topic,
                        subscriptions.name,
                        result,
                    )
        follow.close()
        self._topics = None

    def learn(self, offset: StreamOffset) -> None:
        """Store the offset from which a restarted query continues."""
        self.last = offset
        self._rests_until = -math.inf
        if self._initial is None:
            # If its first batch was not finished, Spark asks for the start again.
            self._initial = _first_start(offset)

    def _begin_again(self, end: StreamOffset) -> StreamOffset:
        """Return where the query's first batch starts, as its end says.

        Spark asks a restarted query that has not finished that batch for a start. What it has
        chosen then is another one.
        """
        self._initial = _first_start(end)
        self._first = False
        self.last = end
        if self._topics is not None:
            # What it found there says nothing of the start that the checkpoint has. A subscription
            # that it had to make has kept nothing since then.
            subscriptions = self._topics.subscriptions
            subscriptions.unsubscribe(topics=[each for each in self._made if each in subscriptions])
            self._abandon(self._topics)
        return self._initial

    # --- the next offset ----------------------------------------------------------------------

    def latest(self, start: StreamOffset, caps: Caps, *, committed: bool = True) -> StreamOffset:
        """Return where the next batch ends; `start` itself if there is nothing to read.

        With `committed`, messages before `start` are acknowledged, unless Spark's commits come
        later than its plans. Raises DataLossError, unless failOnDataLoss is off, ConsumerBusy,
        TopicNotFound, and other errors of the broker.
        """
        name = self._options.subscription or start.subscription
        former = None if name == start.subscription else start.subscription
        if former is not None and self._topics is None:
            logger.warning(
                "the checkpoint's subscription is %s, but the option subscription is %s, which is "
                "used from now on. Once the query has read something, remove the old one from the "
                "topics that it reads, where it keeps unread messages",
                former,
                name,
            )
        follow = self._open(name)
        follow.subscriptions.news.clear()
        follow.refresh(start.positions, start.ends, former)
        spans = follow.spans(start.positions, start.rests)
        if committed and self.commits.holds(start):
            self._acknowledge(start)
        if self._target is not None:
            spans = {topic: _bounded(span, self._target, topic) for topic, span in spans.items()}
        found = self._offset(start, name, self._admit(spans, caps), follow)
        resting = found == start and follow.is_watched and follow.subscriptions.begin_rest()
        self._rests_until = time.monotonic() + _REST_SECONDS if resting else -math.inf
        return found

    def rests(self, wait: float = 0.0) -> bool:
        """Return whether the last offset is still the latest one: brokers would report news.

        Before it looks, it waits for news, at most so many seconds.
        """
        if self._topics is None or time.monotonic() >= self._rests_until:
            return False
        self._topics.subscriptions.news.wait(wait)
        return self._topics.are_same() and self._topics.subscriptions.rests()

    def _admit(self, spans: Mapping[str, Span], caps: Caps) -> Mapping[str, Span]:
        if caps.min_messages is not None and not self.end_is_fixed:
            due = time.monotonic() >= self._batch_at + caps.max_delay
            if not due and not self._admission.holds(spans, caps.min_messages):
                return {topic: Span(span.start, span.start) for topic, span in spans.items()}
        if not caps.bounded:
            return spans
        cuts = self._admission.admit(spans, caps)
        for topic in set(self._batch_sizes).difference(spans):
            del self._batch_sizes[topic]
        for topic, size in self._admission.batch_sizes.items():
            self._batch_sizes[topic] = cuts[topic], size
        return {topic: Span(span.start, cuts[topic]) for topic, span in spans.items()}

    def _look(self, questions: Sequence[tuple[str, Look]]) -> list[tuple[FoundEntry, ...]]:
        """Answer the questions of admission control."""
        assert self._context is not None
        return [value_of(found) for found in Probe(self._context.pool).entries_at(questions)]

    def _offset(
        self, start: StreamOffset, name: str, spans: Mapping[str, Span], follow: StreamTopics
    ) -> StreamOffset:
        firsts = self._firsts({topic: span[:2] for topic, span in spans.items()})
        follow.check_passed()
        positions = _reached(start, spans, firsts)
        positions |= _among(follow.left_out, start.positions)
        first = self._first and start == self._initial
        rests = follow.rests(positions, start.rests, start.positions)
        if positions == start.positions and rests == start.rests and not first:
            self.last = start
            return start
        ends = _among(positions, {**follow.seen, **_among(follow.left_out, start.ends)})
        offset = StreamOffset(
            name,
            positions,
            starts=start.positions if first else None,
            published_from=_among(positions, start.published_from),
            listed=start.listed,
            ends={topic: end for topic, end in ends.items() if positions[topic] < end},
            firsts=_among(positions, self.commits.firsts(firsts)),
            rests=rests,
        )
        begins = {
            topic: firsts.get(topic, span.start)
            for topic, span in spans.items()
            if span.start < span.end
        }
        # A topic that cannot be read with the others is to be in no checkpoint: a restart with
        # options that leave it out goes on.
        self._decide_type(begins, offset)
        self._first = False
        if first or begins:
            self._batch_at = time.monotonic()
        if not first:
            self.commits.on_end(_OpenBatch(offset, begins, firsts))
        self.last = offset
        return offset

    def fix_end(self) -> None:
        """From now on no offset is after the topics' current ends."""
        planner = self._planner()
        partitions = [name for names in planner.find_topics().topics.values() for name in names]
        last_ids = planner.last_ids(partitions)
        self._target = {topic: entry_end(last_id) for topic, last_id in last_ids.items()}
        self.commits.on_fixed_end()

    @property
    def end_is_fixed(self) -> bool:
        """Whether `fix_end` was called."""
        return self._target is not None

    def report(self) -> StreamOffset | None:
        """Return the topics' last observed ends, None before the first time."""
        if self._topics is None or self.last is None:
            return None
        positions = {**self.last.positions, **self._topics.seen}
        return StreamOffset(self.last.subscription, positions, listed=self.last.listed)

    def lag(self) -> dict[str, Lag]:
        """Return the backlog of topic partitions after the last offset.

        Topic partitions without a backlog are left out. Never raises: a batch must not fail because
        the backlog is unknown.
        """
        if self._topics is None or self._context is None or self.last is None:
            return {}
        ends = self.last.positions
        spans = {
            topic: (ends.get(topic, EARLIEST_POSITION), end)
            for topic, end in self._topics.seen.items()
        }
        probe = Probe(self._context.pool, SAMPLE_SECONDS)
        try:
            return self._backlogs.lag(spans, probe, int(time.time() * 1000))
        except Exception:
            logger.warning("the backlog cannot be determined", exc_info=True)
            return {topic: Lag() for topic, (start, end) in spans.items() if start < end}

    # --- a batch ------------------------------------------------------------------------------

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[PulsarInputPartition]:
        """Return the ranges for a batch's tasks: exactly what is between two offsets."""
        chosen = start.positions, start.subscription
        if end.starts is not None and chosen != (end.starts, end.subscription):
            start = self._begin_again(end)
        self.commits.on_plan(start, end)
        ranges: list[ReadRange] = []
        continues = end.starts is None
        for topic, stop in end.positions.items():
            begin = start.positions.get(topic, EARLIEST_POSITION)
            if begin == EARLIEST_POSITION:
                begin = end.firsts.get(topic, EARLIEST_POSITION)
            if stop < begin:
                # The topic was created again meanwhile, and `stop` is a position on the new one.
                begin = EARLIEST_POSITION
            if begin < stop:
                times = PublishTimes(since=end.published_from.get(topic))
                ranges.append(ReadRange(topic, begin, stop, times, continues=continues))
        lost = self._decide_type([each.topic for each in ranges], end)
        ranges = [each for each in ranges if each.topic not in lost]
        if not ranges:
            return []
        planned = self._planner().tasks(self._with_firsts(ranges, end.firsts), self.schemas.kind)
        logger.info(
            "a batch of %d tasks reads %d topic partitions for the subscription %s",
            len(planned),
            len(ranges),
            end.subscription,
        )
        return planned

    def _decide_type(self, read: Collection[str], end: StreamOffset) -> Collection[str]:
        """Decide on the type of the values of what is read; return what of it is lost.

        All topics that there are at first have a say, if they have a schema or messages; others
        when a range of theirs is read first. Schemas are asked for once. Topics that had messages,
        and have neither these nor a schema now, are reported as a loss. Those that the options
        leave out have none; a micro-batch of the checkpoint can have ranges of them.
        """
        if not read:
            return ()
        includes = self._options.read.includes
        owners = {topic: topic_of(topic) for topic in read}
        decided = self.schemas.decided
        is_first = decided is None
        asked = [topic for topic in (end.positions if is_first else owners) if includes(topic)]
        if is_first:
            asked = asked or list(end.positions)
        topics: dict[str, list[str]] = {}
        for topic in asked:
            owner = owners.get(topic) or topic_of(topic)
            topics.setdefault(owner, []).append(topic)
        if decided is not None and topics.keys() <= decided.keys():
            return ()
        planner = self._planner()
        left_out = sorted({*owners.values()} - topics.keys())
        self.schemas.decide(planner, dict(sorted(topics.items())), left_out, end.positions)
        gone = planner.without_messages
        lost = {topic: gone[owner] for topic, owner in owners.items() if owner in gone}
        for topic, missing in lost.items():
            what = "the topic partition was deleted, or made again, before it was read"
            error = missing or DataLossError(what, GO_ON, topic=topic)
            report_loss(error, fail=self._options.read.fail_on_data_loss)
        return lost

    def _with_firsts(
        self, ranges: Sequence[ReadRange], known: Mapping[str, Position]
    ) -> list[ReadRange]:
        """Add the ranges' first entries; ask for those that the offset does not have."""
        bounds = {found.topic: (found.start, found.end) for found in ranges}
        known = {
            topic: first
            for topic, first in known.items()
            if topic in bounds and bounds[topic][0] <= first <= bounds[topic][1]
        }
        unknown = {topic: found for topic, found in bounds.items() if topic not in known}
        firsts = {**known, **self._firsts(unknown)}
        return [replace(found, first=firsts.get(found.topic)) for found in ranges]

    def _firsts(self, bounds: Mapping[str, tuple[Position, Position]]) -> dict[str, Position]:
        """Return the first entries of ranges that go on from one ledger to another."""
        asked = {
            topic: (start, end)
            for topic, (start, end) in bounds.items()
            if EARLIEST_POSITION != start < end and start.ledger_id != end.ledger_id
        }
        return self._planner().first_entries(asked) if asked else {}

    def commit(self, offset: StreamOffset) -> None:
        """Acknowledge messages before an offset that Spark has committed; returns at once.

        If a broker is unavailable, it is told later.
        """
        self.commits.on_commit(offset)
        self._acknowledge(offset)

    def _acknowledge(self, offset: StreamOffset) -> None:
        if self._topics is None:
            return
        follow, subscriptions = self._topics, self._topics.subscriptions
        for topic, position in offset.positions.items():
            # A position beyond the topic's end belongs to an earlier topic with the same name.
            is_there = position <= follow.seen.get(topic, EARLIEST_POSITION)
            if topic in subscriptions and (is_there or follow.ends_at(topic, position)):
                inside, size = self._batch_sizes.get(topic, (position, 0))
                behind = offset.rests.get(topic, position)
                subscriptions.acknowledge(topic, behind, size if inside == behind else 0)

    # --- connections --------------------------------------------------------------------------

    def _planner(self) -> Planner:
        if self._context is None:
            self._context = ClientContext.shared(self._options.read.client)
        return Planner(self._context, self._options.read)

    def _open(self, name: str) -> StreamTopics:
        if self._topics is None:
            planner = self._planner()
            assert self._context is not None
            reader = self._options.read.reader
            subscriptions = SubscriptionSet(
                self._context, name, reader.poll_timeout, read_compacted=reader.read_compacted
            )
            self._topics = StreamTopics(self._context, planner, subscriptions, self._options.read)
        return self._topics

    def close(self) -> None:
        """Leave the brokers; subscriptions that a checkpoint can name stay. May be called twice."""
        chose_none = self._first and self.last is self._initial
        if chose_none and self._topics is not None:
            self._abandon(self._topics, _ABANDON_SECONDS)
        if self._topics is not None:
            self._topics.close()
            self._topics = None
        if self._context is not None:
            self._context.close()
            self._context = None


def _shared(schemas: Mapping[str, SchemaInfo | None]) -> dict[str, SchemaInfo | None]:
    """Return the schemas of topics with each definition kept once: many topics have the same."""
    data: dict[bytes, bytes] = {}
    return {
        name: each
        and replace(each, schema_data=data.setdefault(each.schema_data, each.schema_data))
        for name, each in schemas.items()
    }


def _first_start(offset: StreamOffset) -> StreamOffset:
    """Return where a query starts by its first offset, or goes on by a later one."""
    starts = offset.positions if offset.starts is None else offset.starts
    return replace(offset, positions=starts, starts=None, ends={}, rests={})


def _reached(
    start: StreamOffset, spans: Mapping[str, Span], firsts: dict[str, Position]
) -> dict[str, Position]:
    """Return where a micro-batch ends; add where topic partitions that are new to it begin."""
    positions: dict[str, Position] = {}
    for topic, span in spans.items():
        known = start.positions.get(topic, EARLIEST_POSITION)
        begin = span.start if known == EARLIEST_POSITION else known
        if begin != known:
            firsts.setdefault(topic, begin)
        if span.start < span.end:
            positions[topic] = span.end
        elif topic in start.positions or begin != EARLIEST_POSITION:
            # A restarted query has to know where a new partition began.
            positions[topic] = begin
    return positions


def _among(topics: Collection[str], values: Mapping[str, T]) -> dict[str, T]:
    return {topic: value for topic, value in values.items() if topic in topics}


def _bounded(span: Span, target: Mapping[str, Position], topic: str) -> Span:
    end = target.get(topic, EARLIEST_POSITION)
    return span if span.end <= end else Span(span.start, end)
