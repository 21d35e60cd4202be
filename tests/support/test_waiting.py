"""Waiting has deadlines, and all tests' deadlines have room for a busy machine."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import Clock, finish, is_in, wait_until

TESTS = Path(__file__).resolve().parent.parent
CLOCKS = {"monotonic", "perf_counter", "time"}
LEAST_SECONDS = 5


def test_what_is_waited_for_is_returned() -> None:
    answers = iter([0, None, "", "found"])
    assert wait_until(lambda: next(answers)) == "found"


def test_what_does_not_come_about_is_named() -> None:
    with pytest.raises(AssertionError, match=r"the end: not within 0\.01 s"):
        wait_until(lambda: False, "the end", 0.01)


def test_errors_of_the_condition_are_not_waited_out() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0)


def test_threads_are_waited_for_and_named() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="the slow one")
    thread.start()
    with pytest.raises(AssertionError, match="the slow one"):
        finish(thread, seconds=0.01)
    release.set()
    finish(thread)


def test_where_a_thread_waits_is_seen() -> None:
    release = threading.Event()

    def work() -> None:
        release.wait()

    thread = threading.Thread(target=work)
    assert not is_in(thread, "work")
    thread.start()
    wait_until(lambda: is_in(thread, "wait"))
    assert is_in(thread, "work")
    assert not is_in(thread, "play")
    release.set()
    finish(thread)
    assert not is_in(thread, "work")


def test_a_clock_moves_on_when_it_is_moved_alone() -> None:
    clock = Clock()
    began = clock.monotonic()
    assert clock.monotonic() == began
    clock.advance(3600)
    clock.sleep(60)
    assert clock.monotonic() == began + 3660


def too_tight(path: Path) -> Iterator[str]:
    """Yield assertions that allow less than LEAST_SECONDS of wall-clock time."""
    tree = ast.parse(path.read_text("utf-8"))
    asserted = [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    for node in (node for test in asserted for node in ast.walk(test)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        for less, operator, more in zip(sides, node.ops, sides[1:], strict=False):
            if isinstance(operator, (ast.Gt, ast.GtE)):
                less, more = more, less
            elif not isinstance(operator, (ast.Lt, ast.LtE)):
                continue
            if not (is_elapsed(less) and isinstance(more, ast.Constant)):
                continue
            if isinstance(more.value, (int, float)) and more.value < LEAST_SECONDS:
                yield f"{path.relative_to(TESTS)}:{node.lineno}: {ast.unparse(node)}"


def is_elapsed(node: ast.expr) -> bool:
    """Whether it is a difference from the current time of a clock."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and isinstance(node.left, ast.Call)
        and isinstance(node.left.func, ast.Attribute)
        and node.left.func.attr in CLOCKS
    )


def test_no_test_asks_for_less_than_some_seconds() -> None:
    assert not [found for path in sorted(TESTS.rglob("*.py")) for found in too_tight(path)]
