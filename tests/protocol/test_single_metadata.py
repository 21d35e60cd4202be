"""Our code for SingleMessageMetadata against protobuf's parser and writer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.single_metadata import (
    HEADS,
    KEY_HEADS,
    PAYLOAD_SIZES,
    is_sequence_id,
    layout_of,
)
from pulsar_spark.protocol.varints import encode_number

longs = st.integers(0, 2**63 - 1) | st.integers(0, 300)


@pytest.mark.parametrize(
    "field, expected",
    [
        ("4000", True),
        ("407f", True),
        ("408001", True),
        ("40" + "ff" * 8 + "7f", True),
        ("40" + "ff" * 9 + "01", False),
        ("", False),
        ("40", False),
        ("4080", False),
        ("40ff0001", False),
        ("400001", False),
        ("4800", False),
    ],
)
def test_a_sequence_id_is_one_tag_and_one_number(field: str, expected: bool) -> None:
    assert is_sequence_id(bytes.fromhex(field)) is expected


@given(
    st.none() | st.text(max_size=30),
    st.integers(0, 20_000),
    st.none() | st.integers(0, 2**62),
    st.none() | st.just(False),
    st.binary(max_size=5),
)
def test_the_usual_shapes_are_recognised(
    key: str | None, size: int, sequence_id: int | None, is_base64: bool | None, behind: bytes
) -> None:
    metadata = pb.SingleMessageMetadata(
        payload_size=size,
        partition_key=key,
        partition_key_b64_encoded=is_base64,
        sequence_id=sequence_id,
    ).SerializeToString()
    layout = layout_of(len(metadata).to_bytes(4, "big") + metadata + behind)
    encoded_key = (key or "").encode()
    if size >= 2**14 or len(encoded_key) >= 128:
        assert layout is None
        return
    assert layout is not None
    assert layout.has_key == (key is not None)
    assert layout.key_end - layout.key_at == len(encoded_key)
    assert layout.start == 4 + len(metadata)
    assert layout.stop == layout.start + size
    digits = 0 if sequence_id is None else len(encode_number(sequence_id))
    assert layout.start - layout.digits_at == digits


@given(st.binary(max_size=30))
def test_any_bytes_have_a_layout_or_none(data: bytes) -> None:
    layout = layout_of(data)
    assert layout is None or 4 <= layout.key_at <= layout.key_end <= layout.digits_at


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
