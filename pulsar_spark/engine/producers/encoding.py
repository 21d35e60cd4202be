"""From messages to what the in-flight window holds: an entry, messages alone, or a column."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import sub

from pulsar_spark.engine.producers.inflight_window import PendingSends
from pulsar_spark.engine.producers.message_callbacks import MessageCallback, for_each
from pulsar_spark.protocol.outgoing_batches import (
    MessageFields,
    UniformMessages,
    encode_batch,
    encode_uniform_batch,
)
from pulsar_spark.protocol.send_encoder import (
    BLOCK_BYTES,
    BLOCK_MESSAGES,
    LARGE_ENTRY,
    SendEncoder,
    block_of,
    make_encoder,
)
from pulsar_spark.protocol.sends import (
    OutgoingEntry,
    SendLimits,
    encode_entry,
    encode_messages,
    single_entry,
    uniform_entry,
)


def _now() -> int:
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a producer's messages are encoded, fixed while its session lasts.

    Sequence ids count up from `first` in all methods.
    """

    limits: SendLimits
    encoder: SendEncoder

    @classmethod
    def of(cls, limits: SendLimits) -> Encoding:
        """Return the encoding with these limits."""
        encoder = make_encoder(
            limits.producer_id,
            limits.producer_name,
            limits.schema_version,
            limits.compression,
            limits.compress,
            limits.txn,
        )
        return cls(limits, encoder)

    @property
    def max_payload(self) -> int:
        """Bytes that a batch without compression and key may have."""
        return max(self.limits.max_message_size - self.encoder.overhead, 1)

    def entry(self, entry: OutgoingEntry, first: int) -> Iterator[PendingSends]:
        """Yield an entry's sends, several if it is chunked; raises as `encode_entry`."""
        if entry.sequence_ids is not None:
            first = entry.sequence_ids[0]
        for send in encode_entry(entry, first, self.limits, _now()):
            yield PendingSends(
                send.buffers,
                send.sequence_id,
                send.highest_sequence_id,
                send.num_messages,
                largest=send.size,
                callback=entry.callback if send.is_last else None,
                chunk=send.chunk,
            )

    def messages(
        self, messages: Sequence[MessageFields], start: int, most: int, first: int
    ) -> PendingSends | None:
        """Return the sends of at most `most` messages, each without a batch.

        None if the first one is unusual and must be sent as an entry.
        """
        if self.limits.entry_by_entry:
            return None
        part = messages[start : start + max(min(most, BLOCK_MESSAGES), 1)]
        data, ends = encode_messages(part, first, _now(), self.limits, BLOCK_BYTES)
        if not ends:
            return None
        return PendingSends(
            [data],
            first,
            first + len(ends) - 1,
            len(ends),
            ends=ends,
            per_entry=1,
            largest=min(max(map(sub, ends, [0, *ends])), self.limits.max_message_size),
        )

    def block(
        self,
        messages: UniformMessages,
        per_entry: int,
        start: int,
        most: int,
        first: int,
        callback: MessageCallback | None = None,
    ) -> PendingSends | None:
        """Return the sends of at most `most` messages of a column, or of one batch of `per_entry`.

        None if the first batch is unusual and must be sent as an entry. `callback` gets the result
        of messages that have no callbacks.
        """
        entry_stop = min(start + per_entry, len(messages))
        most = max(min(most, BLOCK_MESSAGES), entry_stop - start)
        stop, largest = block_of(messages, per_entry, start, most)
        in_batch = messages.fields is not None and not messages.unbatched
        if in_batch and stop > entry_stop and (stop - start) % per_entry == 1:
            # The last message alone is no batch, so it takes the careful path.
            stop -= 1
        # Fields of a batch are not those of an entry.
        alone = in_batch and 1 in (per_entry, stop - start)
        # `frame` writes no fields, so a large message with them is sent as an entry.
        alone = alone or (messages.unbatched and largest >= LARGE_ENTRY)
        if largest > self.max_payload or self.limits.entry_by_entry or alone:
            return None
        return self._column(messages.part(start, stop), first, per_entry, largest, callback)

    def _column(
        self,
        messages: UniformMessages,
        first: int,
        per_entry: int,
        largest: int,
        callback: MessageCallback | None,
    ) -> PendingSends:
        """Return the sends of a whole column; `largest` is the maximum size of a batch."""
        count, callbacks = len(messages), messages.callbacks or ()
        callback = None if callbacks else callback
        last, now = first + count - 1, _now()
        if largest < LARGE_ENTRY:
            data, ends = self.encoder.encode(
                messages.payloads, messages.keys, first, now, per_entry, messages.fields
            )
            return PendingSends(
                [data], first, last, count, ends=ends, per_entry=per_entry, largest=largest,
                callback=callback, callbacks=callbacks,
            )  # fmt: skip
        # The block is one entry, whose payload is not copied.
        body = messages.payloads[0]
        if count > 1:
            body = self.encoder.body(messages.payloads, messages.keys, first, messages.fields)
        key = None if messages.keys is None else messages.keys[0]
        head, payload = self.encoder.frame(body, first, now, key, count)
        return PendingSends(
            [head, payload], first, last, count, largest=largest, callback=callback,
            callbacks=callbacks,
        )  # fmt: skip


def entry_of(messages: UniformMessages, callback: MessageCallback | None) -> OutgoingEntry:
    """Return messages as one entry; `callback` gets the result if they have no callbacks."""
    if messages.callbacks is not None:
        callback = for_each(messages.callbacks, len(messages))
    return uniform_entry(messages, callback)


def mixed_entry(
    messages: list[MessageFields], callbacks: list[MessageCallback | None], by_key: bool
) -> OutgoingEntry:
    """Return messages with fields as one entry: a batch, or a single message without one."""
    first, last = messages[0], messages[-1]
    if len(messages) == 1:
        return single_entry(first, callbacks[0] if callbacks else None, None)
    entry = OutgoingEntry(
        lambda sequence_id: _encode(messages, sequence_id),
        num_messages=len(messages),
        partition_key=first.key,
        key_is_base64=first.key_is_base64,
        ordering_key=first.ordering_key,
        callback=for_each(callbacks, len(messages)),
    )
    if first.sequence_id is not None and last.sequence_id is not None:
        # Ids of batches by key overlap: such a batch is identified by its highest id alone, as in
        # Java.
        lowest = last.sequence_id if by_key else first.sequence_id
        entry.sequence_ids = (lowest, last.sequence_id)
    return entry


def _encode(messages: list[MessageFields], sequence_id: int) -> bytes:
    """Encode a batch, on the fast path if its messages allow it."""
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
