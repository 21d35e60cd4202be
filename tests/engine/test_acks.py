"""The message ids in acknowledgements."""

from __future__ import annotations

import pytest

from pulsar_spark.engine.consumers.acknowledgments import cumulative_ack
from pulsar_spark.engine.consumers.gaps import cursor_of
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.ack_sets import ack_bits, ack_longs, bits_from
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv, Position


@pytest.mark.parametrize(
    "first,size,expected",
    [
        # As Java's client sends them: index 1 of 3 acknowledged, everything, a sign bit.
        (2, 3, [4]),
        (1, 3, [6]),
        (3, 3, []),
        (0, 64, [-1]),
        (63, 64, [-(2**63)]),
        (64, 65, [0, 1]),
        (1, 130, [-2, -1, 3]),
    ],
)
def test_bits_of_what_is_not_done_are_set(first: int, size: int, expected: list[int]) -> None:
    assert ack_longs(bits_from(first, size)) == expected
    assert ack_bits(expected) == sum(1 << index for index in range(first, size))


def test_everything_before_an_entry_is_acknowledged_by_the_entry_before_it() -> None:
    found = cumulative_ack(Position(5, 7))
    assert found is not None
    assert MessageIdAdv.from_pb(found) == MessageIdAdv(5, 6)
    assert not found.ack_set


def test_a_batch_of_which_a_part_is_done_is_acknowledged_by_its_bits_or_not_at_all() -> None:
    found = cumulative_ack(Position(5, 7, 2), 3)
    assert found is not None
    assert MessageIdAdv.from_pb(found) == MessageIdAdv(5, 7, -1, 1, 3)
    assert list(found.ack_set) == [4]
    unknown = cumulative_ack(Position(5, 7, 2))
    assert unknown is not None
    assert MessageIdAdv.from_pb(unknown) == MessageIdAdv(5, 6)


def test_a_batch_that_is_done_is_acknowledged_whole() -> None:
    found = cumulative_ack(Position(5, 7, 3), 3)
    assert found is not None
    assert MessageIdAdv.from_pb(found) == MessageIdAdv(5, 7)
    assert not found.ack_set


@pytest.mark.parametrize("position", [Position(5, 0), Position(5, 0, 4)])
def test_where_a_ledger_begins_all_earlier_ledgers_are_acknowledged(position: Position) -> None:
    found = cumulative_ack(position)
    assert found is not None
    assert MessageIdAdv.from_pb(found) == MessageIdAdv(5, -1)


def test_before_all_messages_there_is_nothing_to_acknowledge() -> None:
    assert cumulative_ack(EARLIEST_POSITION) is None


def test_what_is_done_behind_a_position_in_a_batch_is_acknowledged_with_it() -> None:
    found = cumulative_ack(Position(5, 7, 2), 5, 0b10100)
    assert found is not None
    assert ack_bits(found.ack_set) == 0b10100


def test_a_mark_is_read_as_the_position_behind_it() -> None:
    for entry_id in (6, -1):
        answer = pb.CommandGetLastMessageIdResponse()
        answer.consumer_mark_delete_position.CopyFrom(MessageIdAdv(5, entry_id).to_pb())
        assert cursor_of(answer) == Position(5, entry_id + 1)
