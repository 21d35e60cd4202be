"""Batches: the fast paths of reading and writing give the same as protobuf."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import (
    CorruptBatch,
    CorruptMessage,
    InvalidRow,
    LocalProtocolError,
    WrongType,
)
from pulsar_spark.protocol import batches
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import UnpackedBatch, message_key, unpack_batch, unpack_batches
from pulsar_spark.protocol.outgoing_batches import (
    MessageFields,
    UniformMessages,
    encode_fields,
    encode_numbered_batch,
    encode_uniform_batch,
    key_field,
)
from tests.protocol.batch_bodies import encode_batch

Metadata = pb.SingleMessageMetadata


def message(payload: bytes = b"", **fields: Any) -> bytes:
    """One message of a batch, written by protobuf."""
    metadata = Metadata(payload_size=len(payload), **fields).SerializeToString()
    return len(metadata).to_bytes(4, "big") + metadata + payload


def raw(metadata: str, payload: bytes = b"") -> bytes:
    """One message of a batch with the given metadata, in hex."""
    data = bytes.fromhex(metadata)
    return len(data).to_bytes(4, "big") + data + payload


def carefully(body: bytes, count: int) -> UnpackedBatch:
    return batches._unpack_carefully(body, count, True)


def quickly(body: bytes, count: int) -> UnpackedBatch:
    return unpack_batch(body, count, with_metadata=True)


def assert_same(batch: UnpackedBatch, expected: UnpackedBatch) -> None:
    assert batch.count == expected.count
    assert batch.edges.tolist() == expected.edges.tolist()
    assert batch.nulls == expected.nulls
    assert batch.compacted == expected.compacted
    assert batch.keys() == expected.keys()
    assert batch.metadata() == expected.metadata()
    assert [batch.metadata_of(index) for index in range(batch.count)] == expected.metadata()
    for index, metadata in expected.extras().items():
        if index in batch.extras():
            assert batch.extras()[index] == metadata
        else:
            names = {field.name for field, _ in metadata.ListFields()}
            assert names <= {"payload_size", "partition_key", "sequence_id"}
    opened = batch.opened(range(batch.count))
    if opened is None:
        return
    assert list(opened) == list(batch.extras())
    for index, (texts, values, key, payload_size, event_time) in opened.items():
        metadata = expected.metadata_of(index)
        # Protobuf returns bytes if a string is not UTF-8.
        pairs = {_bytes(pair.key): _bytes(pair.value) for pair in metadata.properties}
        assert (texts, values) == (tuple(pairs), tuple(pairs.values()))
        assert key == (expected.keys() or [None] * batch.count)[index]
        assert payload_size == metadata.payload_size
        assert event_time == metadata.event_time
        names = {field.name for field, _ in metadata.ListFields()}
        assert names.isdisjoint({"ordering_key", "null_value", "compacted_out"})
        assert not metadata.partition_key_b64_encoded


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


# --- reading: the fast ways and protobuf agree ----------------------------------------------

payloads_ = st.binary(max_size=20) | st.integers(0, 20_000).map(bytes)
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
usual_fields = st.fixed_dictionaries(
    {},
    optional={
        "partition_key": st.text(max_size=10),
        "sequence_id": st.integers(0, 2**64 - 1) | st.integers(0, 200),
    },
)
messages_ = st.builds(
    lambda payload, fields: message(payload, **fields), payloads_, metadata_fields | usual_fields
)


@given(st.lists(messages_, min_size=1, max_size=30))
def test_mixed_batches_unpack_as_with_protobuf(parts: list[bytes]) -> None:
    body = b"".join(parts)
    expected = carefully(body, len(parts))
    assert_same(unpack_batch(body, len(parts), with_metadata=True), expected)
    plain = unpack_batch(memoryview(body), len(parts), with_metadata=False)
    assert plain.edges == expected.edges
    assert (plain.nulls, plain.compacted) == (expected.nulls, expected.compacted)
    assert plain.keys() is None
    assert plain.extras() == {}


@given(st.lists(messages_, min_size=1, max_size=30), st.data())
def test_large_batches_read_metadata_again_and_find_the_same(
    parts: list[bytes], data: st.DataObject
) -> None:
    body, count = b"".join(parts), len(parts)
    expected = carefully(body, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "_MOST_KEPT", data.draw(st.sampled_from([1, 2, 7])))
        large = quickly(body, count)
    assert_same(large, expected)
    first = data.draw(st.integers(0, count - 1))
    rows = range(first, data.draw(st.integers(first + 1, count)))
    some = data.draw(st.lists(st.sampled_from(rows), unique=True).map(sorted))
    for part in (rows, some):
        assert large.values(part) == expected.values(part)
        assert large.sizes(part) == expected.sizes(part)
        assert large.metadata(part) == expected.metadata(part)
        no_keys = [None] * len(part)
        assert (large.keys(part) or no_keys) == (expected.keys(part) or no_keys)
        assert set(large.extras(part)) <= set(part)
        assert all(found == expected.metadata_of(row) for row, found in large.extras(part).items())
    assert list(large.left(rows)) == [row for row in rows if row not in expected.compacted]
    opened = large.opened(rows)
    assert opened is None or set(opened) == set(large.extras(rows))


@given(
    st.integers(1, 5) | st.sampled_from([10, 64, 65, 100]),
    st.integers(0, 300),
    st.none() | st.integers(0, 20),
    st.none() | st.sampled_from([0, 100, 128, 16_300, 2**40, 2**63]),
    st.randoms(use_true_random=False),
)
def test_even_batches_unpack_as_with_protobuf(
    count: int, size: int, key_size: int | None, sequence_id: int | None, rng: random.Random
) -> None:
    body = b"".join(
        message(
            rng.randbytes(size),
            partition_key=None if key_size is None else "".join(rng.choices("ab", k=key_size)),
            sequence_id=None if sequence_id is None else sequence_id + index,
        )
        for index in range(count)
    )
    batch = unpack_batch(body, count, with_metadata=True)
    assert_same(batch, carefully(body, count))


def outcome(body: bytes, count: int, careful: bool) -> tuple[Any, ...] | type[Exception]:
    try:
        batch = carefully(body, count) if careful else quickly(body, count)
    except CorruptMessage as error:
        return type(error)
    return batch.edges.tolist(), batch.nulls, batch.compacted, batch.keys()


@pytest.mark.fault(28, 30, 31)
@given(
    st.lists(messages_ | st.binary(min_size=6, max_size=12), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    st.booleans(),
)
def test_damage_is_seen_by_the_fast_ways_as_by_protobuf(
    parts: list[bytes], changes: list[tuple[int, int]], alike: bool
) -> None:
    if alike:
        parts = [parts[0]] * 20
    body = bytearray(b"".join(parts))
    for position, value in changes:
        body[position % len(body)] = value
    assert outcome(bytes(body), len(parts), False) == outcome(bytes(body), len(parts), True)


@pytest.mark.parametrize("shape", ["1805", "1805400a", "180540ff01", "12026b31180540ff8801"])
@pytest.mark.parametrize("count,changed", [(20, 0), (20, 7), (20, 19), (66, 0), (66, 65)])
def test_every_byte_of_the_metadata_counts(shape: str, count: int, changed: int) -> None:
    good = raw(shape, b"12345")
    for offset in range(len(good) - 5):
        body = bytearray(good * count)
        for value in range(256) if count == 20 else (0, 1, 5, 0x18, 0x40, 0x7F, 0x80, 0xFF):
            body[changed * len(good) + offset] = value
            assert outcome(bytes(body), count, False) == outcome(bytes(body), count, True)


def test_batches_of_the_same_sizes_may_be_laid_out_in_another_way() -> None:
    # All have two messages of ten bytes and six bytes of metadata, with different meanings.
    for shape in ("18054080ff01", "180430004005", "120161180440", "180540808001", "120118180440"):
        good = raw(shape[:12].ljust(12, "0"), b"12345")
        assert outcome(good * 2, 2, False) == outcome(good * 2, 2, True)


# --- reading: what a batch says about its messages --------------------------------------------


def test_payloads_are_found_by_their_edges() -> None:
    body = message(b"one", sequence_id=1) + message(b"", sequence_id=2) + message(b"three")
    batch = unpack_batch(body, 3, with_metadata=False)
    assert batch.payloads() == [b"one", b"", b"three"]
    assert [batch.payload(i) for i in range(3)] == [b"one", b"", b"three"]


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
    for with_metadata in (True, False):
        batch = unpack_batch(body, 4, with_metadata=with_metadata)
        assert list(batch.nulls) == [1]
        assert list(batch.compacted) == [2]
        assert batch.payloads() == [b"", b"", b"", b"x"]


@pytest.mark.parametrize("flag, expected", [("4801", "nulls"), ("2001", "compacted")])
def test_a_whole_batch_of_flagged_messages_is_no_even_batch(flag: str, expected: str) -> None:
    batch = unpack_batch(raw("1800" + flag) * 50, 50, with_metadata=False)
    assert list(getattr(batch, expected)) == list(range(50))


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
    batch = unpack_batch(body, 7, with_metadata=True)
    assert batch.keys() == [
        None,
        b"",
        "clé😀\0".encode(),
        b"\x00\x01\xfe",
        b"k" * 2**20,
        b"\xff\xfe",
        b"\xff\xfe",
    ]
    assert unpack_batch(message(b"x") * 20, 20, with_metadata=True).keys() is None


def test_a_key_that_is_not_the_base64_it_claims_to_be_is_an_error() -> None:
    body = message(b"x", partition_key="not base64!", partition_key_b64_encoded=True)
    assert unpack_batch(body, 1, with_metadata=False).payloads() == [b"x"]
    with pytest.raises(CorruptMessage, match="base64"):
        unpack_batch(body, 1, with_metadata=True)


def test_the_key_of_a_single_message_is_found_the_same_way() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    assert message_key(metadata) is None
    metadata.partition_key = "AAH+"
    assert message_key(metadata) == b"AAH+"
    metadata.partition_key_b64_encoded = True
    assert message_key(metadata) == b"\x00\x01\xfe"


def test_properties_and_event_times_are_read_without_protobuf_where_nothing_is_rare() -> None:
    pairs = [pb.KeyValue(key="a", value="1"), pb.KeyValue(key="b", value=""),
             pb.KeyValue(key="a", value="ü" * 60)]  # fmt: skip
    rich = message(
        bytes(200), properties=pairs, partition_key="k", event_time=2**62, sequence_id=300
    )
    usual, timed = message(b"1", sequence_id=301), message(event_time=7, sequence_id=302)
    body = usual + rich + timed + usual
    batch = quickly(body, 4)
    expected = {
        1: ((b"a", b"b"), ("ü".encode() * 60, b""), b"k", 200, 2**62),
        2: ((), (), None, 0, 7),
    }
    assert batch.opened(range(4)) == expected
    assert batch.opened(range(2, 4)) == {2: expected[2]}
    assert_same(batch, carefully(body, 4))
    body = rich + message(ordering_key=b"o", sequence_id=303) + timed
    assert quickly(body, 3).opened(range(3)) is None
    assert_same(quickly(body, 3), carefully(body, 3))


def test_extras_hold_the_metadata_that_is_more_than_usual() -> None:
    pair = pb.KeyValue(key="a", value="b")
    body = message(b"x", sequence_id=7) + message(b"y", event_time=5, properties=[pair, pair])
    batch = unpack_batch(body, 2, with_metadata=True)
    assert set(batch.extras()) == {1}
    assert batch.extras()[1].event_time == 5
    assert list(batch.extras()[1].properties) == [pair, pair]
    assert [m.sequence_id for m in batch.metadata()] == [7, 0]


def test_large_messages_stay_views_of_the_frame() -> None:
    view = memoryview(message(bytes(100_000), sequence_id=1) * 2)
    batch = unpack_batch(view, 2, with_metadata=True)
    assert batch.body is view
    assert batch.payloads() == [bytes(100_000)] * 2
    assert [m.sequence_id for m in batch.metadata()] == [1, 1]


def test_edges_of_even_batches_cannot_be_changed_as_they_are_shared() -> None:
    batch = unpack_batch(message(b"abc", sequence_id=1) * 100, 100, with_metadata=False)
    with pytest.raises(TypeError):
        batch.edges[0] = 0


@pytest.mark.fault(92)
@pytest.mark.parametrize("size", [0, 1, 2])
def test_a_million_tiny_messages_are_unpacked(size: int) -> None:
    count = 1_000_000
    batch = unpack_batch(message(bytes(size)) * count, count, with_metadata=True)
    assert batch.count == count
    assert batch.edges[2 * count - 2] == len(batch.body) - size


@pytest.mark.fault(92)
def test_a_million_tiny_ragged_messages_are_unpacked() -> None:
    count = 1_000_000
    body = (message(b"x", sequence_id=1) + message(b"yz", sequence_id=1)) * (count // 2)
    batch = unpack_batch(body, count, with_metadata=False)
    assert batch.payload(0) == b"x"
    assert batch.payload(count - 1) == b"yz"


@pytest.mark.fault(92)
def test_a_message_with_50_000_properties_is_unpacked() -> None:
    pairs = [pb.KeyValue(key=f"name-{i}", value=str(i)) for i in range(50_000)]
    body = message(b"x", properties=pairs) + message(b"y")
    batch = unpack_batch(body, 2, with_metadata=True)
    assert list(batch.extras()[0].properties) == pairs
    assert batch.payloads() == [b"x", b"y"]


# --- reading: hostile bytes ---------------------------------------------------------------------

GOOD = message(b"hello", sequence_id=1)


@pytest.mark.fault(35, 36)
@pytest.mark.parametrize("count", [0, -1, -(2**31), 4, 100, 2**31 - 1])
def test_an_impossible_number_of_messages_is_refused(count: int) -> None:
    with pytest.raises(CorruptBatch):
        unpack_batch(GOOD * 3, count, with_metadata=True)


@pytest.mark.fault(35, 36)
def test_a_huge_number_of_messages_allocates_nothing() -> None:
    body = bytes(1000)
    tracemalloc.start()
    with pytest.raises(CorruptBatch, match="can hold"):
        unpack_batch(body, 2**31 - 1, with_metadata=True)
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
        for with_metadata in (True, False):
            with pytest.raises(CorruptBatch, match=reason):
                unpack_batch(data, count, with_metadata=with_metadata)


@pytest.mark.fault(29)
def test_deeply_nested_groups_are_refused() -> None:
    body = raw("1801" + "63" * 10_000 + "64" * 10_000, b"x")
    with pytest.raises(CorruptBatch):
        unpack_batch(body, 1, with_metadata=True)


@pytest.mark.fault(30, 31)
def test_unknown_fields_are_skipped_and_the_last_of_repeated_ones_wins() -> None:
    body = raw("1809" + "f80601" + "1803", b"abc") + raw("1803", b"def")
    assert unpack_batch(body, 2, with_metadata=True).payloads() == [b"abc", b"def"]


@given(st.binary(max_size=200), st.integers(-1, 40))
def test_random_bytes_are_a_batch_or_refused(data: bytes, count: int) -> None:
    try:
        batch = unpack_batch(data, count, with_metadata=True)
    except CorruptMessage:
        return
    assert batch.edges[-1] == len(data)


def test_a_body_beyond_32_bit_offsets_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(CorruptBatch, match="larger"):
        unpack_batch(Huge(), 1, with_metadata=False)


# --- writing ----------------------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=300) | st.integers(0, 20_000).map(bytes), min_size=1, max_size=20),
    st.sampled_from([0, 120, 16_380, 2**40, 2**63 - 21]),
    st.integers(0, 10),
    st.booleans(),
)
def test_a_uniform_batch_is_written_as_protobuf_writes_it(
    payloads: list[bytes], first: int, offset: int, keyed: bool
) -> None:
    first = max(0, first - offset)
    keys = [str(i) * (i % 3 + 60 * (i % 2)) for i in range(len(payloads))] if keyed else None
    expected = b"".join(
        message(payload, sequence_id=first + i, partition_key=keys[i] if keys else None)
        for i, payload in enumerate(payloads)
    )
    encoded = [key.encode() for key in keys] if keys else None
    assert encode_uniform_batch(payloads, first, encoded) == expected


@pytest.mark.parametrize(
    "payloads, first, keys",
    [
        ([], 0, None),
        ([b""], -1, None),
        ([b""], 2**63, None),
        ([b"", b""], 2**63 - 1, None),
        ([b"", b""], 0, [b""]),
    ],
)
def test_uniform_batches_out_of_bounds_are_refused(
    payloads: list[bytes], first: int, keys: list[bytes] | None
) -> None:
    with pytest.raises(LocalProtocolError):
        encode_uniform_batch(payloads, first, keys)


texts = st.text(max_size=20)
fields_ = st.builds(
    MessageFields,
    payload=st.none() | st.binary(max_size=200),
    key=st.none() | texts,
    ordering_key=st.none() | st.binary(max_size=20),
    properties=st.lists(st.tuples(texts, texts), max_size=3),
    event_time=st.integers(0, 2**63 - 1),
    null_key=st.booleans(),
)


def columns_of(messages: Sequence[MessageFields], unbatched: bool = False) -> UniformMessages:
    """Return messages as columns, of which the first ones may have no fields."""
    columns = UniformMessages([], unbatched=unbatched)
    for message in messages:
        key, fields = encode_fields(message, unbatched=unbatched)
        payload = message.payload or b""
        columns.add_fields()
        columns.append(
            payload, key, key_field(payload, key, unbatched) if fields is None else fields
        )
    return columns


@given(st.lists(fields_, min_size=1, max_size=8), st.booleans())
def test_messages_are_the_same_when_they_leave_their_columns(
    messages: list[MessageFields], unbatched: bool
) -> None:
    assert columns_of(messages, unbatched).messages() == messages


@given(st.lists(fields_, min_size=1, max_size=20), st.integers(0, 2**40))
def test_what_is_written_is_read_back(messages: list[MessageFields], first: int) -> None:
    columns = columns_of(messages)
    body = encode_uniform_batch(columns.payloads, first, fields=columns.fields)
    batch = unpack_batch(body, len(messages), with_metadata=True)
    expected = unpack_batch(encode_batch(messages, first), len(messages), with_metadata=True)
    assert batch.metadata() == expected.metadata()
    assert batch.payloads() == [m.payload or b"" for m in messages]
    assert list(batch.nulls) == [i for i, m in enumerate(messages) if m.payload is None]
    check_keys(batch.keys(), messages)
    for index, (read, wrote) in enumerate(zip(batch.metadata(), messages, strict=True)):
        assert read.sequence_id == first + index
        assert read.event_time == wrote.event_time
        assert [(p.key, p.value) for p in read.properties] == wrote.properties
        assert read.HasField("ordering_key") == (wrote.ordering_key is not None)
        assert read.ordering_key == (wrote.ordering_key or b"")
        assert read.null_partition_key == wrote.null_key


def check_keys(keys: Sequence[bytes | None] | None, messages: list[MessageFields]) -> None:
    expected = [None if m.key is None else m.key.encode() for m in messages]
    assert (keys or [None] * len(messages)) == expected


def test_bytes_keys_are_written_with_their_mark() -> None:
    columns = columns_of([MessageFields(b"x", key="AAH+", key_is_base64=True)])
    assert columns.have_other_keys
    body = encode_uniform_batch(columns.payloads, 0, fields=columns.fields)
    batch = unpack_batch(body, 1, with_metadata=True)
    assert batch.keys() == [b"\x00\x01\xfe"]


def test_messages_of_a_batch_can_have_their_own_sequence_ids() -> None:
    messages = [MessageFields(b"a", "k", sequence_id=5), MessageFields(b"b", sequence_id=10)]
    columns = columns_of(messages)
    assert columns.fields is not None
    body = encode_numbered_batch(columns.payloads, columns.fields, [5, 10])
    batch = unpack_batch(body, 2, with_metadata=True)
    assert [m.sequence_id for m in batch.metadata()] == [5, 10]
    assert body == encode_batch(messages, 0)


@pytest.mark.parametrize("sequence_id", [-1, 4, 5, 2**63])
def test_sequence_ids_must_rise(sequence_id: int) -> None:
    with pytest.raises(LocalProtocolError, match="sequence id"):
        encode_numbered_batch([b""] * 2, [b""] * 2, [5, sequence_id])


def test_nothing_is_no_batch() -> None:
    with pytest.raises(LocalProtocolError):
        encode_uniform_batch([], 0)


@pytest.mark.parametrize("unbatched", [False, True])
@pytest.mark.parametrize(
    "message, kind",
    [
        (MessageFields(b"", key="\ud83d"), InvalidRow),
        (MessageFields(b"", properties=[("a", "\ud83d")]), InvalidRow),
        (MessageFields(b"", event_time=-1), InvalidRow),
        (MessageFields(b"", properties=[("a", 1)]), WrongType),  # type: ignore[list-item]
        (MessageFields(b"", key=b"k"), WrongType),  # type: ignore[arg-type]
        (MessageFields(b"", event_time="1"), WrongType),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_fields_that_no_message_can_have_are_refused(
    message: MessageFields, kind: type[InvalidRow], unbatched: bool
) -> None:
    with pytest.raises(kind) as raised:
        encode_fields(message, unbatched=unbatched)
    assert type(raised.value) is kind


@pytest.mark.parametrize("size", [5, 6])
def test_batches_are_unpacked_as_one_if_each_has_its_messages(size: int) -> None:
    payloads = [b"first", b"v" * size, b"third", b"forth", b"fifth"]
    parts = [encode_uniform_batch([payload], number) for number, payload in enumerate(payloads)]
    right = [b"".join(parts[:2]), b"".join(parts[2:])]
    assert unpack_batches(right, [2, 3], with_metadata=True).payloads() == payloads
    with pytest.raises(CorruptBatch):
        unpack_batches(right, [3, 2], with_metadata=True)


def test_columns_are_alike_if_they_hold_the_same_and_are_batched_alike() -> None:
    def make(**others: Any) -> UniformMessages:
        return UniformMessages([b"v"], **others)

    kinds = [make(), make(keys=[b"k"]), make(fields=[b""]), make(fields=[b""], unbatched=True)]
    assert len({kind.shape for kind in kinds}) == 4
    assert make(callbacks=[print]).shape == make().shape
    assert [UniformMessages.of(kind.shape).shape for kind in kinds] == [
        kind.shape for kind in kinds
    ]


def test_where_messages_start_and_end_holds_for_more_messages_too() -> None:
    messages = UniformMessages([b"abc", b""], [b"k", b"key"])
    assert messages.edges() == [0, 4, 7]
    messages.extend(UniformMessages([b"de"], [b""]))
    assert messages.edges() == [0, 4, 7, 9]
    assert [messages.size(1, 3), messages.size(0, 0), messages.size(2, 2)] == [5, 0, 0]
    assert UniformMessages([b"abc"], [b"k"], fields=[b"k and more"]).edges() == [0, 13]
