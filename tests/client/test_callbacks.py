"""Users' callbacks run in order, on a thread of their own."""

from __future__ import annotations

import multiprocessing
import threading
import time
from functools import partial

import pytest

from pulsar_spark.client import callbacks as module
from pulsar_spark.client.callbacks import CallbackThread
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.errors import OperationTimeout, ProducerQueueFull
from tests.support.waiting import finish, wait_until


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
    assert threading.active_count() <= before


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
    assert "a callback of the user failed" in caplog.text
    callbacks.close()


def test_waiting_for_callbacks_has_an_end() -> None:
    callbacks = CallbackThread()
    release = threading.Event()
    callbacks.run(lambda: release.wait(60))
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
    assert done.wait(60)
    time.sleep(0.01)


def test_callbacks_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 10)
    callbacks = CallbackThread()
    release, begun = threading.Event(), threading.Event()

    def occupy() -> None:
        begun.set()
        release.wait(60)

    callbacks.run(occupy)
    assert begun.wait(60)
    for _ in range(10):
        callbacks.wait_for_room(0.0)
        callbacks.run(lambda: None)
    with pytest.raises(ProducerQueueFull, match="10 callbacks of sends are queued"):
        callbacks.wait_for_room(0.01)
    sender = threading.Thread(target=callbacks.wait_for_room, args=(60,))
    sender.start()
    release.set()
    finish(sender)
    callbacks.close()


def test_a_callback_that_sends_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 1)
    callbacks = CallbackThread()
    done = threading.Event()

    def send_more() -> None:
        callbacks.run(done.set)
        callbacks.run(lambda: None)
        callbacks.wait_for_room(60)

    callbacks.run(send_more)
    assert done.wait(60)
    callbacks.close()


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_what_comes_after_close_runs_once_and_leaves_no_thread(used: bool) -> None:
    callbacks = CallbackThread("closed-callbacks")
    done: list[int] = []
    if used:
        callbacks.run(lambda: done.append(-1))
    callbacks.close()
    for number in range(3):
        callbacks.run(partial(done.append, number))
        callbacks.drain(Deadline(60))
        callbacks.close()
    assert done == ([-1, 0, 1, 2] if used else [0, 1, 2])
    assert "closed-callbacks" not in {each.name for each in threading.enumerate()}
    # Nothing is left that could be waited for.
    assert callbacks.reached() is None


def test_what_is_queued_behind_the_end_runs_before_it() -> None:
    callbacks = CallbackThread("closed-callbacks")
    done: list[int] = []
    release = threading.Event()
    callbacks.run(lambda: release.wait(60))
    callbacks.close(0.0)
    callbacks.close(0.0)
    for number in range(100):
        callbacks.run(partial(done.append, number))
    release.set()
    callbacks.drain(Deadline(60))
    assert done == list(range(100))
    wait_until(
        lambda: "closed-callbacks" not in {each.name for each in threading.enumerate()},
        "the thread goes on",
    )


@pytest.mark.fault(75)
def test_a_thread_that_could_not_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    callbacks = CallbackThread()
    done: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            callbacks.run(lambda: done.append(1))
    callbacks.drain(Deadline(30))
    assert done == [1]
    callbacks.close()


@pytest.mark.fault(75)
def test_a_forked_child_does_not_wait_for_callbacks() -> None:
    callbacks = CallbackThread()
    callbacks.run(lambda: None)
    callbacks.drain(Deadline(30))

    def leave() -> None:
        callbacks.drain(Deadline(20))
        callbacks.close()

    child = multiprocessing.get_context("fork").Process(target=leave)
    child.start()
    try:
        child.join(60)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()
        callbacks.close()
