"""Bodies of batches written by protobuf: what the fast paths are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.outgoing_messages import MessageFields


def encode_batch(messages: Sequence[MessageFields], first_sequence_id: int) -> bytes:
    """Return a batch's body; ids that messages lack count up from `first_sequence_id`."""
    parts: list[bytes] = []
    for number, message in enumerate(messages, first_sequence_id):
        data = metadata_of(message, number)
        parts += [len(data).to_bytes(4, "big"), data, message.payload or b""]
    return b"".join(parts)


def metadata_of(message: MessageFields, sequence_id: int) -> bytes:
    """Return a message's metadata in a batch; its own sequence id, if any, wins."""
    metadata = pb.SingleMessageMetadata(
        properties=[pb.KeyValue(key=name, value=value) for name, value in message.properties],
        partition_key=message.key,
        payload_size=len(message.payload or b""),
        # As producers do: what is not set is left out.
        event_time=message.event_time or None,
        partition_key_b64_encoded=message.key_is_base64 or None,
        ordering_key=message.ordering_key,
        sequence_id=sequence_id if message.sequence_id is None else message.sequence_id,
        null_value=True if message.payload is None else None,
        null_partition_key=message.null_key or None,
    )
    return metadata.SerializeToString()
