"""The command line as a newcomer meets it."""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from importlib.metadata import version

import pytest

from pulsar_spark import __version__
from pulsar_spark.cli import main as cli
from pulsar_spark.errors import ConnectError
from pulsar_spark.protocol.implementation import description

COMMANDS = (
    *("demo", "broker", "doctor", "topics", "schema", "peek", "send", "lag", "subscriptions"),
    *("sink", "bench"),
)


def test_the_help_names_every_command_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"python -m pulsar_spark {command}" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert "options:" in capsys.readouterr().out


def test_the_versions_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for told in (f"pulsar_spark {__version__}", description(), platform.python_version()):
        assert told in text
    assert f"PySpark {version('pyspark')}" in text


def test_without_a_command_the_help_is_shown_and_the_status_is_that_of_wrong_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    for command in COMMANDS:
        assert f"python -m pulsar_spark {command}" in shown.err


@pytest.mark.parametrize("arguments", [["nonsense"], ["broker", "--port", "many"]])
def test_what_is_no_command_ends_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_an_error_of_ours_is_a_line_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: argparse.Namespace) -> int:
        raise ConnectError("nobody answers", "Start a broker.", broker="127.0.0.1:1")

    parser = argparse.ArgumentParser()
    parser.set_defaults(command=fail)
    monkeypatch.setattr(cli, "parser", lambda: parser)
    assert cli.main([]) == 1
    assert capsys.readouterr().err == (
        "error: nobody answers [broker 127.0.0.1:1] Start a broker.\n"
    )


@pytest.mark.parametrize(
    "module,package,words",
    [
        ("google.protobuf", "protobuf", "--version"),
        ("lz4", "lz4", "doctor"),
        ("crc32c", "crc32c", "topics"),
        *(("pyspark", "pyspark", command) for command in ("topics", "lag --checkpoint c", "demo")),
        ("pyarrow", "pyarrow", "send t --message a"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    module: str, package: str, words: str
) -> None:
    script = f"""
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
from pulsar_spark.__main__ import main
sys.exit(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *words.split()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told, _, remedy = done.stderr.partition(sys.executable)
    command = words.split(maxsplit=1)[0]
    who = f"the command {command}" if package in ("pyspark", "pyarrow") else "pulsar-spark"
    assert told == f"error: {who} needs the package {package}, which is not installed for "
    assert remedy == f". Run: {sys.executable} -m pip install {package}\n"
    assert done.returncode == 1


def test_another_missing_module_is_no_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: argparse.Namespace) -> int:
        raise ModuleNotFoundError("no module named colours", name="colours")

    parser = argparse.ArgumentParser()
    parser.set_defaults(command=fail)
    monkeypatch.setattr(cli, "parser", lambda: parser)
    with pytest.raises(ModuleNotFoundError, match="colours"):
        cli.main([])


def test_an_interrupt_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    parser = argparse.ArgumentParser()
    parser.set_defaults(command=interrupt)
    monkeypatch.setattr(cli, "parser", lambda: parser)
    assert cli.main([]) == 130
