from __future__ import annotations

import random
import time

import pytest

from pulsar_spark.engine import retry
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.operations import Operation, Pause
from pulsar_spark.engine.retry import Backoff, retrying
from pulsar_spark.errors import ConnectError, OperationTimeout, PulsarError


class NoJitter(random.Random):
    def random(self) -> float:
        return 0.0


def test_delays_double_up_to_the_maximum() -> None:
    delays = Backoff(0.1, 1.0, NoJitter())
    assert [delays.next() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_delays_are_shortened_by_at_most_a_tenth() -> None:
    for seed in range(50):
        delay = Backoff(1.0, rng=random.Random(seed)).next()
        assert 0.9 <= delay <= 1.0


@pytest.mark.fault(10)
def test_clients_do_not_come_back_together() -> None:
    assert len({Backoff(1.0).next() for _ in range(100)}) > 90


def test_a_programs_own_random_numbers_are_left_alone() -> None:
    before = random.getstate()
    Backoff().next()
    assert random.getstate() == before


def test_after_a_success_delays_begin_anew() -> None:
    delays = Backoff(0.1, 1.0, NoJitter())
    delays.next()
    delays.next()
    delays.reset()
    assert delays.next() == 0.1


def test_a_deadline_says_what_did_not_end_in_time() -> None:
    deadline = Deadline(0.01)
    deadline.check("nothing")
    assert 0 < deadline.remaining() <= 0.01
    time.sleep(0.02)
    assert deadline.expired()
    assert deadline.remaining() == 0
    with pytest.raises(OperationTimeout, match=r"the lookup did not end within 0\.01 s"):
        deadline.check("the lookup")


def test_without_seconds_a_deadline_never_comes() -> None:
    deadline = Deadline(None)
    assert not deadline.expired()
    assert deadline.remaining() == float("inf")


@pytest.mark.fault(93)
def test_deadlines_ignore_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    deadline = Deadline(10)
    for step in (-3600.0, 3600.0):
        monkeypatch.setattr(time, "time", lambda step=step: 1e9 + step)
        assert 9 < deadline.remaining() <= 10


def test_a_broker_that_cannot_be_reached_is_told_while_it_is_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "_told", {})
    refused = ConnectError("cannot connect to there:1: Connection refused", broker="there:1")
    answers: list[PulsarError] = []

    def attempt(deadline: Deadline) -> Operation[int]:
        if answers:
            raise answers.pop()
        yield Pause(0.0)
        return 7

    for errors, told in (
        ([refused] * 2, 0),
        ([OperationTimeout("no answer")] * 5, 0),
        ([refused] * 5, 1),
        # Not again soon, but another broker.
        ([refused] * 5, 1),
        ([ConnectError("refused", broker="other:1")] * 5, 2),
    ):
        answers[:] = errors
        operation = retrying(attempt, Deadline(60))
        pauses = [next(operation) for _ in range(len(errors) + 1)]
        assert pauses[-1] == Pause(0.0)
        operation.close()
        assert caplog.text.count("trying again for up to 60 s") == told
    assert "cannot connect to there:1: Connection refused; trying again" in caplog.text
