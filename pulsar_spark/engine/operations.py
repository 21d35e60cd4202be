"""Operations: generators that talk to brokers, run one at a time or by the thousand.

An operation describes an exchange step by step. It yields a future when it needs an answer, and
receives the future's result or error; a `Within` to wait for an answer at most some seconds; a
`Pause` to wait for some time only. `run` and `run_many` drive operations on the caller's thread,
hundreds at a time. `start` drives one on the threads that complete its futures, so no thread waits;
so between two yields an operation must be quick.

Steps are what needs answers of operations, one after the other, and has work of the caller's own
between them: generators that yield `AllOf`. `in_steps` takes them on the caller's thread; others
may, without a thread that waits.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar

from pulsar_spark.engine.deadline import Deadline, at_a_time
from pulsar_spark.engine.gathering import gathered
from pulsar_spark.engine.timers import Timer, Timers
from pulsar_spark.errors import ClosedError, OperationTimeout, PulsarError

P = ParamSpec("P")
T = TypeVar("T")

WINDOW = 500
"""How many operations run at a time: far below a broker's limit per connection."""


class Within(NamedTuple):
    """Yielded by an operation: OperationTimeout is thrown if `answer` takes longer."""

    answer: Future[Any]
    seconds: float


class Pause(NamedTuple):
    """Yielded by an operation to continue after some seconds."""

    seconds: float


Operation: TypeAlias = "Generator[Future[Any] | Pause | Within, Any, T]"
OperationFactory: TypeAlias = "Callable[[Deadline], Operation[T]]"


class AllOf(NamedTuple):
    """Yielded by steps: run these operations, `window` at a time, each for at most `timeout` s.

    Sent back is the list of their results and errors.
    """

    factories: Sequence[OperationFactory[Any]]
    timeout: float
    window: int = WINDOW


Steps: TypeAlias = "Generator[AllOf, list[Any], T]"


def in_steps(steps: Steps[T]) -> T:
    """Take steps to their end on the caller's thread; return their result, or raise their error."""
    try:
        asked = next(steps)
        while True:
            try:
                found = run_many(*asked)
            except BaseException as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(found)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def on_thread(steps: Callable[P, Steps[T]]) -> Callable[P, T]:
    """Return a function that takes another one's steps to their end on the caller's thread."""

    @wraps(steps)
    def take(*args: P.args, **kwargs: P.kwargs) -> T:
        return in_steps(steps(*args, **kwargs))

    return take


def settled(answers: Sequence[Future[Any] | None], seconds: float) -> Steps[None]:
    """Return steps that wait until answers are there, whatever they are, or for so long."""

    def until(answer: Future[Any], deadline: Deadline) -> Operation[None]:
        with suppress(Exception):
            yield answer

    yield AllOf([partial(until, answer) for answer in answers if answer is not None], seconds)


def run(factory: OperationFactory[T], timeout: float) -> T:
    """Run one operation to its end and return its result; raises its error or OperationTimeout."""
    (result,) = run_many([factory], timeout)
    return value_of(result)


def value_of(result: T | PulsarError) -> T:
    """Return one of the results of `run_many`, or raise its error."""
    if isinstance(result, PulsarError):
        raise result
    return result


def run_many(
    factories: Sequence[OperationFactory[T]], timeout: float, window: int = WINDOW
) -> list[T | PulsarError]:
    """Run all operations, `window` at a time, and return each one's result or error.

    Each has `timeout` seconds from its own start.
    """
    return _Run(factories, timeout, window).results()


def asking_all(
    questions: Sequence[tuple[str, OperationFactory[T]]], timeout: float
) -> Steps[list[T | PulsarError]]:
    """Return steps that ask about topics at once.

    They give answers, or errors that name the topic, in the order of the questions.
    """
    results = yield AllOf([factory for _, factory in questions], timeout)
    return [
        result.with_context(topic=topic) if isinstance(result, PulsarError) else result
        for (topic, _), result in zip(questions, results, strict=True)
    ]


ask_all = on_thread(asking_all)


def start(factory: OperationFactory[T], timeout: float, timers: Timers) -> Future[T]:
    """Start an operation and return the future of its result or error.

    It runs on the thread that completes its futures, mostly a connection's receive thread, or on
    the timers' thread. It ends within `timeout` seconds, or with ClosedError when the timers are
    closed. Cancelling the future closes the operation.
    """
    return _Started(factory, timeout, timers).future


# In place of a step: the task's time is over.
_END = -1


@dataclass(slots=True, eq=False)
class _Task(Generic[T]):
    """A running operation: `step` counts its waits, `limit` is the current wait's deadline."""

    index: int
    operation: Operation[T]
    step: int = 0
    limit: float | None = None


class _Run(Generic[T]):
    def __init__(
        self, factories: Sequence[OperationFactory[T]], timeout: float, window: int
    ) -> None:
        self._factories = factories
        self._timeout = timeout
        self._window = window
        self._results: list[T | PulsarError | None] = [None] * len(factories)
        self._started = 0
        self._tasks: dict[int, _Task[T]] = {}
        # When to continue which step of which task, or to end it; some may have ended.
        self._due: list[tuple[float, int, int]] = []
        # Filled by the threads that complete futures.
        self._ready: queue.SimpleQueue[tuple[int, int, Future[Any]]] = queue.SimpleQueue()

    def results(self) -> list[T | PulsarError]:
        try:
            with gathered():
                self._fill()
            while self._tasks:
                self._wait()
        finally:
            for task in self._tasks.values():
                task.operation.close()
        return self._results  # type: ignore[return-value]

    def _fill(self) -> None:
        while self._started < len(self._factories) and len(self._tasks) < self._window:
            deadline = Deadline(self._timeout)
            operation = self._factories[self._started](deadline)
            task = _Task(self._started, operation)
            self._tasks[task.index] = task
            heapq.heappush(self._due, (deadline.at, task.index, _END))
            self._started += 1
            self._step(task, None)

    def _wait(self) -> None:
        """Continue those tasks whose answer is there, or whose pause or time is over."""
        until, now = self._due[0][0], time.monotonic()
        if until <= now:
            with gathered():
                self._on_time(now)
                self._fill()
            return
        with suppress(queue.Empty):
            found = self._ready.get(timeout=at_a_time(until - now))
            with gathered():
                while True:
                    self._on_ready(*found)
                    self._fill()
                    found = self._ready.get_nowait()

    def _on_ready(self, index: int, step: int, future: Future[Any]) -> None:
        task = self._tasks.get(index)
        # A task that no longer waits ignores a late answer.
        if task is not None and task.step == step:
            self._step(task, future)

    def _on_time(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            _, index, step = heapq.heappop(self._due)
            task = self._tasks.get(index)
            if task is None:
                continue
            if step == _END:
                self._throw(task, _timeout(self._timeout))
            elif task.step == step:
                self._step(task, None if task.limit is None else _no_answer(task.limit))

    def _step(self, task: _Task[T], future: Future[Any] | None) -> None:
        try:
            while True:
                waits = _go_on(task.operation, future)
                task.step += 1
                task.limit = None
                if isinstance(waits, Pause):
                    self._wake(task, waits.seconds)
                    return
                if isinstance(waits, Within):
                    task.limit = waits.seconds
                    waits = waits.answer
                future = waits
                if not future.done():
                    if task.limit is not None:
                        self._wake(task, task.limit)
                    future.add_done_callback(partial(self._on_done, task.index, task.step))
                    return
        except StopIteration as stop:
            self._end(task, stop.value)
        except PulsarError as error:
            self._end(task, error)

    def _wake(self, task: _Task[T], seconds: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, task.index, task.step))

    def _on_done(self, index: int, step: int, future: Future[Any]) -> None:
        self._ready.put((index, step, future))

    def _throw(self, task: _Task[T], error: OperationTimeout) -> None:
        try:
            self._end(task, _last_result(task.operation, error))
        except PulsarError as raised:
            self._end(task, raised)

    def _end(self, task: _Task[T], result: T | PulsarError) -> None:
        del self._tasks[task.index]
        self._results[task.index] = result


class _Started(Generic[T]):
    """An operation driven by callbacks: of futures, of timers, of the timers' end."""

    def __init__(self, factory: OperationFactory[T], timeout: float, timers: Timers) -> None:
        self.future: Future[T] = Future()
        self._timers = timers
        self._timeout = timeout
        self._lock = threading.Lock()
        # The following are guarded by _lock. Waits are numbered, to detect late wake-ups; the
        # thread that set _running owns the operation.
        self._step = 0
        self._running = True
        self._over: PulsarError | None = None
        self._limit: Timer | None = None
        self._end: Timer | None = None
        deadline = Deadline(timeout)
        try:
            self._operation = factory(deadline)
            self._end = timers.after(
                timeout,
                lambda: self._finish(_timeout(timeout)),
                lambda: self._finish(ClosedError("the client is closed")),
            )
        except Exception as error:
            self.future.set_exception(error)
            return
        self.future.add_done_callback(self._on_result)
        self._run(None)

    def _on_result(self, future: Future[T]) -> None:
        if future.cancelled():
            self._finish(ClosedError("the operation was cancelled"))

    def _finish(self, error: PulsarError) -> None:
        """End the operation with an error, now or when its thread releases it."""
        with self._lock:
            self._over = self._over or error
            if self._running:
                return
            self._running = True
        self._run(None)

    def _wake(self, step: int, future: Future[Any] | None) -> None:
        """Continue after wait number `step`, if that is still the current one."""
        with self._lock:
            if self._running or step != self._step:
                return
            self._running = True
        self._run(future)

    def _run(self, future: Future[Any] | None) -> None:
        """Run the operation until it must wait; the caller has set _running."""
        try:
            while True:
                if self._limit is not None:
                    self._limit.cancel()
                    self._limit = None
                if self._over is not None:
                    self._leave(_last_result(self._operation, self._over.with_context()))
                    return
                waits = _go_on(self._operation, future)
                if (future := self._wait(waits)) is None:
                    return
        except StopIteration as stop:
            self._leave(stop.value)
        except BaseException as error:
            self._operation.close()
            self._leave(error=error)
            if not isinstance(error, Exception):
                raise

    def _wait(self, waits: Future[Any] | Pause | Within) -> Future[Any] | None:
        """Arrange to be woken; return the future if it is already done.

        If this returns None, the operation belongs to whoever wakes it.
        """
        answer = waits.answer if isinstance(waits, Within) else waits
        if isinstance(answer, Future) and answer.done():
            return answer
        with self._lock:
            if self._over is not None:
                return _no_answer(self._timeout)
            self._step = step = self._step + 1
            if not isinstance(waits, Future):
                seconds = waits.seconds
                late = _no_answer(seconds) if isinstance(waits, Within) else None
                self._limit = self._timers.after(seconds, lambda: self._wake(step, late))
            self._running = False
        if isinstance(answer, Future):
            answer.add_done_callback(partial(self._wake, step))
        return None

    def _leave(self, value: T | None = None, error: BaseException | None = None) -> None:
        """Complete the future, with an error or a value."""
        if self._end is not None:
            self._end.cancel()
        if not self.future.set_running_or_notify_cancel():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(value)  # type: ignore[arg-type]


def _last_result(operation: Operation[T], error: PulsarError) -> T:
    """Throw an error at an operation, which ends, whatever it does: return its result."""
    try:
        operation.throw(error)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    # It tries to continue although its time is over.
    operation.close()
    raise error


def _go_on(operation: Operation[T], future: Future[Any] | None) -> Future[Any] | Pause | Within:
    """Pass an operation the result of its wait, and return its next one."""
    if future is None:
        return operation.send(None)
    try:
        error = future.exception()
    except CancelledError:
        error = ClosedError("what was waited for was cancelled")
    if error is not None:
        return operation.throw(error)
    return operation.send(future.result())


def _timeout(seconds: float) -> OperationTimeout:
    return OperationTimeout(
        f"no answer came within {round(seconds, 3):g} s",
        "Check that the broker is reachable, or raise the operation timeout.",
    )


def _no_answer(seconds: float) -> Future[Any]:
    failed: Future[Any] = Future()
    failed.set_exception(_timeout(seconds))
    return failed
