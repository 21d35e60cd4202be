"""Messages to send, made from what they have; and what columns of them have."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_spark.engine.producers.batch_accumulator import BatchAccumulator
from pulsar_spark.engine.producers.inflight_window import MessageCallback
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.producers.submission import Submission
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.outgoing_messages import (
    MessageFields,
    OutgoingMessages,
    encode_fields,
)


def outgoing(
    payloads: Sequence[bytes | None],
    keys: Sequence[str | bytes | None] | None = None,
    **others: Sequence[Any] | None,
) -> OutgoingMessages:
    """Return messages as columns; `others` are fields of MessageFields, in the plural.

    Keys of bytes become base64. Properties may be dicts.
    """
    names = {"properties": "properties", "event_times": "event_time", "deliver_at": "deliver_at",
             "ordering_keys": "ordering_key", "null_keys": "null_key"}  # fmt: skip
    own_ids = others.pop("sequence_ids", None)
    messages = [MessageFields(payload) for payload in payloads]
    for message, key in zip(messages, keys or (), strict=False):
        message.key = base64.b64encode(key).decode() if isinstance(key, bytes) else key
        message.key_is_base64 = isinstance(key, bytes)
    for name, column in others.items():
        for message, value in zip(messages, column or (), strict=column is not None):
            value = list(value.items()) if isinstance(value, dict) else value
            if value is not None:
                setattr(message, names[name], value)
    found = OutgoingMessages.of(messages)
    if own_ids is not None:
        found.sequence_ids = list(own_ids)
    return found


def single(
    payload: bytes | None, callback: MessageCallback | None = None, **fields: Any
) -> OutgoingMessages:
    """Return one message as columns."""
    found = OutgoingMessages.of([MessageFields(payload, **fields)])
    found.callbacks = None if callback is None else [callback]
    return found


def add(
    made: BatchAccumulator, message: MessageFields, callback: MessageCallback | None = None
) -> None:
    """Add a message as a PartitionedProducer does."""
    key, fields = encode_fields(message)
    payload, own_id = message.payload or b"", message.sequence_id
    made.add(payload, key, fields, own_id, callback, alone=message.goes_alone)


def send_batch(
    producer: TopicProducer, count: int, callback: MessageCallback | None = None
) -> None:
    """Send so many messages as one entry, which has one callback."""
    messages = OutgoingMessages([b"%d" % number for number in range(count)])
    producer.submit(Submission(messages, per_entry=count, default=callback))


def messages_in(messages: OutgoingMessages) -> list[MessageFields]:
    """Return the messages of columns."""
    return [_row(messages, index) for index in range(len(messages))]


def _row(messages: OutgoingMessages, index: int) -> MessageFields:
    fields = b"" if messages.fields is None else messages.fields[index]
    metadata = pb.MessageMetadata.FromString(b"\x0a\0\x10\0\x18\0" + fields)
    key = None if messages.keys is None else messages.keys[index]
    return MessageFields(
        None if metadata.null_value else messages.payloads[index],
        None if key is None else key.decode(),
        key_is_base64=metadata.partition_key_b64_encoded,
        ordering_key=metadata.ordering_key if metadata.HasField("ordering_key") else None,
        properties=[(pair.key, pair.value) for pair in metadata.properties],
        event_time=metadata.event_time,
        sequence_id=None if messages.sequence_ids is None else messages.sequence_ids[index],
        null_key=metadata.null_partition_key,
        deliver_at=metadata.deliver_at_time,
        replicate_to=tuple(metadata.replicate_to),
    )


def behind(first: int) -> Callable[[int], int]:
    """Return how messages are located whose first is that row."""
    return first.__add__
