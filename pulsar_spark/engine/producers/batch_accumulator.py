"""Collects messages, or columns of messages, into batches, one per topic partition."""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, groupby, pairwise, repeat, takewhile
from operator import itemgetter, sub

from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.inflight_window import (
    NO_TIMEOUT,
    MessageCallback,
    for_each,
    log_failure,
    tell_failed,
)
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.errors import InvalidRow, MessageTooLarge, OperationTimeout, PulsarError
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.outgoing_batches import MessageFields, UniformMessages
from pulsar_spark.protocol.sends import OutgoingEntry, UnbatchedFields, batch_entry, single_entry

logger = get_logger(__name__)

# Roughly what a message needs in a batch besides payload, key and properties.
_OVERHEAD = 16
# Memory that a waiting message needs besides its bytes: objects of a column, of a message with
# fields, of each of its properties, and of a callback.
_HELD_IN_COLUMN = 150
_HELD_WITH_FIELDS = 250
_HELD_BY_PROPERTY = 170
_HELD_BY_CALLBACK = 350
# Bytes reserved at a time for messages that are added one by one.
_AHEAD = 4096

# Complete entries are written together while others are in flight: up to so many, of so many bytes
# in all; a message larger than _LARGE is written alone.
_TOGETHER = 64
_TOGETHER_BYTES = 64 * 1024
_LARGE = 8 * 1024


class FailedAt(Exception):
    """Which of several messages could not be sent, and why; callers know its row."""

    def __init__(self, index: int, error: MessageTooLarge | InvalidRow) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class BatchAccumulator:
    """Collects the messages of one partition and hands full batches to its producer.

    A batch is full at `batching_max_messages` or `batching_max_bytes`; `max_bytes` can lower the
    latter. A message that does not fit starts the next batch; a larger one is sent alone. With
    `batching_by_key` a batch is sent as several that are written together, one per key, so that a
    Key_Shared subscription can deliver each to the key's consumer. Without batching every message
    is sent by itself. Waiting messages count against the client's memory limit. With
    `logs_failures` failures of messages without a callback are logged instead of raised.

    Thread-safe. All methods but `trigger_flush` block as `TopicProducer.send` does. If a batch
    cannot be sent, its messages' callbacks get the error; without callbacks it is raised.
    """

    def __init__(
        self,
        producer: TopicProducer,
        options: ProducerOptions,
        max_bytes: int | None = None,
        *,
        logs_failures: bool = False,
    ) -> None:
        self.producer = producer
        self._budget = producer.budget
        self._max_messages = options.batching_max_messages if options.batching_enabled else 1
        self._max_bytes = max_bytes or options.batching_max_bytes
        self._batching = options.batching_enabled
        self._by_key = options.batching_by_key
        self._resumes = options.resumes
        self._turn_timeout = options.send_timeout or NO_TIMEOUT
        self._default_callback: MessageCallback | None = log_failure if logs_failures else None
        # Whether to send the batch, or only full ones, once there is room; checked at the end of
        # each turn.
        self._due = False
        self._full_due = False
        self._look = False
        # The following are guarded by _turn, which is held while a batch is sent: batches keep the
        # order of their messages.
        self._turn = threading.Lock()
        self._size = 0
        self._held = 0
        self._ahead = 0
        self._count = 0
        # A batch is either uniform or mixed. The first _full messages of the uniform columns are
        # full batches that wait to be written together; the current batch follows.
        self._uniform = UniformMessages([])
        self._full = 0
        self._full_bytes = 0
        self._mixed: list[MessageFields] = []
        self._callbacks: list[MessageCallback | None] = []
        # The entries of the batch's first messages, which are sorted: how many messages each of
        # them has, and how many such entries follow each other.
        self._runs: list[tuple[int, int]] = []
        # Without batching: messages to write together.
        self._waiting: list[MessageFields] = []
        self._waiting_bytes = 0
        producer.on_room = self._send_if_due
        self._budget.add(self)

    @property
    def count(self) -> int:
        """Messages that wait to be sent: in the current batch, or to be written together."""
        return self._full + self._count + len(self._waiting)

    @property
    def has_complete_entries(self) -> bool:
        """Whether complete entries wait to be written together."""
        return bool(self._full or self._waiting)

    def add(
        self,
        message: MessageFields,
        callback: MessageCallback | None = None,
        unbatched: UnbatchedFields | None = None,
    ) -> None:
        """Add one message; send the batch if it is full."""
        self._take_turn()
        try:
            self._add(message, callback, unbatched)
        finally:
            self._leave_turn()

    def add_plain(self, payload: bytes, key: bytes | None, callback: MessageCallback) -> None:
        """Add a message that has only a payload and maybe a string key in UTF-8.

        While others are in flight, full batches and messages without a batch are written together
        with later ones, at the latest when `trigger_flush_full` is called.
        """
        size = len(payload) + _OVERHEAD + (0 if key is None else len(key))
        has_callback = callback is not log_failure
        held = size + (_HELD_IN_COLUMN + _HELD_BY_CALLBACK if has_callback else _HELD_IN_COLUMN)
        if not self._turn.acquire(blocking=False):
            self._take_turn()
        try:
            if self._ahead < held:
                self._reserve_ahead(held)
            if not self._takes_plain(key, size):
                text = None if key is None else key.decode()
                self._add(MessageFields(payload, text), callback, None)
                return
            self._ahead -= held
            uniform = self._uniform
            if has_callback or uniform.callbacks is not None:
                if uniform.callbacks is None:
                    uniform.callbacks = [log_failure] * len(uniform)
                uniform.callbacks.append(callback)
            uniform.append(payload, key)
            self._count += 1
            self._size += size
            if self._count >= self._max_messages or self._size >= self._max_bytes:
                self._end_batch()
        finally:
            self._leave_turn()

    def _takes_plain(self, key: bytes | None, size: int) -> bool:
        """Whether a message can be added to the uniform columns; sends a batch for it if needed."""
        if self._mixed or size > _LARGE:
            return False
        if self._waiting:
            self._send_waiting()
        uniform = self._uniform
        if uniform.payloads:
            if (key is None) is not (uniform.keys is None) or uniform.fields is not None:
                if self._count:
                    return False
                self._flush()
            elif self._size + size > self._max_bytes:
                self._flush()
        if not self._uniform.payloads:
            self._uniform = UniformMessages([], None if key is None else [])
        return True

    def _end_batch(self) -> None:
        """Send a full uniform batch, or let it wait to be written together with others."""
        is_full = self._count == self._max_messages and not self._by_key
        if is_full and self.producer.is_busy(self._full + self._count):
            self._full += self._count
            self._full_bytes += self._size
            self._count = self._size = 0
            most = _TOGETHER * self._max_messages
            if self._full < most and self._full_bytes < _TOGETHER_BYTES:
                return
        self._flush()

    def _reserve_ahead(self, size: int) -> None:
        """Reserve memory for a message, and for the next ones if there is enough."""
        if self._budget.try_reserve(_AHEAD + size):
            self._held += _AHEAD + size
            self._ahead += _AHEAD + size
            return
        self._reserve(size)
        self._ahead += size

    def add_without_callback(self, message: MessageFields) -> None:
        """Add a message whose result nobody needs.

        Without batching it is still an entry of its own. While others are in flight it is written
        together with later ones, at the latest when `trigger_flush` is called.
        """
        size = _message_size(message)
        waits = self._waiting or self.producer.pending_messages
        if self._batching or not waits or size > _LARGE or message.sequence_id is not None:
            self.add(message, log_failure)
            return
        self._take_turn()
        try:
            if self._full:
                self._flush()
            self._waiting.append(message)
            self._waiting_bytes += size
            if len(self._waiting) >= _TOGETHER or self._waiting_bytes >= _TOGETHER_BYTES:
                self._send_waiting()
        finally:
            self._leave_turn()

    def add_all(self, messages: Sequence[tuple[MessageFields, UnbatchedFields | None]]) -> None:
        """Add messages; raises FailedAt with the one that failed."""
        at = 0
        try:
            if self._batching:
                with self._my_turn():
                    for message, unbatched in messages:
                        self._add(message, None, unbatched)
                        at += 1
                return
            while at < len(messages):
                if messages[at][1] is not None or self._resumes:
                    self.add(messages[at][0], None, messages[at][1])
                    at += 1
                    continue
                plain = [found for found, _ in takewhile(_lacks_unbatched_fields, messages[at:])]
                with self._my_turn():
                    self._send_waiting()
                    sent = 0
                    while sent < len(plain):
                        following = self.producer.send_messages(plain, sent)
                        at += following - sent
                        sent = following
        except (MessageTooLarge, InvalidRow) as error:
            raise FailedAt(at, error) from None

    def extend(
        self,
        messages: UniformMessages,
        start: int = 0,
        *,
        one_batch: bool = False,
    ) -> int:
        """Add a column of messages; without batching their fields are unbatched.

        Starts at index `start`, and ends after some messages or after `one_batch`; returns the
        index of the next message. Raises MessageTooLarge only for the message at `start`.
        """
        with self._my_turn():
            if not self._batching:
                self._send_waiting()
                return self.producer.send_column(messages, 1, start)
            if not self.producer.max_payload:
                self.producer.open()
            unlike = self._count and not self._uniform.is_like(messages)
            if self._mixed or self._full or unlike:
                self._flush()
            most = self._max_messages
            stop = start + (len(messages) - start) // most * most
            if self._count or one_batch or stop - start <= most or self._by_key:
                return self._extend_batch(messages, start)
            batches = messages.part(start, stop)
            if not self._fit(batches):
                return self._extend_batch(messages, start)
            return start + self.producer.send_column(batches, most)

    def _extend_batch(self, messages: UniformMessages, start: int) -> int:
        """As `extend` for one batch."""
        stop, size = self._fitting(messages, start)
        part = messages.part(start, stop)
        is_full = stop < len(messages) or self._is_full(stop - start, size)
        is_one = not self._by_key or part.keys is None or len(part) == 1
        if is_full and is_one and not self._count:
            # A full batch is sent directly.
            return start + self.producer.send_column(part, stop - start)
        self._reserve(size + _HELD_IN_COLUMN * len(part))
        if not self._count:
            self._uniform = part.take(())
        self._uniform.extend(part)
        self._count += len(part)
        self._size += size
        if is_full:
            self._flush()
        return stop

    def flush(self) -> None:
        """Send everything that waits."""
        with self._my_turn():
            self._flush()

    def trigger_flush(self) -> None:
        """Send everything that waits as soon as there is room, without blocking.

        For timers and the receive thread. Callbacks, and the next caller, get errors.
        """
        self._due = True
        self._send_if_due()

    def trigger_flush_full(self) -> None:
        """Send the complete entries that wait to be written together, as `trigger_flush`."""
        self._full_due = True
        self._send_if_due()

    def discard(self, error: PulsarError) -> None:
        """Drop everything that waits; its callbacks get the error."""
        with self._my_turn():
            self._take_waiting()
            self._drop(error)

    # --- turns --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _my_turn(self) -> Iterator[None]:
        """Let one thread at a time in."""
        self._take_turn()
        try:
            yield
        finally:
            self._leave_turn()

    def _take_turn(self) -> None:
        """Wait for the turn. A thread that waits too long fails alone."""
        if not self._turn.acquire(timeout=min(self._turn_timeout, threading.TIMEOUT_MAX)):
            raise OperationTimeout(
                f"the message could not be sent within {self._turn_timeout:g} s",
                topic=self.producer.topic,
            )

    def _leave_turn(self) -> None:
        self._turn.release()
        if self._due or self._full_due:
            self._send_if_due()

    def _send_if_due(self) -> None:
        # The thread whose turn it is looks again when it ends: there may be room by then.
        self._look = True
        while (self._due or self._full_due) and self._look and self._turn.acquire(blocking=False):
            self._look = False
            try:
                if self._try_full() and self._try_waiting():
                    self._full_due = False
                    if self._due and self._try_flush():
                        self._due = False
            except PulsarError as error:
                # The callbacks of its messages get the error, or the next call raises it.
                logger.debug("a batch for %s was not sent: %s", self.producer.topic, error)
                self._due = self._full_due = False
            finally:
                self._turn.release()

    # --- filling ------------------------------------------------------------------------------

    def _add(
        self,
        message: MessageFields,
        callback: MessageCallback | None,
        unbatched: UnbatchedFields | None,
    ) -> None:
        own_id = message.sequence_id
        # A broker drops a batch whose lowest id it knows, whatever else is in it.
        if self._resumes and own_id is not None and self.producer.has_sent(own_id):
            if callback is not None:
                callback(None, None)
            return
        if unbatched is not None or not self._batching:
            self._flush()
            self._send_entry(single_entry(message, callback, unbatched))
            return
        size = _message_size(message)
        if self._count and not self._takes(message, size):
            self._flush()
        self._reserve(_held_by(message, size, callback))
        self._become_mixed()
        self._mixed.append(message)
        if callback is not None:
            self._callbacks += [None] * (self._count - len(self._callbacks))
            self._callbacks.append(callback)
        self._count += 1
        self._size += size
        self._flush_if_full()

    def _reserve(self, size: int) -> None:
        if not self._budget.try_reserve(size):
            # This batch may be the only one in flight, so nothing else would trigger sending it.
            self._flush()
            self._budget.release(self._take_held())
            self.producer.reserve(size)
        self._held += size

    @property
    def _bound(self) -> int:
        """The maximum size of a column's batch, small enough for the broker in any case.

        So a message that is too large fills a batch alone, and its row is known.
        """
        return min(self._max_bytes, self.producer.max_payload or self._max_bytes)

    def _takes(self, message: MessageFields, size: int) -> bool:
        if self._size + size > self._max_bytes:
            return False
        # Users' own ids must increase within a batch, which is identified by its lowest and
        # highest.
        if message.sequence_id is None:
            return not self._mixed or self._mixed[-1].sequence_id is None
        last = self._mixed[-1].sequence_id if self._mixed else None
        return last is not None and message.sequence_id > last

    def _become_mixed(self) -> None:
        if self._full:
            self._send_full()
        uniform = self._uniform
        if uniform.payloads:
            self._mixed, self._uniform = uniform.messages(), UniformMessages([])
            self._callbacks = uniform.callbacks or [self._default_callback] * len(uniform)

    def _is_full(self, messages: int, size: int) -> bool:
        return self._count + messages >= self._max_messages or self._size + size >= self._bound

    def _flush_if_full(self) -> None:
        if self._count >= self._max_messages or self._size >= self._max_bytes:
            self._flush()

    def _fitting(self, messages: UniformMessages, start: int) -> tuple[int, int]:
        """Return where the part of the column ends that fits into the batch, and its bytes."""
        stop = min(start + self._max_messages - self._count, len(messages))
        room = self._bound - self._size

        def held(stop: int) -> int:
            return messages.size(start, stop) + _OVERHEAD * (stop - start)

        if held(stop) > room:
            stop = bisect_right(range(stop + 1), room, start + 1, key=held) - 1
            # A message larger than any batch is accepted if it is the only one.
            if stop == start and not self._count:
                stop += 1
        return stop, held(stop)

    def _fit(self, messages: UniformMessages) -> bool:
        """Whether batches that are full by count are not too large."""
        most = self._max_messages
        edges = messages.edges()[::most]
        largest: int = max(map(sub, edges[1:], edges))
        return largest + _OVERHEAD * most <= self._bound

    # --- sending ------------------------------------------------------------------------------

    def _take_batch(
        self,
    ) -> tuple[UniformMessages, list[MessageFields], list[MessageCallback | None]]:
        batch = self._uniform, self._mixed, self._callbacks
        self._uniform, self._mixed, self._callbacks = UniformMessages([]), [], []
        self._runs = []
        self._count = self._size = self._full = self._full_bytes = 0
        return batch

    def _take_held(self) -> int:
        held, self._held, self._ahead = self._held, 0, 0
        return held

    def _take_waiting(self) -> list[MessageFields]:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return waiting

    def _send_waiting(self) -> None:
        """Write the waiting messages together; skip one that cannot be sent."""
        if not self._waiting:
            return
        waiting, at = self._take_waiting(), 0
        while at < len(waiting):
            try:
                at = self.producer.send_messages(waiting, at)
            except (MessageTooLarge, InvalidRow) as error:
                log_failure(error, None)
                at += 1

    def _try_waiting(self) -> bool:
        """As `_send_waiting`, as far as possible without blocking; return whether all was sent."""
        while self._waiting:
            try:
                sent = self.producer.try_send_messages(self._waiting)
            except (MessageTooLarge, InvalidRow) as error:
                log_failure(error, None)
                sent = 1
            except PulsarError:
                self._take_waiting()
                raise
            if not sent:
                return False
            self._waiting = self._waiting[sent:]
        self._waiting_bytes = 0
        return True

    def _flush(self) -> None:
        self._send_waiting()
        if not self._count and not self._full:
            return
        runs = self._sorted()
        uniform, mixed, callbacks = self._take_batch()
        # What is sent is reserved again.
        self._budget.release(self._take_held())
        if mixed:
            self._send_mixed(mixed, callbacks, runs)
        else:
            self._send_uniform(uniform, runs if self._by_key else ())

    def _send_full(self) -> None:
        """Send the full batches."""
        full, rest = self._split_full()
        part = self._held * self._full // (self._full + self._count)
        self._budget.release(part)
        self._held -= part
        self._ahead = min(self._ahead, self._held)
        self._uniform, self._full, self._full_bytes = rest, 0, 0
        self._send_uniform(full)

    def _split_full(self) -> tuple[UniformMessages, UniformMessages]:
        uniform = self._uniform
        return uniform.part(0, self._full), uniform.part(self._full, len(uniform))

    def _send_uniform(
        self, messages: UniformMessages, runs: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Send a column in batches, or in these entries.

        Errors go to the callbacks, or are raised without any.
        """
        at = 0
        try:
            with self.producer.turn():
                for size, entries in runs or [(self._max_messages, len(messages))]:
                    stop = min(at + size * entries, len(messages))
                    while at < stop:
                        at += self._send_part(messages.part(at, stop), size)
        except PulsarError as error:
            if messages.callbacks is None:
                raise
            tell_failed(messages.callbacks[at:], error)

    def _send_part(self, messages: UniformMessages, size: int) -> int:
        """Send some messages in entries of this size; return how many."""
        if self._by_key and (left := len(messages) % size):
            # The others of an entry were sent already, and what follows has other keys.
            size, messages = left, messages.part(0, left)
        try:
            return self.producer.send_block(messages, size, self._default_callback)
        except MessageTooLarge as error:
            if messages.callbacks is None and self._default_callback is None:
                raise
            tell_failed((messages.callbacks or [log_failure])[:1], error)
            return 1

    def _try_full(self) -> bool:
        """Send the full batches, as many as possible without waiting; return whether all."""
        while self._full:
            full, _ = self._split_full()
            held = self._held, self._full + self._count
            try:
                sent = self.producer.try_send_block(
                    full, self._max_messages, self._default_callback, held
                )
            except MessageTooLarge as error:
                tell_failed((full.callbacks or [log_failure])[:1], error)
                self._budget.release(held[0] // held[1])
                sent = 1
            except PulsarError as error:
                self._drop(error)
                raise
            if not sent:
                return False
            self._held -= self._held * sent // (self._full + self._count)
            self._ahead = min(self._ahead, self._held)
            self._uniform = self._uniform.part(sent, len(self._uniform))
            self._full_bytes -= self._full_bytes * sent // self._full
            self._full -= sent
        return True

    def _sorted(self) -> list[tuple[int, int]]:
        """Return the batch's entries as runs of equally many messages each.

        What was added since the last call is sorted by key first: keys with equally many messages
        follow each other, so that their entries are encoded together. With users' ids keys are
        ordered by their last message: ids grow from entry to entry, each of which is identified by
        its highest.
        """
        if not self._by_key:
            self._runs = [(self._count, 1)] if self._count else []
            return self._runs
        done = sum(size * entries for size, entries in self._runs)
        rows = self._mixed or self._uniform.keys or [None] * self._count
        groups: dict[object, list[int]] = {}
        for index in range(done, self._count):
            groups.setdefault(_group_of(rows[index]), []).append(index)
        in_order = sorted(groups.values(), key=lambda group: (len(group), group[-1]))
        if self._mixed and self._mixed[0].sequence_id is not None:
            in_order.sort(key=itemgetter(-1))
        if len(groups) < self._count - done:
            self._reorder([*range(done), *chain.from_iterable(in_order)])
        self._runs += [(size, sum(1 for _ in same)) for size, same in groupby(map(len, in_order))]
        return self._runs

    def _reorder(self, order: list[int]) -> None:
        if self._callbacks:
            self._callbacks += [None] * (self._count - len(self._callbacks))
            self._callbacks = [self._callbacks[index] for index in order]
        if self._mixed:
            self._mixed = [self._mixed[index] for index in order]
        else:
            self._uniform = self._uniform.take(order)

    def _send_mixed(
        self,
        messages: list[MessageFields],
        callbacks: list[MessageCallback | None],
        runs: list[tuple[int, int]],
    ) -> None:
        """Send messages with fields in these entries; errors as in `_send_uniform`."""
        at = 0
        try:
            with self.producer.turn():
                for size, entries in runs:
                    step, send = size, self._send_group
                    if _are_singles(messages, size):
                        step, send = entries, self._send_singles
                    for start in range(at, at + size * entries, step):
                        at = start + step
                        send(messages[start:at], callbacks[start:at])
        except PulsarError as error:
            tell_failed(callbacks[at:], error)
            # Without a turn, none was sent.
            if at or None in callbacks or len(callbacks) < len(messages):
                raise

    def _send_singles(
        self, messages: list[MessageFields], callbacks: list[MessageCallback | None]
    ) -> None:
        """Send messages, each without a batch."""
        at = 0
        while at < len(messages):
            try:
                at = self.producer.send_messages(messages, at, callbacks)
            except PulsarError as error:
                callback, *rest = callbacks[at:] or [None]
                at += 1
                if callback is None:
                    tell_failed(rest, error)
                    raise
                callback(error, None)

    def _try_flush(self) -> bool:
        """Send the batch, split if it is too large, as far as possible without blocking."""
        self._sorted()
        while self._runs:
            try:
                sent = self._try_mixed() if self._mixed else self._try_uniform()
            except MessageTooLarge as error:
                size, entries = self._runs[0]
                if size > 1:
                    half = size // 2
                    smaller = [(half, 1), (size - half, 1), (size, entries - 1)]
                    self._runs[:1] = smaller if entries > 1 else smaller[:2]
                else:
                    self._drop_first(error)
                continue
            except PulsarError as error:
                self._drop(error)
                raise
            if not sent:
                return False
            self._forget_first(sent)
        return True

    def _try_uniform(self) -> int:
        """Send the first of the columns' entries without blocking; return how many messages."""
        size, entries = self._runs[0]
        part = self._uniform.part(0, size * entries)
        held = self._held, self._count
        return self.producer.try_send_block(part, size, self._default_callback, held)

    def _try_mixed(self) -> int:
        """Send the first of the entries with fields without blocking; return how many messages."""
        size, entries = self._runs[0]
        held = self._held, self._count
        if _are_singles(self._mixed, size):
            own = self._mixed[:entries], self._callbacks[:entries]
            return self.producer.try_send_messages(*own, held)
        stops = accumulate(chain.from_iterable(repeat(*run) for run in self._runs))
        following = (
            self._mixed_entry(self._mixed[start:stop], self._callbacks[start:stop])
            for start, stop in pairwise(chain((0,), stops))
        )
        return self.producer.try_send(following, held)

    def _mixed_entry(
        self, messages: list[MessageFields], callbacks: list[MessageCallback | None]
    ) -> OutgoingEntry:
        if len(messages) == 1:
            return single_entry(messages[0], callbacks[0] if callbacks else None)
        callback = for_each(callbacks, len(messages))
        return batch_entry(messages, callback, by_key=self._by_key)

    def _forget_first(self, number: int) -> None:
        """Drop the batch's first messages, whose memory is released."""
        self._held -= self._held * number // self._count
        self._ahead = min(self._ahead, self._held)
        self._size -= self._size * number // self._count
        self._count -= number
        self._callbacks = self._callbacks[number:]
        self._mixed = self._mixed[number:]
        self._uniform = self._uniform.part(number, len(self._uniform))
        while number:
            size, entries = self._runs[0]
            gone = min(number // size, entries)
            number -= gone * size
            self._runs[:1] = [(size, entries - gone)] if gone < entries else []

    def _drop_first(self, error: PulsarError) -> None:
        callbacks = self._callbacks or self._uniform.callbacks
        callback = callbacks[0] if callbacks else self._default_callback
        self._budget.release(self._held // self._count)
        self._forget_first(1)
        if callback is None:
            logger.warning("a message for %s was not sent: %s", self.producer.topic, error)
        else:
            callback(error, None)

    def _drop(self, error: PulsarError) -> None:
        waits = self._full + self._count > 0
        uniform, _, callbacks = self._take_batch()
        self._budget.release(self._take_held())
        if waits:
            tell_failed(callbacks or uniform.callbacks or (self._default_callback,), error)

    def _send_group(
        self, messages: list[MessageFields], callbacks: list[MessageCallback | None]
    ) -> None:
        try:
            self._send_entry(self._mixed_entry(messages, callbacks))
        except MessageTooLarge:
            if len(messages) == 1:
                raise
            half = len(messages) // 2
            self._send_group(messages[:half], callbacks[:half])
            self._send_group(messages[half:], callbacks[half:])

    def _send_entry(self, entry: OutgoingEntry) -> None:
        try:
            self.producer.send(entry)
        except PulsarError as error:
            # The messages of a batch that is too large may still fit one by one.
            can_split = isinstance(error, MessageTooLarge) and entry.count > 1
            if entry.callback is None or can_split:
                raise
            entry.callback(error, None)


def _lacks_unbatched_fields(message: tuple[MessageFields, UnbatchedFields | None]) -> bool:
    return message[1] is None


def _are_singles(messages: Sequence[MessageFields], size: int) -> bool:
    """Whether messages in entries of this size are sent together as messages without a batch."""
    return size == 1 and messages[0].sequence_id is None


def _group_of(row: MessageFields | bytes | None) -> object:
    """Return what messages of one batch share with `batching_by_key`: Key_Shared's key."""
    if not isinstance(row, MessageFields):
        return row
    if row.ordering_key is not None:
        return row.ordering_key
    return None if row.key is None else (row.key, row.key_is_base64)


def _message_size(message: MessageFields) -> int:
    """Return roughly how many bytes a message needs in a batch."""
    size = len(message.payload or b"") + len(message.key or "") + len(message.ordering_key or b"")
    for name, value in message.properties:
        size += len(name) + len(value) + _OVERHEAD
    return size + _OVERHEAD


def _held_by(message: MessageFields, size: int, callback: MessageCallback | None) -> int:
    """Return roughly how much memory a message of that size needs."""
    held = size + _HELD_WITH_FIELDS + _HELD_BY_PROPERTY * len(message.properties)
    return held if callback in (None, log_failure) else held + _HELD_BY_CALLBACK
