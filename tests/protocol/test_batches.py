"""Batches are read and written as protobuf does it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import (
    CorruptBatch,
    CorruptMessage,
)
from pulsar_spark.protocol import batches
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import message_key, unpack_batch

Metadata = pb.SingleMessageMetadata


def message(payload: bytes = b"", **fields: Any) -> bytes:
    """One message of a batch, written by protobuf."""
    metadata = Metadata(payload_size=len(payload), **fields).SerializeToString()
    return len(metadata).to_bytes(4, "big") + metadata + payload


def raw(metadata: str, payload: bytes = b"") -> bytes:
    """One message of a batch with the given metadata, in hex."""
    data = bytes.fromhex(metadata)
    return len(data).to_bytes(4, "big") + data + payload


metadata_fields = st.fixed_dictionaries(
    {},
    optional={
        "partition_key": st.text(max_size=10) | st.text(min_size=120, max_size=140),
        "sequence_id": st.integers(0, 2**64 - 1) | st.integers(0, 200),
        "event_time": st.integers(0, 2**64 - 1),
        "null_value": st.booleans(),
        "compacted_out": st.booleans(),
        "ordering_key": st.binary(max_size=5),
        "null_partition_key": st.booleans(),
        "properties": st.lists(
            st.builds(pb.KeyValue, key=st.text(max_size=5), value=st.text(max_size=5)), max_size=3
        ),
    },
)
contents_ = st.tuples(st.binary(max_size=20) | st.integers(0, 20_000).map(bytes), metadata_fields)


# --- reading: what a batch says about its messages --------------------------------------------


@given(st.lists(contents_, min_size=1, max_size=30), st.data())
def test_a_batch_unpacks_to_what_was_written(
    contents: list[tuple[bytes, dict[str, Any]]], data: st.DataObject
) -> None:
    body = b"".join(message(payload, **fields) for payload, fields in contents)
    payloads = [payload for payload, _ in contents]
    expected = [Metadata(payload_size=len(payload), **fields) for payload, fields in contents]
    count = len(contents)
    with pytest.MonkeyPatch.context() as patch:
        # Metadata of large batches is not kept, but parsed again.
        patch.setattr(batches, "_MOST_KEPT", data.draw(st.sampled_from([1, 7, 10_000])))
        batch = unpack_batch(memoryview(body) if data.draw(st.booleans()) else body, count)
    assert batch.payloads() == payloads
    assert batch.metadata() == expected
    assert [batch.payload(index) for index in range(count)] == payloads
    assert [batch.metadata_of(index) for index in range(count)] == expected
    assert list(batch.compacted) == [
        i for i, metadata in enumerate(expected) if metadata.compacted_out
    ]
    nulls = [metadata.null_value for metadata in expected]
    assert batch.values() == [
        None if is_null else payload for is_null, payload in zip(nulls, payloads, strict=True)
    ]
    first = data.draw(st.integers(0, count - 1))
    rows = range(first, data.draw(st.integers(first + 1, count)))
    assert batch.payloads(rows) == payloads[rows.start : rows.stop]
    assert batch.metadata(rows) == expected[rows.start : rows.stop]
    assert batch.end(count - 1) == len(body)
    assert batch.end(-1) == 0


@given(
    st.lists(st.integers(0, 40).map(bytes), min_size=1, max_size=20),
    st.integers(1, 20),
    st.integers(1, 200),
    st.integers(0, 30),
    st.data(),
)
def test_as_many_messages_fit_as_have_room(
    payloads: list[bytes], max_rows: int, max_bytes: int, row_size: int, data: st.DataObject
) -> None:
    parts = list(map(message, payloads))
    batch = unpack_batch(b"".join(parts), len(parts))
    first = data.draw(st.integers(0, len(parts) - 1))
    stop = data.draw(st.integers(first + 1, len(parts)))
    high, size = batch.fitting(first, stop, max_rows, max_bytes, row_size)
    sizes = [len(part) + row_size for part in parts]
    assert size == sum(sizes[first:high])
    assert first < high <= min(stop, first + max_rows)
    assert high == first + 1 or size <= max_bytes
    assert high == min(stop, first + max_rows) or sum(sizes[first : high + 1]) > max_bytes


@pytest.mark.fault(95)
def test_null_and_empty_values_and_removed_messages_differ() -> None:
    body = b"".join(
        [
            message(b"", sequence_id=0, partition_key="k"),
            message(b"", sequence_id=1, partition_key="k", null_value=True),
            message(b"", sequence_id=2, partition_key="k", compacted_out=True),
            message(b"x", sequence_id=3, null_value=False, compacted_out=False),
        ]
    )
    batch = unpack_batch(body, 4)
    assert batch.values() == [b"", None, b"", b"x"]
    assert list(batch.compacted) == [2]
    assert batch.payloads() == [b"", b"", b"", b"x"]


@pytest.mark.fault(95)
def test_keys_come_as_bytes_whatever_they_are_on_the_wire() -> None:
    body = b"".join(
        [
            message(b"a", sequence_id=1),
            message(b"b", sequence_id=2, partition_key=""),
            message(b"c", sequence_id=3, partition_key="clé😀\0"),
            message(b"d", sequence_id=4, partition_key="AAH+", partition_key_b64_encoded=True),
            message(b"e", sequence_id=5, partition_key="k" * 2**20),
            raw("1202fffe" + "1801", b"f"),
            raw("1202fffe" + "1801" + "4801", b"g"),
        ]
    )
    assert list(map(message_key, unpack_batch(body, 7).metadata())) == [
        None,
        b"",
        "clé😀\0".encode(),
        b"\x00\x01\xfe",
        b"k" * 2**20,
        b"\xff\xfe",
        b"\xff\xfe",
    ]


def test_a_key_that_is_not_the_base64_it_claims_to_be_is_an_error() -> None:
    body = message(b"x", partition_key="not base64!", partition_key_b64_encoded=True)
    batch = unpack_batch(body, 1)
    assert batch.payloads() == [b"x"]
    with pytest.raises(CorruptMessage, match="base64"):
        message_key(batch.metadata_of(0))


def test_the_key_of_a_single_message_is_found_the_same_way() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    assert message_key(metadata) is None
    metadata.partition_key = "AAH+"
    assert message_key(metadata) == b"AAH+"
    metadata.partition_key_b64_encoded = True
    assert message_key(metadata) == b"\x00\x01\xfe"


def test_large_messages_stay_views_of_the_frame() -> None:
    view = memoryview(message(bytes(100_000), sequence_id=1) * 2)
    batch = unpack_batch(view, 2)
    assert isinstance(batch.payload(0), memoryview)
    assert batch.payloads() == [bytes(100_000)] * 2


@pytest.mark.fault(92)
@pytest.mark.parametrize("size", [0, 1, 2])
def test_hundreds_of_thousands_of_tiny_messages_are_unpacked(size: int) -> None:
    count = 300_000
    batch = unpack_batch(message(bytes(size)) * count, count)
    assert batch.count == count
    assert batch.payload(count - 1) == bytes(size)
    assert batch.end(count - 1) == len(batch.body)


@pytest.mark.fault(92)
def test_a_message_with_50_000_properties_is_unpacked() -> None:
    pairs = [pb.KeyValue(key=f"name-{i}", value=str(i)) for i in range(50_000)]
    body = message(b"x", properties=pairs) + message(b"y")
    batch = unpack_batch(body, 2)
    assert list(batch.metadata_of(0).properties) == pairs
    assert batch.payloads() == [b"x", b"y"]


# --- reading: hostile bytes ---------------------------------------------------------------------

GOOD = message(b"hello", sequence_id=1)


@pytest.mark.fault(35, 36)
@pytest.mark.parametrize("count", [0, -1, -(2**31), 4, 100, 2**31 - 1])
def test_an_impossible_number_of_messages_is_refused(count: int) -> None:
    with pytest.raises(CorruptBatch):
        unpack_batch(GOOD * 3, count)


@pytest.mark.fault(35, 36)
def test_a_huge_number_of_messages_allocates_nothing() -> None:
    body = bytes(1000)
    tracemalloc.start()
    with pytest.raises(CorruptBatch, match="can hold"):
        unpack_batch(body, 2**31 - 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.fault(34, 35, 36)
@pytest.mark.parametrize(
    "body, count, reason",
    [
        (GOOD * 4 + bytes(30), 5, "required|damaged|bytes"),
        (GOOD * 5, 4, "follow"),
        (GOOD + b"\0", 1, "1 bytes follow"),
        (GOOD[:-1], 1, "ends after 4"),
        (GOOD + b"\0\0\0", 2, "ends before message 1 of 2"),
        (GOOD * 2 + b"\0\0\0", 3, "ends before message 2 of 3"),
        (b"\x7f\xff\xff\xff" + GOOD, 1, "metadata of message 0"),
        (b"\xff\xff\xff\xff" + GOOD, 1, "metadata of message 0"),
        (b"\0\0\0\0" + GOOD, 1, "lacks a required field"),
        (raw("4001", b"xx"), 1, "lacks a required field"),
        (raw("18ffffffffffffffffff01"), 1, "-1 bytes"),
        (raw("1880808080f8ffffffff01"), 1, "-2147483648 bytes"),
        (raw("18ffffffff07", b"x" * 10), 1, "ends after 10"),
        (raw("1806", b"12345"), 1, "ends after 5"),
        (raw("18"), 2, "more than its"),
        (raw("180540", b"12345"), 1, "damaged"),
        (raw("1805" + "40" + "ff" * 10 + "01", b"12345"), 1, "damaged"),
        (raw("0a020a00" + "1801", b"x"), 1, "lacks a required field"),
        (raw("1a01aa", b"x"), 1, "lacks a required field"),
        (raw("1801" + "0b" * 200, b"x"), 1, "damaged"),
        (raw("1801" + "07", b"x"), 1, "damaged"),
        (raw("1801" + "0001", b"x"), 1, "damaged"),
    ],
)
def test_damaged_bodies_are_refused_with_the_reason(body: bytes, count: int, reason: str) -> None:
    for data in (body, memoryview(body)):
        with pytest.raises(CorruptBatch, match=reason):
            unpack_batch(data, count)


@pytest.mark.fault(29)
def test_deeply_nested_groups_are_refused() -> None:
    body = raw("1801" + "63" * 10_000 + "64" * 10_000, b"x")
    with pytest.raises(CorruptBatch):
        unpack_batch(body, 1)


@pytest.mark.fault(30, 31)
def test_unknown_fields_are_skipped_and_the_last_of_repeated_ones_wins() -> None:
    body = raw("1809" + "f80601" + "1803", b"abc") + raw("1803", b"def")
    assert unpack_batch(body, 2).payloads() == [b"abc", b"def"]


@given(st.binary(max_size=200), st.integers(-1, 40))
def test_random_bytes_are_a_batch_or_refused(data: bytes, count: int) -> None:
    try:
        batch = unpack_batch(data, count)
    except CorruptMessage:
        return
    assert batch.end(count - 1) == len(data)


def test_a_body_beyond_32_bit_offsets_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(CorruptBatch, match="larger"):
        unpack_batch(Huge(), 1)
