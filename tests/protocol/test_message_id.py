"""Message ids and positions: notations, wire form, order."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import InvalidMessageId
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import (
    EARLIEST,
    EARLIEST_POSITION,
    LATEST,
    LATEST_POSITION,
    MessageIdAdv,
    Position,
    id_tails,
)

MAX = 2**63 - 1

longs = st.integers(-1, MAX)
ints = st.integers(-1, 2**31 - 1)
counts = st.integers(0, 2**31 - 1)
plain_ids = st.builds(MessageIdAdv, longs, longs, ints)
message_ids = st.builds(
    MessageIdAdv, longs, longs, ints, ints, st.integers(0, 2**31 - 1), st.none() | plain_ids
)

# (id, the official client's serialization)
WIRE_CASES = [
    (EARLIEST, "08ffffffffffffffffff0110ffffffffffffffffff01"),
    (LATEST, "08ffffffffffffffff7f10ffffffffffffffff7f"),
    (MessageIdAdv(2, 3, 1, 4), "0802100318012004"),
    (MessageIdAdv(5, 6), "08051006"),
    (MessageIdAdv(5, 6, 0, 0, 2), "080510061800200030" + "02"),
    (MessageIdAdv(9, 8, 1, first_chunk=MessageIdAdv(9, 6, 1)), "0809100818013a06080910061801"),
]


@pytest.mark.parametrize("message_id, wire", WIRE_CASES)
def test_the_wire_form_equals_the_official_clients(message_id: MessageIdAdv, wire: str) -> None:
    assert message_id.serialize().hex() == wire
    assert MessageIdAdv.deserialize(bytes.fromhex(wire)) == message_id


def test_the_official_client_reads_and_writes_the_same_bytes() -> None:
    pulsar = pytest.importorskip("pulsar")
    theirs = pulsar.MessageId(3, 41, 42, 7)
    ours = MessageIdAdv(41, 42, 3, 7)
    assert theirs.serialize() == ours.serialize()
    assert str(pulsar.MessageId.deserialize(ours.serialize())) == str(theirs)


@given(message_ids)
def test_serialize_and_deserialize_are_inverse(message_id: MessageIdAdv) -> None:
    assert MessageIdAdv.deserialize(message_id.serialize()) == message_id
    assert MessageIdAdv.from_pb(message_id.to_pb()) == message_id
    assert pickle.loads(pickle.dumps(message_id)) == message_id


@given(st.binary(max_size=60))
def test_any_bytes_are_an_id_or_refused(data: bytes) -> None:
    try:
        message_id = MessageIdAdv.deserialize(data)
    except InvalidMessageId:
        return
    assert message_id.ledger_id >= -1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x08",
        b"\x08\x01",
        b"\x10\x01",
        b"\x08\x05\x10\x06\x3a\x02\x08\x01",
        bytes.fromhex("08feffffffffffffffff01" + "1001"),
        bytes(2000),
    ],
)
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessageId):
        MessageIdAdv.deserialize(data)


def test_first_chunks_nested_without_end_are_refused_or_cut() -> None:
    data = pb.MessageIdData(ledgerId=1, entryId=2)
    for _ in range(50):
        data = pb.MessageIdData(ledgerId=1, entryId=2, first_chunk_message_id=data)
    assert MessageIdAdv.from_pb(data) == MessageIdAdv(1, 2, first_chunk=MessageIdAdv(1, 2))


@pytest.mark.parametrize(
    "text, message_id",
    [
        ("12:345", MessageIdAdv(12, 345)),
        ("12:345:0", MessageIdAdv(12, 345, 0)),
        ("12:345:0:7", MessageIdAdv(12, 345, 0, 7)),
        ("12:345:-1:7", MessageIdAdv(12, 345, -1, 7)),
        ("-1:-1", EARLIEST),
        (f"{MAX}:{MAX}:-1:-1", LATEST),
    ],
)
def test_ids_are_parsed_from_text(text: str, message_id: MessageIdAdv) -> None:
    assert MessageIdAdv.parse(text) == message_id


@given(message_ids)
def test_text_gives_ledger_entry_partition_and_index(message_id: MessageIdAdv) -> None:
    ledger, entry, partition, index = str(message_id).split(":")
    expected = MessageIdAdv(int(ledger), int(entry), int(partition), int(index))
    assert MessageIdAdv.parse(str(message_id)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1:",
        "a:b",
        "1:2:3:4:5",
        " 1:2",
        "1:2\n",
        "01:2",
        "+1:2",
        "-2:1",
        "1:-0",
        "1_0:2",
        "१:2",
        f"{MAX + 1}:0",
        f"0:{MAX + 1}",
        f"1:2:{2**31}",
        f"1:2:0:{2**31}",
        "1:" + "9" * 5000,
    ],
)
def test_other_text_is_no_id(text: str) -> None:
    with pytest.raises(InvalidMessageId) as caught:
        MessageIdAdv.parse(text)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "message_id, before, after",
    [
        (MessageIdAdv(5, 6), Position(5, 6, 0), Position(5, 7, 0)),
        (MessageIdAdv(5, 6, 2, 0, 3), Position(5, 6, 0), Position(5, 6, 1)),
        (MessageIdAdv(5, 6, 2, 2, 3), Position(5, 6, 2), Position(5, 6, 3)),
        (MessageIdAdv(5, -1), Position(5, -1, 0), Position(5, 0, 0)),
        (MessageIdAdv(5, 9, first_chunk=MessageIdAdv(5, 6)), Position(5, 6, 0), Position(5, 10, 0)),
        (EARLIEST, EARLIEST_POSITION, EARLIEST_POSITION),
        (LATEST, LATEST_POSITION, LATEST_POSITION),
    ],
)
def test_positions_lie_before_and_behind_a_message(
    message_id: MessageIdAdv, before: Position, after: Position
) -> None:
    assert Position.before(message_id) == before
    assert Position.after(message_id) == after


def test_positions_are_in_the_order_of_the_topic() -> None:
    ordered = [
        EARLIEST_POSITION,
        Position(5, 6, 0),
        Position(5, 6, 3),
        Position(5, 7),
        Position(6, 0),
        LATEST_POSITION,
    ]
    assert sorted(set(ordered)) == ordered


@given(longs, longs, st.integers(0, 2**31 - 1))
def test_positions_survive_text_and_pickle(ledger: int, entry: int, index: int) -> None:
    position = Position(ledger, entry, index)
    assert str(position) == f"{ledger}:{entry}:{index}"
    assert Position.parse(str(position)) == position
    copy = pickle.loads(pickle.dumps(position))
    assert isinstance(copy, Position)
    assert copy == position


@pytest.mark.parametrize(
    "text", ["", "1:2", "1:2:-1", "1:2:3:4", "x:1:2", f"{MAX + 1}:0:0", f"1:2:{2**31}"]
)
def test_other_text_is_no_position(text: str) -> None:
    with pytest.raises(InvalidMessageId):
        Position.parse(text)


@pytest.mark.parametrize(
    "message_id",
    [
        MessageIdAdv(MAX + 1, 0),
        MessageIdAdv(0, MAX + 1),
        MessageIdAdv(-2, 0),
        MessageIdAdv(0, -2),
        MessageIdAdv(0, 0, 2**31),
        MessageIdAdv(0, 0, 0, 2**31),
        MessageIdAdv(0, 0, 0, 0, 2**31),
        MessageIdAdv(0, 0, first_chunk=MessageIdAdv(MAX + 1, 0)),
    ],
)
def test_numbers_out_of_range_are_not_written(message_id: MessageIdAdv) -> None:
    with pytest.raises(InvalidMessageId, match="number that is not valid in a message id"):
        message_id.serialize()


@given(
    longs, longs, ints, st.lists(st.integers(0, 2**31 - 1), max_size=5), st.integers(0, 2**31 - 1)
)
def test_ids_of_a_batch_differ_in_their_tails(
    ledger: int, entry: int, partition: int, indexes: list[int], size: int
) -> None:
    head = MessageIdAdv(ledger, entry, partition).serialize()
    ids = [MessageIdAdv(ledger, entry, partition, index, size).serialize() for index in indexes]
    assert [head + tail for tail in id_tails(indexes, size)] == ids
