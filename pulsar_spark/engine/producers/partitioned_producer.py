"""Writes messages, one by one or in columns, to all partitions of a topic."""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from operator import sub
from typing import TypeVar

from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.forks import fork_count, used_after_fork
from pulsar_spark.engine.operations import AllOf, OperationFactory, Steps, in_steps, run_many
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.batch_accumulator import BatchAccumulator, FailedAt
from pulsar_spark.engine.producers.inflight_window import MessageCallback, ProducerCounts
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.producers.routing import JAVA_STRING_HASH, ROUND_ROBIN, PartitionRouter
from pulsar_spark.engine.transactions import ClientTransaction
from pulsar_spark.errors import ClosedError, InvalidRow, MessageTooLarge, ProducerBusy, PulsarError
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.outgoing_messages import MessageFields, OutgoingMessages, encode_fields
from pulsar_spark.protocol.topic_name import TopicName

logger = get_logger(__name__)

# Extra time for an operation beyond its own deadline, whose error is clearer.
_GRACE = 1.0
_ABORT_SECONDS = 1.0
# Batches share half of the memory for messages; this is the minimum for each.
_MIN_BATCH_BYTES = 4096
# How many messages one partition gets before the next one's turn, without batching.
_DEALT = 64
# So many producers are opened at a time: each makes its broker load a topic.
_OPENED_AT_ONCE = 64
# How long full batches, and messages without a batch, wait to be written together.
_TOGETHER_SECONDS = 0.005


Locate = Callable[[int], int]
"""Returns the row of a message, given its index."""


class PartitionedProducer(Closing):
    """A producer for each partition of a topic, opened when the first message goes there.

    `write` takes columns, and opens together what they need; `send` takes single messages. Messages
    are only safe once `flush` or `close` has returned. Batches wait until they are full or `flush`
    is called; with `timed` at most for the options' `batching_max_delay`. The first permanent error
    of a partition is the writer's: every later call raises it. With `txn` all messages belong to
    that transaction, and partitions are added to it as they get messages. `survives_timeouts`,
    `in_order` and `keep_as` as in `TopicProducer`; errors about a message of columns name its row.
    With `on_too_large`, `write` passes such errors to it, and goes on behind the message.
    Thread-safe.
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
        on_too_large: Callable[[PulsarError], None] | None = None,
        txn: ClientTransaction | None = None,
        keep_as: Hashable = None,
    ) -> None:
        self._context = context
        self._topic = TopicName.parse(topic)
        self.topic = str(self._topic)
        self.options = options or ProducerOptions()
        """The options of the partitions' producers."""
        self._survives_timeouts = survives_timeouts
        self._in_order = in_order
        self._on_too_large = on_too_large
        self._txn = txn
        self._keep_as = keep_as
        # Whether a timer sends what waits.
        self._waits = timed
        self._forks = fork_count()
        if partitions is None:
            partitions = context.partitions_for_writing(self.topic)
        self.partitions = partitions
        if self.options.resumes:
            self.options = _named_by_routing(self.options, partitions)
        run_length = self.options.batching_max_messages if self.options.batching_enabled else 1
        self._router = PartitionRouter(
            self.partitions,
            hashing_scheme=self.options.hashing_scheme,
            routing_mode=self.options.routing_mode,
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
        counts = [ProducerCounts(), *(producer.counts for producer in self.producers)]
        return ProducerCounts(*map(sum, zip(*counts, strict=True)))

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
        if self.options.txn_enabled or partition in self._announced:
            return
        options = replace(self.options, txn_enabled=True, producer_name=None)
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
        in_steps(self.opening(timeout, first_only=first_only))
        return self

    def opening(self, timeout: float | None = None, *, first_only: bool = False) -> Steps[None]:
        """Return the steps of `open`."""
        self._check_usable()
        deadline = Deadline(timeout or self._context.options.operation_timeout)
        first = self._router.current
        self._add_batchers((first,) if first_only else range(max(self.partitions, 1)))

        def opening(producer: TopicProducer) -> OperationFactory[None]:
            return lambda _: producer.open_operation(deadline)

        openings = [opening(producer) for producer in self.producers]
        for result in (yield AllOf(openings, deadline.remaining() + _GRACE, _OPENED_AT_ONCE)):
            if isinstance(result, PulsarError):
                raise result

    def write(self, messages: OutgoingMessages, locate: Locate = int) -> None:
        """Write messages given as columns; `locate` returns the row of the one with an index.

        Blocks while the window is full. Raises MessageTooLarge with the row, the writer's permanent
        error, and as `TopicProducer.send`; the messages before that row are in flight.
        """
        self._check_usable()
        open_together([(self, messages)])
        self._check_usable()
        if messages.sequence_ids is not None:
            self._write_rows(messages, locate)
            return
        start = 0
        while start < len(messages):
            stop, alone = messages.alike(start)
            part = messages.part(start, stop)
            rows = locate if not start else _behind(locate, start)
            if part.keys is not None:
                self._write_keyed(part, rows, alone=alone)
            else:
                self._write_unkeyed(part, rows, alone=alone)
            start = stop

    def send(
        self,
        message: MessageFields,
        callback: MessageCallback | None = None,
        partition: int | None = None,
        *,
        at_once: bool = False,
        waits: bool = True,
    ) -> None:
        """Write one message, to `partition` if given; with `at_once` send its batch too.

        If this raises, the callback is not called. Raises InvalidRow for fields that no message
        can have. Unless it `waits`, this never blocks: what is full is sent as soon as there is
        room, and ProducerQueueFull is raised if the client's memory limit is reached.
        """
        self._check_usable()
        if partition is None:
            partition = self.route(message)
        key, fields = encode_fields(message)
        batcher = self._batcher(partition)
        payload, own_id = message.payload or b"", message.sequence_id
        alone = message.goes_alone
        batcher.add(payload, key, fields, own_id, callback, alone=alone, waits=waits)
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
        utf8 = None if key is None else _utf8(key)
        partition = 0
        if self.partitions > 1:
            with self._lock:
                found = self._router
                partition = found.next_unkeyed() if utf8 is None else found.partition_of(utf8)
        batcher = self._batchers.get(partition) or self._batcher(partition)
        if most and (waiting := batcher.count + batcher.producer.pending_messages) >= most:
            return waiting
        batcher.add(payload, utf8, callback=callback)
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
        key = None if message.key is None else _utf8(message.key)
        with self._lock:
            return self._route(key, message.sequence_id)

    def _route(self, key: bytes | None, sequence_id: int | None) -> int:
        if key is not None:
            return self._router.partition_of(key)
        if self.options.resumes and sequence_id is not None:
            return self._router.next_of(sequence_id)
        return self._router.next_unkeyed()

    def flush_batches(self) -> None:
        """Send the current batches, without waiting for receipts."""
        self._check_usable()
        for batcher in self._all_batchers():
            batcher.flush()

    def flush_batches_soon(self) -> None:
        """Send the current batches as soon as there is room, without blocking."""
        self._check_usable()
        for batcher in self._all_batchers():
            batcher.trigger_flush()

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
        """Flush, and leave the brokers. Raises as `flush`, after freeing all resources.

        If the wait is interrupted, messages without a receipt fail.
        """
        if self._closed and self._error is None:
            return
        try:
            self.flush(timeout)
        except BaseException:
            self.abort()
            raise
        close_together([self])

    def _give_up(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Leave the brokers without waiting: unacknowledged messages fail with ClosedError."""
        in_steps(self.aborting())

    def aborting(self) -> Steps[None]:
        """Return the steps of `abort`."""
        return _leaving([self], lambda producer: producer.abort_operation, _ABORT_SECONDS)

    def leaving(self) -> Steps[None]:
        """Return steps that leave the brokers when all is acknowledged. They never raise."""
        return _leaving([self], lambda producer: producer.close_operation)

    # --- columns ------------------------------------------------------------------------------

    def _write_unkeyed(self, messages: OutgoingMessages, locate: Locate, *, alone: bool) -> None:
        if (alone or not self.options.batching_enabled) and self.partitions > 1:
            self._deal(messages, locate, alone=alone)
            return
        index = 0
        while index < len(messages):
            partition = self._router.current
            batcher = self._batcher(partition)
            log = self._log(partition, locate, range(index, len(messages)))
            before = index
            try:
                index = batcher.extend(messages, index, one_batch=self.partitions > 1, alone=alone)
                log.given += index - before
            except FailedAt as failed:
                self._pass_over(failed.error, locate(failed.index))
                log.given += failed.index - before
                index = failed.index + 1
            if not batcher.count:
                with self._lock:
                    self._router.advance()

    def _deal(self, messages: OutgoingMessages, locate: Locate, *, alone: bool) -> None:
        """Give each partition one message in turn, as without batching, but many at a time."""
        step = self.partitions if self._router.spreads else 1
        for start in range(0, len(messages), _DEALT * step):
            stop = min(start + _DEALT * step, len(messages))
            for first in range(start, min(start + step, stop)):
                with self._lock:
                    partition = self._router.next_unkeyed()
                self._extend(messages, range(first, stop, step), partition, locate, alone=alone)

    def _write_keyed(self, messages: OutgoingMessages, locate: Locate, *, alone: bool) -> None:
        if self.partitions <= 1:
            self._extend(messages, range(len(messages)), 0, locate, alone=alone)
            return
        with self._lock:
            routes = self._router.route(messages.keys or ())
        rows: dict[int, list[int]] = {partition: [] for partition in dict.fromkeys(routes)}
        for row, own in enumerate(map(rows.__getitem__, routes)):
            own.append(row)
        for partition, own in rows.items():
            self._extend(messages, own, partition, locate, alone=alone)

    def _extend(
        self,
        messages: OutgoingMessages,
        rows: Sequence[int],
        partition: int,
        locate: Locate,
        *,
        alone: bool,
    ) -> None:
        """Write some of the messages to a partition."""
        batcher = self._batcher(partition)
        log = self._log(partition, locate, rows)
        own = messages if len(rows) == len(messages) else messages.take(rows)
        index = begun = 0
        try:
            while index < len(own):
                try:
                    index = batcher.extend(own, index, alone=alone)
                except FailedAt as failed:
                    index = failed.index
                    self._pass_over(failed.error, locate(rows[index]))
                    log.given += index - begun
                    index = begun = index + 1
                    log = self._log(partition, locate, rows[begun:])
        finally:
            log.given += index - begun

    def _pass_over(self, error: MessageTooLarge, row: int) -> None:
        """Tell of a message that is too large, to go on without it; raise that otherwise."""
        if self._on_too_large is None:
            raise _at_row(error, row) from None
        self._on_too_large(_at_row(error, row))

    def _write_rows(self, messages: OutgoingMessages, locate: Locate) -> None:
        """Write messages with ids of their own, some of which may be known already."""
        count = len(messages)
        ids: Sequence[int | None] = messages.sequence_ids or ()
        keys = [None] * count if messages.keys is None else list(messages.keys)
        with self._lock:
            routes = list(map(self._route, keys, ids))
        fields = [b""] * count if messages.fields is None else list(messages.fields)
        alone = messages.alone or [False] * count
        rows: dict[int, list[int]] = {}
        for row, partition in enumerate(routes):
            rows.setdefault(partition, []).append(row)
        for partition, own in rows.items():
            log = self._log(partition, locate, own)
            batcher = self._batcher(partition)
            for place, row in enumerate(own, 1):
                payload = messages.payloads[row]
                try:
                    batcher.add(payload, keys[row], fields[row], ids[row], alone=alone[row])
                    log.given += 1
                except MessageTooLarge as error:
                    self._pass_over(error, locate(row))
                    log = self._log(partition, locate, own[place:])

    def _log(self, partition: int, locate: Locate, rows: Sequence[int]) -> RowLog:
        """Note the rows of the next messages of a partition; return its log."""
        acknowledged = self._batcher(partition).producer.acknowledged
        with self._lock:
            log = self._rows.setdefault(partition, RowLog())
            log.note(locate, rows, acknowledged)
        return log

    def _name_of(self, partition: int, number: int) -> str:
        """Return the row of a partition's n-th message in words, "" if it is not known."""
        if self.options.batching_by_key:
            # Batches are sorted.
            return ""
        with self._lock:
            log = self._rows.get(partition)
            row = None if log is None else log.row_of(number)
        return "" if row is None else f"row {row}"

    # --- partitions ---------------------------------------------------------------------------

    def needed(self, messages: OutgoingMessages) -> list[int]:
        """Return the partitions that certainly get some of these messages, and have no producer.

        There may be more: it counts messages and bytes, and does not fill batches.
        """
        count = max(self.partitions, 1)
        if len(self._batchers) >= count:
            return []
        with self._lock:
            found = self._routes_of(messages)
            return sorted(found.difference(self._batchers))

    def _routes_of(self, messages: OutgoingMessages) -> set[int]:
        """Return the partitions that certainly get some of the messages. `_lock` is held."""
        router, rest = self._router, len(messages)
        found: set[int] = set()
        if self.partitions > 1 and messages.keys is not None:
            keys = list(messages.keys)
            found = {router.partition_of(key) for key in set(keys) if key is not None}
            rest = keys.count(None)
        if not rest:
            return found
        ids = messages.sequence_ids
        if self.options.resumes and ids is not None and self.partitions > 1:
            keys = [None] * len(ids) if messages.keys is None else list(messages.keys)
            pairs = zip(keys, ids, strict=True)
            return found | {
                router.next_of(own) for key, own in pairs if key is None and own is not None
            }
        spread = min(self._least_runs(messages, rest), router.partitions) if router.spreads else 1
        return found | {(router.current + n) % router.partitions for n in range(spread)}

    def _least_runs(self, messages: OutgoingMessages, unkeyed: int) -> int:
        """Return how many partitions messages without a key fill one after the other, at least."""
        runs = -(-unkeyed // self._router.run_length)
        if unkeyed < len(messages) or not self.options.batching_enabled:
            return runs
        edges = messages.edges()
        # A message that is larger than a batch goes alone.
        largest: int = max(map(sub, edges[1:], edges))
        return max(runs, -(-messages.size(0, unkeyed) // max(self._most_bytes, largest)))

    @property
    def _most_bytes(self) -> int:
        """How large a batch may be, so that all of them have room in memory."""
        share = self._context.options.memory_limit // (2 * max(self.partitions, 1))
        return min(self.options.batching_max_bytes, max(share, _MIN_BATCH_BYTES))

    def _batcher(self, partition: int) -> BatchAccumulator:
        batcher = self._batchers.get(partition)
        if batcher is None:
            self._add_batchers([partition])
            batcher = self._batchers[partition]
        return batcher

    def _add_batchers(self, partitions: Iterable[int]) -> list[TopicProducer]:
        """Have producers for these partitions, not opened yet; returns those that are new."""
        new = [partition for partition in partitions if partition not in self._batchers]
        if new and self._txn is not None:
            self._txn.add_partitions([self.partition_name(partition) for partition in new])
        added: list[TopicProducer] = []
        with self._lock:
            for partition in new:
                if partition not in self._batchers:
                    batcher = self._batchers[partition] = self._new_batcher(partition)
                    added.append(batcher.producer)
        return added

    def _new_batcher(self, partition: int) -> BatchAccumulator:
        name = self.partition_name(partition)
        producer = TopicProducer(
            self._context,
            name,
            self.options,
            self._on_failure,
            survives_timeouts=self._survives_timeouts,
            in_order=self._in_order,
            name_of=lambda number: self._name_of(partition, number),
            txn=None if self._txn is None else self._txn.txn_id,
            keep_as=self._keep_as,
        )
        return BatchAccumulator(producer, self.options, self._most_bytes, logs_failures=self._waits)

    def _all_batchers(self) -> list[BatchAccumulator]:
        with self._lock:
            return list(self._batchers.values())

    def _on_failure(self, error: PulsarError) -> None:
        if self._error is None:
            self._error = error

    # --- the rest -----------------------------------------------------------------------------

    def _start_timers(self, partition: int, batcher: BatchAccumulator) -> None:
        if batcher.producer.has_ended:
            # What was added behind the end fails now.
            batcher.trigger_flush()
            return
        # If the client is closed, what waits has failed before its timers end.
        with contextlib.suppress(ClosedError):
            self._start_needed_timers(partition, batcher)

    def _start_needed_timers(self, partition: int, batcher: BatchAccumulator) -> None:
        if self.options.batching_enabled and partition not in self._timers:
            with self._lock:
                self._timers.add(partition)
            delay = self.options.batching_max_delay
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

    def _check_usable(self) -> None:
        if fork_count() != self._forks:
            raise used_after_fork("writer", topic=self.topic)
        if self._error is not None:
            raise self._error.with_context()
        if self._closed:
            raise ClosedError("the writer is closed", topic=self.topic)


def _named_by_routing(options: ProducerOptions, partitions: int) -> ProducerOptions:
    """Add to the producers' name what chooses a message's partition besides the message.

    What a partition has is known by the name and the last id. Where ids belonged to other
    partitions, that says nothing about them: messages would be taken for stored ones.
    """
    if partitions <= 1:
        return options
    chosen = [
        value
        for value, usual in (
            (options.hashing_scheme, JAVA_STRING_HASH),
            (options.routing_mode, ROUND_ROBIN),
        )
        if value != usual
    ]
    name = "-".join((options.producer_name or "", str(partitions), *chosen))
    return replace(options, producer_name=name)


def open_together(pairs: Sequence[tuple[PartitionedProducer, OutgoingMessages]]) -> None:
    """Open all producers that these messages are certain to need, of one client's writers.

    A writer that they cannot be opened for raises their error from now on. Raises the errors of
    transactions.
    """
    needed = [(writer, writer.needed(messages)) for writer, messages in pairs]
    joining: dict[ClientTransaction, list[str]] = {}
    for writer, partitions in needed:
        if writer._txn is not None and partitions:
            names = [writer.partition_name(partition) for partition in partitions]
            joining.setdefault(writer._txn, []).extend(names)
    for txn, topics in joining.items():
        txn.add_partitions(topics)
    added = [new for writer, partitions in needed for new in writer._add_batchers(partitions)]
    if added:
        timeout = needed[0][0]._context.options.operation_timeout
        run_many([producer.open_operation for producer in added], timeout, _OPENED_AT_ONCE)


def close_together(writers: Sequence[PartitionedProducer]) -> None:
    """Leave the brokers, of one client's writers that are flushed. Never raises."""
    in_steps(_leaving(writers, lambda producer: producer.close_operation))


def abort_together(writers: Sequence[PartitionedProducer]) -> None:
    """As `PartitionedProducer.abort`, of one client's writers."""
    in_steps(_leaving(writers, lambda producer: producer.abort_operation, _ABORT_SECONDS))


def _leaving(
    writers: Sequence[PartitionedProducer],
    operation: Callable[[TopicProducer], OperationFactory[None]],
    timeout: float | None = None,
) -> Steps[None]:
    leaving: list[TopicProducer] = []
    for writer in writers:
        with writer._lock:
            writer._closed = True
        if fork_count() == writer._forks:
            leaving += writer.producers
    if leaving:
        seconds = timeout or writers[0]._context.options.operation_timeout
        yield AllOf([operation(producer) for producer in leaving], seconds)


class RowLog:
    """Which rows the messages of a partition come from, from the first unacknowledged one on.

    Not thread-safe: the writer locks, but for `given`, which only its caller changes.
    """

    def __init__(self) -> None:
        self.given = 0
        """How many messages the partition has got."""
        # The number of the first message, how to find a row, and the indexes of its and later rows.
        self._notes: deque[tuple[int, Locate, Sequence[int]]] = deque()

    def note(self, locate: Locate, rows: Sequence[int], acknowledged: int) -> None:
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


def _behind(locate: Locate, start: int) -> Locate:
    return lambda index: locate(start + index)


def _at_row(error: E, row: int) -> E:
    named = type(error)(f"row {row}: {error.what}", error.remedy)
    context = {"topic": error.topic, "partition": error.partition, "broker": error.broker}
    return named.with_context(**context)  # type: ignore[return-value]


def _utf8(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise InvalidRow("a message's key is text that UTF-8 cannot express") from None
