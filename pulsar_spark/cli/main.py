"""The command line's entry: which commands there are, and how errors are shown."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_spark import __version__
from pulsar_spark.cli import broker, demo, doctor, peek, sink, subscriptions, topics
from pulsar_spark.cli.environment import package_version
from pulsar_spark.errors import InvalidOffset, InvalidTopicName, OptionError, PulsarError
from pulsar_spark.protocol.implementation import implementation

_EPILOG = """\
examples:
  python -m pulsar_spark demo                  write to and read from a topic, nothing needed
  python -m pulsar_spark broker --port 6650    a broker in memory, for trying things out
  python -m pulsar_spark doctor --service-url pulsar://localhost:6650 --topic orders
                                               which step of a connection fails, and why
  python -m pulsar_spark topics --service-url pulsar://localhost:6650
  python -m pulsar_spark peek --service-url pulsar://localhost:6650 --topic orders
  python -m pulsar_spark subscriptions --service-url pulsar://localhost:6650 --checkpoint FOLDER
"""

_USAGE = (OptionError, InvalidTopicName, InvalidOffset)

Command = Callable[[argparse.Namespace], int]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="python -m pulsar_spark",
        description="Apache Pulsar from Apache Spark, in Python.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=_Versions, help="show which versions these are and exit")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (demo, broker, doctor, topics, peek, subscriptions, sink):
        module.add_parser(commands)
    return top


class _Versions(argparse.Action):
    """Tells what a report of a fault should begin with."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(
            f"pulsar_spark {__version__} (implementation: {implementation()}), "
            f"Python {platform.python_version()}, PySpark {package_version('pyspark')}"
        )
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status.

    That is 0 for done, 1 for failed, 2 for wrong usage, 130 for interrupted.
    """
    chosen = parser().parse_args(arguments)
    command: Command = chosen.command
    try:
        return command(chosen)
    except PulsarError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, _USAGE) else 1
    except KeyboardInterrupt:
        return 130
