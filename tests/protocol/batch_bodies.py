"""Bodies of batches written by protobuf: what the fast paths are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.outgoing_batches import MessageFields


def encode_batch(messages: Sequence[MessageFields], first_sequence_id: int) -> bytes:
    """Return a batch's body; ids that messages lack count up from `first_sequence_id`."""
    parts: list[bytes] = []
    for number, message in enumerate(messages, first_sequence_id):
        payload = message.payload or b""
        metadata = pb.SingleMessageMetadata(
            payload_size=len(payload),
            partition_key=message.key,
            ordering_key=message.ordering_key,
            sequence_id=number if message.sequence_id is None else message.sequence_id,
        )
        for name, value in message.properties:
            metadata.properties.add(key=name, value=value)
        # As producers do: what is not set is left out.
        for name in ("event_time", "null_key", "key_is_base64"):
            if own := getattr(message, name):
                setattr(metadata, _NAMES.get(name, name), own)
        if message.payload is None:
            metadata.null_value = True
        data = metadata.SerializeToString()
        parts += [len(data).to_bytes(4, "big"), data, payload]
    return b"".join(parts)


_NAMES = {"null_key": "null_partition_key", "key_is_base64": "partition_key_b64_encoded"}
