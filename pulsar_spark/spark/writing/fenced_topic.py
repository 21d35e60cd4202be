"""A topic of an exactly-once sink's own: one driver at a time writes to it, and reads it whole.

The producer has exclusive access and fences its predecessors, so an older driver that is still
alive cannot write after a newer one has read. A durable subscription retains what is needed.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.consumers.probe import Probe
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.consumers.subscription import EARLIEST, HeldSubscription, TopicEnd
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.operations import (
    Operation,
    OperationFactory,
    run,
    run_many,
    start,
    value_of,
)
from pulsar_spark.engine.options import ProducerOptions, ReaderOptions
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.retry import Backoff, retried
from pulsar_spark.errors import (
    ConsumerBusy,
    ProducerFenced,
    PulsarError,
    QuotaExceeded,
    QuotaExceededHold,
    SinkStateError,
    TopicNotFound,
    TopicTerminated,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv, Position
from pulsar_spark.protocol.outgoing_messages import LOCAL_ONLY, MessageFields, OutgoingMessages

logger = get_logger(__name__)

SUBSCRIPTION = "pulsar-spark-sink"
"""The name of the subscription that retains what is needed."""

_SIGNS = ("sink", "fence")
_QUOTA_SECONDS = 180.0
"""How long to wait for a broker to notice that a backlog is gone: it looks once a minute."""
_QUOTA_PAUSE = 5.0
_CLOSE_SECONDS = 5.0

Found = tuple[Position, bytes]
"""A message, and its position."""


class FencedTopic(Closing):
    """The driver's access to a topic that has `what` in the words of errors. A context manager.

    Raises SinkStateError if another driver is, or comes, in the way.
    """

    def __init__(self, context: ClientContext, topic: str, what: str) -> None:
        self.topic = topic
        self._what = what
        self._context = context
        self._timeout = context.options.operation_timeout
        self._producer = self._new_producer()
        self._consumer = HeldSubscription(context, topic, SUBSCRIPTION, EARLIEST, create=True)
        self.unprotected: list[Found] = []
        """What was read before it was acknowledged to make the broker accept messages again."""
        self.is_begun = False
        """Whether `begin_together` has had it."""
        # What that has done ahead, for the first call that asks for it.
        self._refusal: PulsarError | None = None
        self._end: TopicEnd | None = None
        self._fenced: MessageIdAdv | None = None
        self._fenced_at: MessageIdAdv | None = None
        self._reader: EntryReader | None = None

    def _new_producer(self) -> TopicProducer:
        options = ProducerOptions(
            batching_enabled=False, access_mode=pb.ExclusiveWithFencing, txn_enabled=True
        )
        return TopicProducer(self._context, self.topic, options)

    def check_exists(self) -> None:
        """Raise as `exists`."""
        exists(self._context, self.topic, self._what)

    @property
    def epoch(self) -> int:
        """The topic's epoch, which each driver that fences increases."""
        return self._producer.topic_epoch

    def close(self) -> None:
        """Leave the topic; the broker may not have noticed yet when this returns."""
        if self._reader is not None:
            self._reader.begin_close()
        start(self._producer.abort_operation, _CLOSE_SECONDS, self._context.timers)
        self._consumer.close()

    def attach(self) -> None:
        """Subscribe, and fence other drivers; creates the topic and the subscription if missing.

        Raises TopicNotFound if brokers create no topics.
        """
        try:
            if self._refusal is not None:
                raise self._refusal
            if not self.is_begun:
                self.end()
        except TopicNotFound as error:
            raise TopicNotFound(
                f"the topic of {self._what} does not exist, and the broker creates none",
                f"Create it, without partitions: pulsar-admin topics create {self.topic}",
                topic=self.topic,
                broker=error.broker,
            ) from error
        except ConsumerBusy as error:
            raise overtaken(self.topic, error.broker) from error
        try:
            self._producer.open()
            if self._fenced_at is None and not self._producer.is_connected:
                # It was lost while another topic was waited for. A new one is told why.
                self._producer.abort()
                self._producer = self._new_producer()
                self._producer.open()
        except TopicTerminated as error:
            raise TopicTerminated(
                f"the topic of {self._what} was terminated, and takes none any more",
                "Delete it, or set sinkStateTopic to another topic.",
                topic=self.topic,
                broker=error.broker,
            ) from error
        except PulsarError as error:
            if not is_quota(error):
                raise
            self._free_quota(error)

    def _free_quota(self, error: PulsarError) -> None:
        """Acknowledge everything that is retained, which a backlog quota does not allow any more.

        While a quota is exceeded, the broker accepts no messages, from nobody.
        """
        logger.warning(
            "a backlog quota holds the topic of %s, since what it retains is old; it is read, "
            "released and written again: %s",
            self._what,
            error,
        )
        end = self.end()
        self.unprotected = self.read(EARLIEST_POSITION, end.last)
        self.acknowledge(Position.after(end.last))
        deadline = Deadline(max(self._timeout, _QUOTA_SECONDS))
        while True:
            self._producer.abort()
            self._producer = self._new_producer()
            try:
                self._producer.open()
                return
            except PulsarError as again:
                if not is_quota(again) or deadline.expired():
                    raise
            time.sleep(min(_QUOTA_PAUSE, deadline.remaining()))

    # --- reading --------------------------------------------------------------------------------

    def end(self) -> TopicEnd:
        """Return where the topic ends, and what is acknowledged."""
        found, self._end = self._end, None
        if found is not None:
            return found
        try:
            return run(retried(self._consumer.end_operation), self._timeout)
        except PulsarError as error:
            raise error.with_context(topic=self.topic) from error.__cause__

    def read(self, start: Position, last: MessageIdAdv) -> list[Found]:
        """Return what is stored from a position up to and including the message at `last`."""
        reader, self._reader = self._reader, None
        if reader is not None:
            try:
                if self._fenced_at == last and reader.position <= start:
                    return [one for one in _found_by(reader, last) if one[0] >= start]
            finally:
                # Nothing depends on when the broker has closed it.
                reader.begin_close()
        return read_all(self._context, self.topic, start, last)

    def is_readable(self, stored: MessageIdAdv, *, wait: bool) -> MessageIdAdv | None:
        """Return the end of what is readable once it has a message; None if it has it not (yet)."""
        deadline = Deadline(self._timeout)
        backoff = Backoff(maximum=1.0)
        # The readable part of the topic ends before the first open transaction.
        while Position.after(last := self.end().last) < Position.after(stored):
            if not wait or deadline.expired():
                return None
            time.sleep(min(backoff.next(), deadline.remaining()))
        return last

    def acknowledge(self, position: Position) -> None:
        """What is before the position is no longer needed."""
        self._consumer.acknowledge(position)

    # --- writing --------------------------------------------------------------------------------

    def append(self, *records: dict[str, Any]) -> MessageIdAdv:
        """Store records, in order; return where the last one is."""
        self.send((record, None) for record in records)
        stored = self._producer.last_message_id
        assert stored is not None
        return stored

    def fence(self, record: dict[str, Any]) -> MessageIdAdv:
        """As `append`, of the record that says that this driver is the last one."""
        stored, self._fenced = self._fenced, None
        return self.append(record) if stored is None else stored

    def send(self, records: Iterable[tuple[dict[str, Any], TxnId | None]]) -> None:
        """Store records, some within transactions that the topic takes part in."""
        try:
            for record, txn in records:
                self._put(record, txn)
            self._producer.flush(self._timeout)
        except ProducerFenced as error:
            raise overtaken(self.topic, error.broker) from error

    def _put(self, record: dict[str, Any], txn: TxnId | None = None) -> None:
        """Send a record without waiting for its receipt."""
        # Another cluster has other transactions, under the same numbers, and other positions.
        message = MessageFields(packed(record), replicate_to=LOCAL_ONLY, txn=txn)
        self._producer.send(OutgoingMessages.of([message]))

    def _begin_to_read(self, start: Position | None, before: TopicEnd | None) -> None:
        """Wait for the receipt of the fence, and have a reader up to there.

        It starts with what is not acknowledged, as an end from `before` tells it, unless `start` is
        given.
        """
        if start is None:
            start = (before or self.end()).done or EARLIEST_POSITION
        self._producer.flush(self._timeout)
        self._fenced = self._fenced_at = stored = self._producer.last_message_id
        assert stored is not None
        self._reader = _reader_of(self._context, self.topic, start, Position.after(stored))

    def leave(self) -> None:
        """Let others write to the topic again; returns when the broker knows."""
        self._producer.close()


def exists(context: ClientContext, topic: str, what: str) -> bool:
    """Whether a sink's topic has its subscription. Creates nothing.

    Raises SinkStateError if the topic has partitions or messages of others, or if messages were not
    retained because the subscription is gone.
    """
    lookup, probe = context.lookup, Probe(context.pool)

    def is_kept(topic: str, deadline: Deadline) -> Operation[int]:
        return probe.exists_operation(topic, SUBSCRIPTION, deadline)

    # Of partitions there is no subscription; both questions change nothing.
    found, kept = lookup.ask_each(topic, (lookup.partitions_operation, is_kept))
    if isinstance(found, TopicNotFound):
        return False
    if value_of(found):
        raise partitioned(topic, what)
    if isinstance(kept, TopicNotFound):
        return False
    if value_of(kept):
        return True
    last = context.lookup.last_message_id(topic)
    if last.entry_id < 0:
        return False
    with _reader_of(context, topic, EARLIEST_POSITION, Position.after(last)) as reader:
        first = reader.next_entry()
        while first is not None and _is_of_another_cluster(first):
            first = reader.next_entry()
            if first is None:
                return False
    # Who is told to begin the sink anew would have its records among the messages of others.
    if first is not None:
        try:
            unpacked(bytes(first.payload))
        except ValueError:
            raise foreign(topic, Position(first.ledger_id, first.entry_id)) from None
    raise SinkStateError(
        f"the topic of {what} has messages, and its subscription {SUBSCRIPTION} is gone: "
        "some can be missing",
        "Begin anew on purpose: python -m pulsar_spark sink --reset ID, which may write what "
        "was committed last once more.",
        topic=topic,
    )


def partitioned(topic: str, what: str) -> SinkStateError:
    """Return the error for a topic of `what` that has partitions."""
    return SinkStateError(
        f"the topic of {what} has partitions: they would have no order",
        "Set sinkStateTopic to a topic without partitions.",
        topic=topic,
    )


def _is_of_another_cluster(entry: ReceivedEntry) -> bool:
    # An earlier version had its records replicated.
    return entry.metadata.HasField("replicated_from")


def packed(record: dict[str, Any]) -> bytes:
    """Return a record as it is stored."""
    return json.dumps(record, separators=(",", ":")).encode()


def unpacked(payload: bytes) -> dict[str, Any]:
    """Return what was `packed`, by any version; raises ValueError for what something else wrote."""
    try:
        record = json.loads(payload)
    except RecursionError as error:
        raise ValueError from error
    # All have a version, and the sink's id unless they are fences of announcements.
    if not isinstance(record, dict) or "v" not in record or record.keys().isdisjoint(_SIGNS):
        raise ValueError
    return record


def foreign(topic: str, position: Position) -> SinkStateError:
    """Return the error for a message on a sink's topic that is not of this sink."""
    return SinkStateError(
        f"the message at {position} is no record of this sink: another sink, another program, or "
        "another version of this package has written it",
        "Give each sink a sinkStateTopic of its own, which nothing else writes to.",
        topic=topic,
    )


def overtaken(topic: str, broker: str | None = None) -> SinkStateError:
    """Return the error for a driver, or a task of one, that has to give way to another one."""
    return SinkStateError(
        "another driver has taken this sink over, or is writing to it now",
        "Only one query, or one write at a time, can have a sinkId. What was decided here is "
        "carried out by the other one, and what was not is aborted: nothing of it is visible.",
        topic=topic,
        broker=broker,
    )


def read_all(
    context: ClientContext, topic: str, start: Position, last: MessageIdAdv
) -> list[Found]:
    """Return a topic's messages from a position up to and including the one at `last`.

    Those of other clusters are left out.
    """
    end = Position.after(last)
    if last.entry_id < 0 or end <= start:
        return []
    with _reader_of(context, topic, start, end) as reader:
        return _found_by(reader, last)


def _reader_of(context: ClientContext, topic: str, start: Position, end: Position) -> EntryReader:
    options = ReaderOptions(
        poll_timeout=context.options.operation_timeout,
        subscription_prefix="pulsar-spark-sink-reader",
    )
    return EntryReader(context.pool, topic, start, end, options)


def _found_by(reader: EntryReader, last: MessageIdAdv) -> list[Found]:
    """Return what a reader reads, up to and including the message at `last`, as `read_all`."""
    found: list[Found] = []
    end = EARLIEST_POSITION
    for entry in reader:
        end = Position(entry.ledger_id, entry.entry_id)
        if not _is_of_another_cluster(entry):
            found.append((end, bytes(entry.payload)))
    if end < Position(last.ledger_id, last.entry_id):
        # The topic was trimmed or deleted meanwhile: a missing record may be a decision.
        raise SinkStateError(
            f"the sink's topic ends before {last}, where it ended a moment ago",
            "Run it again, and see who changes the topic.",
            topic=reader.topic,
        )
    return found


class Fence(NamedTuple):
    """A topic that is there, the record to fence it with, and from where on to read it.

    By default that is what is not acknowledged.
    """

    topic: FencedTopic
    record: dict[str, Any]
    read_from: Position | None = None


def begin_together(fences: Sequence[Fence]) -> None:
    """Attach to topics, fence them and begin to read, all at the same time.

    Each step waits for the brokers once, and not for each topic. `attach`, `fence`, `end` and
    `read` find done what they would do, and raise what was in its way.
    """
    topics = [fence.topic for fence in fences]
    timeout = topics[0]._timeout
    # A driver at work holds a subscription: who does not get it fences nobody.
    for topic, refusal in zip(topics, _all_attached(topics, timeout), strict=True):
        topic.is_begun = True
        topic._refusal = refusal
    if any(topic._refusal is not None for topic in topics):
        return
    asked = [fence.topic for fence in fences if fence.read_from is None]
    # Others may write behind these ends, until the producer fences them.
    before = _ask(asked, [topic._producer.open_operation for topic in topics], timeout)
    if not all(topic._producer.is_connected for topic in topics):
        return
    with contextlib.suppress(PulsarError):
        for topic, record, _ in fences:
            topic._put(record)
        for topic, _, read_from in fences:
            topic._begin_to_read(read_from, before.get(topic))
        readers = [topic._reader.begin_operation for topic in topics if topic._reader is not None]
        for topic, end in _ask(asked, readers, timeout).items():
            topic._end = end


def _all_attached(topics: Sequence[FencedTopic], timeout: float) -> list[PulsarError | None]:
    """Subscribe to all topics; return each one's error."""
    attempts = [retried(topic._consumer.attach_operation) for topic in topics]
    answers = zip(topics, run_many(attempts, timeout), strict=True)
    return [
        answer.with_context(topic=topic.topic) if isinstance(answer, PulsarError) else None
        for topic, answer in answers
    ]


def _ask(
    topics: Sequence[FencedTopic], others: Sequence[OperationFactory[None]], timeout: float
) -> dict[FencedTopic, TopicEnd]:
    """Return the ends of topics, as far as brokers tell them.

    Does something else meanwhile, which tells its errors later.
    """
    questions = [retried(topic._consumer.end_operation) for topic in topics]
    answers: Sequence[TopicEnd | PulsarError | None] = run_many([*questions, *others], timeout)
    return {
        topic: answer
        for topic, answer in zip(topics, answers, strict=False)
        if isinstance(answer, TopicEnd)
    }


def is_quota(error: PulsarError) -> bool:
    """Whether a broker accepts no producer because of a backlog quota."""
    kinds = (QuotaExceeded, QuotaExceededHold)
    return isinstance(error, kinds) or isinstance(error.__cause__, kinds)
