"""Turns messages into the in-flight window's sends: an entry, single messages, or a column."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from operator import sub

from pulsar_spark.engine.producers.inflight_window import PendingSends
from pulsar_spark.protocol.batches import MessageFields, UniformMessages
from pulsar_spark.protocol.sends import (
    BLOCK_BYTES,
    LARGE_ENTRY,
    OutgoingEntry,
    SendEncoder,
    SendLimits,
    encode_entry,
    encode_messages,
)


def _now() -> int:
    return int(time.time() * 1000)


def entry_sends(entry: OutgoingEntry, first: int, limits: SendLimits) -> Iterator[PendingSends]:
    """Yield an entry's sends, several if it is chunked; raises as `encode_entry`."""
    for send in encode_entry(entry, first, limits, _now()):
        yield PendingSends(
            send.buffers,
            send.sequence_id,
            send.highest_sequence_id,
            send.num_messages,
            largest=send.size,
            callback=entry.callback if send.is_last else None,
            chunk=send.chunk,
        )


def message_sends(
    messages: Sequence[MessageFields], first: int, limits: SendLimits
) -> PendingSends | None:
    """Return the sends of as many messages as fit together, each without a batch.

    None if the first one is unusual and must be sent as an entry.
    """
    if limits.entry_by_entry:
        return None
    data, ends = encode_messages(messages, first, _now(), limits, BLOCK_BYTES)
    if not ends:
        return None
    return PendingSends(
        [data],
        first,
        first + len(ends) - 1,
        len(ends),
        ends=ends,
        per_entry=1,
        largest=min(max(map(sub, ends, [0, *ends])), limits.max_message_size),
    )


def column_sends(
    messages: UniformMessages, first: int, per_entry: int, encoder: SendEncoder, largest: int
) -> PendingSends:
    """Return the sends of a whole column, in batches of `per_entry`; `largest` is their maximum."""
    count = len(messages)
    last, now = first + count - 1, _now()
    if largest < LARGE_ENTRY:
        data, ends = encoder.encode(
            messages.payloads, messages.keys, first, now, per_entry, messages.fields
        )
        return PendingSends(
            [data], first, last, count, ends=ends, per_entry=per_entry, largest=largest
        )
    # The block is one entry, whose payload is not copied.
    body = messages.payloads[0]
    if count > 1:
        body = encoder.body(messages.payloads, messages.keys, first, messages.fields)
    key = None if messages.keys is None else messages.keys[0]
    head, payload = encoder.frame(body, first, now, key, count)
    return PendingSends([head, payload], first, last, count, largest=largest)
