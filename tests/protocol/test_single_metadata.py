"""Our code for SingleMessageMetadata against protobuf's parser and writer."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.single_metadata import (
    HEADS,
    KEY_HEADS,
    PAYLOAD_SIZES,
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
