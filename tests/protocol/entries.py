"""SENDs written by protobuf, field by field: what encoders are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_spark.engine.codecs import compress
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.frame_parts import parse_payload
from pulsar_spark.protocol.frames import encode_payload_command
from pulsar_spark.protocol.outgoing_messages import MessageFields
from tests.protocol.batch_bodies import encode_batch
from tests.support.frames import SingleFrames

NOW = 1_763_700_000_123


def expected_frame(
    messages: Sequence[MessageFields],
    first: int,
    *,
    producer: tuple[int, str] = (3, "p"),
    codec: int = pb.NONE,
    version: bytes = b"",
    txn: TxnId | None = None,
    by_highest: bool = False,
) -> bytes:
    """Return the frame of an entry of messages, whose ids count up if they have none."""
    message, last = messages[0], messages[-1]
    highest = first + len(messages) - 1 if last.sequence_id is None else last.sequence_id
    lowest = first if message.sequence_id is None else message.sequence_id
    is_batch = len(messages) > 1
    metadata = pb.MessageMetadata(
        producer_name=producer[1],
        sequence_id=highest if by_highest else lowest,
        publish_time=NOW,
        partition_key=message.key,
        partition_key_b64_encoded=message.key_is_base64 or None,
        ordering_key=message.ordering_key,
    )
    payload = message.payload or b""
    if is_batch:
        payload = encode_batch(messages, first)
        metadata.num_messages_in_batch = len(messages)
        metadata.highest_sequence_id = highest
    else:
        for name, value in message.properties:
            metadata.properties.add(key=name, value=value)
        if message.event_time:
            metadata.event_time = message.event_time
        if message.deliver_at:
            metadata.deliver_at_time = message.deliver_at
        metadata.replicate_to.extend(message.replicate_to)
        if message.payload is None:
            metadata.null_value = True
        if message.null_key:
            metadata.null_partition_key = True
    if version:
        metadata.schema_version = version
    if (txn := message.txn or txn) is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = txn.most_bits, txn.least_bits
    if codec != pb.NONE and payload:
        metadata.compression, metadata.uncompressed_size = codec, len(payload)
        payload = bytes(compress(codec, payload))
    command = commands.send(
        producer[0],
        metadata.sequence_id,
        len(messages),
        highest_sequence_id=highest if is_batch else None,
        txn=txn,
    )
    return b"".join(encode_payload_command(command, metadata.SerializeToString(), payload))


def parse_frame(data: bytes) -> tuple[pb.BaseCommand, bytes, bytes]:
    """Return command, metadata and payload of the only frame, as a broker reads it."""
    decoder = SingleFrames()
    decoder.receive_data(data)
    frame = decoder.next_frame()
    assert frame is not None
    assert frame.payload is not None
    assert decoder.buffered == 0
    parts = parse_payload(frame.payload)
    assert parts.checksum is not None
    return frame.command, bytes(parts.metadata_bytes), bytes(parts.payload)
