from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest

from pulsar_spark.engine.operations import Operation, OperationFactory, Within, run, run_many
from pulsar_spark.engine.retry import Deadline, Pause, is_retryable, retrying
from pulsar_spark.errors import (
    ConnectError,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
    ServiceNotReady,
    TopicNotFound,
)

T = TypeVar("T")


def later(value: Any, seconds: float = 0.0) -> Future[Any]:
    """Return a future that another thread completes, with a value or an error."""
    future: Future[Any] = Future()

    def complete() -> None:
        if isinstance(value, Exception):
            future.set_exception(value)
        else:
            future.set_result(value)

    if seconds:
        threading.Timer(seconds, complete).start()
    else:
        complete()
    return future


def numbered(operation: Callable[[int], Operation[T]], count: int) -> list[OperationFactory[T]]:
    """Return factories of `count` jobs that are given their numbers."""

    def factory(number: int) -> OperationFactory[T]:
        return lambda _: operation(number)

    return [factory(number) for number in range(count)]


def test_a_job_gets_the_results_it_waits_for() -> None:
    def operation(deadline: Deadline) -> Operation[int]:
        first = yield later(1)
        second = yield later(2, 0.01)
        return int(first + second)

    assert run(operation, 5) == 3


def test_a_job_is_thrown_the_errors_it_waits_for() -> None:
    def operation(deadline: Deadline) -> Operation[str]:
        try:
            yield later(TopicNotFound("gone"), 0.01)
        except TopicNotFound as error:
            return error.what
        return "not reached"

    assert run(operation, 5) == "gone"


def test_results_and_errors_of_many_jobs_keep_their_places() -> None:
    def operation(number: int) -> Operation[int]:
        yield later(None, 0.01 if number % 3 else 0.0)
        if number % 10 == 7:
            raise TopicNotFound(str(number))
        return number

    results = run_many(numbered(operation, 50), 5, window=8)
    for number, result in enumerate(results):
        if number % 10 == 7:
            assert isinstance(result, TopicNotFound)
            assert result.what == str(number)
        else:
            assert result == number


def test_no_more_jobs_than_the_window_are_under_way() -> None:
    open_jobs: list[int] = []
    most = 0

    def operation(number: int) -> Operation[None]:
        nonlocal most
        open_jobs.append(number)
        most = max(most, len(open_jobs))
        yield later(None, 0.002)
        open_jobs.remove(number)

    run_many(numbered(operation, 40), 5, window=7)
    assert most == 7


def test_waiting_jobs_hold_up_no_other() -> None:
    def operation(number: int) -> Operation[int]:
        yield Pause(0.1)
        yield later(None, 0.1)
        return number

    started = time.monotonic()
    assert run_many(numbered(operation, 100), 5) == list(range(100))
    assert time.monotonic() - started < 1


def test_a_job_is_told_when_its_time_is_up_and_can_tidy_up() -> None:
    tidied = []

    def operation(deadline: Deadline) -> Operation[None]:
        try:
            yield Future()
        finally:
            tidied.append(deadline.expired())

    started = time.monotonic()
    with pytest.raises(OperationTimeout, match=r"no answer came within 0\.05 s"):
        run(operation, 0.05)
    assert 0.04 < time.monotonic() - started < 1
    assert tidied == [True]


def test_a_job_that_goes_on_after_its_time_is_closed() -> None:
    def operation(deadline: Deadline) -> Operation[None]:
        try:
            yield Future()
        except OperationTimeout:
            yield Future()

    with pytest.raises(OperationTimeout):
        run(operation, 0.02)


def test_a_job_can_wait_less_long_for_an_answer_and_go_on() -> None:
    def operation(number: int) -> Operation[list[object]]:
        found: list[object] = [(yield Within(later("in time"), 5))]
        late = later("late", 0.2)
        try:
            yield Within(late, 0.05)
        except OperationTimeout as error:
            found.append(str(error).partition(" within")[0])
        # The answer that comes meanwhile is not taken for that of this wait.
        found.append((yield later("next", 0.3)))
        yield Pause(0.01)
        return [*found, (yield Within(late, 0.05))]

    expected = ["in time", "no answer came", "next", "late"]
    assert run_many(numbered(operation, 5), 5) == [expected] * 5


def test_an_unexpected_error_closes_the_other_jobs() -> None:
    closed = []

    def waits(deadline: Deadline) -> Operation[None]:
        try:
            yield Future()
        finally:
            closed.append(True)

    def breaks(deadline: Deadline) -> Operation[None]:
        yield later(None, 0.01)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_many([waits, breaks], 5)
    assert closed == [True]


@pytest.mark.fault(18, 19)
def test_what_can_pass_is_tried_again_ever_further_apart() -> None:
    times: list[float] = []

    def attempt(deadline: Deadline) -> Operation[int]:
        times.append(time.monotonic())
        yield later(None)
        if len(times) < 4:
            raise ServiceNotReady("not yet")
        return len(times)

    assert run(lambda deadline: retrying(attempt, deadline), 5) == 4
    gaps = [after - before for before, after in itertools.pairwise(times)]
    for gap, least in zip(gaps, (0.09, 0.18, 0.36), strict=True):
        assert gap >= least


def test_what_cannot_pass_is_tried_once() -> None:
    attempts = []

    def attempt(deadline: Deadline) -> Operation[None]:
        attempts.append(1)
        yield later(TopicNotFound("gone"))

    with pytest.raises(TopicNotFound):
        run(lambda deadline: retrying(attempt, deadline), 5)
    assert len(attempts) == 1


def test_at_the_deadline_the_last_error_is_raised_with_what_was_tried() -> None:
    def attempt(deadline: Deadline) -> Operation[None]:
        yield later(ConnectError("refused", "Start it.", broker="h:1"))

    started = time.monotonic()
    expected = r"refused \(after 3 attempts\) \[broker h:1\]"
    with pytest.raises(ConnectError, match=expected) as caught:
        run(lambda deadline: retrying(attempt, deadline), 0.6)
    assert time.monotonic() - started < 0.6
    assert caught.value.remedy == "Start it."


@pytest.mark.parametrize(
    "error, expected",
    [
        (ConnectError("x"), True),
        (ServiceNotReady("x"), True),
        (TopicNotFound("x"), False),
        (RemoteProtocolError("the peer speaks TLS"), False),
        (OperationTimeout("x"), False),
    ],
)
def test_only_what_can_pass_is_retryable(error: PulsarError, expected: bool) -> None:
    assert is_retryable(error) is expected
