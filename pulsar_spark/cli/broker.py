"""``broker``: run the embedded broker until it is interrupted."""

from __future__ import annotations

import argparse
import hmac
import signal
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from pulsar_spark.cli.arguments import Commands, add_command, whole_number
from pulsar_spark.cli.output import print_json_line
from pulsar_spark.errors import OptionError

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
    _add_switches(parser)
    parser.add_argument(*_OF_CLUSTERS, action=_OfClusters, nargs="?", help=argparse.SUPPRESS)


def _add_switches(parser: argparse.ArgumentParser) -> None:
    """Add the settings of an EmbeddedBroker that a command can give."""
    group = parser.add_argument_group("what the broker is like, as EmbeddedBroker's parameters")
    group.add_argument(
        "--brokers",
        type=whole_number(1, 128),
        default=1,
        help="brokers of the cluster (%(default)s)",
    )
    group.add_argument(
        "--auto-create",
        choices=("no", "yes", "partitioned"),
        default="yes",
        help="whether clients create topics, and of how many partitions (%(default)s)",
    )
    group.add_argument(
        "--partitions",
        type=whole_number(1, 10_000),
        default=1,
        help="partitions of topics that are created so (%(default)s)",
    )
    group.add_argument(
        "--namespace",
        action="append",
        metavar="TENANT/NAMESPACE",
        help="a namespace there is; can be repeated; without it, any (and public/default)",
    )
    for name, text in _SWITCHES.items():
        group.add_argument(f"--{name}", action="store_true", help=text)
    group.add_argument(
        "--max-message-size",
        type=whole_number(1, 256 * 1024**2),
        help="limit of a message, in bytes",
    )
    group.add_argument("--tls-certificate", metavar="FILE", help="speak TLS: certificate, as PEM")
    group.add_argument("--tls-key", metavar="FILE", help="its key, as PEM")
    group.add_argument(
        "--require-token",
        metavar="FILE",
        help="accept only clients with the token in this file (AuthenticationToken)",
    )


_SWITCHES = {
    "batch-index-ack": "keep parts of batches that are acknowledged when a topic is unloaded",
    "deduplication": "drop messages with sequence ids that were stored",
    "no-transactions": "without a transaction coordinator",
    "expose-entry-metadata": "stamp a time and an index on entries, and send them to clients",
    "precise-flow": "send no more messages than there are permits",
}


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of EmbeddedBroker; raises OptionError."""
    created: bool | int = arguments.auto_create != "no"
    if arguments.auto_create == "partitioned":
        created = int(arguments.partitions)
    elif arguments.partitions != 1:
        raise OptionError("--partitions goes with --auto-create partitioned")
    settings: dict[str, Any] = {
        "port": arguments.port,
        "brokers": arguments.brokers,
        "auto_create": created,
        "batch_index_ack": arguments.batch_index_ack,
        "deduplication": arguments.deduplication,
        "transactions": not arguments.no_transactions,
        "expose_entry_metadata": arguments.expose_entry_metadata,
        "precise_flow": arguments.precise_flow,
    }
    if arguments.namespace:
        settings["namespaces"] = tuple(arguments.namespace)
    if arguments.max_message_size:
        settings["max_message_size"] = arguments.max_message_size
    if arguments.tls_certificate or arguments.tls_key:
        settings["tls"] = _tls(arguments.tls_certificate, arguments.tls_key)
    if arguments.require_token:
        settings["authenticate"] = _only(_read(arguments.require_token).strip())
    return settings


def _tls(certificate: str | None, key: str | None) -> ssl.SSLContext:
    if certificate is None or key is None:
        raise OptionError("--tls-certificate and --tls-key go together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise OptionError(
            f"--tls-certificate {certificate} and --tls-key {key} cannot be used: "
            f"{error.strerror or 'they are not a PEM certificate and its key'}"
        ) from None
    return context


def _only(token: bytes) -> Callable[[str, bytes], bool]:
    return lambda method, data: method == "token" and hmac.compare_digest(data, token)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OptionError(f"--require-token {path} cannot be read: {error.strerror}") from None


def run(arguments: argparse.Namespace) -> int:
    """Run the broker until SIGINT or SIGTERM."""
    from pulsar_spark.testing import EmbeddedBroker

    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with EmbeddedBroker(**_settings(arguments)) as broker:
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
