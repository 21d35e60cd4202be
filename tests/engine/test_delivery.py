"""A consumer's queue of deliveries: permits and memory, whatever happens to messages."""

from __future__ import annotations

import pytest

from pulsar_spark.engine.consumers.delivery import DeliveryQueue
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageBlock, encode_raw_payload_command
from tests import brief
from tests.engine.topics import batch_body, stored_entry

SIZE = 1000
MAX_MESSAGE = 1 << 20


def queue(size: int = SIZE, memory: int = 1 << 26) -> DeliveryQueue:
    budget = ReceiverBudget(memory)
    budget.join()
    made = DeliveryQueue(size, budget)
    made.begin(MAX_MESSAGE)
    return made


def block(*batches: int) -> MessageBlock:
    """Frames of batches with these numbers of messages."""
    frames = [frame(entry_id, count) for entry_id, count in enumerate(batches)]
    data = b"".join(frames)
    return MessageBlock(1, data, 0, len(data), len(frames))


def frame(entry_id: int, count: int) -> bytes:
    command = brief.message(1, pb.MessageIdData(ledgerId=1, entryId=entry_id))
    entry = stored_entry(batch_body([b"x"] * count), num_messages_in_batch=count)
    return b"".join(map(bytes, encode_raw_payload_command(command, entry)))


def test_what_is_dropped_cost_just_its_messages() -> None:
    held = queue()
    held.put(block(3, 5, 7))
    held.put(block(11))
    found = held.peek()
    assert found is not None
    first, at = found
    assert held.take(0, first.end(at), 3)
    # One entry of the first block was taken and not returned yet, another is being decoded.
    assert held.forget() == 3 + 5 + 7 + 11
    assert held.forget() == 0
    assert not held.has_more
    assert held.queued_bytes == 0


def test_what_was_given_out_is_not_dropped_as_well() -> None:
    held = queue()
    held.put(block(3, 5))
    found = held.peek()
    assert found is not None
    held.take(0, found[0].end(found[1]), 3)
    held.give_back(0, 3, 100)
    assert held.forget() == 5


def test_what_belongs_to_an_earlier_generation_does_not_count() -> None:
    held = queue()
    held.put(block(3))
    found = held.peek()
    assert found is not None
    held.forget()
    held.put(block(4))
    assert not held.take(0, found[0].stop, 3)
    assert held.give_back(0, SIZE, 100) == 0
    assert held.forget() == 4


def test_a_block_that_finds_no_room_is_refused_unless_it_is_the_only_one() -> None:
    held = queue(memory=1)
    assert held.put(block(3))
    assert not held.put(block(3))
    assert held.peek() is not None
    assert held.put(block(3))


def test_permits_are_given_when_half_of_the_queue_was_given_out() -> None:
    held = queue(10)
    held.put(block(*[1] * 10))
    given = []
    for _ in range(10):
        found = held.peek()
        assert found is not None
        held.take(0, found[0].end(found[1]), 1)
        given.append(held.give_back(0, 1, 100))
    assert given == [0, 0, 0, 0, 5, 0, 0, 0, 0, 5]


def test_a_queue_without_a_size_asks_for_one_message_at_a_time() -> None:
    held = queue(0)
    assert held.pull()
    assert not held.pull()
    held.put(block(1))
    found = held.peek()
    assert found is not None
    held.take(0, found[0].stop, 1)
    assert held.give_back(0, 1, 100) == 0
    assert held.pull()


def come(held: DeliveryQueue, *batches: int) -> None:
    """Have entries delivered, taken and given back."""
    held.put(block(*batches))
    found = held.peek()
    assert found is not None
    held.take(held.generation, found[0].stop, sum(batches))
    assert held.give_back(held.generation, sum(batches), 100) == 0


def test_a_queue_without_a_size_makes_up_for_what_a_batch_has_overdrawn() -> None:
    held = queue(0)
    assert held.pull() == 1
    come(held, 5)
    # A broker with 4 permits below 0 has 1 now.
    assert held.pull() == 5
    come(held, 1)
    assert held.pull() == 1
    # Entries that came together, by one permit.
    come(held, 3, 2)
    assert held.pull() == 5


@pytest.mark.parametrize("taken", [False, True])
def test_a_queue_without_a_size_asks_again_for_what_was_dropped(taken: bool) -> None:
    held = queue(0)
    assert held.pull() == 1
    held.put(block(3))
    if taken:
        found = held.peek()
        assert found is not None
        held.take(0, found[0].stop, 3)
    assert not held.pull()
    assert held.dropped(held.forget()) == 0
    assert held.pull() == 3
    # Nothing of the next one was dropped: it is still to come.
    held.forget()
    assert not held.pull()


def test_a_queue_without_a_size_requests_again_what_an_attachment_did_not_deliver() -> None:
    held = queue(0)
    assert held.begin(MAX_MESSAGE) == 0
    held.pull()
    assert held.begin(MAX_MESSAGE) == 1
    come(held, 5)
    # A new attachment owes nothing, and nobody has asked it for a message.
    assert held.begin(MAX_MESSAGE) == 0
    assert held.pull() == 1
