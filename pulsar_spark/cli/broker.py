"""``broker``: run the embedded broker until it is interrupted."""

from __future__ import annotations

import argparse
import signal
import threading
from types import FrameType

from pulsar_spark.cli.arguments import Commands, add_command, whole_number
from pulsar_spark.cli.output import print_json_line

_DESCRIPTION = """\
Run a broker in memory, on 127.0.0.1, for any Pulsar client. It is meant for tests and for trying
things out: when it stops, its messages are lost.
"""

_RUNNING = """\
service URL: {0}
read it:     spark.read.format("pulsar")
                 .option("service.url", "{0}")
                 .option("topic", "my-topic").load()
stop it:     Ctrl-C"""


# All other commands take them.
_OF_CLUSTERS = ("--service-url", "--profile", "--option", "--token-file")


class _OfClusters(argparse.Action):
    """Refuses an argument. Its value is not shown: it may be a credential."""

    def __call__(
        self, parser: argparse.ArgumentParser, _: object, __: object, name: str | None = None
    ) -> None:
        parser.error(
            f"argument {name}: this command runs a broker of its own, and connects to none; --port "
            "is where it listens, --topic creates a topic"
        )


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands, "broker", "run a broker in memory, for trying things out", _DESCRIPTION, run
    )
    parser.add_argument(
        "--port",
        type=whole_number(0, 65535),
        default=6650,
        help="port on 127.0.0.1, 0 for a free one (%(default)s)",
    )
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="NAME[:PARTITIONS]",
        help="create a topic at the start; can be repeated",
    )
    parser.add_argument(*_OF_CLUSTERS, action=_OfClusters, nargs="?", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Run the broker until SIGINT or SIGTERM."""
    from pulsar_spark.testing import EmbeddedBroker

    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with EmbeddedBroker(port=arguments.port) as broker:
        for topic in arguments.topic:
            name, partitions = _topic(topic)
            broker.create_topic(name, partitions=partitions)
        if arguments.json:
            print_json_line({"service_url": broker.service_url})
        else:
            print(_RUNNING.format(broker.service_url), flush=True)
        stopped.wait()
    return 0


def _topic(text: str) -> tuple[str, int]:
    """Split ``NAME[:PARTITIONS]``; a full name also contains a colon."""
    name, colon, partitions = text.rpartition(":")
    return (name, int(partitions)) if colon and partitions.isdecimal() else (text, 0)
