"""Shells complete ``pulsar-spark`` with a script generated from its parser."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pulsar_spark.cli import main as cli

pytest.importorskip("shtab", reason="shtab is not installed")

SECONDS = 60.0


@pytest.fixture
def script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return the file with the completion script of the test's shell."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["--completion", shell])
    assert not ended.value.code
    path = tmp_path / "completion"
    path.write_text(capsys.readouterr().out, "utf-8")
    return path


def run(shell: str, *arguments: str) -> list[str]:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [found, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash"])
@pytest.mark.parametrize(
    "typed, offered",
    [
        ("pe", {"peek"}),
        ("peek --fi", {"--first"}),
        ("subscriptions --d", {"--drop", "--drop-matching"}),
        ("--completion z", {"zsh"}),
    ],
)
def test_bash_completes_commands_options_and_choices(
    typed: str, offered: set[str], script: Path
) -> None:
    words = f"pulsar-spark {typed}".split()
    ask = (
        f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        f"_shtab_pulsar_spark pulsar-spark {words[-1]}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    assert set(run("bash", "--norc", "-c", ask)) == offered


@pytest.mark.parametrize("shell", ["zsh"])
def test_zsh_understands_its_script(script: Path) -> None:
    ask = f'autoload -U compinit; compinit -u -D; eval "$(<{script})"; print $_comps[pulsar-spark]'
    assert run("zsh", "-f", "-c", ask) == ["_shtab_pulsar_spark"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_each_script_has_all_commands_and_files_where_files_are_wanted(
    shell: str, script: Path
) -> None:
    text = script.read_text("utf-8")
    for word in ("pulsar-spark", "subscriptions", "checkpoint", "token-file"):
        assert word in text
    assert {"bash": "_shtab_compgen_dirs", "zsh": "_files -/", "tcsh": "/d/"}[shell] in text
