"""Timers: on time, on one thread, and nothing left behind."""

from __future__ import annotations

import threading
import time

import pytest

from pulsar_spark.engine import timers as module
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import ClosedError
from tests.support.waiting import wait_until


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_no_thread_exists_before_the_first_timer(timers: Timers) -> None:
    assert "test-timers" not in names()


def test_a_call_is_not_made_before_its_time(timers: Timers) -> None:
    called = threading.Event()
    began = time.monotonic()
    timers.after(0.05, called.set)
    assert called.wait(30)
    assert time.monotonic() - began >= 0.05


def test_a_timer_that_was_cancelled_does_not_call(timers: Timers) -> None:
    called, last = threading.Event(), threading.Event()
    timers.after(0.02, called.set).cancel()
    timers.after(0.05, last.set)
    assert last.wait(30)
    assert not called.is_set()


def test_the_thread_stays_for_a_timer_that_is_far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    timers = Timers("test-timers")
    called = threading.Event()
    timers.after(0.3, called.set)
    timers.after(0.0, lambda: None)
    assert called.wait(30)
    timers.close()
    assert "test-timers" not in names()


def test_calls_are_made_in_the_order_of_their_times_on_one_thread(timers: Timers) -> None:
    calls: list[tuple[str, str]] = []
    last = threading.Event()

    def call(what: str) -> None:
        calls.append((what, threading.current_thread().name))

    begin = threading.Event()
    # The thread starts when all timers are set.
    timers.after(0, begin.wait)
    timers.after(0.2, last.set)
    timers.after(0.1, lambda: call("later"))
    timers.after(0.1, lambda: call("later still"))
    timers.after(0.0, lambda: call("sooner"))
    begin.set()
    assert last.wait(30)
    assert calls == [(what, "test-timers") for what in ("sooner", "later", "later still")]


def test_a_call_of_timers_that_fails_is_logged_and_the_next_is_made(
    timers: Timers, caplog: pytest.LogCaptureFixture
) -> None:
    ran = threading.Event()

    def fail() -> None:
        raise RuntimeError("a fault")

    timers.after(0, fail)
    timers.after(0.01, ran.set)
    assert ran.wait(30)
    assert "what a timer of the client called has failed" in caplog.text


def test_a_timer_can_be_far_away_or_never(timers: Timers) -> None:
    ran = threading.Event()
    timers.after(float("inf"), ran.set)
    timers.after(1e12, ran.set)
    timers.after(0.0, ran.set)
    assert ran.wait(30)
    assert timers.waiting == 2


def test_cancelled_timers_are_not_kept_until_they_were_due(timers: Timers) -> None:
    kept = timers.after(3600, lambda: None)
    for _ in range(10_000):
        timers.after(3600, lambda: None).cancel()
    assert len(timers._heap) < 200
    assert timers.waiting == 1
    kept.cancel()
    assert not kept.waits


def test_operations_that_wait_learn_that_the_timers_ended() -> None:
    timers = Timers("test-timers")
    told: list[str] = []
    timers.after(3600, lambda: told.append("called"), lambda: told.append("dropped"))
    timers.after(3600, lambda: told.append("called"))
    timers.close()
    timers.close()
    assert told == ["dropped"]
    with pytest.raises(ClosedError):
        timers.after(0, lambda: None)


def test_timers_may_be_closed_by_a_timer() -> None:
    timers = Timers("test-timers")
    closed = threading.Event()

    def close() -> None:
        timers.close()
        closed.set()

    timers.after(0, close)
    assert closed.wait(30)


def test_the_thread_ends_when_there_is_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    timers = Timers("test-idle-timers")
    for _ in range(3):
        ran = threading.Event()
        timers.after(0, ran.set)
        assert ran.wait(30)
        wait_until(lambda: "test-idle-timers" not in names())
    timers.close()


def test_timers_recover_from_a_thread_that_could_not_start(
    timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            timers.after(0, lambda: None)
    assert timers.waiting == 0
    ran = threading.Event()
    timers.after(0, ran.set)
    assert ran.wait(30)
