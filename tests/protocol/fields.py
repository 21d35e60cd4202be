"""Fields of messages, as `UniformMessages` has them."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_spark.protocol import pulsar_api_pb2 as pb


def unbatched_fields(
    properties: Sequence[tuple[str, str]], key: str | None, event_time: int
) -> bytes:
    """Return properties, key and event time as entries have them."""
    pairs = [pb.KeyValue(key=name, value=value) for name, value in properties]
    found = pb.MessageMetadata(properties=pairs)
    if key is not None:
        found.partition_key = key
    if event_time:
        found.event_time = event_time
    return found.SerializePartialToString()
