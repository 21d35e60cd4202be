"""Finding entries of a topic without reading it and without the admin port.

A non-durable subscription that starts at a position, with permission for one message, is sent
the first entry at or after it, over the ends of ledgers and over gaps. That is enough to split
a range, to cap it, and to learn what is kept. The first entry from a time on is found by SEEK,
which searches as if the entries were in the order of their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from pulsar_spark.engine.consumer_session import TemporaryConsumer, unique_name
from pulsar_spark.engine.context import ConnectionPool
from pulsar_spark.engine.lookup import Lookup
from pulsar_spark.engine.operations import Operation, OperationFactory, Within, run_many
from pulsar_spark.engine.retry import Deadline, retrying
from pulsar_spark.errors import (
    ConnectionLost,
    CorruptMessage,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageReceived, parse_payload
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageId, Position

T = TypeVar("T")

# An entry comes within milliseconds, from cold storage later: each wait is twice the last one.
# Topics that move all the time cost a first one again and again.
_FIRST_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """An entry that a probe found.

    `start` is its first position that was asked for, inside the entry where the question was,
    `stop` the position behind its last message. Times are milliseconds; `broker_time` and
    `index` (of the entry's last message) are None where the broker does not stamp them. `size`
    is in bytes on the wire.
    """

    start: Position
    stop: Position
    messages: int
    size: int
    publish_time: int
    broker_time: int | None
    index: int | None

    @property
    def time(self) -> int:
        """The time that brokers search by: their own where they stamp it."""
        return self.publish_time if self.broker_time is None else self.broker_time


class Probe:
    """Asks for single entries of topic partitions, of one or of thousands at once.

    A result is None where the topic holds nothing at or after what was asked for. Answers about
    many hold an error in the place of a result that could not be had; the others raise it.
    """

    def __init__(self, pool: ConnectionPool, timeout: float | None = None) -> None:
        self._lookup = Lookup(pool)
        self._timeout = pool.options.operation_timeout if timeout is None else timeout

    def first_entry_at(self, topic: str, position: Position) -> FoundEntry | None:
        """Return the first entry that has a message at or after `position`."""
        return _only(self.first_entries_at([(topic, position)]))

    def first_entries_at(
        self, questions: Sequence[tuple[str, Position]]
    ) -> list[FoundEntry | PulsarError | None]:
        """As `first_entry_at`, for many topics and positions; in the order of the questions."""
        return self._ask([(topic, self._at(topic, position)) for topic, position in questions])

    def first_entry_from_time(self, topic: str, time: int) -> FoundEntry | None:
        """Return the first entry that the broker finds published at or after `time`, in ms.

        It searches as if times were ordered; an entry before it can be later, one behind it
        earlier than `time`.
        """
        return _only(self.first_entries_from_time([(topic, time)]))

    def first_entries_from_time(
        self, questions: Sequence[tuple[str, int]]
    ) -> list[FoundEntry | PulsarError | None]:
        """As `first_entry_from_time`, for many topics and times; in the questions' order."""
        return self._ask([(topic, self._from_time(topic, time)) for topic, time in questions])

    def entries_from(self, questions: Sequence[tuple[str, Position]]) -> list[int | PulsarError]:
        """Return how many entries there are of topics from positions on, as their brokers count.

        A batch is one entry; markers of transactions count too.
        """
        return self._ask([(topic, self._count(topic, position)) for topic, position in questions])

    def _ask(self, questions: Sequence[tuple[str, OperationFactory[T]]]) -> list[T | PulsarError]:
        results = run_many([factory for _, factory in questions], self._timeout)
        return [
            result.with_context(topic=topic) if isinstance(result, PulsarError) else result
            for (topic, _), result in zip(questions, results, strict=True)
        ]

    def _at(self, topic: str, position: Position) -> OperationFactory[FoundEntry | None]:
        caution = _Caution()
        return _retried(lambda deadline: self._at_operation(topic, position, deadline, caution))

    def _from_time(self, topic: str, time: int) -> OperationFactory[FoundEntry | None]:
        caution = _Caution()
        return _retried(lambda deadline: self._from_time_operation(topic, time, deadline, caution))

    def _count(self, topic: str, position: Position) -> OperationFactory[int]:
        return _retried(lambda deadline: self._count_operation(topic, position, deadline))

    def _count_operation(
        self, topic: str, position: Position, deadline: Deadline
    ) -> Operation[int]:
        connection = yield from self._lookup.connection_operation(topic, deadline)
        with TemporaryConsumer(connection, topic) as consumer:
            yield consumer.subscribe(position, deadline)
            answer: pb.CommandConsumerStatsResponse = yield consumer.stats(deadline)
            return int(answer.msgBacklog)

    def _at_operation(
        self, topic: str, position: Position, deadline: Deadline, caution: _Caution
    ) -> Operation[FoundEntry | None]:
        connection = yield from self._lookup.connection_operation(topic, deadline)
        with TemporaryConsumer(connection, topic) as consumer:
            yield consumer.subscribe(position, deadline)
            return (yield from _first_entry(consumer, position, deadline, caution))

    def _from_time_operation(
        self, topic: str, time: int, deadline: Deadline, caution: _Caution
    ) -> Operation[FoundEntry | None]:
        connection = yield from self._lookup.connection_operation(topic, deadline)
        name = unique_name("pulsar-spark-time")
        found: FoundEntry | None = None
        for _ in range(2):
            with TemporaryConsumer(connection, topic, name) as consumer:
                yield consumer.subscribe(EARLIEST_POSITION, deadline)
                yield consumer.seek(time, deadline)
            # The broker has closed the consumer but keeps the subscription where it was sought
            # to, for the next consumer of that name.
            with TemporaryConsumer(connection, topic, name) as consumer:
                yield consumer.subscribe(EARLIEST_POSITION, deadline)
                found = yield from _first_entry(consumer, EARLIEST_POSITION, deadline, caution)
            if found is None or found.time >= time:
                return found
            # Either the times are not in order, or the topic was unloaded after the search and
            # the subscription began anew: another search tells.
        return found


def _retried(attempt: OperationFactory[T]) -> OperationFactory[T]:
    return lambda deadline: retrying(attempt, deadline)


class _Caution:
    """What the attempts at one question learn from each other.

    A broker that lets go of a topic while a consumer comes can keep that consumer without a topic
    behind it. It delivers nothing to it then, and may tell it that there is nothing.
    """

    __slots__ = ("believes", "patience")

    def __init__(self) -> None:
        # Whether another consumer was told before that the topic is empty.
        self.believes = False
        # Seconds to wait for an entry: some storage is slow.
        self.patience = _FIRST_PATIENCE


def _only(results: list[FoundEntry | PulsarError | None]) -> FoundEntry | None:
    (result,) = results
    if isinstance(result, PulsarError):
        raise result
    return result


def _first_entry(
    consumer: TemporaryConsumer, position: Position, deadline: Deadline, caution: _Caution
) -> Operation[FoundEntry | None]:
    """Return an operation for the first entry of a subscription that reaches beyond `position`.

    It raises ConnectionLost where another consumer may learn something else.
    """
    permits = 1
    passed = position
    while True:
        answer: pb.CommandGetLastMessageIdResponse = yield consumer.last_message_id(deadline)
        last = MessageId.from_pb(answer.last_message_id)
        if last.entry_id < 0 and not caution.believes:
            caution.believes = True
            raise ConnectionLost("the broker may have lost the topic of a consumer")
        end = Position.after(last)
        done = passed
        if answer.HasField("consumer_mark_delete_position"):
            done = max(done, _behind(answer.consumer_mark_delete_position))
        if end <= done:
            return None
        try:
            message: MessageReceived = yield Within(consumer.next_entry(permits), caution.patience)
        except OperationTimeout:
            caution.patience *= 2
            raise ConnectionLost("the broker keeps back an entry that it has") from None
        found = _describe(message, position)
        # A position can have an index that the entry, batched or not, does not reach.
        if found.stop > position and found.start.batch_index < found.messages:
            return found
        # The position lies behind the last message of that entry: on to the next one.
        passed = max(passed, _behind(message.command.message_id))
        permits = found.messages


def _behind(marked: pb.MessageIdData) -> Position:
    """Return the position behind the last entry that a subscription is done with."""
    done = MessageId.from_pb(marked)
    return Position.after(MessageId(done.ledger_id, done.entry_id))


def _describe(message: MessageReceived, position: Position) -> FoundEntry:
    message_id = MessageId.from_pb(message.command.message_id)
    try:
        parts = parse_payload(message.payload, verify=False)
    except RemoteProtocolError as error:
        raise CorruptMessage(error.what, message_id=message_id) from error
    metadata, stamp = parts.metadata, parts.broker_entry_metadata
    messages = max(metadata.num_messages_in_batch, 1)
    ledger_id, entry_id = message_id.ledger_id, message_id.entry_id
    batched = metadata.HasField("num_messages_in_batch")
    has_time = stamp is not None and stamp.HasField("broker_timestamp")
    has_index = stamp is not None and stamp.HasField("index")
    return FoundEntry(
        start=max(position, Position(ledger_id, entry_id)),
        stop=Position(ledger_id, entry_id, messages)
        if batched
        else Position(ledger_id, entry_id + 1),
        messages=messages,
        size=len(message.payload),
        publish_time=metadata.publish_time,
        broker_time=stamp.broker_timestamp if stamp is not None and has_time else None,
        index=stamp.index if stamp is not None and has_index else None,
    )
