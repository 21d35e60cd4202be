from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import pytest

from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.operations import (
    AllOf,
    Operation,
    OperationFactory,
    Pause,
    Steps,
    Within,
    in_steps,
    run,
    run_many,
    settled,
    start,
)
from pulsar_spark.engine.retry import can_pass, retrying
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import (
    ClosedError,
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
    """Return factories of `count` operations, each of which gets its number."""

    def factory(number: int) -> OperationFactory[T]:
        return lambda _: operation(number)

    return [factory(number) for number in range(count)]


def test_an_operation_gets_the_results_it_waits_for() -> None:
    def operation(deadline: Deadline) -> Operation[int]:
        first = yield later(1)
        second = yield later(2, 0.01)
        return int(first + second)

    assert run(operation, 5) == 3


def test_an_operation_is_thrown_the_errors_it_waits_for() -> None:
    def operation(deadline: Deadline) -> Operation[str]:
        try:
            yield later(TopicNotFound("gone"), 0.01)
        except TopicNotFound as error:
            return error.what
        return "not reached"

    assert run(operation, 5) == "gone"


def test_results_and_errors_of_many_operations_keep_their_places() -> None:
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


def test_no_more_operations_than_the_window_are_under_way() -> None:
    open_operations: list[int] = []
    most = 0

    def operation(number: int) -> Operation[None]:
        nonlocal most
        open_operations.append(number)
        most = max(most, len(open_operations))
        yield later(None, 0.002)
        open_operations.remove(number)

    run_many(numbered(operation, 40), 5, window=7)
    assert most == 7


def test_waiting_operations_hold_up_no_other() -> None:
    def operation(number: int) -> Operation[int]:
        yield Pause(0.1)
        yield later(None, 0.1)
        return number

    started = time.monotonic()
    assert run_many(numbered(operation, 100), 5) == list(range(100))
    # One after another they would take 20 seconds.
    assert time.monotonic() - started < 10


def test_an_operation_that_times_out_can_clean_up() -> None:
    tidied = []

    def operation(deadline: Deadline) -> Operation[None]:
        try:
            yield Future()
        finally:
            tidied.append(deadline.expired())

    started = time.monotonic()
    with pytest.raises(OperationTimeout, match=r"no answer came within 0\.05 s"):
        run(operation, 0.05)
    assert 0.04 < time.monotonic() - started < 15
    assert tidied == [True]


def test_an_operation_that_continues_after_its_timeout_is_closed() -> None:
    def operation(deadline: Deadline) -> Operation[None]:
        try:
            yield Future()
        except OperationTimeout:
            yield Future()

    with pytest.raises(OperationTimeout):
        run(operation, 0.02)


def test_an_operation_can_wait_less_long_for_an_answer_and_go_on() -> None:
    def operation(number: int) -> Operation[list[object]]:
        found: list[object] = [(yield Within(later("in time"), 5))]
        late = later("late", 0.2)
        try:
            yield Within(late, 0.05)
        except OperationTimeout as error:
            found.append(str(error).partition(" within")[0])
        # The late answer is not taken for the answer to this wait.
        found.append((yield later("next", 0.3)))
        yield Pause(0.01)
        return [*found, (yield Within(late, 0.05))]

    expected = ["in time", "no answer came", "next", "late"]
    assert run_many(numbered(operation, 5), 5) == [expected] * 5


def test_steps_get_the_results_and_errors_that_they_ask_for() -> None:
    def answering(value: Any) -> OperationFactory[Any]:
        def operation(_: Deadline) -> Operation[Any]:
            return (yield later(value, 0.01))

        return operation

    def steps() -> Steps[list[Any]]:
        first, error = yield AllOf([answering(1), answering(TopicNotFound("no"))], 5.0)
        assert isinstance(error, TopicNotFound)
        (second,) = yield AllOf([answering(first + 1)], 5.0)
        return [first, second]

    assert in_steps(steps()) == [1, 2]


def test_steps_can_clean_up_when_what_they_wait_for_is_interrupted() -> None:
    cleaned: list[Any] = []

    def interrupted(_: Deadline) -> Operation[None]:
        yield later(1)
        raise KeyboardInterrupt

    def cleaning(_: Deadline) -> Operation[str]:
        answer: str = yield later("clean")
        return answer

    def steps() -> Steps[None]:
        try:
            yield AllOf([interrupted], 5.0)
        except BaseException:
            cleaned.extend((yield AllOf([cleaning], 5.0)))
            raise

    with pytest.raises(KeyboardInterrupt):
        in_steps(steps())
    assert cleaned == ["clean"]


def test_answers_are_settled_whatever_they_are_but_not_waited_for_long() -> None:
    answers = [later(1), None, later(ValueError("odd"), 0.01), later(ClosedError("closed"))]
    in_steps(settled(answers, 5.0))
    assert all(answer is None or answer.done() for answer in answers)
    in_steps(settled([Future()], 0.01))


def test_an_unexpected_error_closes_the_other_operations() -> None:
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
    expected = r"refused \(after \d attempts\) \[broker h:1\]"
    with pytest.raises(ConnectError, match=expected) as caught:
        run(lambda deadline: retrying(attempt, deadline), 0.6)
    assert time.monotonic() - started < 15
    assert caught.value.remedy == "Start it."


def test_a_deadline_that_cuts_an_attempt_short_says_why_the_one_before_failed() -> None:
    attempts = []

    def attempt(deadline: Deadline) -> Operation[None]:
        attempts.append(1)
        if len(attempts) > 1:
            yield Future()
        yield later(OperationTimeout("the broker did not answer LOOKUP", broker="h:1"))

    expected = (
        r"no answer came within 0\.6 s \(after 2 attempts; the one before: "
        r"the broker did not answer LOOKUP\) \[broker h:1\]"
    )
    with pytest.raises(OperationTimeout, match=expected):
        run(lambda deadline: retrying(attempt, deadline), 0.6)


@pytest.mark.parametrize(
    "error, expected",
    [
        (ConnectError("x"), True),
        (ServiceNotReady("x"), True),
        (TopicNotFound("x"), False),
        (RemoteProtocolError("the peer speaks TLS"), False),
        (OperationTimeout("x"), True),
    ],
)
def test_what_may_pass_is_no_final_error(error: PulsarError, expected: bool) -> None:
    assert can_pass(error) is expected


# --- operations that no thread waits for ------------------------------------------------------


def test_a_started_operation_continues_on_the_thread_of_its_answer(timers: Timers) -> None:
    first, second = Future[int](), Future[int]()
    threads: list[threading.Thread] = []

    def operation(deadline: Deadline) -> Operation[int]:
        threads.append(threading.current_thread())
        one = yield first
        threads.append(threading.current_thread())
        two = yield second
        threads.append(threading.current_thread())
        return int(one + two)

    result = start(operation, 60, timers)
    assert not result.done()
    receive = threading.Thread(target=first.set_result, args=(1,))
    receive.start()
    receive.join()
    assert not result.done()
    second.set_result(2)
    assert result.result(0) == 3
    assert threads == [threading.current_thread(), receive, threading.current_thread()]
    assert timers.waiting == 0


def test_a_started_operation_does_not_wait_for_what_is_there(timers: Timers) -> None:
    def operation(deadline: Deadline) -> Operation[int]:
        total = 0
        for number in range(5000):
            total += yield later(number)
        return total

    assert start(operation, 60, timers).result(0) == sum(range(5000))


def test_a_started_operation_is_thrown_the_errors_of_what_it_waits_for(timers: Timers) -> None:
    asked = Future[int]()

    def operation(deadline: Deadline) -> Operation[str]:
        try:
            yield asked
        except ConnectError as error:
            return error.what
        return "nothing"

    result = start(operation, 60, timers)
    asked.set_exception(ConnectError("gone"))
    assert result.result(0) == "gone"


@pytest.mark.parametrize("error", [TopicNotFound("no"), ValueError("a mistake of ours")])
def test_whatever_a_started_operation_raises_is_in_its_future(
    timers: Timers, error: Exception
) -> None:
    def at_once(deadline: Deadline) -> Operation[None]:
        yield later(None)
        raise error

    def later_on(deadline: Deadline) -> Operation[None]:
        yield Pause(0.0)
        raise error

    assert start(at_once, 60, timers).exception(0) is error
    assert start(later_on, 60, timers).exception(30) is error

    def broken(deadline: Deadline) -> Operation[None]:
        raise error

    assert start(broken, 60, timers).exception(0) is error
    assert timers.waiting == 0


def test_pauses_and_limits_of_a_started_operation_are_timers(timers: Timers) -> None:
    seen: list[str] = []

    def operation(deadline: Deadline) -> Operation[None]:
        yield Pause(0.01)
        seen.append(threading.current_thread().name)
        try:
            yield Within(Future(), 0.01)
        except OperationTimeout:
            seen.append(threading.current_thread().name)
        seen.append((yield Within(later("there"), 60)))

    start(operation, 60, timers).result(30)
    assert seen == ["test-timers", "test-timers", "there"]


def test_an_answer_that_comes_after_its_limit_is_ignored(timers: Timers) -> None:
    late, next_one = Future[int](), Future[int]()
    waits = threading.Event()

    def operation(deadline: Deadline) -> Operation[int]:
        try:
            yield Within(late, 0.0)
        except OperationTimeout:
            waits.set()
        return int((yield next_one))

    result = start(operation, 60, timers)
    assert waits.wait(30)
    late.set_result(1)
    assert not result.done()
    next_one.set_result(2)
    assert result.result(30) == 2


def test_the_deadline_of_a_started_operation_ends_it(timers: Timers) -> None:
    closed = threading.Event()

    def operation(deadline: Deadline) -> Operation[None]:
        try:
            while True:
                try:
                    yield Future()
                except OperationTimeout:
                    # It ignores the timeout.
                    continue
        finally:
            closed.set()

    assert isinstance(start(operation, 0.05, timers).exception(30), OperationTimeout)
    assert closed.is_set()


def test_a_started_operation_may_answer_its_deadline(timers: Timers) -> None:
    def operation(deadline: Deadline) -> Operation[str]:
        try:
            yield Future()
        except OperationTimeout:
            return "what there is"
        return "all"

    assert start(operation, 0.01, timers).result(30) == "what there is"


def test_a_deadline_that_passes_while_the_operation_runs_ends_it_after(timers: Timers) -> None:
    def operation(deadline: Deadline) -> Operation[None]:
        time.sleep(0.2)
        yield Future()

    assert isinstance(start(operation, 0.01, timers).exception(30), OperationTimeout)


def test_the_end_of_the_timers_ends_what_was_started(timers: Timers) -> None:
    def operation(deadline: Deadline) -> Operation[None]:
        yield Future()

    waiting = start(operation, 60, timers)
    timers.close()
    assert isinstance(waiting.exception(0), ClosedError)
    assert isinstance(start(operation, 60, timers).exception(0), ClosedError)


def test_a_cancelled_operation_is_closed(timers: Timers) -> None:
    closed = threading.Event()

    def operation(deadline: Deadline) -> Operation[None]:
        try:
            yield Future()
        finally:
            closed.set()

    result = start(operation, 60, timers)
    assert result.cancel()
    assert closed.is_set()
    assert timers.waiting == 0
    with pytest.raises(CancelledError):
        result.result(0)


def test_an_operation_learns_that_what_it_waits_for_was_cancelled(timers: Timers) -> None:
    asked = Future[None]()

    def operation(deadline: Deadline) -> Operation[None]:
        yield asked

    result = start(operation, 60, timers)
    asked.cancel()
    assert isinstance(result.exception(0), ClosedError)


def test_answers_and_timers_at_the_same_moment_never_run_an_operation_twice(
    timers: Timers,
) -> None:
    """A generator that two threads resume at once raises ValueError."""

    def operation(deadline: Deadline) -> Operation[int]:
        count = 0
        for _ in range(50):
            with contextlib.suppress(OperationTimeout):
                yield Within(later(1, 0.001), 0.001)
            count += 1
        return count

    results = [start(operation, 60, timers) for _ in range(20)]
    assert [result.result(60) for result in results] == [50] * 20
