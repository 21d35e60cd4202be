"""What waits to be sent: columns that grow behind, are cut into entries, and leave in front."""

from __future__ import annotations

import random

import pytest

from pulsar_spark.engine.producers.submission import Submission
from pulsar_spark.protocol.outgoing_messages import OutgoingMessages
from tests.engine.producing import Results


def add(submission: Submission, number: int, key: bytes | None = None) -> None:
    submission.messages.append(b"%d" % number, key, b"", None)
    submission.open += 1
    submission.open_bytes += 10


def leave(submission: Submission) -> list[bytes]:
    """Take the next entry, and return its payloads."""
    messages, start, per_entry = submission.next()
    payloads = list(messages.payloads[start : start + per_entry])
    submission.take(len(payloads))
    return payloads


@pytest.mark.parametrize("seed", range(20))
def test_all_messages_leave_once_in_their_order_and_memory_is_given_back(seed: int) -> None:
    rng = random.Random(seed)
    submission = Submission(OutgoingMessages([]))
    added, given_back = 0, 0
    left: list[bytes] = []
    while len(left) < 200:
        match rng.randrange(5):
            case 0 | 1 if added < 200:
                add(submission, added)
                submission.held += 10
                added += 1
            case 2:
                submission.seal()
            case 3 if submission.runs:
                size = submission.next_count
                assert submission.divide() == (size > 1)
            case 4 if submission.runs:
                given_back += submission.give_back(submission.next_count)
                left += leave(submission)
                assert submission.sent == len(left)
        if added == 200:
            submission.seal()
        assert len(submission) == added - len(left)
    assert left == [b"%d" % number for number in range(200)]
    assert given_back == 2000
    assert submission.sealed_bytes == 0


def test_a_batch_by_key_becomes_one_of_each_key_and_those_before_it_stay() -> None:
    submission = Submission(OutgoingMessages([], []), by_key=True)
    for number, key in enumerate((b"b", b"a", b"a")):
        add(submission, number, key)
    submission.seal()
    for number, key in enumerate((b"a", b"c", b"a"), 3):
        add(submission, number, key)
    submission.seal()
    found = [leave(submission) for _ in range(4)]
    assert found == [[b"0"], [b"1", b"2"], [b"4"], [b"3", b"5"]]
    assert not len(submission)


def test_what_is_encoded_does_not_grow_meanwhile() -> None:
    submission = Submission(OutgoingMessages([]))
    add(submission, 0)
    submission.seal()
    messages, _, _ = submission.next()
    add(submission, 1)
    assert list(messages.payloads) == [b"0"]


def test_a_column_is_sent_in_entries_of_one_size_and_a_rest_and_is_not_copied() -> None:
    messages = OutgoingMessages([b"%d" % number for number in range(7)])
    submission = Submission(messages, per_entry=3)
    assert list(submission.runs) == [(3, 2), (1, 1)]
    assert submission.owned
    assert submission.next()[0] is messages
    assert [len(leave(submission)) for _ in range(3)] == [3, 3, 1]


def test_a_single_message_is_one_entry_and_cannot_be_divided() -> None:
    submission = Submission(OutgoingMessages([b"x"]), per_entry=1)
    assert (len(submission), submission.next_count, submission.divide()) == (1, 1, False)


def test_each_message_has_its_callback_and_those_without_any_have_one_together() -> None:
    one, other, third = Results(), Results(), Results()
    messages = OutgoingMessages([b"1", b"2", b"3"], callbacks=[one, other, third])
    submission = Submission(messages, per_entry=2)
    assert submission.callbacks(2) == [one, other]
    leave(submission)
    assert submission.callbacks(1) == [third]
    submission = Submission(OutgoingMessages([b"1", b"2"]), per_entry=2, default=one)
    assert submission.callbacks(2) == [one]


def test_nothing_is_given_back_for_messages_that_were_taken_meanwhile() -> None:
    submission = Submission(OutgoingMessages([b"x"]), per_entry=1)
    submission.take(1)
    assert submission.give_back(1) == 0
