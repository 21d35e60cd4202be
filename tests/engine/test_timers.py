"""Timers: on time, on one thread, and nothing left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from pulsar_spark.engine import timers as module
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import ClosedError
from tests.support.waiting import wait_until


@pytest.fixture
def timers() -> Iterator[Timers]:
    made = Timers("test-timers")
    yield made
    made.close()


def test_no_thread_exists_before_the_first_job(timers: Timers) -> None:
    assert timers.threads == 0


def test_jobs_run_in_the_order_of_their_times() -> None:
    timers = Timers("test-timers", max_threads=1)
    done: list[str] = []
    begin, last = threading.Event(), threading.Event()
    # The only thread begins when all are given.
    timers.call_later(0, begin.wait)
    timers.call_later(0.09, last.set)
    timers.call_later(0.06, lambda: done.append("later"))
    timers.call_later(0.02, lambda: done.append("sooner"))
    begin.set()
    assert last.wait(30)
    assert done == ["sooner", "later"]
    timers.close()


def test_a_job_does_not_run_before_its_time(timers: Timers) -> None:
    ran = threading.Event()
    began = time.monotonic()
    timers.call_later(0.05, ran.set)
    assert ran.wait(30)
    assert time.monotonic() - began >= 0.05


def test_a_cancelled_job_does_not_run(timers: Timers) -> None:
    ran = threading.Event()
    after = threading.Event()
    timers.call_later(0.5, ran.set).cancel()
    timers.call_later(0.6, after.set)
    assert after.wait(30)
    assert not ran.is_set()


def test_a_job_that_blocks_does_not_hold_up_another(timers: Timers) -> None:
    release, ran = threading.Event(), threading.Event()
    timers.call_later(0, lambda: release.wait(30))
    timers.call_later(0.02, ran.set)
    assert ran.wait(30)
    release.set()


def test_a_failing_job_is_logged_and_the_next_one_runs(
    timers: Timers, caplog: pytest.LogCaptureFixture
) -> None:
    ran = threading.Event()

    def fail() -> None:
        raise RuntimeError("a job's fault")

    timers.call_later(0, fail)
    timers.call_later(0.02, ran.set)
    assert ran.wait(30)
    assert "a background job of the client failed" in caplog.text


def test_no_more_threads_than_allowed_run_jobs() -> None:
    timers = Timers("test-timers", max_threads=2)
    release, all_done = threading.Event(), threading.Event()
    running: list[int] = []

    def occupy() -> None:
        running.append(timers.threads)
        release.wait(30)

    for _ in range(6):
        timers.call_later(0, occupy)
    timers.call_later(0.01, all_done.set)
    time.sleep(0.1)
    assert len(running) == 2
    release.set()
    assert all_done.wait(30)
    assert max(running) <= 2
    timers.close()


def test_threads_end_when_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.05)
    timers = Timers("test-timers")
    ran = threading.Event()
    timers.call_later(0, ran.set)
    assert ran.wait(30)
    wait_until(lambda: timers.threads == 0, "the threads' end")
    again = threading.Event()
    timers.call_later(0, again.set)
    assert again.wait(30)
    timers.close()


def test_one_thread_stays_for_a_job_that_is_far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.02)
    timers = Timers("test-timers")
    ran = threading.Event()
    timers.call_later(0.3, ran.set)
    for _ in range(3):
        timers.call_later(0, lambda: None)
    assert ran.wait(30)
    timers.close()


def test_close_drops_what_waits_and_takes_nothing_more() -> None:
    timers = Timers("test-timers")
    ran = threading.Event()
    timers.call_later(60, ran.set)
    timers.close()
    assert timers.threads == 0
    with pytest.raises(ClosedError):
        timers.call_later(0, ran.set)
    assert not ran.is_set()


# --- calls on the one thread ------------------------------------------------------------------


def test_calls_are_made_in_the_order_of_their_times_on_one_thread(timers: Timers) -> None:
    calls: list[tuple[str, str]] = []
    last = threading.Event()

    def call(what: str) -> None:
        calls.append((what, threading.current_thread().name))

    begin = threading.Event()
    # The thread begins when all are given.
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


def test_the_end_of_timers_is_told_to_those_that_wait() -> None:
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
        wait_until(lambda: "test-idle-timers" not in [t.name for t in threading.enumerate()])
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
