"""The topics of a running stream: new ones, deleted ones, and their ends."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import NamedTuple

from pulsar_spark.engine.consumers.probe import PassedOver, Probe
from pulsar_spark.engine.consumers.subscription import EARLIEST, SubscriptionSet, TopicEnd
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.lookups.topic_discovery import PatternWatch
from pulsar_spark.engine.operations import value_of
from pulsar_spark.errors import (
    DataLossError,
    PulsarError,
    SubscriptionNotFound,
    TopicNotFound,
    listed,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.protocol.topic_name import TopicName, topic_of
from pulsar_spark.spark.offsets import entry_end
from pulsar_spark.spark.options.read import ReadOptions
from pulsar_spark.spark.reading.data_loss import (
    GO_ON,
    LossVerdict,
    extent,
    judge,
    keeps_from,
    report_loss,
)
from pulsar_spark.spark.reading.planner import FoundTopics, Planner, is_unused
from pulsar_spark.spark.streaming.held_back import HeldWatch

logger = get_logger(__name__)

# How soon it is asked again what is behind a last message, if a transaction is open there. While
# there is news of others, so many idle topic partitions are asked together, as often.
_BEHIND_SECONDS = 10.0
_BEHIND_AT_ONCE = 16

# With up to this many topics, each is asked for its partitions every time; with more, once a
# second.
_ASKED_EACH_TIME = 100
_LOOK_SECONDS = 1.0
# A broker that watches a pattern can miss a change.
_LIST_SECONDS = 60.0

# The columns of a query are inferred anew at each start: from that topic, unless it may be missing.
_WITHOUT = (
    "To go on, set failOnDataLoss=false and waitingForNonExistedTopic=true, or take the topic out "
    "of the query."
)
_OTHER_CLUSTER = (
    "Positions in a checkpoint belong to one cluster: start a query with a new checkpoint and "
    "startingTime, or set failOnDataLoss=false to go on at that position."
)

Positions = Mapping[str, Position]


class Span(NamedTuple):
    """The backlog of a topic partition: from the stream's position to the end.

    `last` is the number of messages in the entry before the end, 0 if it is not known.
    """

    start: Position
    end: Position
    last: int = 0


class StreamTopics:
    """Follows the topics of one stream, and their subscriptions."""

    def __init__(
        self,
        context: ClientContext,
        planner: Planner,
        subscriptions: SubscriptionSet,
        options: ReadOptions,
    ) -> None:
        self._probe = Probe(context.pool)
        self._held = HeldWatch(context)
        self._planner = planner
        self.subscriptions = subscriptions
        self._options = options
        self._found: FoundTopics | None = None
        self._watch: PatternWatch | None = None
        if options.pattern is not None:
            self._watch = PatternWatch(context, options.pattern, subscriptions.news.set)
        # When to ask for partitions again (also at rest), and to list topics that a broker watches.
        self._look_at = self._list_at = self._same_until = 0.0
        # Per topic partition: its last observed end, and its subscription's position when that was
        # last judged.
        self.seen: dict[str, Position] = {}
        # The first end observed after the stream's position: everything before it is unread.
        self._unread: dict[str, Position] = {}
        # For topics that were compacted: the attachment with which that was seen.
        self._compacted: dict[str, int] = {}
        self._judged: dict[str, tuple[Position | None, int]] = {}
        # The position of a query whose unread messages its subscription has passed, and whether it
        # was told that some are gone.
        self._passed: dict[str, tuple[Position, bool]] = {}
        # For positions behind last messages: with which attachment that was seen, and whether the
        # topics have what is before them.
        self._hidden: dict[str, tuple[tuple[Position, int], bool]] = {}
        # Where the subscription was when nothing before it was unread.
        self._held_at: dict[str, Position] = {}
        # Where those begin of which nothing was read, until the checkpoint says it.
        self._begins: dict[str, Position] = {}
        # The end behind which was looked last, and when to look again if it is the same.
        self._looked_behind: dict[str, tuple[Position, float]] = {}
        # When idle topic partitions are asked next, while there is news of others.
        self._behind_at = time.monotonic() + _BEHIND_SECONDS
        # Those of a restarted query that were not looked at yet.
        self._restarted: set[str] = set()
        # The subscription that the query had until now, if it was another one.
        self._former: str | None = None
        # What that one has kept: where those end whose new subscription kept nothing yet.
        self._kept: dict[str, TopicEnd] = {}
        # Those of the checkpoint that are not to be read now.
        self.left_out: frozenset[str] = frozenset()

    # --- topics -----------------------------------------------------------------------------------

    def refresh(
        self, positions: Positions, ends: Positions | None = None, former: str | None = None
    ) -> None:
        """Find the topic partitions, and subscribe to new ones.

        `ends` are the known ends of those that had unread messages; `former` is the subscription
        that the query had until now, if it was another one. Raises TopicNotFound for a missing
        topic, unless the stream waits for topics or continues without them.
        """
        self._former = former
        found = self._look()
        for name, error in found.missing.items():
            known = any(topic_of(topic) == name for topic in positions)
            if self._options.fail_on_data_loss and not (known or self._options.waiting):
                raise error
        partitions = [topic for names in found.topics.values() for topic in names]
        for topic in partitions:
            if topic not in self.subscriptions:
                begun = not positions.get(topic, EARLIEST_POSITION).begins_ledger
                if positions and topic not in positions:
                    logger.info("%s: a new topic partition, read from its earliest message", topic)
                existed = begun or (topic in positions and former is None)
                self.subscriptions.add(topic, EARLIEST, must_exist=existed)
                if begun:
                    self._restarted.add(topic)
                if ends and topic in ends:
                    self._unread[topic] = ends[topic]
        for topic in set(self.subscriptions.topics).difference(partitions):
            self.subscriptions.remove(topic)
        self._leave_out(
            topic
            for topic in positions
            if topic not in self.subscriptions and not self._options.includes(topic)
        )

    def _leave_out(self, topics: Iterable[str]) -> None:
        """Say once what became of topic partitions that the options no longer name or match."""
        before, self.left_out = self.left_out, frozenset(topics)
        fresh = sorted(self.left_out - before)
        if not fresh:
            return
        what = (
            f"{len(fresh)} topic partitions are left out, as the query's options no longer include "
            f"them: {listed(fresh)}. The checkpoint keeps their positions, and the query resumes "
            "there when they are included again"
        )
        names = [name for name in (self.subscriptions.name, self._former) if name is not None]
        pairs = [(topic, name) for name in names for topic in fresh]
        exist = self._probe.subscriptions_exist(pairs)
        held = [pair for pair, exists in zip(pairs, exist, strict=True) if exists is True]
        if not held:
            logger.info("%s", what)
            return
        for name in names:
            self._warn_of_kept(what, name, [topic for topic, keeper in held if keeper == name])

    def _warn_of_kept(self, what: str, name: str, topics: Sequence[str]) -> None:
        """Say that a subscription keeps the messages of topic partitions that are left out."""
        if not topics:
            return
        logger.warning(
            "%s. Until then the subscription %s keeps the unread messages of %d of them. If they "
            "are never to be read again, remove it from each topic: python -m pulsar_spark "
            "subscriptions --service-url %s --topic %s --subscription %s --drop",
            what,
            name,
            len(topics),
            self._options.client.service_url,
            TopicName.parse(topics[0]).partitioned,
            name,
        )

    def _look(self) -> FoundTopics:
        now = time.monotonic()
        found = self._found
        if found is None or now >= self._look_at:
            watch = self._watch
            if found is not None and found.topics and watch is not None and now < self._list_at:
                found = self._planner.find_partitions(list(found.topics))
                # The broker's reports come before that answer.
                if watch.changed():
                    found = self._list(watch)
            else:
                found = self._list(watch)
            many = len(found.topics) > _ASKED_EACH_TIME
            self._look_at = now + _LOOK_SECONDS if many else 0.0
        self._found = found
        return found

    def _list(self, watch: PatternWatch | None) -> FoundTopics:
        """Find all topics, of a namespace if there is a pattern."""
        if watch is not None and not watch.is_on:
            # What changes from now on is reported.
            watch.changed()
        found = self._planner.find_topics()
        if watch is not None and watch.is_on:
            self._list_at = time.monotonic() + _LIST_SECONDS
        return found

    def are_same(self) -> bool:
        """Whether there are the same topic partitions as at the last look, as far as is known.

        They are looked for once a second.
        """
        now = time.monotonic()
        if now < self._same_until:
            return True
        before = self._found
        self._same_until = now + _LOOK_SECONDS
        return before is not None and self._look() == before

    @property
    def is_watched(self) -> bool:
        """Whether there is nothing to look for that no broker reports: only a pattern's topics."""
        return self._watch is None or self._watch.is_on

    def close(self) -> None:
        """Leave the brokers; the subscriptions stay."""
        if self._watch is not None:
            self._watch.close()
        self.subscriptions.close()

    # --- ends -----------------------------------------------------------------------------------

    def spans(
        self, positions: Positions, rests: Positions = MappingProxyType({})
    ) -> dict[str, Span]:
        """Return the backlog of each topic partition after `positions`; see StreamOffset.rests.

        Deleted partitions are left out. Raises DataLossError, unless failOnDataLoss is off.
        """
        for topic in {**self.seen, **positions}:
            if topic not in self.subscriptions and topic not in self.left_out:
                self._vanished(topic, positions.get(topic, EARLIEST_POSITION))
        spans: dict[str, Span] = {}
        ends = self.ends(positions)
        for topic, rest in rests.items():
            self._held_at[topic] = max(self._held_at.get(topic, rest), rest)
        begins = self._begin(positions, ends)
        for topic, end in ends.items():
            position = begins.get(topic, positions.get(topic, EARLIEST_POSITION))
            start = self._start(topic, position, end)
            spans[topic] = Span(start, self.seen[topic], max(end.last.batch_index + 1, 1))
        self._look_back(positions, ends, rests)
        self._held.on_ends({topic: span.end for topic, span in spans.items()})
        return spans

    def _begin(self, positions: Positions, ends: Mapping[str, TopicEnd]) -> dict[str, Position]:
        """Return where topic partitions begin of which nothing was read or is in the checkpoint.

        From there on the subscription keeps their messages, so one that has passed it shows a loss.
        """
        new = [
            topic
            for topic, end in ends.items()
            if positions.get(topic, EARLIEST_POSITION) == EARLIEST_POSITION and end.done is not None
        ]
        begins = self._planner.beginnings([topic for topic in new if topic not in self._begins])
        for topic, first in begins.items():
            done = ends[topic].done
            if first == EARLIEST_POSITION or done is None:
                continue
            # A checkpoint of an earlier version may know of an entry, but no beginning.
            end = self._unread.get(topic, EARLIEST_POSITION)
            entry = done if end.begins_ledger else Position(end.ledger_id, end.entry_id - 1)
            self._begins[topic] = self._held_at[topic] = min(first, done, entry)
        return {topic: self._begins[topic] for topic in new if topic in self._begins}

    def ends(self, positions: Positions) -> dict[str, TopicEnd]:
        """Return the ends of all topic partitions and their subscriptions' positions.

        Leaves out partitions that the broker does not create, and deleted ones. Raises
        DataLossError, unless failOnDataLoss is off, and the broker's error.
        """
        known = {topic: max(self.seen.get(topic, at), at) for topic, at in positions.items()}
        results = self.subscriptions.ends(known={**self.seen, **known})
        unused = [
            topic
            for topic, result in results.items()
            if is_unused(topic, result)
            and positions.get(topic, EARLIEST_POSITION) == EARLIEST_POSITION
        ]
        results.update(self.subscriptions.create_partitions(unused))
        missing = [
            topic
            for topic, result in results.items()
            if isinstance(result, SubscriptionNotFound) and self.subscriptions.guards(topic)
        ]
        if missing:
            self._kept.update(self._kept_by_former(missing, positions))
            lacking = [topic for topic in missing if topic not in self._kept]
            if lacking:
                self._without_subscription(lacking, positions)
            results.update(self.subscriptions.create_again(missing))
        ends: dict[str, TopicEnd] = {}
        for topic, result in results.items():
            position = positions.get(topic, EARLIEST_POSITION)
            if isinstance(result, TopicNotFound):
                if topic in positions or topic in self.seen:
                    self._vanished(topic, position)
                continue
            ends[topic] = end = value_of(result)
            if position == EARLIEST_POSITION and end.done is not None:
                self._held_at.setdefault(topic, end.done)
        return ends

    def hold_from(self, starts: Positions, ends: Mapping[str, TopicEnd]) -> None:
        """Move subscriptions back to the starts before them, over what nobody can read by now.

        One that begins at the end is behind entries of transactions. An open one may be committed,
        and a restart would take those of an aborted one for messages that were passed over.
        """
        behind: dict[str, Position] = {}
        for topic, end in ends.items():
            start, done = starts[topic], end.done
            if done is None or (start == EARLIEST_POSITION and done.begins_ledger):
                continue
            if entry_end(end.last) <= start < done:
                behind[topic] = start
        for error in self.subscriptions.seek(behind).values():
            value_of(error)
        for topic in behind:
            self._held_at.pop(topic, None)

    def rests(self, positions: Positions, known: Positions, before: Positions) -> Positions:
        """Return StreamOffset.rests for these positions, given those before and their rests."""
        if self._options.reader.read_compacted:
            return {}
        now = time.monotonic()
        rests = {topic: at for topic, at in known.items() if positions.get(topic) == before[topic]}
        asked = self._to_look_behind(positions, known, before, now)
        answers = self._probe.skipped_from(asked) if asked else []
        for (topic, position), found in zip(asked, answers, strict=True):
            is_held = isinstance(found, PassedOver) and found.is_held
            self._looked_behind[topic] = position, now + _BEHIND_SECONDS if is_held else math.inf
            if isinstance(found, PulsarError):
                logger.info("%s: what is behind its end is not known: %s", topic, found.what)
            elif found is not None and found.upto > position:
                rests[topic] = max(found.upto, rests.get(topic, found.upto))
        return rests

    def _to_look_behind(
        self, positions: Positions, known: Positions, before: Positions, now: float
    ) -> list[tuple[str, Position]]:
        """Return the topic partitions that are asked what is behind their ends, and the ends.

        Where an end did not move since the last look behind it, nothing is asked. Of those that
        move, only topic partitions that had a rest before are asked, so that micro-batches of
        others cost no request more; of the idle ones all when there is no news, else some.
        """
        asked: list[tuple[str, Position]] = []
        idle: list[tuple[str, Position]] = []
        for topic, position in positions.items():
            looked, again_at = self._looked_behind.get(topic, (EARLIEST_POSITION, 0.0))
            at_end = topic in self.subscriptions and self.ends_at(topic, position)
            if not at_end or (looked == position and now < again_at):
                continue
            if topic in known:
                asked.append((topic, position))
            elif before.get(topic) == position != EARLIEST_POSITION:
                idle.append((topic, position))
        if positions == before:
            return asked + idle
        if now >= self._behind_at:
            self._behind_at = now + _BEHIND_SECONDS
            asked += idle[:_BEHIND_AT_ONCE]
        return asked

    def ends_at(self, topic: str, position: Position) -> bool:
        """Whether a position is where a topic was last seen to end; its beginning, if empty."""
        seen = self.seen.get(topic)
        return seen == position or (seen == EARLIEST_POSITION and position.begins_ledger)

    # --- data loss ----------------------------------------------------------------------------

    def _start(self, topic: str, position: Position, found: TopicEnd) -> Position:
        """Return where to read from: `position`, if the topic is still the same."""
        end = entry_end(found.last)
        if EARLIEST_POSITION != end < position and self._goes_to(topic, position, found):
            end = position
        self.seen[topic] = end
        unread = self._unread.get(topic)
        if unread is None or unread <= position:
            unread = found.unread
            self._unread[topic] = end if unread is None else unread
        held = self._held_at.get(topic, EARLIEST_POSITION)
        verdict = judge(position, end, found.done, unread, held)
        is_news = self._judged.get(topic) != (found.done, found.attachment)
        if verdict is not LossVerdict.KEPT and is_news and self._is_compacted(topic, found):
            # Messages removed by compaction are no loss, and nobody can tell them from others.
            verdict = LossVerdict.KEPT
        if verdict is not LossVerdict.SKIPPED or end <= position:
            self._passed.pop(topic, None)
        elif topic not in self._passed or self._passed[topic][0] != position:
            self._passed[topic] = position, False
        if verdict is LossVerdict.KEPT:
            self._judged.pop(topic, None)
            if found.done is not None and end <= position:
                self._held_at[topic] = found.done
        elif verdict is LossVerdict.ROLLED_BACK:
            self._lost(
                topic,
                f"the offset rolled back: the query has read up to {position}, but the topic ends "
                f"at {end}. It was deleted and created again; what was not read of the old one "
                "is gone",
            )
            self._move(topic, EARLIEST_POSITION)
            del self._unread[topic]
            self._held_at.pop(topic, None)
            return EARLIEST_POSITION
        elif is_news:
            self._look_closer(topic, position, verdict, found, unread)
            self._judged[topic] = found.done, found.attachment
            self._unread[topic] = end
        return position

    def _goes_to(self, topic: str, position: Position, found: TopicEnd) -> bool:
        """Whether a topic has what is before a position behind its last message.

        A stream can be told to start there, inside a transaction that was aborted or is open.
        """
        # A topic that is made again ends the attachment.
        asked, (known, goes) = (position, found.attachment), self._hidden.get(topic, (None, False))
        if known != asked:
            goes = not self._lacks({topic: position})
            self._hidden[topic] = asked, goes
        return goes

    def _kept_by_former(self, topics: Sequence[str], positions: Positions) -> dict[str, TopicEnd]:
        """Return the ends of topics where the former subscription has kept all that was not read.

        Those are left out where it does not answer: somebody else can have it by now.
        """
        if self._former is None:
            return {}
        with closing(self.subscriptions.named(self._former)) as former:
            for topic in topics:
                former.add(topic, EARLIEST, must_exist=True)
            found = former.ends(known=positions)
        return {
            topic: end
            for topic, end in found.items()
            if isinstance(end, TopicEnd) and self._is_kept(topic, positions, end)
        }

    def _is_kept(self, topic: str, positions: Positions, found: TopicEnd) -> bool:
        position = positions.get(topic, EARLIEST_POSITION)
        held = self._held_at.get(topic, EARLIEST_POSITION)
        end, unread = entry_end(found.last), self._unread.get(topic)
        verdict = judge(position, end, found.done, unread, held)
        return found.done is not None and verdict is LossVerdict.KEPT

    def _without_subscription(self, topics: Sequence[str], positions: Positions) -> None:
        """Report what may be lost where the subscription is missing, before it is created again.

        Nothing has retained the messages that came since the query's position. The topic may also
        be another one with the same name.
        """
        name = self.subscriptions.name
        what = (
            f"the subscription {name} does not exist any more: it was removed, or the topic was "
            "deleted and created again"
            if self._former is None
            else f"the subscription {name} is new, and the checkpoint's, {self._former}, has not "
            "kept what follows: it was removed, was moved on, or somebody else uses it"
        )
        never_had = self._never_had(topics, positions)
        lasts = self._planner.last_ids(topics)
        for topic, first in self._firsts(topics).items():
            position, end = positions.get(topic, EARLIEST_POSITION), entry_end(lasts[topic])
            needed = self._needed(topic, position)
            self._restarted.discard(topic)
            self._held_at.pop(topic, None)
            unread = self._unread.pop(topic, None)
            if not keeps_from(first, needed) or end < Position(*needed[:2]):
                self._lost(topic, f"{what}. Messages {_gone(position, needed, first, unread)}")
            elif topic in never_had:
                self._lost(
                    topic,
                    f"the topic never had what is before {position}, where the query stands, but "
                    "keeps earlier messages: it is another topic, or one of another cluster",
                    _OTHER_CLUSTER,
                )
            else:
                self._warn_of_emptied(topic, position)

    def _never_had(self, topics: Collection[str], positions: Positions) -> set[str]:
        """Return those topics that do not have the entry before the query's position.

        Ledgers are deleted in order, and as a whole. So a topic that keeps an earlier entry,
        *afterwards*, never had that one.
        """
        begun = {topic: positions.get(topic, EARLIEST_POSITION) for topic in topics}
        return self._lacks({topic: at for topic, at in begun.items() if not at.begins_ledger})

    def _lacks(self, positions: Positions) -> set[str]:
        """Return those topics that do not have the entry before a position, or its ledger."""
        ledgers = [(topic, at.ledger_id) for topic, at in positions.items()]
        return {
            topic
            for (topic, at), found in zip(
                positions.items(), self._probe.last_entries_in(ledgers), strict=True
            )
            if (last := value_of(found)) is None or last < at.entry_id - (not at.batch_index)
        }

    def _needed(self, topic: str, position: Position) -> Position:
        """Return a position from which all messages are unread.

        Before the first message was read, it is where the subscription began.
        """
        return self._held_at.get(topic, position) if position == EARLIEST_POSITION else position

    def _firsts(self, topics: Collection[str]) -> dict[str, Position | None]:
        """Return topics' first entries, None for an empty one, without compacted topics."""
        asked = list(topics)
        if self._options.reader.read_compacted:
            compacted = self._probe.are_compacted(asked)
            asked = [topic for topic, is_so in zip(asked, compacted, strict=True) if not is_so]
        found = self._probe.first_places_at([(topic, EARLIEST_POSITION) for topic in asked])
        return {topic: value_of(first) for topic, first in zip(asked, found, strict=True)}

    def _is_compacted(self, topic: str, found: TopicEnd) -> bool:
        """Whether a compacted view is read, and the topic was ever compacted."""
        if not self._options.reader.read_compacted:
            return False
        # A topic that is made again ends the attachment.
        if self._compacted.get(topic) != found.attachment and self._probe.is_compacted(topic):
            self._compacted[topic] = found.attachment
        return self._compacted.get(topic) == found.attachment

    def _look_closer(
        self,
        topic: str,
        position: Position,
        verdict: LossVerdict,
        found: TopicEnd,
        unread: Position | None,
    ) -> None:
        """Check whether messages that the subscription lost are still stored."""
        name = self.subscriptions.name
        first = self._probe.first_place_at(topic, EARLIEST_POSITION)
        needed = self._needed(topic, position)
        if not keeps_from(first, needed):
            if topic in self._passed:
                self._passed[topic] = position, True
            self._lost(topic, f"messages {_gone(position, needed, first, unread or found.done)}")
        elif verdict is LossVerdict.SKIPPED:
            logger.warning(
                "%s: the subscription %s was moved to %s by others or by expiry, while the "
                "query's position is %s: it does not protect the messages in between, which are "
                "still stored",
                topic,
                name,
                found.done,
                position,
            )
        if verdict is LossVerdict.UNHELD:
            # From here on it retains the remaining messages. Until a loss is told, or accepted, it
            # stays: a restart would find nothing wrong.
            self._warn_of_emptied(topic, position)
            self._move(topic, position)

    def check_passed(self) -> None:
        """Report what is gone of the messages that subscriptions have passed: nothing keeps them.

        Call it after the first entries of a micro-batch's ranges are known.
        """
        asked = [topic for topic, (_, told) in self._passed.items() if not told]
        for topic, first in (self._firsts(asked) if asked else {}).items():
            position, _ = self._passed[topic]
            needed = self._needed(topic, position)
            if not keeps_from(first, needed):
                self._passed[topic] = position, True
                self._lost(topic, f"messages {_gone(position, needed, first, None)}")

    def _warn_of_emptied(self, topic: str, position: Position) -> None:
        logger.warning(
            "%s: the subscription %s is new, or was removed or emptied by others; it is set to the "
            "query's position %s. Positions belong to one cluster: if service.url leads to another "
            "one than before, stop the query, and start it with a new checkpoint",
            topic,
            self.subscriptions.name,
            position,
        )

    def _look_back(
        self, positions: Positions, ends: Mapping[str, TopicEnd], rests: Positions
    ) -> None:
        """Warn if a restarted query cannot know whether messages came and expired meanwhile.

        The subscription is at the beginning of a later ledger, and the query's ledger is deleted.
        """
        asked = []
        for topic in self._restarted.intersection(ends):
            position, found = positions[topic], self._kept.get(topic, ends[topic])
            entry = Position(*position[:2])
            passed = found.done is None or found.done > entry
            is_read = found.reached in (entry, rests.get(topic, entry))
            if passed and topic not in self._judged and not is_read:
                asked.append(topic)
        self._restarted.clear()
        self._kept.clear()
        if not asked:
            return
        unsure = [
            topic
            for topic, first in self._firsts(sorted(asked)).items()
            if not keeps_from(first, positions[topic])
        ]
        if unsure:
            logger.warning(
                "%d topic partitions have deleted the ledgers that the query had read, as brokers "
                "do when a whole ledger was read. If messages came while the query was down, and "
                "expired (messageTTL) or were truncated, they are lost: the broker does not "
                "report it. The topic partitions are %s",
                len(unsure),
                listed(unsure),
            )

    def _move(self, topic: str, position: Position) -> None:
        (error,) = self.subscriptions.seek({topic: position}).values()
        if error is not None:
            logger.warning(
                "%s: the subscription %s could not be moved to %s: %s",
                topic,
                self.subscriptions.name,
                position,
                error,
            )

    def _vanished(self, topic: str, position: Position) -> None:
        self.subscriptions.remove(topic)
        seen = self.seen.pop(topic, None)
        for kept in (
            self._judged,
            self._passed,
            self._hidden,
            self._unread,
            self._compacted,
            self._held_at,
            self._begins,
            self._looked_behind,
        ):
            kept.pop(topic, None)
        if position.begins_ledger and seen == EARLIEST_POSITION:
            logger.info("%s: was deleted, and was empty", topic)
            return
        stands = "" if position == EARLIEST_POSITION else ", where the query stands"
        self._lost(
            topic,
            f"the topic partition is gone: what was on it from {_begin(position)} on{stands}, "
            "cannot be read",
            _WITHOUT,
        )

    def _lost(self, topic: str, what: str, remedy: str = GO_ON) -> None:
        error = DataLossError(what, remedy, topic=topic)
        report_loss(error, fail=self._options.fail_on_data_loss)


def _begin(position: Position) -> str:
    return "its beginning" if position == EARLIEST_POSITION else str(position)


def _gone(
    position: Position, needed: Position, first: Position | None, known: Position | None
) -> str:
    upto = "the topic's end" if first is None or first < needed else str(first)
    return f"from {_begin(position)} up to {upto} are gone{extent(needed, first, known)}"
