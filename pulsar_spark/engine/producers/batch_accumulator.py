"""Collects messages, or columns of messages, into batches, one per topic partition."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import sub

from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.inflight_window import MessageCallback, log_failure
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.producers.submission import Submission
from pulsar_spark.errors import InvalidRow, MessageTooLarge, PulsarError
from pulsar_spark.protocol.outgoing_batches import (
    BatchKey,
    MessageFields,
    Shape,
    UniformMessages,
    encode_fields,
    key_field,
)
from pulsar_spark.protocol.sends import UnbatchedFields, single_entry

# Roughly what a message needs in a batch besides payload, and key or fields.
_OVERHEAD = 16
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

    def __init__(self, index: int, error: MessageTooLarge | InvalidRow) -> None:
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
        self._current = Submission()
        self._current.grows = False
        # Whether a full batch waits for another thread, which was sending.
        self._is_behind = False
        self._budget.add(self)

    @property
    def count(self) -> int:
        """Messages that wait to be sent: in the current batch, or to be written together."""
        return self.producer.unsent

    @property
    def has_complete_entries(self) -> bool:
        """Whether complete entries wait to be written together."""
        return self._current.sealed > 0

    def add(
        self,
        message: MessageFields | bytes,
        callback: MessageCallback | None = None,
        unbatched: UnbatchedFields | None = None,
        *,
        key: bytes | None = None,
    ) -> None:
        """Add one message, or the payload of one that has at most a string key in UTF-8.

        Full batches are sent. While others are in flight, full batches, and messages without a
        batch, are written together with later ones, at the latest when `trigger_flush_full` is
        called. If this raises, the callback is not called.
        """
        group: BatchKey = key
        fields, own_id = None, None
        if isinstance(message, bytes):
            payload = message
        elif self._goes_alone(message, callback, unbatched):
            return
        else:
            payload, own_id = message.payload or b"", message.sequence_id
            group, fields = encode_fields(message, unbatched=not self._batching)
        size = len(payload) + _OVERHEAD
        if fields is not None or group is not None:
            size += len(fields or group or b"")
        held = size + (_HELD_IN_COLUMN if fields is None else _HELD_WITH_FIELDS)
        has_callback = callback is not None and callback is not log_failure
        if has_callback:
            held += _HELD_BY_CALLBACK
        with self._lock:
            current = self._current
            messages = current.messages
            if (
                not current.grows
                or current.open_bytes + size > self._max_bytes
                or (messages.keys is None) is not (group is None)
                or (messages.fields is None) is not (fields is None)
                or own_id is not None
                or self._is_behind
                or (current.ahead < held and not self._reserve(held, _AHEAD))
            ):
                current = self._make_space(size, held, group, fields, own_id)
                messages = current.messages
                if messages.fields is not None and fields is None:
                    fields = key_field(payload, group, messages.unbatched)
            current.ahead -= held
            if messages.callbacks is not None:
                messages.callbacks.append(callback or self._default_callback)
            elif has_callback:
                messages.callbacks = [self._default_callback] * len(messages)
                messages.callbacks.append(callback)
            messages.append(payload, group, fields, own_id)
            current.open += 1
            current.open_bytes += size
            self.producer.unsent += 1
            is_full = current.open >= self._max_messages or current.open_bytes >= self._max_bytes
            goes = is_full and self._ends_batch(current, size)
        if goes:
            self._is_behind = not self.producer.drain(takes_turns=False)

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

    def _goes_alone(
        self,
        message: MessageFields,
        callback: MessageCallback | None,
        unbatched: UnbatchedFields | None,
    ) -> bool:
        """Whether a message need not be added: it is known already, or was sent by itself."""
        own_id = message.sequence_id
        # A broker drops a batch whose lowest id it knows, whatever else is in it.
        if own_id is not None and self._resumes and self.producer.has_sent(own_id):
            if callback is not None:
                callback(None, None)
            return True
        if unbatched is None and (own_id is None or self._batching):
            return False
        try:
            self.producer.send(single_entry(message, callback, unbatched))
        except PulsarError as error:
            if callback is None:
                raise
            callback(error, None)
        return True

    def _make_space(
        self,
        size: int,
        held: int,
        key: BatchKey,
        fields: bytes | None,
        own_id: int | None,
    ) -> Submission:
        """Return a batch that takes a message, with memory for it. `_lock` is held."""
        shape = key is not None, fields is not None, not self._batching, own_id is not None
        while True:
            if self._is_behind:
                self._is_behind = False
                self._unlocked(self.producer.drain)
                continue
            current = self._current
            messages = current.messages
            if not current.grows or not (current.open if self._batching else len(current)):
                if not current.grows or messages.shape != shape:
                    self._begin(shape)
            elif not self._takes(current, size, own_id):
                current.seal()
                self._unlocked(self.producer.drain)
                continue
            elif messages.shape != shape and (messages.fields is None or messages.keys is None):
                messages.add_fields()
            if self._reserve(held, _AHEAD):
                return self._current

    def _takes(self, current: Submission, size: int, own_id: int | None) -> bool:
        """Whether the current batch, which has messages, takes another one."""
        if current.open and current.open_bytes + size > self._max_bytes:
            return False
        # Users' own ids must increase within a batch, which is identified by its lowest and
        # highest.
        ids = current.messages.sequence_ids
        return ids is None if own_id is None else ids is not None and own_id > ids[-1]

    def _begin(self, shape: Shape) -> None:
        """Go on with columns of another shape, in a new submission if something waits."""
        messages = UniformMessages.of(shape)
        if self._current.grows and not len(self._current):
            self._current.messages = messages
            return
        self._current = Submission(messages, default=self._default_callback, by_key=self._by_key)
        self.producer.enqueue(self._current)

    def _reserve(self, held: int, ahead: int = 0) -> bool:
        """Have memory for messages; if that had to wait, return false: look at all again."""
        current = self._current
        if current.ahead >= held:
            return True
        if self._budget.try_reserve(held + ahead):
            current.held += held + ahead
            current.ahead += held + ahead
            return True
        # This batch may be the only one in flight, so nothing else would trigger sending it.
        self._unlocked(self.flush)
        self._unlocked(lambda: self.producer.reserve(held))
        if not self._current.grows:
            self._begin(current.messages.shape)
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
        messages: UniformMessages,
        start: int = 0,
        *,
        one_batch: bool = False,
    ) -> int:
        """Add a column of messages; without batching their fields are unbatched.

        Starts at index `start`, and ends after some messages or after `one_batch`; returns the
        index of the next message. Raises FailedAt for one that cannot be sent.
        """
        if not self._batching:
            return self._submit(messages, start, len(messages), 1)
        if not self.producer.max_payload:
            self.producer.open()
        with self._lock:
            while True:
                current = self._current
                if current.open and current.messages.shape != messages.shape:
                    current.seal()
                stop, per_entry, size = self._plan(messages, start, one_batch)
                if per_entry:
                    break
                if not (current.grows and current.messages.shape == messages.shape):
                    self._begin(messages.shape)
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

    def _plan(self, messages: UniformMessages, start: int, one_batch: bool) -> tuple[int, int, int]:
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
        is_one = not self._by_key or messages.keys is None or stop - start == 1
        return stop, stop - start if is_full and is_one and not current.open else 0, size

    def _append(self, part: UniformMessages, size: int, held: int) -> None:
        current = self._current
        current.ahead -= held
        current.messages.extend(part)
        current.open += len(part)
        current.open_bytes += size
        self.producer.unsent += len(part)

    def _submit(self, messages: UniformMessages, start: int, stop: int, per_entry: int) -> int:
        submission = Submission(messages.part(start, stop), per_entry=per_entry)
        try:
            self.producer.submit(submission)
        except (MessageTooLarge, InvalidRow) as error:
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

    def _fitting(self, messages: UniformMessages, start: int) -> tuple[int, int]:
        """Return where the part of the column ends that fits into the batch, and its bytes."""
        current = self._current
        stop = min(start + self._max_messages - current.open, len(messages))
        room = self._bound - current.open_bytes

        def held(stop: int) -> int:
            return messages.size(start, stop) + _OVERHEAD * (stop - start)

        if held(stop) > room:
            stop = bisect_right(range(stop + 1), room, start + 1, key=held) - 1
            # A message larger than any batch is accepted if it is the only one.
            if stop == start and not current.open:
                stop += 1
        return stop, held(stop)

    def _fit(self, messages: UniformMessages) -> bool:
        """Whether batches that are full by count are not too large."""
        most = self._max_messages
        edges = messages.edges()[::most]
        largest: int = max(map(sub, edges[1:], edges))
        return largest + _OVERHEAD * most <= self._bound
