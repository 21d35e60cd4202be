"""The topics of a running stream: new ones, deleted ones, and their ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pulsar_spark.engine.consumers.probe import FoundEntry, Probe
from pulsar_spark.engine.consumers.subscription import EARLIEST, LATEST, SubscriptionSet, TopicEnd
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.errors import DataLossError, PulsarError, TopicNotFound
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.spark.offsets import entry_end
from pulsar_spark.spark.options.read import ReadOptions
from pulsar_spark.spark.reading.data_loss import LossVerdict, extent, judge, keeps_from, report_loss
from pulsar_spark.spark.reading.planner import FoundTopics, Planner
from pulsar_spark.spark.streaming.held_back import HeldWatch

logger = logging.getLogger(__name__)

# With up to this many topics, each is asked for its partitions every time; with more, once a
# second.
_ASKED_EACH_TIME = 100
_LOOK_SECONDS = 1.0
# How many topic partitions a warning names.
_SHOWN = 5

_GO_ON = "Start a query with a new checkpoint, or set failOnDataLoss=false to go on."

Positions = Mapping[str, Position]


class Span(NamedTuple):
    """The backlog of a topic partition: from the stream's position to the end."""

    start: Position
    end: Position


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
        self._subscriptions = subscriptions
        self._options = options
        self._found: FoundTopics | None = None
        self._look_at = 0.0
        # Per topic partition: its last observed end, and its subscription's position when that was
        # last judged.
        self.seen: dict[str, Position] = {}
        # The first end observed after the stream's position: everything before it is unread.
        self._unread: dict[str, Position] = {}
        # For topics that were compacted: the attachment with which that was seen.
        self._compacted: dict[str, int] = {}
        self._judged: dict[str, tuple[Position | None, int]] = {}
        # Positions of a restarted query that topic partitions no longer retain, and whether the
        # subscription still existed.
        self._left_behind: dict[str, bool] = {}
        # Those for which nobody can know whether messages came before it was deleted.
        self._unsure: list[str] = []

    # --- topics -----------------------------------------------------------------------------------

    def refresh(self, positions: Positions, ends: Positions | None = None) -> None:
        """Find the topic partitions, and subscribe to new ones.

        `ends` are the known ends of those that had unread messages. Raises TopicNotFound for a
        missing topic, unless the stream waits for topics or continues without them.
        """
        found = self._look()
        for name, error in found.missing.items():
            known = any(str(TopicName.parse(topic).partitioned) == name for topic in positions)
            if self._options.fail_on_data_loss and not (known or self._options.waiting):
                raise error
        partitions = [topic for names in found.topics.values() for topic in names]
        self._look_back(partitions, positions, ends or {})
        for topic in partitions:
            if topic not in self._subscriptions:
                begun = positions.get(topic, EARLIEST_POSITION) != EARLIEST_POSITION
                if positions and topic not in positions:
                    logger.info("%s: a new topic partition, read from its earliest message", topic)
                # If it should exist but does not, LATEST reveals that: see data_loss.
                self._subscriptions.add(topic, LATEST if begun else EARLIEST)
        for topic in set(self._subscriptions.topics).difference(partitions):
            self._subscriptions.remove(topic)

    def _look_back(self, partitions: Sequence[str], positions: Positions, ends: Positions) -> None:
        """Before subscribing again: check whether topic partitions retain the query's position.

        If not, we must know whether the subscription still exists, which nobody can tell after
        subscribing again.
        """
        begun = [
            topic
            for topic in partitions
            if topic not in self._subscriptions
            and positions.get(topic, EARLIEST_POSITION) != EARLIEST_POSITION
        ]
        self._unread.update({topic: ends[topic] for topic in begun if topic in ends})
        if not begun:
            return
        found = self._probe.first_entries_at([(topic, EARLIEST_POSITION) for topic in begun])
        gone = [
            topic
            for topic, first in zip(begun, found, strict=True)
            if not isinstance(first, PulsarError)
            and not keeps_from(_start_of(first), positions[topic])
        ]
        if self._options.reader.read_compacted:
            compacted = self._probe.are_compacted(gone)
            gone = [topic for topic, is_so in zip(gone, compacted, strict=True) if not is_so]
        name = self._subscriptions.name
        held = self._probe.subscriptions_exist([(topic, name) for topic in gone])
        self._left_behind = {
            # Subscribing will raise the same error.
            topic: isinstance(is_held, PulsarError) or is_held
            for topic, is_held in zip(gone, held, strict=True)
        }

    def _look(self) -> FoundTopics:
        now = time.monotonic()
        if self._found is None or now >= self._look_at:
            self._found = self._planner.find_topics()
            many = len(self._found.topics) > _ASKED_EACH_TIME
            self._look_at = now + _LOOK_SECONDS if many else 0.0
        return self._found

    # --- ends -----------------------------------------------------------------------------------

    def spans(self, positions: Positions) -> dict[str, Span]:
        """Return the backlog of each topic partition after `positions`.

        Deleted partitions are left out. Raises DataLossError, unless failOnDataLoss is off.
        """
        for topic in {**self.seen, **positions}:
            if topic not in self._subscriptions:
                self._vanished(topic, positions.get(topic, EARLIEST_POSITION))
        spans: dict[str, Span] = {}
        for topic, end in self.ends(positions).items():
            position = positions.get(topic, EARLIEST_POSITION)
            spans[topic] = Span(self._start(topic, position, end), entry_end(end.last))
        self._warn_of_unsure()
        self._held.on_ends({topic: span.end for topic, span in spans.items()})
        return spans

    def ends(self, positions: Positions) -> dict[str, TopicEnd]:
        """Return the ends of all topic partitions and their subscriptions' positions.

        Leaves out partitions that the broker does not create, and deleted ones. Raises
        DataLossError, unless failOnDataLoss is off, and the broker's error.
        """
        known = {topic: max(self.seen.get(topic, at), at) for topic, at in positions.items()}
        results = self._subscriptions.ends(known={**self.seen, **known})
        unused = [
            topic
            for topic, result in results.items()
            if isinstance(result, TopicNotFound)
            and TopicName.parse(topic).partition_index >= 0
            and positions.get(topic, EARLIEST_POSITION) == EARLIEST_POSITION
        ]
        results.update(self._subscriptions.create_partitions(unused))
        ends: dict[str, TopicEnd] = {}
        for topic, result in results.items():
            position = positions.get(topic, EARLIEST_POSITION)
            if isinstance(result, TopicNotFound):
                if topic in positions or topic in self.seen:
                    self._vanished(topic, position)
                continue
            if isinstance(result, PulsarError):
                raise result
            ends[topic] = result
            if position != EARLIEST_POSITION:
                self._subscriptions.set_initial(topic, LATEST)
        return ends

    # --- data loss ----------------------------------------------------------------------------

    def _start(self, topic: str, position: Position, found: TopicEnd) -> Position:
        """Return where to read from: `position`, if the topic is still the same."""
        end = entry_end(found.last)
        self.seen[topic] = end
        unread = self._unread.get(topic)
        if unread is None or unread <= position:
            unread = None
            self._unread[topic] = end
        verdict = judge(position, end, found.done, unread)
        held = self._left_behind.pop(topic, None)
        if verdict is LossVerdict.KEPT and held is False:
            # Nothing has retained the messages that came since.
            verdict = LossVerdict.UNHELD
        elif verdict is LossVerdict.KEPT and held:
            self._unsure.append(topic)
        is_news = self._judged.get(topic) != (found.done, found.attachment)
        if verdict is not LossVerdict.KEPT and is_news and self._is_compacted(topic, found):
            # Messages removed by compaction are no loss, and nobody can tell them from others.
            verdict = LossVerdict.KEPT
        if verdict is LossVerdict.KEPT:
            self._judged.pop(topic, None)
        elif verdict is LossVerdict.ROLLED_BACK:
            self._lost(
                topic,
                f"the offset rolled back: the query has read up to {position}, but the topic ends "
                f"at {end}. It was deleted and created again; what was not read of the old one "
                "is gone",
            )
            self._move(topic, EARLIEST_POSITION)
            del self._unread[topic]
            return EARLIEST_POSITION
        elif is_news:
            self._look_closer(topic, position, verdict, found)
            self._judged[topic] = found.done, found.attachment
            self._unread[topic] = end
        return position

    def _is_compacted(self, topic: str, found: TopicEnd) -> bool:
        """Whether a compacted view is read, and the topic was ever compacted."""
        if not self._options.reader.read_compacted:
            return False
        # A topic that is made again ends the attachment.
        if self._compacted.get(topic) != found.attachment and self._probe.is_compacted(topic):
            self._compacted[topic] = found.attachment
        return self._compacted.get(topic) == found.attachment

    def _look_closer(
        self, topic: str, position: Position, verdict: LossVerdict, found: TopicEnd
    ) -> None:
        """Check whether messages that the subscription lost are still stored."""
        name = self._subscriptions.name
        first = _start_of(self._probe.first_entry_at(topic, EARLIEST_POSITION))
        if verdict is LossVerdict.UNHELD:
            # It did not exist, or was cleared: from here on it retains the remaining messages.
            logger.warning(
                "%s: the subscription %s was removed or emptied by others; it is set to the "
                "query's position %s",
                topic,
                name,
                position,
            )
            self._move(topic, position)
        if not keeps_from(first, position):
            upto = "the topic's end" if first is None else str(first)
            much = extent(position, first, self._unread.get(topic))
            self._lost(topic, f"messages from {position} up to {upto} are gone{much}")
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

    def _warn_of_unsure(self) -> None:
        unsure, self._unsure = self._unsure, []
        if unsure:
            logger.warning(
                "%d topic partitions have deleted the ledgers that the query had read, as brokers "
                "do when a whole ledger was read. If messages came while the query was down, and "
                "expired (messageTTL) or were truncated, they are lost: the broker does not "
                "report it. The topic partitions are %s%s",
                len(unsure),
                ", ".join(unsure[:_SHOWN]),
                ", …" if len(unsure) > _SHOWN else "",
            )

    def _move(self, topic: str, position: Position) -> None:
        (error,) = self._subscriptions.seek({topic: position}).values()
        if error is not None:
            logger.warning(
                "%s: the subscription %s could not be moved to %s: %s",
                topic,
                self._subscriptions.name,
                position,
                error,
            )

    def _vanished(self, topic: str, position: Position) -> None:
        self._subscriptions.remove(topic)
        seen = self.seen.pop(topic, None)
        for kept in (self._judged, self._unread, self._compacted):
            kept.pop(topic, None)
        if position == seen == EARLIEST_POSITION:
            logger.info("%s: was deleted, and was empty", topic)
            return
        begun = f"{position} on, where the query stands"
        self._lost(
            topic,
            "the topic partition is gone: what was on it from "
            f"{'its beginning on' if position == EARLIEST_POSITION else begun}, cannot be read",
        )

    def _lost(self, topic: str, what: str) -> None:
        error = DataLossError(what, _GO_ON, topic=topic)
        report_loss(error, fail=self._options.fail_on_data_loss)


def _start_of(first: FoundEntry | None) -> Position | None:
    return None if first is None else first.start
