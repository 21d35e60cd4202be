"""The Makefile's test targets run every test."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def command_of(target: str) -> list[str]:
    """Return the commands that a target runs."""
    # make may run these tests, and passes its settings on.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    settings = ["TESTS=tests", "PYTEST_FLAGS=", "WORKERS=2"]
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target, *settings],
        cwd=ROOT,
        env={key: value for key, value in environment.items() if key != "MFLAGS"},
        capture_output=True,
        text=True,
        check=True,
    )
    return shlex.split(done.stdout.splitlines()[-1])


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_each_test_is_run_by_one_of_the_two_targets() -> None:
    quick, slow = command_of("test"), command_of("test-slow")
    assert quick.count("not slow") == slow.count("slow") == 1
    assert [word for word in quick if word != "not slow"] == [w for w in slow if w != "slow"]
    assert quick[quick.index("not slow") - 1] == "-m"
    assert quick.count("-m") == 2, "one for pytest itself, one for the choice"
    assert not {"-k", "--ignore", "--deselect"} & set(quick)


def test_continuous_integration_runs_both_and_must_have_its_broker() -> None:
    text = (ROOT / ".ci" / "run").read_text()
    for needed in ("export CI=true", "make lint", "make test"):
        assert needed in text.splitlines()
    # The slow ones in two parts, as far as the machine has time for them.
    for part in ("PYTEST_FLAGS=--ignore=tests/integration", "TESTS=tests/integration"):
        assert f" make test-slow {part}\n" in text
