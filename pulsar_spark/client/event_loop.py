"""Waits of asyncio's tasks: for operations of the engine, and for what other threads bring."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import TypeVar

from pulsar_spark.engine.operations import AllOf, Steps, start
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import PulsarError

T = TypeVar("T")

# A task that never has to wait lets others run after so many calls.
_IN_A_ROW = 32


async def finish(steps: Steps[T], timers: Timers) -> T:
    """Take steps to their end without a thread that waits; raises their error.

    If the task is cancelled, so are the operations, and the steps get CancelledError.
    """
    try:
        asked = next(steps)
        while True:
            try:
                found = await _all_of(asked, timers)
            except BaseException as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(found)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def _all_of(asked: AllOf, timers: Timers) -> list[object]:
    found: list[object] = []
    for first in range(0, len(asked.factories), asked.window):
        part = asked.factories[first : first + asked.window]
        answers = [asyncio.wrap_future(start(each, asked.timeout, timers)) for each in part]
        found += await asyncio.gather(*answers, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException) and not isinstance(each, PulsarError):
            raise each
    return found


def run_on(loop: asyncio.AbstractEventLoop, function: Callable[[], object], calls: int = 1) -> None:
    """Call a function on an event loop, unless that is closed; on any thread.

    A `Runner` for one loop, so it is told of how many `calls` the function makes.
    """
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


class Turns:
    """Tasks that wait for something, one after the other, in the order of their calls.

    What they wait for is taken when it is returned: a task that is cancelled has taken nothing.
    For one event loop at a time; any thread may `wake`.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()
        self._woken = asyncio.Event()
        # Whether the task whose turn it is will wait, or waits.
        self._listens = False
        self._calls = 0

    def wake(self) -> None:
        """Have the task whose turn it is look again; on any thread."""
        loop = self._loop
        if self._listens and loop is not None:
            self._listens = False
            run_on(loop, self._woken.set)

    async def until(
        self, look: Callable[[], T | None], due_in: Callable[[], float] = lambda: math.inf
    ) -> T:
        """Return what `look` returns, as soon as that is not None; raises its errors.

        It is called again after `wake`, and after the seconds that `due_in` returns.
        """
        self._enter()
        async with self._turn:
            self._calls += 1
            if not self._calls % _IN_A_ROW:
                await asyncio.sleep(0)
            try:
                while True:
                    # Before it looks: what comes from now on wakes it.
                    self._woken.clear()
                    self._listens = True
                    if (found := look()) is not None:
                        return found
                    await self._wait(due_in())
            finally:
                self._listens = False

    def _enter(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # Locks belong to the loop that they were first used on.
            self._turn, self._woken = asyncio.Lock(), asyncio.Event()
            self._loop = loop

    async def _wait(self, seconds: float) -> None:
        if seconds == math.inf:
            await self._woken.wait()
            return
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
