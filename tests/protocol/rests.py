"""Metadata behind the publish time, and how protobuf reads it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.entry_metadata import Metadata, Rest

REQUIRED: dict[str, Any] = {"producer_name": "", "sequence_id": 0, "publish_time": 0}
BEFORE = pb.MessageMetadata(**REQUIRED).SerializeToString()


def rest(*pairs: tuple[str, str], **fields: Any) -> bytes:
    """Return metadata without what precedes the properties."""
    found = pb.MessageMetadata(**REQUIRED, **fields)
    found.properties.extend(pb.KeyValue(key=name, value=value) for name, value in pairs)
    data = found.SerializeToString()
    assert data.startswith(BEFORE)
    return data[len(BEFORE) :]


def expected(data: bytes) -> Rest:
    """Return what protobuf reads."""
    found = pb.MessageMetadata.FromString(BEFORE + data)
    pairs = {_bytes(pair.key): _bytes(pair.value) for pair in found.properties}
    key = _bytes(found.partition_key) if found.HasField("partition_key") else None
    origin = _bytes(found.replicated_from) if found.HasField("replicated_from") else None
    ordering_key = found.ordering_key if found.HasField("ordering_key") else None
    messages = found.num_messages_in_batch if found.HasField("num_messages_in_batch") else 0
    shared = Metadata(
        False,
        found.compression,
        found.uncompressed_size,
        messages,
        int(found.partition_key_b64_encoded),
        ordering_key,
        int(found.null_value),
        found.schema_version,
        origin,
    )
    return shared, tuple(pairs), tuple(pairs.values()), key, found.event_time


def as_expected(found: Rest) -> Rest:
    return found[0]._replace(is_rare=False), *found[1:]


def _bytes(text: str | bytes) -> bytes:
    # Protobuf returns bytes if a string is not UTF-8.
    return text.encode() if isinstance(text, str) else text


texts = st.sampled_from(["", "a", "b", "é", "name", "x" * 127, "x" * 128, "y" * 300])
any_rest = st.builds(
    lambda pairs, fields: rest(*pairs, **fields),
    st.lists(st.tuples(texts, texts), max_size=3),
    st.fixed_dictionaries(
        {},
        optional={
            "partition_key": texts,
            "partition_key_b64_encoded": st.booleans(),
            "event_time": st.sampled_from([0, 1, 127, 128, 300, 2**14, 2**40 + 5, 2**62]),
            "replicated_from": texts,
            "replicate_to": st.lists(texts, max_size=2),
            "compression": st.sampled_from([pb.NONE, pb.LZ4]),
            "uncompressed_size": st.sampled_from([0, 5, 2**31 - 1]),
            "num_messages_in_batch": st.sampled_from([1, 300]),
            "schema_version": st.sampled_from([b"", bytes(8), bytes(200)]),
            "ordering_key": st.sampled_from([b"", b"o", b"\xff" * 70]),
            "null_value": st.booleans(),
        },
    ),
)
