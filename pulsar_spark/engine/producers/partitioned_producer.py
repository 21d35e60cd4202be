"""Writes messages, one by one or in columns, to all partitions of a topic."""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.forks import fork_count
from pulsar_spark.engine.operations import OperationFactory, run_many
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.batch_accumulator import BatchAccumulator, FailedAt
from pulsar_spark.engine.producers.inflight_window import MessageCallback, ProducerCounts
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.producers.routing import Key, PartitionRouter, TextKeys, key_text
from pulsar_spark.engine.transactions import ClientTransaction
from pulsar_spark.errors import (
    ClosedError,
    InvalidRow,
    MessageTooLarge,
    ProducerBusy,
    PulsarError,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.outgoing_batches import MessageFields, UniformMessages, message_of
from pulsar_spark.protocol.sends import UnbatchedFields
from pulsar_spark.protocol.topic_name import TopicName

logger = get_logger(__name__)

# Extra time for an operation beyond its own deadline, whose error is clearer.
_GRACE = 1.0
_ABORT_SECONDS = 1.0
# Batches share half of the memory for messages; this is the minimum for each.
_MIN_BATCH_BYTES = 4096
# How many rows are turned into messages with fields before these are sent.
_ROWS_TOGETHER = 1000
# How many messages one partition gets before the next one's turn, without batching.
_DEALT = 64
# How long full batches, and messages without a batch, wait to be written together.
_TOGETHER_SECONDS = 0.005


class PartitionedProducer(Closing):
    """A producer for each partition of a topic, opened when the first message goes there.

    `write` takes columns, `send` single messages. Messages are only safe once `flush` or `close`
    has returned. Batches wait until they are full or `flush` is called; with `timed` at most for
    the options' `batching_max_delay`. The first permanent error of a partition is the writer's:
    every later call raises it. With `txn` all messages belong to that transaction, and partitions
    are added to it as they get messages. `survives_timeouts` and `in_order` as in `TopicProducer`;
    errors about a message of columns name its row. Thread-safe.
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        partitions: int | None = None,
        timed: bool = False,
        survives_timeouts: bool = False,
        in_order: bool = True,
        txn: ClientTransaction | None = None,
    ) -> None:
        self._context = context
        self._topic = TopicName.parse(topic)
        self.topic = str(self._topic)
        self._options = options or ProducerOptions()
        self._survives_timeouts = survives_timeouts
        self._in_order = in_order
        self._txn = txn
        # Whether a timer sends what waits.
        self._waits = timed
        self._forks = fork_count()
        if partitions is None:
            partitions = context.partitions_for_writing(self.topic)
        self.partitions = partitions
        run_length = self._options.batching_max_messages if self._options.batching_enabled else 1
        self._router = PartitionRouter(
            self.partitions,
            hashing_scheme=self._options.hashing_scheme,
            routing_mode=self._options.routing_mode,
            run_length=run_length,
        )
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._batchers: dict[int, BatchAccumulator] = {}
        self._rows: dict[int, RowLog] = {}
        self._timers: set[int] = set()
        self._short_timers: set[int] = set()
        self._announced: set[int] = set()
        self._closed = False
        self._error: PulsarError | None = None

    # --- attributes ---------------------------------------------------------------------------

    @property
    def producers(self) -> list[TopicProducer]:
        """The producers opened so far."""
        with self._lock:
            return [batcher.producer for batcher in self._batchers.values()]

    @property
    def last_message_ids(self) -> dict[str, MessageIdAdv]:
        """Each written partition's last acknowledged entry."""
        found = ((producer.topic, producer.last_message_id) for producer in self.producers)
        return {topic: message_id for topic, message_id in found if message_id is not None}

    @property
    def counts(self) -> ProducerCounts:
        """The sum of all partitions' counters."""
        all_counts = [producer.counts for producer in self.producers]
        return ProducerCounts(
            messages=sum(counts.messages for counts in all_counts),
            bytes=sum(counts.bytes for counts in all_counts),
            entries=sum(counts.entries for counts in all_counts),
            acknowledged=sum(counts.acknowledged for counts in all_counts),
            duplicates=sum(counts.duplicates for counts in all_counts),
            reconnects=sum(counts.reconnects for counts in all_counts),
        )

    def grow(self, partitions: int) -> None:
        """Send to more partitions from now on, if the topic has so many."""
        with self._lock:
            # A topic without partitions never gets any.
            if 0 < self.partitions < partitions:
                self._router.grow(partitions)
                self.partitions = partitions

    def announce_transactions(self, partition: int) -> None:
        """Tell the broker, once, that messages of transactions will come to a partition.

        Without it Pulsar 3 ignores the abort of a topic's transactions, which then hide all that
        follows. It listens when a producer registers, so another one registers and leaves; with
        exclusive access, the options must say it from the beginning.
        """
        if self._options.txn_enabled or partition in self._announced:
            return
        options = replace(self._options, txn_enabled=True, producer_name=None)
        announcer = TopicProducer(self._context, self.partition_name(partition), options)
        try:
            # A topic may allow no other producer; brokers listen before they refuse it.
            with contextlib.suppress(ProducerBusy):
                announcer.open()
        finally:
            announcer.abort()
        self._announced.add(partition)

    # --- writing ------------------------------------------------------------------------------

    def open(
        self, timeout: float | None = None, *, first_only: bool = False
    ) -> PartitionedProducer:
        """Open the producers of all partitions now, or only the current one's.

        Raises as `TopicProducer.open`.
        """
        self._check_usable()
        deadline = Deadline(timeout or self._context.options.operation_timeout)
        first = self._router.current
        for partition in (first,) if first_only else range(max(self.partitions, 1)):
            self._batcher(partition)
        self._run_all(
            lambda producer: lambda _: producer.open_operation(deadline),
            deadline.remaining() + _GRACE,
        )
        return self

    def write(self, columns: MessageColumns) -> None:
        """Write messages given as columns.

        Blocks while the window is full. Raises MessageTooLarge and InvalidRow with the row, the
        writer's permanent error, and as `TopicProducer.send`; the messages before that row are in
        flight.
        """
        self._check_usable()
        if not columns.plain or not self._takes_fields(columns) or None in columns.payloads:
            self._write_rows(columns)
            return
        keys = columns.text_keys()
        if columns.keys is not None and keys is None:
            self._write_rows(columns)
            return
        payloads: Sequence[bytes] = columns.payloads  # type: ignore[assignment]
        messages = UniformMessages(payloads, keys, columns.fields, unbatched=columns.unbatched)
        if keys is None:
            self._write_unkeyed(columns, messages)
        else:
            self._write_keyed(columns, messages)

    def _takes_fields(self, columns: MessageColumns) -> bool:
        """Whether its fields, if it has any, are for messages as this writer sends them."""
        if columns.unbatched:
            return self._options.takes_unbatched_fields
        return columns.fields is None or self._options.batching_enabled

    def send(
        self,
        message: MessageFields,
        callback: MessageCallback | None = None,
        unbatched: UnbatchedFields | None = None,
        partition: int | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """Write one message, to `partition` if given; with `at_once` send its batch too.

        If this raises, the callback is not called. Raises InvalidRow for fields that no message
        can have.
        """
        self._check_usable()
        if partition is None:
            partition = self.route(message)
        batcher = self._batcher(partition)
        batcher.add(message, callback, unbatched)
        if at_once:
            batcher.flush()
        elif self._waits and batcher.count:
            self._start_timers(partition, batcher)

    def send_plain(
        self, payload: bytes, key: str | None, callback: MessageCallback, most: int = 0
    ) -> int:
        """Write a message that has only a payload and maybe a key, as `send`; needs `timed`.

        If `most` or more messages of its partition are not acknowledged, it is not written, and
        their number is returned. If this raises, the callback is not called. Raises InvalidRow
        for a key that is not valid UTF-8.
        """
        self._check_usable()
        partition = 0
        if self.partitions > 1:
            with self._lock:
                found = self._router
                partition = found.next_unkeyed() if key is None else found.partition_of(key)
        batcher = self._batchers.get(partition) or self._batcher(partition)
        if most and (waiting := batcher.count + batcher.producer.pending_messages) >= most:
            return waiting
        batcher.add(payload, callback, key=None if key is None else _utf8(key))
        if batcher.count:
            self._start_timers(partition, batcher)
        return 0

    def partition_name(self, partition: int) -> str:
        """Return the full name of a partition, or of the topic if it has none."""
        return str(self._topic.partition(partition) if self.partitions else self._topic)

    def unacknowledged(self, partition: int) -> int:
        """Return how many messages of a partition wait for their batch or a receipt."""
        batcher = self._batcher(partition)
        return batcher.count + batcher.producer.pending_messages

    def route(self, message: MessageFields) -> int:
        """Return the partition for a message; without a key, the next one in turn."""
        if self.partitions <= 1:
            return 0
        with self._lock:
            if message.key is None:
                if self._options.resumes and message.sequence_id is not None:
                    return self._router.next_of(message.sequence_id)
                return self._router.next_unkeyed()
            # A base64 key is hashed as text.
            return self._router.partition_of(message.key)

    def flush_batches(self) -> None:
        """Send the current batches, without waiting for receipts."""
        self._check_usable()
        for batcher in self._all_batchers():
            batcher.flush()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything written so far is acknowledged.

        Raises the writer's permanent error, or OperationTimeout after `timeout` seconds (default:
        only each message's send timeout).
        """
        self.flush_batches()
        deadline = Deadline(timeout)
        for batcher in self._all_batchers():
            batcher.producer.flush(None if timeout is None else deadline.remaining())
        self._check_usable()

    def close(self, timeout: float | None = None) -> None:
        """Flush, and leave the brokers. Raises as `flush`, after freeing all resources."""
        if self._closed and self._error is None:
            return
        try:
            self.flush(timeout)
        except PulsarError:
            self.abort()
            raise
        with self._lock:
            self._closed = True
        timeout = self._context.options.operation_timeout
        self._run_all(lambda producer: producer.close_operation, timeout)

    def _give_up(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Leave the brokers without waiting: unacknowledged messages fail with ClosedError."""
        with self._lock:
            self._closed = True
        if fork_count() != self._forks:
            return
        self._run_all(lambda producer: producer.abort_operation, _ABORT_SECONDS)

    # --- columns ------------------------------------------------------------------------------

    def _write_unkeyed(self, columns: MessageColumns, messages: UniformMessages) -> None:
        if not self._options.batching_enabled and self.partitions > 1:
            self._deal(columns, messages)
            return
        index = 0
        while index < len(messages):
            partition = self._router.current
            batcher = self._batcher(partition)
            log = self._log(partition, columns, range(index, len(messages)))
            before = index
            try:
                index = batcher.extend(messages, index, one_batch=self.partitions > 1)
            except FailedAt as failed:
                raise _at_row(failed.error, columns, failed.index) from None
            log.given += index - before
            if not batcher.count:
                with self._lock:
                    self._router.advance()

    def _deal(self, columns: MessageColumns, messages: UniformMessages) -> None:
        """Give each partition one message in turn, as without batching, but many at a time."""
        step = self.partitions if self._router.spreads else 1
        for start in range(0, len(messages), _DEALT * step):
            stop = min(start + _DEALT * step, len(messages))
            for first in range(start, min(start + step, stop)):
                rows = range(first, stop, step)
                with self._lock:
                    partition = self._router.next_unkeyed()
                self._extend(columns, rows, messages.take(rows), partition)

    def _write_keyed(self, columns: MessageColumns, messages: UniformMessages) -> None:
        if self.partitions <= 1:
            self._extend(columns, range(len(messages)), messages, 0)
            return
        with self._lock:
            routes = self._router.route(columns.keys or ())
        rows: dict[int, list[int]] = {partition: [] for partition in dict.fromkeys(routes)}
        for row, own in enumerate(map(rows.__getitem__, routes)):
            own.append(row)
        for partition, own in rows.items():
            self._extend(columns, own, messages.take(own), partition)

    def _extend(
        self,
        columns: MessageColumns,
        rows: Sequence[int],
        messages: UniformMessages,
        partition: int,
    ) -> None:
        batcher = self._batcher(partition)
        log = self._log(partition, columns, rows)
        index = 0
        try:
            while index < len(messages):
                index = batcher.extend(messages, index)
        except FailedAt as failed:
            index = failed.index
            raise _at_row(failed.error, columns, rows[index]) from None
        finally:
            log.given += index

    def _write_rows(self, columns: MessageColumns) -> None:
        for first in range(0, len(columns), _ROWS_TOGETHER):
            rows: dict[int, list[int]] = {}
            messages: dict[int, list[tuple[MessageFields, UnbatchedFields | None]]] = {}
            last = min(first + _ROWS_TOGETHER, len(columns))
            for row, message in enumerate(columns.rows(first, last), first):
                partition = self.route(message[0])
                rows.setdefault(partition, []).append(row)
                messages.setdefault(partition, []).append(message)
            for partition, own in messages.items():
                log = self._log(partition, columns, rows[partition])
                batcher = self._batcher(partition)
                for row, (fields, unbatched) in zip(rows[partition], own, strict=True):
                    try:
                        batcher.add(fields, None, unbatched)
                    except (MessageTooLarge, InvalidRow) as error:
                        raise _at_row(error, columns, row) from None
                    log.given += 1

    def _log(self, partition: int, columns: MessageColumns, rows: Sequence[int]) -> RowLog:
        """Note the rows of the next messages of a partition; return its log."""
        acknowledged = self._batcher(partition).producer.acknowledged
        with self._lock:
            log = self._rows.setdefault(partition, RowLog())
            log.note(columns.locate, rows, acknowledged)
        return log

    def _name_of(self, partition: int, number: int) -> str:
        """Return the row of a partition's n-th message in words, "" if it is not known."""
        if self._options.batching_by_key:
            # Batches are sorted.
            return ""
        with self._lock:
            log = self._rows.get(partition)
            row = None if log is None else log.row_of(number)
        return "" if row is None else f"row {row}"

    # --- partitions ---------------------------------------------------------------------------

    def _batcher(self, partition: int) -> BatchAccumulator:
        batcher = self._batchers.get(partition)
        if batcher is None:
            if self._txn is not None:
                self._txn.add_partition(self.partition_name(partition))
            with self._lock:
                batcher = self._batchers.get(partition)
                if batcher is None:
                    batcher = self._batchers[partition] = self._new_batcher(partition)
        return batcher

    def _new_batcher(self, partition: int) -> BatchAccumulator:
        name = self.partition_name(partition)
        producer = TopicProducer(
            self._context,
            name,
            self._options,
            self._on_failure,
            survives_timeouts=self._survives_timeouts,
            in_order=self._in_order,
            name_of=lambda number: self._name_of(partition, number),
            txn=None if self._txn is None else self._txn.txn_id,
        )
        share = self._context.options.memory_limit // (2 * max(self.partitions, 1))
        most = min(self._options.batching_max_bytes, max(share, _MIN_BATCH_BYTES))
        return BatchAccumulator(producer, self._options, most, logs_failures=self._waits)

    def _all_batchers(self) -> list[BatchAccumulator]:
        with self._lock:
            return list(self._batchers.values())

    def _on_failure(self, error: PulsarError) -> None:
        if self._error is None:
            self._error = error

    # --- the rest -----------------------------------------------------------------------------

    def _start_timers(self, partition: int, batcher: BatchAccumulator) -> None:
        if self._options.batching_enabled and partition not in self._timers:
            with self._lock:
                self._timers.add(partition)
            delay = self._options.batching_max_delay
            self._context.timers.after(delay, lambda: self._on_timer(partition, batcher))
        if partition not in self._short_timers and batcher.has_complete_entries:
            with self._lock:
                self._short_timers.add(partition)
            self._context.timers.after(
                _TOGETHER_SECONDS, lambda: self._on_short_timer(partition, batcher)
            )

    def _on_timer(self, partition: int, batcher: BatchAccumulator) -> None:
        with self._lock:
            self._timers.discard(partition)
            if self._router.current == partition:
                self._router.advance()
        batcher.trigger_flush()

    def _on_short_timer(self, partition: int, batcher: BatchAccumulator) -> None:
        with self._lock:
            self._short_timers.discard(partition)
        batcher.trigger_flush_full()

    def _run_all(
        self, operation: Callable[[TopicProducer], OperationFactory[None]], timeout: float
    ) -> None:
        """Run an operation for all partitions together; raises the first error at the end."""
        results = run_many([operation(producer) for producer in self.producers], timeout)
        for result in results:
            if isinstance(result, PulsarError):
                raise result

    def _check_usable(self) -> None:
        if fork_count() != self._forks:
            raise ClosedError(
                "the writer was made by another process and cannot be used after a fork",
                "Make a writer of its own in each process.",
                topic=self.topic,
            )
        if self._error is not None:
            raise self._error.with_context()
        if self._closed:
            raise ClosedError("the writer is closed", topic=self.topic)


class RowLog:
    """Which rows the messages of a partition come from, from the first unacknowledged one on.

    Not thread-safe: the writer locks, but for `given`, which only its caller changes.
    """

    def __init__(self) -> None:
        self.given = 0
        """How many messages the partition has got."""
        # The number of the first message, how to find a row, and the indexes of its and later rows.
        self._notes: deque[tuple[int, Callable[[int], int], Sequence[int]]] = deque()

    def note(self, locate: Callable[[int], int], rows: Sequence[int], acknowledged: int) -> None:
        """Note the next rows by their indexes, and forget those of `acknowledged` messages."""
        notes = self._notes
        while len(notes) > 1 and notes[1][0] <= acknowledged:
            notes.popleft()
        kept = rows if isinstance(rows, range) else array("q", rows)
        notes.append((self.given, locate, kept))

    def row_of(self, number: int) -> int | None:
        """Return the row of the n-th message, None if it is not known."""
        for first, locate, rows in reversed(self._notes):
            if first <= number:
                at = number - first
                return locate(rows[at]) if at < len(rows) else None
        return None


E = TypeVar("E", bound=PulsarError)


def _at_row(error: E, columns: MessageColumns, row: int) -> E:
    named = type(error)(f"row {columns.locate(row)}: {error.what}", error.remedy)
    context = {"topic": error.topic, "partition": error.partition, "broker": error.broker}
    return named.with_context(**context)  # type: ignore[return-value]


Properties = Mapping[str, str] | Sequence[tuple[str, str]]


@dataclass(slots=True)
class MessageColumns:
    """Messages as columns of equal length; None for a column that no message has.

    Payload None is a null value, a `str` key is a string key, a `bytes` key is sent as base64 and
    marked so. Times are milliseconds since the epoch; None and 0 mean no time. The producer assigns
    sequence ids that are None. Errors name a message by `locate`, which is given its index; without
    it, by `first_row` plus the index. `fields` can
    replace event times, properties, string keys and null values, whose payloads are then empty, if
    there is nothing else: see `UniformMessages`, also for `unbatched`. With None among the payloads
    messages are written one by one. Raises InvalidRow for columns of different lengths.
    """

    payloads: Sequence[bytes | None]
    keys: Sequence[Key | None] | None = None
    ordering_keys: Sequence[bytes | None] | None = None
    event_times: Sequence[int | None] | None = None
    properties: Sequence[Properties | None] | None = None
    deliver_at: Sequence[int | None] | None = None
    sequence_ids: Sequence[int | None] | None = None
    null_keys: Sequence[bool] | None = None
    fields: Sequence[bytes] | None = None
    unbatched: bool = False
    first_row: int = 0
    locate: Callable[[int], int] = int

    def __post_init__(self) -> None:
        if self.locate is int:
            self.locate = self.first_row.__add__
        for name in (*_RICH, "keys", "fields"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.payloads):
                raise InvalidRow(
                    f"{len(self.payloads)} payloads were given with {len(column)} {name}"
                )

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def plain(self) -> bool:
        """Whether there are only payloads, keys and perhaps fields."""
        return all(getattr(self, name) is None for name in _RICH)

    def text_keys(self) -> Sequence[bytes | None] | None:
        """Return the keys in UTF-8, None if some are not strings.

        Only messages with fields may have no key. Raises InvalidRow for text that is not valid
        Unicode.
        """
        if self.keys is None:
            return None
        if isinstance(self.keys, TextKeys):
            return self.keys.utf8
        may_lack = self.fields is not None
        try:
            return [
                None if may_lack and key is None else key.encode()  # type: ignore[union-attr]
                for key in self.keys
            ]
        except AttributeError:
            return None
        except UnicodeEncodeError:
            row = next(index for index, key in enumerate(self.keys) if not _is_text(key))
            raise InvalidRow(
                f"row {self.locate(row)}: the key cannot be written as UTF-8",
                "Give such a key as bytes.",
            ) from None

    def rows(
        self, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[MessageFields, UnbatchedFields | None]]:
        """Yield a range of messages one by one, with the fields that prevent batching."""
        for index in range(start, len(self) if stop is None else stop):
            yield self._row(index)

    def _row(self, index: int) -> tuple[MessageFields, UnbatchedFields | None]:
        payload = self.payloads[index]
        if self.fields is not None:
            return message_of(payload or b"", self.fields[index], self.unbatched), None
        message = MessageFields(payload)
        if self.keys is not None and (key := self.keys[index]) is not None:
            message.key = key_text(key)
            message.key_is_base64 = not isinstance(key, str)
        if self.ordering_keys is not None:
            message.ordering_key = self.ordering_keys[index]
        if self.event_times is not None:
            message.event_time = self.event_times[index] or 0
        if self.properties is not None:
            message.properties = pairs(self.properties[index])
        if self.sequence_ids is not None:
            message.sequence_id = self.sequence_ids[index]
        if self.null_keys is not None:
            message.null_key = self.null_keys[index]
        deliver_at = None if self.deliver_at is None else self.deliver_at[index]
        return message, UnbatchedFields(deliver_at=deliver_at) if deliver_at else None


def pairs(properties: Properties | None) -> Sequence[tuple[str, str]]:
    """Return properties as a list of pairs; names may repeat."""
    if not properties:
        return ()
    return list(properties.items()) if isinstance(properties, Mapping) else properties


_RICH = (
    "ordering_keys",
    "event_times",
    "properties",
    "deliver_at",
    "sequence_ids",
    "null_keys",
)


def _utf8(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise InvalidRow("a message's key is text that UTF-8 cannot express") from None


def _is_text(key: Key | None) -> bool:
    try:
        return isinstance(key, str) and bool(key.encode() or True)
    except UnicodeEncodeError:
        return False
