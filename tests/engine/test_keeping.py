"""What outlives its user, for the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from pulsar_spark.engine import keeping
from pulsar_spark.engine.keeping import Kept
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import ClosedError


class Clock:
    """Timers that a test moves on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[float, Callable[[], object]]] = []
        self.closed = False

    def after(self, delay: float, function: Callable[[], object]) -> None:
        if self.closed:
            raise ClosedError("closed")
        self.calls.append((self.now + delay, function))

    def monotonic(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [call for call in self.calls if call[0] <= until]:
            first = min(due, key=lambda call: call[0])
            self.calls.remove(first)
            self.now = first[0]
            first[1]()
        self.now = until


class Thing:
    gone = False

    def let_go(self) -> None:
        self.gone = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(keeping, "time", clock)
    return clock


def kept(clock: Clock, most: int = 10) -> Kept:
    return Kept(cast(Timers, cast(Any, clock)), 8.0, most)


def test_a_thing_is_taken_once_and_by_an_equal_key(clock: Clock) -> None:
    store, thing = kept(clock), Thing()
    store.keep(("a", 1), thing)
    assert store.take(("a", 2)) is None
    assert store.take(("a", 1)) is thing
    assert store.take(("a", 1)) is None
    clock.move(100)
    assert not thing.gone


def test_what_nobody_wants_is_let_go_in_time(clock: Clock) -> None:
    store, early, late = kept(clock), Thing(), Thing()
    store.keep("a", early)
    clock.move(7.0)
    store.keep("b", late)
    clock.move(3.0)
    assert (early.gone, late.gone, len(store)) == (True, False, 1)
    clock.move(8.0)
    assert late.gone
    # Nothing looks any more.
    assert (len(store), clock.calls) == (0, [])


def test_the_oldest_makes_room(clock: Clock) -> None:
    store, things = kept(clock, most=3), [Thing() for _ in range(5)]
    for number, thing in enumerate(things):
        store.keep(number, thing)
    assert [thing.gone for thing in things] == [True, True, False, False, False]
    assert len(store) == 3


def test_what_has_ended_by_itself_is_dropped_and_all_can_be_let_go(clock: Clock) -> None:
    store, one, two = kept(clock), Thing(), Thing()
    store.keep("a", one)
    store.keep("a", two)
    store.drop("a", two)
    store.drop("b", two)
    assert len(store) == 1
    store.let_go()
    assert (one.gone, two.gone, len(store)) == (True, False, 0)


def test_nothing_is_kept_that_no_timer_would_end(clock: Clock) -> None:
    store, thing = kept(clock), Thing()
    clock.closed = True
    store.keep("a", thing)
    assert thing.gone
