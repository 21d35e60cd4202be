"""Batches in the making: one per topic partition, filled by messages or by columns of them."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.outgoing import OutgoingEntry
from pulsar_spark.engine.producer import Producer
from pulsar_spark.errors import MessageTooLarge, PulsarError
from pulsar_spark.protocol.batches import MessageFields, encode_batch, encode_uniform_batch
from pulsar_spark.protocol.message_id import MessageId

MessageCallback = Callable[[PulsarError | None, MessageId | None], None]
"""Called once per message: with an error, or with its id."""

logger = logging.getLogger(__name__)

# About what a message needs in a batch besides payload, key and properties.
_OVERHEAD = 16
# Messages without a batch that are written to the connection together.
_SINGLES = 64


class DeferredCallback:
    """A MessageCallback that runs elsewhere: `run` takes a function and calls it there.

    The messages of an entry are told in one go.
    """

    __slots__ = ("callback", "run")

    def __init__(
        self, callback: MessageCallback, run: Callable[[Callable[[], object]], object]
    ) -> None:
        self.callback = callback
        self.run = run

    def __call__(self, error: PulsarError | None, message_id: MessageId | None) -> None:
        self.run(lambda: self.callback(error, message_id))


@dataclass(frozen=True, slots=True)
class Solo:
    """What only a message outside of a batch can have; one that has any of it is sent alone."""

    deliver_at: int = 0
    replicate_to: tuple[str, ...] = ()


class BatchAccumulator:
    """Collects the messages of one partition and hands full batches to its producer.

    A batch is full at `batching_max_messages` or `batching_max_bytes`; `max_bytes` can lower
    the latter. A message that does not fit goes into the next one, and alone if it is larger.
    Without batching every message is sent by itself. Thread-safe; blocks where `Producer.send`
    does. What that raises, and the messages of the batch are not sent then, goes to their
    callbacks, or is raised if they have none.
    """

    def __init__(
        self, producer: Producer, options: ProducerOptions, max_bytes: int | None = None
    ) -> None:
        self.producer = producer
        self._max_messages = options.batching_max_messages if options.batching_enabled else 1
        self._max_bytes = max_bytes or options.batching_max_bytes
        self._batching = options.batching_enabled
        # The following are guarded by _lock, which is held while a batch is sent: the order of
        # the messages is the order of the batches.
        self._lock = threading.RLock()
        self._size = 0
        self._count = 0
        # A batch is either uniform, a column of payloads and one of keys, or it is mixed.
        self._payloads: list[bytes] = []
        self._keys: list[bytes] | None = None
        self._mixed: list[MessageFields] = []
        self._callbacks: list[MessageCallback | None] = []

    @property
    def count(self) -> int:
        """Messages in the batch that is being filled."""
        return self._count

    def add(
        self,
        message: MessageFields,
        callback: MessageCallback | None = None,
        solo: Solo | None = None,
    ) -> None:
        """Add one message; the batch is sent if it is full then."""
        with self._lock:
            if solo is not None or not self._batching:
                self.flush()
                self._send_single(message, callback, solo)
                return
            size = message_size(message)
            if self._count and not self._takes(message, size):
                self.flush()
            self._become_mixed()
            self._mixed.append(message)
            if callback is not None:
                self._callbacks += [None] * (self._count - len(self._callbacks))
                self._callbacks.append(callback)
            self._count += 1
            self._size += size
            self._flush_if_full()

    def extend(
        self, payloads: Sequence[bytes], keys: Sequence[bytes] | None = None, start: int = 0
    ) -> int:
        """Add a column of messages that have a payload and maybe a string key (in UTF-8).

        Goes on from index `start` until the batch is full and sent, or the column ends, and
        returns the index of the next message. Without batching, some messages are sent.
        """
        if not self._batching:
            return self._send_singles(payloads, keys, start)
        with self._lock:
            if self._mixed or (self._count and (keys is None) != (self._keys is None)):
                self.flush()
            stop = min(start + self._max_messages - self._count, len(payloads))
            part = payloads[start:stop]
            size = sum(map(len, part)) + _OVERHEAD * len(part)
            if keys is not None:
                size += sum(map(len, keys[start:stop]))
            if self._size + size > self._max_bytes:
                stop, size = self._fitting(payloads, keys, start, stop)
                part = payloads[start:stop]
            self._payloads += part
            if keys is not None:
                self._keys = [*(self._keys or ()), *keys[start:stop]]
            self._count += len(part)
            self._size += size
            if stop < len(payloads):
                self.flush()
            else:
                self._flush_if_full()
            return stop

    def flush(self) -> None:
        """Send what there is."""
        with self._lock:
            if not self._count:
                return
            messages = self._mixed or None
            payloads, keys, callbacks = self._payloads, self._keys, self._callbacks
            self._payloads, self._keys, self._mixed, self._callbacks = [], None, [], []
            self._count = self._size = 0
            if messages is not None:
                self._send_mixed(messages, callbacks)
            else:
                self._send_uniform(payloads, keys)

    def discard(self, error: PulsarError) -> None:
        """Drop what there is, and tell its callbacks why."""
        with self._lock:
            callbacks = self._callbacks
            self._payloads, self._keys, self._mixed, self._callbacks = [], None, [], []
            self._count = self._size = 0
        for callback in callbacks:
            if callback is not None:
                callback(error, None)

    # --- filling ------------------------------------------------------------------------------

    def _takes(self, message: MessageFields, size: int) -> bool:
        if self._size + size > self._max_bytes:
            return False
        # Ids that the user chose must grow within a batch, which is known by its lowest and
        # highest.
        if message.sequence_id is None:
            return not self._mixed or self._mixed[-1].sequence_id is None
        last = self._mixed[-1].sequence_id if self._mixed else None
        return last is not None and message.sequence_id > last

    def _become_mixed(self) -> None:
        if self._payloads:
            self._mixed = [MessageFields(payload) for payload in self._payloads]
            for message, key in zip(self._mixed, self._keys or (), strict=False):
                message.key = key.decode()
            self._payloads, self._keys = [], None

    def _flush_if_full(self) -> None:
        if self._count >= self._max_messages or self._size >= self._max_bytes:
            self.flush()

    def _fitting(
        self, payloads: Sequence[bytes], keys: Sequence[bytes] | None, start: int, stop: int
    ) -> tuple[int, int]:
        """Return up to where the column fits into the batch, and the bytes of that."""
        room = self._max_bytes - self._size
        taken = 0
        for index in range(start, stop):
            size = len(payloads[index]) + _OVERHEAD + (0 if keys is None else len(keys[index]))
            # A message larger than any batch is let in where it is the only one.
            if taken + size > room and (self._count or index > start):
                return index, taken
            taken += size
        return stop, taken

    # --- sending ------------------------------------------------------------------------------

    def _send_uniform(self, payloads: list[bytes], keys: list[bytes] | None) -> None:
        if len(payloads) == 1:
            key = None if keys is None else keys[0].decode()
            self._send_single(MessageFields(payloads[0], key), None, None)
            return
        entry = OutgoingEntry(
            lambda first: encode_uniform_batch(payloads, first, keys),
            num_messages=len(payloads),
            partition_key=None if keys is None else keys[0].decode(),
        )
        try:
            self._send(entry)
        except MessageTooLarge:
            half = len(payloads) // 2
            self._send_uniform(payloads[:half], None if keys is None else keys[:half])
            self._send_uniform(payloads[half:], None if keys is None else keys[half:])

    def _send_singles(
        self, payloads: Sequence[bytes], keys: Sequence[bytes] | None, start: int
    ) -> int:
        """Send messages one by one, but written together; return the index of the next one."""
        stop, size = start, 0
        while stop < len(payloads) and stop - start < _SINGLES and size < self._max_bytes:
            size += len(payloads[stop])
            stop += 1
        part = payloads[start:stop]
        if keys is None:
            entries = [OutgoingEntry(payload) for payload in part]
        else:
            entries = [
                OutgoingEntry(payload, partition_key=key.decode())
                for payload, key in zip(part, keys[start:stop], strict=True)
            ]
        with self._lock:
            self.producer.send_many(entries)
        return stop

    def _send_mixed(
        self, messages: list[MessageFields], callbacks: list[MessageCallback | None]
    ) -> None:
        first, last = messages[0], messages[-1]
        if len(messages) == 1:
            self._send_single(first, callbacks[0] if callbacks else None, None)
            return
        entry = OutgoingEntry(
            lambda sequence_id: _encode(messages, sequence_id),
            num_messages=len(messages),
            partition_key=first.key,
            key_is_base64=first.key_is_base64,
            ordering_key=first.ordering_key,
            callback=_for_each(callbacks, len(messages)) if callbacks else None,
        )
        if first.sequence_id is not None and last.sequence_id is not None:
            entry.sequence_ids = (first.sequence_id, last.sequence_id)
        try:
            self._send(entry)
        except MessageTooLarge:
            half = len(messages) // 2
            self._send_mixed(messages[:half], callbacks[:half])
            self._send_mixed(messages[half:], callbacks[half:])

    def _send_single(
        self, message: MessageFields, callback: MessageCallback | None, solo: Solo | None
    ) -> None:
        entry = OutgoingEntry(
            message.payload or b"",
            partition_key=message.key,
            key_is_base64=message.key_is_base64,
            null_key=message.null_key,
            ordering_key=message.ordering_key,
            properties=message.properties,
            event_time=message.event_time,
            null_value=message.payload is None,
            callback=callback,
        )
        if solo is not None:
            entry.deliver_at = solo.deliver_at
            entry.replicate_to = solo.replicate_to
        if message.sequence_id is not None:
            entry.sequence_ids = (message.sequence_id, message.sequence_id)
        self._send(entry)

    def _send(self, entry: OutgoingEntry) -> None:
        try:
            self.producer.send(entry)
        except PulsarError as error:
            # Of a batch that is too large, the messages may still fit one by one.
            can_split = isinstance(error, MessageTooLarge) and entry.count > 1
            if entry.callback is None or can_split:
                raise
            entry.callback(error, None)


def message_size(message: MessageFields) -> int:
    """Return about how many bytes a message takes in a batch."""
    size = len(message.payload or b"") + len(message.key or "") + len(message.ordering_key or b"")
    for name, value in message.properties:
        size += len(name) + len(value) + _OVERHEAD
    return size + _OVERHEAD


def _encode(messages: list[MessageFields], sequence_id: int) -> bytes:
    """Return the body of a batch, by the fast way where its messages allow that."""
    plain = all(map(_is_plain, messages))
    keys = [message.key for message in messages if message.key is not None]
    if plain and len(keys) in (0, len(messages)):
        payloads = [message.payload or b"" for message in messages]
        with contextlib.suppress(UnicodeEncodeError):
            encoded = [key.encode() for key in keys] if keys else None
            return encode_uniform_batch(payloads, sequence_id, encoded)
    return encode_batch(messages, sequence_id).payload


def _is_plain(message: MessageFields) -> bool:
    return (
        message.payload is not None
        and not message.key_is_base64
        and message.ordering_key is None
        and not message.properties
        and not message.event_time
        and message.sequence_id is None
        and not message.null_key
    )


def _for_each(callbacks: list[MessageCallback | None], count: int) -> MessageCallback:
    """Return a callback for an entry that tells each message of it."""

    def tell(
        chosen: list[tuple[int, MessageCallback]],
        error: PulsarError | None,
        entry: MessageId | None,
    ) -> None:
        for index, callback in chosen:
            own = entry
            if entry is not None and entry.ledger_id >= 0:
                own = MessageId(entry.ledger_id, entry.entry_id, entry.partition, index, count)
            try:
                callback(error, own)
            except Exception:
                logger.exception("the callback of a message failed")

    def complete(error: PulsarError | None, entry: MessageId | None) -> None:
        now: list[tuple[int, MessageCallback]] = []
        later: list[tuple[int, MessageCallback]] = []
        run = None
        for index, callback in enumerate(callbacks):
            if isinstance(callback, DeferredCallback):
                run = callback.run
                later.append((index, callback.callback))
            elif callback is not None:
                now.append((index, callback))
        if run is not None:
            run(lambda: tell(later, error, entry))
        tell(now, error, entry)

    return complete
