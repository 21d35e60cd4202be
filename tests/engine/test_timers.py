"""The scheduler: jobs on time, few threads, and none left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from pulsar_spark.engine import timers as module
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import ClosedError


@pytest.fixture
def timers() -> Iterator[Timers]:
    made = Timers("test-scheduler")
    yield made
    made.close()


def test_no_thread_exists_before_the_first_job(timers: Timers) -> None:
    assert timers.threads == 0


def test_jobs_run_in_the_order_of_their_times(timers: Timers) -> None:
    done: list[str] = []
    last = threading.Event()
    timers.call_later(0.09, last.set)
    timers.call_later(0.06, lambda: done.append("later"))
    timers.call_later(0.02, lambda: done.append("sooner"))
    assert last.wait(5)
    assert done == ["sooner", "later"]


def test_a_job_does_not_run_before_its_time(timers: Timers) -> None:
    ran = threading.Event()
    began = time.monotonic()
    timers.call_later(0.05, ran.set)
    assert ran.wait(5)
    assert time.monotonic() - began >= 0.05


def test_a_cancelled_job_does_not_run(timers: Timers) -> None:
    ran = threading.Event()
    after = threading.Event()
    timers.call_later(0.02, ran.set).cancel()
    timers.call_later(0.05, after.set)
    assert after.wait(5)
    assert not ran.is_set()


def test_a_job_that_blocks_does_not_hold_up_another(timers: Timers) -> None:
    release, ran = threading.Event(), threading.Event()
    timers.call_later(0, lambda: release.wait(5))
    timers.call_later(0.02, ran.set)
    assert ran.wait(5)
    release.set()


def test_a_failing_job_is_logged_and_the_next_one_runs(
    timers: Timers, caplog: pytest.LogCaptureFixture
) -> None:
    ran = threading.Event()

    def fail() -> None:
        raise RuntimeError("a job's fault")

    timers.call_later(0, fail)
    timers.call_later(0.02, ran.set)
    assert ran.wait(5)
    assert "a background job of the client failed" in caplog.text


def test_no_more_threads_than_allowed_run_jobs() -> None:
    timers = Timers("test-scheduler", max_threads=2)
    release, all_done = threading.Event(), threading.Event()
    running: list[int] = []

    def occupy() -> None:
        running.append(timers.threads)
        release.wait(5)

    for _ in range(6):
        timers.call_later(0, occupy)
    timers.call_later(0.01, all_done.set)
    time.sleep(0.1)
    assert len(running) == 2
    release.set()
    assert all_done.wait(5)
    assert max(running) <= 2
    timers.close()


def test_threads_end_when_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.05)
    timers = Timers("test-scheduler")
    ran = threading.Event()
    timers.call_later(0, ran.set)
    assert ran.wait(5)
    deadline = time.monotonic() + 5
    while timers.threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert timers.threads == 0
    again = threading.Event()
    timers.call_later(0, again.set)
    assert again.wait(5)
    timers.close()


def test_one_thread_stays_for_a_job_that_is_far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.02)
    timers = Timers("test-scheduler")
    ran = threading.Event()
    timers.call_later(0.3, ran.set)
    for _ in range(3):
        timers.call_later(0, lambda: None)
    assert ran.wait(5)
    timers.close()


def test_close_drops_what_waits_and_takes_nothing_more() -> None:
    timers = Timers("test-scheduler")
    ran = threading.Event()
    timers.call_later(0.05, ran.set)
    timers.close()
    assert timers.threads == 0
    with pytest.raises(ClosedError):
        timers.call_later(0, ran.set)
    assert not ran.is_set()
