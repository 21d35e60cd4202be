"""When a run may be measured."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, repeat

import pytest

from benchmarks import measure


class Clock:
    """A clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def waited(monkeypatch: pytest.MonkeyPatch, used: Iterator[float]) -> float:
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)
    monkeypatch.setattr(measure, "_cpu_seconds", lambda: next(used))
    measure.wait_until_idle()
    return clock.now


def test_a_run_waits_until_workers_have_collected_their_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = chain([1.00, 1.03, 1.06], repeat(1.07))
    assert waited(monkeypatch, busy) == pytest.approx(4 * measure._IDLE)


def test_a_run_does_not_wait_for_ever_for_a_process_that_is_always_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert waited(monkeypatch, map(float, count())) == pytest.approx(
        measure._MOST_IDLE, abs=1.1 * measure._IDLE
    )
