"""The command line's entry point: its commands, and how it shows errors."""

from __future__ import annotations

import argparse
import enum
import io
import logging
import os
import platform
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pulsar_spark import __version__
from pulsar_spark.cli import (
    bench,
    broker,
    demo,
    lag,
    peek,
    schema,
    send,
    sink,
    subscriptions,
    topics,
)
from pulsar_spark.cli.arguments import Run
from pulsar_spark.cli.doctor import command as doctor
from pulsar_spark.cli.environment import package_version
from pulsar_spark.cli.output import print_error
from pulsar_spark.errors import (
    InvalidOffset,
    InvalidTopicName,
    OptionError,
    PulsarError,
    missing_package,
    printable,
    redact,
)
from pulsar_spark.protocol.implementation import description

_EPILOG = """\
examples:
  python -m pulsar_spark demo                  write to and read from a topic, without a cluster
  python -m pulsar_spark broker --port 6650    a broker in memory, for trying things out
  python -m pulsar_spark doctor --service-url pulsar://localhost:6650 --topic orders
                                               which step of a connection fails, and why
  export PULSAR_SERVICE_URL=pulsar://localhost:6650
                                               the cluster of the commands below
  python -m pulsar_spark topics
  python -m pulsar_spark schema orders
  python -m pulsar_spark peek --topic orders
  python -m pulsar_spark send orders --message "a book"
  python -m pulsar_spark lag --checkpoint FOLDER --watch
                                               how far a query is behind
  python -m pulsar_spark subscriptions --checkpoint FOLDER
  python -m pulsar_spark sink --topic orders   what an exactly-once sink has committed
  python -m pulsar_spark bench --topic orders  how fast this machine reads from your cluster
"""

_USAGE = (OptionError, InvalidTopicName, InvalidOffset)

_PROGRAM = "pulsar-spark"
_SHELLS = ("bash", "zsh", "tcsh")

# Below this similarity of two names, from 0 to 1, a suggestion would mislead.
_SIMILAR = 0.8
# What other programs call an argument, or what is not so similar.
_ALIASES = {
    "--limit": "--count",
    "--from": "--first",
    "--start": "--first",
    "--token": "--token-file",
}
# A word such as a topic's name: not so long that it is likely to be a credential.
_SHOWABLE = re.compile(r"[A-Za-z0-9._:/-]{1,40}")
_NAMESPACE = re.compile(r"[^/:]+/[^/:]+")


class Status(enum.IntEnum):
    """Exit statuses; docs/command-line.md describes them."""

    DONE = 0
    FAILED = 1
    WRONG_USAGE = 2
    INTERRUPTED = 130
    READER_GONE = 141


def parser(program: str = "python -m pulsar_spark") -> argparse.ArgumentParser:
    """Return the parser of the whole command line; `program` is its name."""
    top = argparse.ArgumentParser(
        prog=program,
        description="Apache Pulsar from Apache Spark, in Python.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=_Versions, help="print versions and exit")
    top.add_argument(
        "--completion",
        action=_Completion,
        choices=_SHELLS,
        help="print a shell's completion script for the command pulsar-spark, and exit",
    )
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    for module in (
        *(demo, broker, doctor, topics, schema, peek, send, lag, subscriptions, sink),
        bench,
    ):
        module.add_parser(commands)
    return top


class _Versions(argparse.Action):
    """Prints the versions that a bug report should start with."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(
            f"pulsar_spark {__version__}, Python {platform.python_version()}, "
            f"PySpark {package_version('pyspark')}\nimplementation: {description()}"
        )
        parser.exit()


class _Completion(argparse.Action):
    """Prints a shell's completion script, which `shtab` makes from the parser."""

    def __call__(self, top: argparse.ArgumentParser, _: object, shell: Any, *__: object) -> None:
        try:
            import shtab
        except ImportError:
            top.exit(
                int(Status.FAILED),
                'error: shtab is not installed: pip install "pulsar-spark[cli]"\n',
            )
        print(shtab.complete(parser(_PROGRAM), shell))
        top.exit()


def _not_understood(words: Sequence[str], known: argparse.ArgumentParser) -> str:
    """Describe words that are not arguments of a command, and which argument is near.

    What follows an unknown flag may be a credential, and is not shown.
    """
    flags = _flags(known)
    names = [word.partition("=")[0] for word in words if word.startswith("-")]
    if names:
        near = [find for name in names for find in _near(name, flags)]
        told = f"unrecognized arguments: {', '.join(names)}"
        return f"{told}; did you mean {' and '.join(near)}?" if near else told
    word = words[0]
    if not _SHOWABLE.fullmatch(word) or redact(word) != word:
        return "there is a word that belongs to no argument"
    near = [f"--{word}"] if f"--{word}" in flags else []
    # A name with one slash is that of a namespace; no topic's has.
    flag = "--namespace" if _NAMESPACE.fullmatch(word) else "--topic"
    if "--message" in flags:
        # The topic needs no flag there.
        near = [f"--message {word}"]
    elif not near and flag in flags:
        near = [f"{flag} {word}"]
    told = f"the word {word!r} belongs to no argument"
    return f"{told}; did you mean {near[0]}?" if near else told


def _flags(known: argparse.ArgumentParser) -> list[str]:
    return [text for action in known._actions for text in action.option_strings]


def _near(name: str, flags: Sequence[str]) -> list[str]:
    alias = _ALIASES.get(name, name)
    return [alias] if alias in flags else get_close_matches(name, flags, 1, _SIMILAR)


def _check_first(words: Sequence[str], top: argparse.ArgumentParser) -> None:
    """End with an error if a command's argument is before the command."""
    name = words[0].partition("=")[0] if len(words) > 1 else ""
    if name.startswith("--") and not any(flag.startswith(name) for flag in _flags(top)):
        top.error(f"write {name} after the command")


class _Log(logging.Handler):
    """Shows warnings as Python does, but escapes control characters."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        print(f"{record.levelname.lower()}: {printable(record.getMessage())}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status, a `Status`."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return Status.INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    # If they are closed (`>&-`), Python sets them to None.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal lacks are printed as escapes.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    logger, log = logging.getLogger("pulsar_spark"), _Log()
    # Only if nobody has configured logging.
    if not logger.hasHandlers():
        logger.addHandler(log)
    try:
        return _carry_out(arguments)
    finally:
        logger.removeHandler(log)


def _carry_out(arguments: Sequence[str] | None) -> int:
    program = Path(sys.argv[0]).name
    try:
        top = parser(program) if program == _PROGRAM else parser()
        _check_first(sys.argv[1:] if arguments is None else arguments, top)
        chosen, unknown = top.parse_known_args(arguments)
        if unknown:
            known = getattr(chosen, "parser", top)
            known.error(_not_understood(unknown, known))
        command: Run | None = getattr(chosen, "command", None)
        if command is None:
            top.print_help(sys.stderr)
            return Status.WRONG_USAGE
        status = command(chosen)
        sys.stdout.flush()
    except PulsarError as error:
        print_error(str(error))
        return Status.WRONG_USAGE if isinstance(error, _USAGE) else Status.FAILED
    except ModuleNotFoundError as error:
        name = getattr(chosen, "parser", top).prog.rpartition(" ")[2]
        if (missing := missing_package(error, f"the command {name}")) is None:
            raise
        print_error(str(missing))
        return Status.FAILED
    except BrokenPipeError:
        # The reader has gone, as `head` does. Python would write the rest on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return Status.READER_GONE
    return status
