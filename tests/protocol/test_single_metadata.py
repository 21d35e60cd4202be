"""Our code for SingleMessageMetadata against protobuf's parser and writer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import InvalidRow
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.single_metadata import (
    HEADS,
    KEY_HEADS,
    PAYLOAD_SIZES,
    encode_metadata,
)
from pulsar_spark.protocol.varints import encode_number

longs = st.integers(0, 2**63 - 1) | st.integers(0, 300)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 2**21, 2**28])
@pytest.mark.parametrize("sequence_id", [0, 127, 128, 2**62])
def test_heads_are_the_bytes_before_the_sequence_id(size: int, sequence_id: int) -> None:
    number = encode_number(sequence_id)
    metadata = pb.SingleMessageMetadata(payload_size=size, sequence_id=sequence_id)
    data = metadata.SerializeToString()
    assert HEADS[len(number)][size] + number == len(data).to_bytes(4, "big") + data
    metadata.partition_key = "k" * 200
    data = metadata.SerializeToString()
    behind = PAYLOAD_SIZES[size]
    before = KEY_HEADS[len(behind + number)][200]
    assert before + b"k" * 200 + behind + number == len(data).to_bytes(4, "big") + data


def test_remembered_heads_are_bounded() -> None:
    for size in range(10_000):
        HEADS[2][size]
        KEY_HEADS[2][size]
        PAYLOAD_SIZES[size]
    assert len(HEADS[2]) <= 4096
    assert len(KEY_HEADS[2]) <= 4096
    assert len(PAYLOAD_SIZES) <= 4096


@given(
    payload=st.none() | st.binary(max_size=200),
    sequence_id=longs,
    properties=st.lists(st.tuples(st.text(max_size=150), st.text(max_size=5)), max_size=3),
    key=st.none() | st.text(max_size=150),
    event_time=longs,
    key_is_base64=st.booleans(),
    ordering_key=st.none() | st.binary(max_size=150),
    null_key=st.booleans(),
)
def test_metadata_is_written_as_protobuf_writes_it(
    payload: bytes | None,
    sequence_id: int,
    properties: list[tuple[str, str]],
    key: str | None,
    event_time: int,
    key_is_base64: bool,
    ordering_key: bytes | None,
    null_key: bool,
) -> None:
    expected = pb.SingleMessageMetadata(
        properties=[pb.KeyValue(key=name, value=value) for name, value in properties],
        partition_key=key,
        payload_size=len(payload or b""),
        event_time=event_time or None,
        partition_key_b64_encoded=True if key_is_base64 and key is not None else None,
        ordering_key=ordering_key,
        sequence_id=sequence_id,
        null_value=True if payload is None else None,
        null_partition_key=null_key or None,
    )
    written = encode_metadata(
        payload,
        sequence_id,
        properties=properties,
        key=key,
        event_time=event_time,
        key_is_base64=key_is_base64,
        ordering_key=ordering_key,
        null_key=null_key,
    )
    assert written == expected.SerializeToString()


@pytest.mark.parametrize(
    "key, properties, event_time",
    [
        ("\ud83d", [], 0),
        ("k", [("\udc00", "v")], 0),
        ("k", [("n", "\udc00")], 0),
        ("k", [], -1),
        ("k", [], 2**63),
    ],
)
def test_values_that_the_wire_cannot_hold_are_refused(
    key: str, properties: list[tuple[str, str]], event_time: int
) -> None:
    with pytest.raises(InvalidRow):
        encode_metadata(
            b"",
            0,
            properties=properties,
            key=key,
            event_time=event_time,
            key_is_base64=False,
            ordering_key=None,
            null_key=False,
        )
