"""Chunked messages: splitting, assembling, and every way in which that fails."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import CorruptMessage, LocalProtocolError, MessageTooLarge
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.chunks import (
    AssembledMessage,
    ChunkAssembler,
    ChunkMemory,
    ChunkResult,
    DiscardedMessage,
    DiscardReason,
    split_message,
)
from pulsar_spark.protocol.message_id import MessageIdAdv

NOTHING = ChunkResult(None, [])


def metadata(uuid: str, number: int, chunks: int, total: int) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=2,
        uuid=uuid,
        num_chunks_from_msg=chunks,
        total_chunk_msg_size=total,
        chunk_id=number,
    )


class Feeder:
    """Feeds chunks of ten bytes to an assembler, counting up entry ids."""

    def __init__(self, **bounds: Any) -> None:
        self.assembler = ChunkAssembler(**bounds)
        self.entry = 0

    def add(
        self,
        uuid: str,
        number: int,
        chunks: int = 3,
        *,
        total: int | None = None,
        payload: bytes | None = None,
    ) -> ChunkResult:
        message_id = MessageIdAdv(7, self.entry, 2)
        self.entry += 1
        if payload is None:
            payload = str(number).encode() * 10
        total = 10 * chunks if total is None else total
        return self.assembler.add(metadata(uuid, number, chunks, total), message_id, payload)


def ids(*entries: int) -> tuple[MessageIdAdv, ...]:
    return tuple(MessageIdAdv(7, entry, 2) for entry in entries)


def discarded(uuid: str, reason: DiscardReason, *entries: int) -> DiscardedMessage:
    return DiscardedMessage(uuid, reason, ids(*entries))


def complete(result: ChunkResult) -> AssembledMessage:
    assert result.message is not None
    return result.message


# --- cutting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size, max_chunk, sizes",
    [(0, 5, [0]), (1, 5, [1]), (5, 5, [5]), (6, 5, [5, 1]), (10, 5, [5, 5]), (3, 1, [1, 1, 1])],
)
def test_a_payload_is_cut_into_full_chunks_and_a_rest(
    size: int, max_chunk: int, sizes: list[int]
) -> None:
    payload = random.Random(1).randbytes(size)
    chunks = split_message(payload, max_chunk)
    assert [len(chunk) for chunk in chunks] == sizes
    assert b"".join(chunks) == payload


@pytest.mark.parametrize("max_chunk", [0, -1])
def test_chunks_of_nothing_are_refused(max_chunk: int) -> None:
    with pytest.raises(LocalProtocolError):
        split_message(b"abc", max_chunk)


# --- putting together ---------------------------------------------------------------------------


@given(
    st.dictionaries(st.text(max_size=5), st.binary(max_size=50), min_size=1, max_size=5),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
def test_interleaved_messages_come_out_whole(
    messages: dict[str, bytes], max_chunk: int, rng: random.Random
) -> None:
    waiting = {uuid: split_message(payload, max_chunk) for uuid, payload in messages.items()}
    feeder = Feeder()
    placed: dict[str, list[int]] = {uuid: [] for uuid in messages}
    done: dict[str, bytes] = {}
    while waiting:
        uuid = rng.choice(list(waiting))
        number = len(placed[uuid])
        placed[uuid].append(feeder.entry)
        part = bytes(waiting[uuid][number])
        chunks = len(waiting[uuid])
        result = feeder.add(uuid, number, chunks, total=len(messages[uuid]), payload=part)
        assert result.discarded == []
        if number + 1 == chunks:
            message = complete(result)
            done[uuid] = message.payload
            assert message.chunk_ids == ids(*placed[uuid])
            del waiting[uuid]
        else:
            assert result.message is None
    assert done == messages
    assert (feeder.assembler.pending, feeder.assembler.buffered) == (0, 0)


def test_a_message_has_the_ids_of_its_chunks_in_order() -> None:
    feeder = Feeder()
    assert feeder.add("u", 0) == NOTHING
    assert feeder.add("u", 1) == NOTHING
    message = complete(feeder.add("u", 2))
    assert message.chunk_ids == ids(0, 1, 2)
    assert message.payload == b"0" * 10 + b"1" * 10 + b"2" * 10


def test_the_assembler_keeps_no_view_of_the_callers_buffer() -> None:
    buffer = bytearray(b"0123456789")
    assembler = ChunkAssembler()
    assembler.add(metadata("u", 0, 2, 20), MessageIdAdv(1, 1), memoryview(buffer))
    buffer[:] = bytes(10)
    result = assembler.add(metadata("u", 1, 2, 20), MessageIdAdv(1, 2), memoryview(buffer))
    assert complete(result).payload == b"0123456789" + bytes(10)


@pytest.mark.fault(39)
def test_a_repeated_chunk_is_dropped() -> None:
    feeder = Feeder()
    feeder.add("u", 0)
    feeder.add("u", 1)
    assert feeder.add("u", 1) == NOTHING
    assert complete(feeder.add("u", 2)).chunk_ids == ids(0, 1, 3)


@pytest.mark.fault(39)
def test_the_first_chunk_again_starts_the_message_again() -> None:
    feeder = Feeder()
    feeder.add("u", 0)
    feeder.add("u", 1)
    result = feeder.add("u", 0)
    assert result == ChunkResult(None, [discarded("u", DiscardReason.RESTARTED, 0, 1)])
    feeder.add("u", 1)
    assert complete(feeder.add("u", 2)).chunk_ids == ids(2, 3, 4)


@pytest.mark.fault(39)
def test_a_gap_gives_the_message_up_and_says_so() -> None:
    feeder = Feeder()
    feeder.add("u", 0, 4)
    result = feeder.add("u", 2, 4)
    assert result == ChunkResult(None, [discarded("u", DiscardReason.OUT_OF_ORDER, 0, 1)])
    result = feeder.add("u", 3, 4)
    assert result == ChunkResult(None, [discarded("u", DiscardReason.NO_FIRST_CHUNK, 2)])
    assert feeder.assembler.buffered == 0


@pytest.mark.fault(39)
@pytest.mark.parametrize("chunks, total", [(4, 30), (3, 31), (2**31 - 1, 30)])
def test_chunks_that_contradict_each_other_give_the_message_up(chunks: int, total: int) -> None:
    feeder = Feeder()
    feeder.add("u", 0, 3, total=30)
    result = feeder.add("u", 1, chunks, total=total)
    assert result == ChunkResult(None, [discarded("u", DiscardReason.CONTRADICTORY, 0, 1)])
    assert feeder.assembler.pending == 0


@pytest.mark.fault(39)
def test_any_number_of_messages_may_be_unfinished_at_once() -> None:
    feeder = Feeder()
    for number in range(2):
        for uuid in range(1000):
            assert feeder.add(f"u{uuid}", number) == NOTHING
    for uuid in range(1000):
        complete(feeder.add(f"u{uuid}", 2))
    assert (feeder.assembler.pending, feeder.assembler.buffered) == (0, 0)


@pytest.mark.fault(39)
def test_ten_thousand_uuids_stay_within_the_bounds() -> None:
    feeder = Feeder(max_bytes=100_000)
    reported = 0
    for number in range(10_000):
        reported += len(feeder.add(f"u{number}", 0, payload=bytes(20_000), total=60_000).discarded)
        assert feeder.assembler.buffered <= 100_000
    assert reported + feeder.assembler.pending == 10_000


@pytest.mark.fault(39)
def test_the_bytes_of_all_unfinished_messages_are_capped_and_some_become_whole() -> None:
    feeder = Feeder(max_bytes=5000)
    feeder.add("a", 0, payload=bytes(2000), total=4000)
    feeder.add("b", 0, payload=bytes(2000), total=4000)
    result = feeder.add("b", 1, payload=bytes(1500), total=4000)
    assert result == ChunkResult(None, [discarded("b", DiscardReason.CROWDED_OUT, 1, 2)])
    feeder.add("a", 1, payload=bytes(1500), total=4000)
    assert complete(feeder.add("a", 2, payload=bytes(500), total=4000)).payload == bytes(4000)


@pytest.mark.fault(39)
def test_a_message_that_nothing_is_added_to_makes_room_for_others() -> None:
    feeder = Feeder(max_bytes=5000)
    feeder.add("abandoned", 0, payload=bytes(3000), total=4000)
    given_up = []
    for number in range(6):
        uuid = f"u{number}"
        for result in (
            feeder.add(uuid, 0, payload=bytes(1500), total=4000),
            feeder.add(uuid, 1, payload=bytes(1500), total=4000),
            feeder.add(uuid, 2, payload=bytes(1000), total=4000),
        ):
            given_up += [
                message.uuid
                for message in result.discarded
                if message.reason is DiscardReason.CROWDED_OUT
            ]
    assert given_up == ["u0", "abandoned"]
    assert feeder.assembler.pending == 0


def test_more_messages_than_may_be_unfinished_give_the_oldest_up() -> None:
    feeder = Feeder(max_pending=2)
    for uuid in "ab":
        assert feeder.add(uuid, 0) == NOTHING
    feeder.add("a", 1)
    result = feeder.add("c", 0)
    assert result == ChunkResult(None, [discarded("b", DiscardReason.TOO_MANY, 1)])


@pytest.mark.fault(39, 91)
def test_assemblers_share_the_room_that_they_were_given() -> None:
    memory = ChunkMemory(lambda: 5000)
    first, second = (Feeder(max_bytes=10_000, memory=memory) for _ in range(2))
    first.add("a", 0, payload=bytes(3000), total=6000)
    result = second.add("b", 0, payload=bytes(3000), total=6000)
    assert result == ChunkResult(None, [discarded("b", DiscardReason.CROWDED_OUT, 0)])
    first.add("a", 1, payload=bytes(1500), total=6000)
    assert memory.held == first.assembler.buffered > 4500
    assert complete(first.add("a", 2, payload=bytes(1500), total=6000)).payload == bytes(6000)
    assert memory.held == 0
    assert second.add("b", 0, payload=bytes(3000), total=6000) == NOTHING


@pytest.mark.fault(39, 91)
def test_a_message_that_nothing_is_added_to_makes_room_for_those_of_other_assemblers() -> None:
    memory = ChunkMemory(lambda: 5000)
    first, second = (Feeder(max_bytes=10_000, memory=memory) for _ in range(2))
    first.add("a", 0, payload=bytes(3000), total=9000)
    kept = []
    for number in range(4):
        result = second.add(f"u{number}", 0, payload=bytes(2500), total=9000)
        kept.append(not result.discarded)
    assert kept == [False, True, False, False]
    # It learns of that with its next chunk, the last one here.
    result = first.add("a", 2, payload=bytes(3000), total=9000)
    assert result.message is None
    assert result.discarded == [
        discarded("a", DiscardReason.CROWDED_OUT, 0),
        discarded("a", DiscardReason.NO_FIRST_CHUNK, 1),
    ]
    assert first.assembler.buffered == 0


@pytest.mark.fault(39, 91)
def test_a_message_alone_may_have_more_than_the_room_of_all() -> None:
    feeder = Feeder(max_bytes=10_000, memory=ChunkMemory(lambda: 5000))
    for number in range(2):
        assert feeder.add("a", number, payload=bytes(4000), total=9000) == NOTHING
    assert feeder.add("b", 0).discarded == [discarded("b", DiscardReason.CROWDED_OUT, 2)]
    assert complete(feeder.add("a", 2, payload=bytes(1000), total=9000)).payload == bytes(9000)


@pytest.mark.fault(39, 91)
def test_a_reserved_message_always_finds_room_and_counts() -> None:
    memory = ChunkMemory(lambda: 5000)
    first = Feeder(max_bytes=10_000, memory=memory)
    reserved = Feeder(max_bytes=10_000, memory=memory, is_reserved=True)
    first.add("a", 0, payload=bytes(2000), total=6000)
    for number in range(2):
        assert reserved.add("r", number, payload=bytes(4000), total=9000) == NOTHING
    assert memory.held > 10_000
    for number in range(3):
        result = first.add(f"u{number}", 0)
        assert result.discarded[-1].uuid == f"u{number}"
    assert complete(reserved.add("r", 2, payload=bytes(1000), total=9000)).payload == bytes(9000)
    with memory.reserved(4000):
        assert memory.held >= 4000
    assert memory.held == first.assembler.buffered


def test_a_closed_assembler_holds_nothing_any_more() -> None:
    memory = ChunkMemory(lambda: 5000)
    feeder = Feeder(memory=memory)
    feeder.add("a", 0)
    assert memory.held > 0
    feeder.assembler.close()
    for uuid, number in (("a", 1), ("b", 0)):
        assert feeder.add(uuid, number).message is None
        assert memory.held == 0


@pytest.mark.fault(39)
def test_a_message_beyond_the_cap_is_refused_at_its_first_chunk() -> None:
    feeder = Feeder(max_bytes=5000)
    with pytest.raises(MessageTooLarge, match="5001 bytes in 3 chunks"):
        feeder.add("a", 0, total=5001)
    assert feeder.assembler.pending == 0


def test_what_was_given_up_before_an_error_is_reported_after_it() -> None:
    feeder = Feeder()
    feeder.add("a", 0)
    with pytest.raises(CorruptMessage):
        feeder.add("a", 0, total=5)
    assert feeder.add("b", 0).discarded == [discarded("a", DiscardReason.RESTARTED, 0)]
    assert feeder.add("b", 1) == NOTHING


@pytest.mark.fault(39)
def test_endless_empty_chunks_are_refused() -> None:
    feeder = Feeder(max_bytes=50_000)
    for number in range(97):
        assert feeder.add("a", number, 2**31 - 1, payload=b"", total=10) == NOTHING
    with pytest.raises(MessageTooLarge):
        feeder.add("a", 97, 2**31 - 1, payload=b"", total=10)
    assert (feeder.assembler.pending, feeder.assembler.buffered) == (0, 0)


@pytest.mark.fault(39)
def test_more_bytes_than_said_are_refused_at_once() -> None:
    feeder = Feeder()
    feeder.add("a", 0, total=15)
    with pytest.raises(CorruptMessage, match="more than the declared 15 bytes"):
        feeder.add("a", 1, total=15)
    assert (feeder.assembler.pending, feeder.assembler.buffered) == (0, 0)


@pytest.mark.fault(39)
def test_fewer_bytes_than_said_are_refused_at_the_end() -> None:
    feeder = Feeder()
    feeder.add("a", 0, 2, total=25)
    with pytest.raises(CorruptMessage, match="20 bytes, not the declared 25"):
        feeder.add("a", 1, 2, total=25)
    assert (feeder.assembler.pending, feeder.assembler.buffered) == (0, 0)


@pytest.mark.fault(39)
@pytest.mark.parametrize(
    "number, chunks, total",
    [(0, -1, 10), (0, 0, 10), (-1, 3, 10), (3, 3, 10), (0, -(2**31), 10), (0, 1, -1)],
)
def test_metadata_that_makes_no_sense_is_refused(number: int, chunks: int, total: int) -> None:
    feeder = Feeder()
    with pytest.raises(CorruptMessage):
        feeder.add("u", number, chunks, total=total)
    assert feeder.assembler.pending == 0


@pytest.mark.parametrize(
    "name", ["uuid", "num_chunks_from_msg", "total_chunk_msg_size", "chunk_id"]
)
def test_a_chunk_without_one_of_its_fields_is_refused(name: str) -> None:
    data = metadata("u", 0, 1, 3)
    data.ClearField(name)
    with pytest.raises(CorruptMessage, match=name):
        ChunkAssembler().add(data, MessageIdAdv(1, 1), b"abc")


def test_the_bound_is_positive() -> None:
    with pytest.raises(LocalProtocolError):
        Feeder(max_bytes=0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(-1, 4),
            st.sampled_from([1, 3, 3, 3, 5]),
            st.sampled_from([30, 30, 30, 20, 600]),
        ),
        max_size=60,
    )
)
def test_any_order_of_chunks_is_reported_in_full(
    steps: list[tuple[str, int, int, int]],
) -> None:
    feeder = Feeder(max_bytes=2000)
    seen: set[MessageIdAdv] = set()
    for uuid, number, chunks, total in steps:
        try:
            result = feeder.add(uuid, number, chunks, total=total)
        except (CorruptMessage, MessageTooLarge):
            continue
        finally:
            assert feeder.assembler.buffered <= 2000
        gone = [i for message in result.discarded for i in message.chunk_ids]
        if result.message is not None:
            assert len(result.message.payload) == total
            gone += result.message.chunk_ids
        assert len(set(gone)) == len(gone)
        assert seen.isdisjoint(gone)
        seen.update(gone)
