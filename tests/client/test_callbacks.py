"""Callbacks of users run in order, on a thread of their own."""

from __future__ import annotations

import threading
import time

import pytest

from pulsar_spark.client.callbacks import CallbackThread
from pulsar_spark.engine.retry import Deadline
from pulsar_spark.errors import OperationTimeout


def test_callbacks_run_in_order_on_one_thread() -> None:
    callbacks = CallbackThread()
    done: list[int] = []
    threads: set[threading.Thread] = set()

    def note(number: int) -> None:
        done.append(number)
        threads.add(threading.current_thread())

    for number in range(100):
        callbacks.run(lambda number=number: note(number))  # type: ignore[misc]
    callbacks.drain(Deadline(5))
    assert done == list(range(100))
    assert len(threads) == 1
    callbacks.close()
    assert not threads.pop().is_alive()


def test_no_thread_is_started_for_nothing() -> None:
    before = threading.active_count()
    callbacks = CallbackThread()
    callbacks.drain(Deadline(0.1))
    callbacks.close()
    assert threading.active_count() == before


def test_a_failing_callback_is_logged_and_the_next_one_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    callbacks = CallbackThread()
    done: list[int] = []

    def fail() -> None:
        raise RuntimeError("its own fault")

    callbacks.run(fail)
    callbacks.run(lambda: done.append(1))
    callbacks.drain(Deadline(5))
    assert done == [1]
    assert "the callback of a send failed" in caplog.text
    callbacks.close()


def test_waiting_for_callbacks_has_an_end() -> None:
    callbacks = CallbackThread()
    release = threading.Event()
    callbacks.run(lambda: release.wait(10))
    with pytest.raises(OperationTimeout):
        callbacks.drain(Deadline(0.05))
    release.set()
    callbacks.close()


def test_a_callback_may_wait_for_callbacks_without_an_end() -> None:
    callbacks = CallbackThread()
    done = threading.Event()

    def wait() -> None:
        callbacks.drain(Deadline(None))
        callbacks.close()
        done.set()

    callbacks.run(wait)
    assert done.wait(5)
    time.sleep(0.01)
