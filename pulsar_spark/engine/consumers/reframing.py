"""An opened entry in a usual frame, so that the decoder of blocks takes it like any other.

Entries that need opening (`entries`) are decrypted, decompressed, and whole. What else a decoder
may leave to be opened is laid out anew: fields in their usual order, none that it does not read.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any

from pulsar_spark.errors import CorruptMessage, PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import UnpackedBatch, message_key
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.frames import encode_payload_command
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.validation import as_text

_U32 = Struct(">I")


def usual_frames(entry: ReceivedEntry) -> Iterator[bytes]:
    """Yield an entry's frame, then one in which its batch, too, is laid out anew.

    The second one is for a decoder that does not take the first. If it takes neither, this raises
    what is wrong with the entry: CorruptMessage or CorruptBatch, with its topic and id.
    """
    try:
        yield _frame(entry, entry.payload)
        messages: Sequence[pb.MessageMetadata | pb.SingleMessageMetadata] = [entry.metadata]
        if entry.is_batch:
            batch = entry.unpack()
            yield _frame(entry, _laid_out(batch))
            messages = batch.metadata()
        for own in messages:
            message_key(own)
        raise CorruptMessage("an entry has fields that do not fit into a row")
    except PulsarError as error:
        raise error.with_context(topic=entry.topic, message_id=entry.message_id()) from None


def _frame(entry: ReceivedEntry, payload: Buffer) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    message = command.message
    message.consumer_id = 0
    message.redelivery_count = entry.redelivery_count % 2**32
    place = MessageIdAdv(entry.ledger_id, entry.entry_id, first_chunk=entry.first_chunk)
    message.message_id.CopyFrom(place.to_pb())
    stamp = None
    if entry.index is not None:
        stamp = pb.BrokerEntryMetadata(index=entry.index).SerializeToString()
    metadata = _metadata(entry).SerializeToString()
    return b"".join(encode_payload_command(command, metadata, payload, broker_entry_metadata=stamp))


def _metadata(entry: ReceivedEntry) -> pb.MessageMetadata:
    """Return what rows have of an entry's metadata."""
    told = entry.metadata
    made = pb.MessageMetadata(
        producer_name=as_text(told.producer_name),
        sequence_id=told.sequence_id,
        publish_time=told.publish_time,
        schema_version=told.schema_version or None,
    )
    if told.HasField("replicated_from"):
        made.replicated_from = as_text(told.replicated_from)
    if entry.is_batch:
        made.num_messages_in_batch = told.num_messages_in_batch
    else:
        _fill(made, told)
    return made


def _laid_out(batch: UnpackedBatch) -> bytes:
    """Return a batch's body with what rows have of its messages' metadata."""
    parts: list[Buffer] = []
    for told, payload in zip(batch.metadata(), batch.payloads(), strict=True):
        made = pb.SingleMessageMetadata(
            payload_size=len(payload),
            compacted_out=told.compacted_out or None,
            sequence_id=told.sequence_id if told.HasField("sequence_id") else None,
        )
        _fill(made, told)
        encoded = made.SerializeToString()
        parts += [_U32.pack(len(encoded)), encoded, payload]
    return b"".join(parts)


def _fill(made: Any, told: Any) -> None:
    """Copy what a message has of its own, in a batch or outside of one."""
    for pair in told.properties:
        made.properties.add(key=as_text(pair.key), value=as_text(pair.value))
    if told.HasField("partition_key"):
        key = told.partition_key
        made.partition_key_b64_encoded = told.partition_key_b64_encoded or isinstance(key, bytes)
        if isinstance(key, bytes) and not told.partition_key_b64_encoded:
            key = b64encode(key)
        made.partition_key = as_text(key)
    if told.HasField("ordering_key"):
        made.ordering_key = told.ordering_key
    if told.event_time:
        made.event_time = told.event_time
    if told.null_value:
        made.null_value = True
