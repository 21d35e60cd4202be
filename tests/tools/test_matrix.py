"""The environments of the matrix: which are chosen, and what is said of those that cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import matrix


@pytest.fixture
def run_with(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let every version but 4.0 be had, and all tests pass; returns what was run."""
    tested: list[str] = []

    def prepare(pair: matrix.Pair) -> Path:
        if pair.spark == "4.0":
            raise matrix.Unavailable("no 4.0 here")
        return Path(sys.executable)

    def test(pair: matrix.Pair, python: Path, further: list[str]) -> bool:
        tested.append(pair.spark)
        return True

    monkeypatch.setattr(matrix, "prepare", prepare)
    monkeypatch.setattr(matrix, "test", test)
    return tested


def command_line(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["matrix", *arguments])
    return matrix.main()


def test_what_cannot_be_had_is_said_and_left_out(
    run_with: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(monkeypatch) == 0
    assert run_with == ["4.1", "4.2", "4.3"]
    assert "left out: no 4.0 here" in capsys.readouterr().out


def test_the_oldest_is_the_oldest_that_can_be_had(
    run_with: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command_line(monkeypatch, "oldest") == 0
    assert run_with == ["4.1"]


@pytest.mark.parametrize("ci, status", [("true", 1), ("", 0)])
def test_ci_does_not_take_nothing_for_success(
    run_with: list[str], monkeypatch: pytest.MonkeyPatch, ci: str, status: int
) -> None:
    monkeypatch.setenv("CI", ci)
    assert command_line(monkeypatch, "4.0") == status
    assert not run_with


def test_it_runs_what_the_versions_of_spark_differ_in() -> None:
    names = {Path(path).stem for path in matrix.TESTS}
    assert {"test_sql", "test_pipelines", "test_connect", "test_matrix_smoke"} <= names
    assert all((matrix.ROOT / path).is_file() for path in matrix.TESTS)


def test_a_failure_is_one(run_with: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "test", lambda *_: False)
    assert command_line(monkeypatch) == 1


def test_a_python_that_is_not_there_is_replaced_by_this_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(matrix.PYTHONS, "4.0", "3.1")
    assert matrix.choose("4.0") == matrix.Pair("4.0", None)
    assert "there is no Python 3.1" in capsys.readouterr().out
    assert matrix.find_python(None) == sys.executable
