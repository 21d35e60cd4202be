"""Collects messages, or columns of messages, into batches, one per topic partition."""

from __future__ import annotations

from collections.abc import Callable
from operator import sub

from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.inflight_window import MessageCallback, log_failure
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.producers.submission import Submission
from pulsar_spark.errors import MessageTooLarge
from pulsar_spark.protocol.outgoing_messages import OutgoingMessages, message_size

# Memory that a waiting message needs besides its bytes: objects of a column, of one with fields,
# and of a callback.
_HELD_IN_COLUMN = 150
_HELD_WITH_FIELDS = 250
_HELD_BY_CALLBACK = 350
# Bytes reserved at a time for messages that are added one by one.
_AHEAD = 4096

# Complete entries are written together while others are in flight: up to so many, of so many bytes
# in all; after a message larger than _LARGE nothing waits.
_TOGETHER = 64
_TOGETHER_BYTES = 64 * 1024
_LARGE = 8 * 1024


class FailedAt(Exception):
    """Which of several messages could not be sent, and why; callers know its row."""

    def __init__(self, index: int, error: MessageTooLarge) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class BatchAccumulator:
    """Collects the messages of one partition in batches, which its producer sends.

    A batch is full at `batching_max_messages` or `batching_max_bytes`; `max_bytes` can lower the
    latter. A message that does not fit starts the next batch; a larger one is sent alone. With
    `batching_by_key` a batch is sent as several that are written together, one per key, so that a
    Key_Shared subscription can deliver each to the key's consumer. Without batching every message
    is sent by itself. Waiting messages count against the client's memory limit. With
    `logs_failures` failures of messages without a callback are logged instead of raised.

    Thread-safe, by the lock of the producer, where the messages wait. `add`, `extend` and `flush`
    block as `TopicProducer.send` does. If a batch cannot be sent, its messages' callbacks get the
    error; without callbacks it is raised.
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
        self._lock = producer.lock
        self._max_messages = options.batching_max_messages if options.batching_enabled else 1
        self._max_bytes = max_bytes or options.batching_max_bytes
        self._together = _TOGETHER * self._max_messages
        self._batching = options.batching_enabled
        self._by_key = options.batching_by_key
        self._resumes = options.resumes
        self._default_callback: MessageCallback | None = log_failure if logs_failures else None
        # Whether errors are raised: they should be about the message that was added last.
        self._is_named = not logs_failures
        # The following are guarded by _lock.
        self._current = Submission(OutgoingMessages([]))
        self._current.grows = False
        # Whether a full batch waits for another thread, which was sending.
        self._is_behind = False
        self._budget.add(self)

    @property
    def count(self) -> int:
        """Messages that wait to be sent: in the current batch, or to be written together."""
        return self.producer.waiting.messages

    @property
    def has_complete_entries(self) -> bool:
        """Whether complete entries wait to be written together."""
        return self._current.sealed > 0

    def add(
        self,
        payload: bytes,
        key: bytes | None = None,
        fields: bytes = b"",
        sequence_id: int | None = None,
        callback: MessageCallback | None = None,
        *,
        alone: bool = False,
        waits: bool = True,
    ) -> None:
        """Add one message, as columns have it; one that is `alone` is sent by itself.

        Full batches are sent. While others are in flight, full batches, and messages without a
        batch, are written together with later ones, at the latest when `trigger_flush_full` is
        called. If this raises, the callback is not called. Unless it `waits`, this never blocks:
        full batches are sent as soon as there is room, and ProducerQueueFull is raised if there is
        no memory for the message.
        """
        if sequence_id is not None and self._is_known(sequence_id, callback):
            return
        if alone:
            message = OutgoingMessages([payload], [key], [fields])
            message.sequence_ids = None if sequence_id is None else [sequence_id]
            message.callbacks = None if callback is None else [callback]
            self.producer.send(message) if waits else self.producer.send_soon(message)
            return
        size = message_size(payload, key, fields)
        held = size + (_HELD_WITH_FIELDS if fields else _HELD_IN_COLUMN)
        has_callback = callback is not None and callback is not log_failure
        if has_callback:
            held += _HELD_BY_CALLBACK
        with self._lock:
            current = self._current
            messages = current.messages
            if (
                not current.grows
                or current.open_bytes + size > self._max_bytes
                or sequence_id is not None
                or messages.sequence_ids is not None
                or self._is_behind
                or (current.ahead < held and not self._reserve(held, _AHEAD, waits=waits))
            ):
                current = self._make_space(size, held, sequence_id, waits=waits)
                messages = current.messages
            current.ahead -= held
            if messages.callbacks is not None:
                messages.callbacks.append(callback or self._default_callback)
            elif has_callback:
                messages.callbacks = [self._default_callback] * len(messages)
                messages.callbacks.append(callback)
            messages.append(payload, key, fields, sequence_id)
            current.open += 1
            current.open_bytes += size
            self.producer.waiting.messages += 1
            is_full = current.open >= self._max_messages or current.open_bytes >= self._max_bytes
            goes = is_full and self._ends_batch(current, size)
        if goes and waits:
            self._is_behind = not self.producer.drain(takes_turns=False)
        elif goes:
            self.trigger_flush_full()

    def _ends_batch(self, current: Submission, size: int) -> bool:
        """End the batch, which a message of that size has filled; whether to send it now."""
        is_full = current.open == self._max_messages and not self._by_key
        current.seal()
        if not self._batching and (size > _LARGE or (self._is_named and size > self._bound)):
            return True
        return not (
            is_full
            and current.sealed < self._together
            and current.sealed_bytes < _TOGETHER_BYTES
            and self.producer.is_busy(current.sealed)
        )

    def _is_known(self, sequence_id: int, callback: MessageCallback | None) -> bool:
        """Whether a message need not be sent; then its callback has been called."""
        # A broker drops a batch whose lowest id it knows, whatever else is in it.
        if not (self._resumes and self.producer.has_sent(sequence_id)):
            return False
        if callback is not None:
            callback(None, None)
        return True

    def _make_space(
        self, size: int, held: int, own_id: int | None, *, waits: bool = True
    ) -> Submission:
        """Return a batch that takes a message, with memory for it. `_lock` is held."""
        send = self.producer.drain if waits else self.trigger_flush_full
        while True:
            if self._is_behind:
                self._is_behind = False
                self._unlocked(send)
                continue
            current = self._current
            if not (current.grows and current.open):
                if not (current.grows and self._has_ids(own_id is not None)):
                    self._begin(own_ids=own_id is not None)
            elif not self._takes(current, size, own_id):
                current.seal()
                self._unlocked(send)
                continue
            if self._reserve(held, _AHEAD, waits=waits):
                return self._current

    def _has_ids(self, own_ids: bool) -> bool:
        """Whether the current messages have ids of their own, as others do."""
        return (self._current.messages.sequence_ids is not None) is own_ids

    def _takes(self, current: Submission, size: int, own_id: int | None) -> bool:
        """Whether the current batch, which has messages, takes another one."""
        if current.open_bytes + size > self._max_bytes or not self._has_ids(own_id is not None):
            return False
        # Users' own ids must increase within a batch, which is identified by its lowest and
        # highest.
        ids = current.messages.sequence_ids
        return ids is None or own_id is None or own_id > ids[-1]

    def _begin(self, *, own_ids: bool) -> None:
        """Go on with columns that have ids of their own or not, in a new submission if need be."""
        messages = OutgoingMessages([], sequence_ids=[] if own_ids else None)
        if self._current.grows and not len(self._current):
            self._current.messages = messages
            return
        self._current = Submission(messages, default=self._default_callback, by_key=self._by_key)
        self.producer.waiting.add(self._current)

    def _reserve(self, held: int, ahead: int = 0, *, waits: bool = True) -> bool:
        """Have memory for messages; if that had to wait, return false: look at all again.

        Unless it `waits`, raises ProducerQueueFull.
        """
        current = self._current
        if current.ahead >= held:
            return True
        if self._budget.try_reserve(held + ahead):
            current.held += held + ahead
            current.ahead += held + ahead
            return True
        if not waits:
            self._unlocked(self.trigger_flush)
            raise self._budget.full(self.producer.topic)
        # This batch may be the only one in flight, so nothing else would trigger sending it.
        self._unlocked(self.flush)
        self._unlocked(lambda: self.producer.reserve(held))
        if not self._current.grows:
            self._begin(own_ids=current.messages.sequence_ids is not None)
        self._current.held += held
        self._current.ahead += held
        return False

    def _unlocked(self, call: Callable[[], object]) -> None:
        self._lock.release()
        try:
            call()
        finally:
            self._lock.acquire()

    def extend(
        self,
        messages: OutgoingMessages,
        start: int = 0,
        *,
        one_batch: bool = False,
        alone: bool = False,
    ) -> int:
        """Add columns of messages without own ids; those that are `alone` are not batched.

        Starts at index `start`, and ends after some messages or after `one_batch`; returns the
        index of the next message. Raises FailedAt for one that cannot be sent.
        """
        if alone or not self._batching:
            return self._submit(messages, start, len(messages), 1)
        if not self.producer.max_payload:
            self.producer.open()
        with self._lock:
            while True:
                current = self._current
                if current.open and not self._has_ids(False):
                    current.seal()
                stop, per_entry, size = self._plan(messages, start, one_batch)
                if per_entry:
                    break
                if not (current.grows and self._has_ids(False)):
                    self._begin(own_ids=False)
                held = size + _HELD_IN_COLUMN * (stop - start)
                if self._reserve(held):
                    is_full = stop < len(messages) or self._is_full(stop - start, size)
                    self._append(messages.part(start, stop), size, held)
                    break
        if per_entry:
            return self._submit(messages, start, stop, per_entry)
        if is_full:
            self.flush()
        return stop

    def _plan(
        self, messages: OutgoingMessages, start: int, one_batch: bool
    ) -> tuple[int, int, int]:
        """Return where the messages end that are added next, and their size.

        Also how many messages an entry has if they are full batches, which are sent directly.
        """
        current, most = self._current, self._max_messages
        stop = start + (len(messages) - start) // most * most
        if not (current.open or one_batch or stop - start <= most or self._by_key):
            batches = messages.part(start, stop)
            if self._fit(batches):
                return stop, most, 0
        stop, size = self._fitting(messages, start)
        is_full = stop < len(messages) or self._is_full(stop - start, size)
        has_no_keys = messages.keys is None and messages.fields is None
        is_one = not self._by_key or has_no_keys or stop - start == 1
        return stop, stop - start if is_full and is_one and not current.open else 0, size

    def _append(self, part: OutgoingMessages, size: int, held: int) -> None:
        current = self._current
        current.ahead -= held
        current.messages.extend(part)
        current.open += len(part)
        current.open_bytes += size
        self.producer.waiting.messages += len(part)

    def _submit(self, messages: OutgoingMessages, start: int, stop: int, per_entry: int) -> int:
        submission = Submission(messages.part(start, stop), per_entry=per_entry)
        try:
            self.producer.submit(submission)
        except MessageTooLarge as error:
            if submission.error is None:
                raise
            raise FailedAt(start + submission.failed_at, error) from None
        return stop

    def flush(self) -> None:
        """Send everything that waits."""
        with self._lock:
            if self._current.grows:
                self._current.seal()
        self.producer.drain()

    def trigger_flush(self) -> None:
        """Send everything that waits as soon as there is room, without blocking.

        For timers and the receive thread. Callbacks, and the next caller, get errors.
        """
        self.producer.make_due()

    def trigger_flush_full(self) -> None:
        """Send the complete entries that wait to be written together, as `trigger_flush`."""
        self.producer.make_due(only_full=True)

    # --- filling ------------------------------------------------------------------------------

    @property
    def _bound(self) -> int:
        """The maximum size of a column's batch, small enough for the broker in any case.

        So a message that is too large fills a batch alone, and its row is known.
        """
        return min(self._max_bytes, self.producer.max_payload or self._max_bytes)

    def _is_full(self, messages: int, size: int) -> bool:
        current = self._current
        count, bytes_ = current.open + messages, current.open_bytes + size
        return count >= self._max_messages or bytes_ >= self._bound

    def _fitting(self, messages: OutgoingMessages, start: int) -> tuple[int, int]:
        """Return where the part of the column ends that fits into the batch, and its bytes."""
        current = self._current
        stop = min(start + self._max_messages - current.open, len(messages))
        room = self._bound - current.open_bytes

        fitting = messages.fitting(start, stop, room) if stop > start else stop
        size = messages.batch_size(start, fitting)
        # A message larger than any batch is accepted if it is the only one.
        return (start, 0) if size > room and current.open else (fitting, size)

    def _fit(self, messages: OutgoingMessages) -> bool:
        """Whether batches that are full by count are not too large."""
        most = self._max_messages
        edges = messages.edges()[::most]
        largest: int = max(map(sub, edges[1:], edges))
        return largest + messages.batch_size(0, most) - messages.size(0, most) <= self._bound
