"""The versions of the matrix: their choice, and reports of unavailable ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import matrix


@pytest.fixture
def run_with(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make every version but 4.0 available, and all tests pass; return the runs."""
    tested: list[str] = []

    def prepare(pair: matrix.Pair) -> Path:
        if pair.spark == "4.0":
            raise matrix.Unavailable("no 4.0 here")
        return Path(sys.executable)

    def test(pair: matrix.Pair, python: Path, further: list[str]) -> bool:
        tested.append(pair.spark)
        return True

    def obtain(version: str) -> None:
        if version == "3.0.7":
            raise matrix.Unavailable("no 3.0.7 here")

    def test_pulsar(version: str, further: list[str]) -> bool:
        tested.append(f"Pulsar {version}")
        return True

    monkeypatch.setattr(matrix, "prepare", prepare)
    monkeypatch.setattr(matrix, "test", test)
    monkeypatch.setattr(matrix, "PULSARS", ("3.0.7", "3.3.6"))
    monkeypatch.setattr(matrix, "obtain_pulsar", obtain)
    monkeypatch.setattr(matrix, "test_pulsar", test_pulsar)
    return tested


def command_line(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["matrix", *arguments])
    return matrix.main()


def test_what_cannot_be_had_is_said_and_left_out(
    run_with: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(monkeypatch) == 0
    assert run_with == ["4.1", "4.2", "4.3", "Pulsar 3.3.6"]
    said = capsys.readouterr().out
    assert "left out: no 4.0 here" in said
    assert "Pulsar 3.0.7: left out: no 3.0.7 here" in said
    assert "Pulsar 3.3.6: passed" in said


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["4.1"], ["4.1"]),
        (["--pulsar", "3.3.6", "9.9.9"], ["Pulsar 3.3.6", "Pulsar 9.9.9"]),
        (["4.2", "--pulsar", "3.3.6"], ["4.2", "Pulsar 3.3.6"]),
    ],
    ids=["Spark", "Pulsar", "both"],
)
def test_only_what_is_named_is_run(
    run_with: list[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: list[str]
) -> None:
    assert command_line(monkeypatch, *arguments) == 0
    assert run_with == expected


def test_a_pulsar_that_cannot_be_had_is_known_by_what_maven_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PULSAR_SPARK_TEST_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(matrix.Unavailable, match="there is no java"):
        matrix.obtain_pulsar("3.0.7")


@pytest.mark.parametrize("changed", ["TEST_TOOLS", "ROOT"])
def test_an_environment_is_made_anew_when_what_belongs_in_it_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: str
) -> None:
    made: list[list[str]] = []

    def record(command: list[str], **_: object) -> None:
        made.append(command)
        pair.folder.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(matrix, "ENVIRONMENTS", tmp_path / "environments")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(subprocess, "run", record)
    monkeypatch.setattr(matrix, "find_python", lambda _: sys.executable)
    pair = matrix.Pair("4.3", None)
    matrix.prepare(pair)
    first = len(made)
    matrix.prepare(pair)
    assert len(made) == first > 0
    if changed == "ROOT":
        (tmp_path / "pyproject.toml").write_text("[project]")
        monkeypatch.setattr(matrix, "ROOT", tmp_path)
    else:
        monkeypatch.setattr(matrix, "TEST_TOOLS", (*matrix.TEST_TOOLS, "another"))
    matrix.prepare(pair)
    assert len(made) > first


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
