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
from typing import TYPE_CHECKING, Any

from pulsar_spark.cli.arguments import Commands, add_command, whole_number
from pulsar_spark.cli.output import print_json_line
from pulsar_spark.errors import OptionError

if TYPE_CHECKING:
    from pulsar_spark.testing import TopicPolicies

_DESCRIPTION = """\
Run a broker in memory, on 127.0.0.1, for any Pulsar client. It is meant for tests and for trying
things out: when it stops, its messages are lost.
"""

_RUNNING = """\
service URL: {0}
read it:     spark.read.format("pulsar")
                 .option("service.url", "{0}")
                 .option("topic", "{1}").load()
stop it:     Ctrl-C"""
_REST = """
admin REST:  {admin_url}"""


_MAX_PARTITIONS = 10_000
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
    _add_policies(parser)
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
        type=whole_number(1, _MAX_PARTITIONS),
        default=1,
        help="partitions of topics that are created so (%(default)s)",
    )
    group.add_argument(
        "--namespace",
        action="append",
        dest="namespaces",
        metavar="TENANT/NAMESPACE",
        help="a namespace there is; can be repeated; without it, any (and public/default)",
    )
    _add_flags(group, _SWITCHES)
    _add_values(group, _NUMBERS, type=whole_number(0, 2**40), metavar="N")
    _add_values(group, _SECONDS, type=float, metavar="SECONDS")
    group.add_argument(
        "--listener",
        action="append",
        dest="listeners",
        metavar="NAME",
        help="a listener that clients may ask for; can be repeated",
    )
    group.add_argument(
        "--rest",
        type=whole_number(0, 65535),
        nargs="?",
        const=8080,
        metavar="PORT",
        help="with an admin REST at this port on 127.0.0.1, 0 for a free one (%(const)s)",
    )
    group.add_argument("--tls-certificate", metavar="FILE", help="speak TLS: certificate, as PEM")
    group.add_argument("--tls-key", metavar="FILE", help="its key, as PEM")
    group.add_argument(
        "--require-token",
        metavar="FILE",
        help="accept only clients with the token in this file (AuthenticationToken)",
    )


def _add_policies(parser: argparse.ArgumentParser) -> None:
    """Add the policies of topics that a command can give."""
    group = parser.add_argument_group("what topics allow, as TopicPolicies")
    _add_values(group, _LIMITS, type=whole_number(0, 2**31), metavar="N")
    _add_values(group, _QUOTAS, type=whole_number(0, 2**40), metavar="N")
    group.add_argument(
        "--backlog-policy",
        metavar="POLICY",
        help="what happens beyond a backlog's limit: producer_request_hold (the default), "
        "producer_exception or consumer_backlog_eviction",
    )
    group.add_argument(
        "--subscription-type",
        action="append",
        dest="subscription_types",
        metavar="TYPE",
        help="a type of subscription that is allowed, such as Shared; can be repeated",
    )
    group.add_argument(
        "--schema-compatibility",
        metavar="STRATEGY",
        help="which new schemas are taken, such as FULL (the default) or BACKWARD_TRANSITIVE",
    )
    _add_flags(group, _REQUIREMENTS)


def _add_values(group: argparse._ArgumentGroup, texts: dict[str, str], **kind: Any) -> None:
    for name, text in texts.items():
        group.add_argument(f"--{name}", help=text, **kind)


def _add_flags(group: argparse._ArgumentGroup, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        action = "store_false" if name in _NEGATED else "store_true"
        group.add_argument(f"--{name}", dest=_parameter(name), action=action, help=text)


def _parameter(name: str) -> str:
    """Return the name of the parameter that a flag sets."""
    return _NEGATED.get(name, name).replace("-", "_")


_NUMBERS = {
    "max-message-size": "limit of a message, in bytes",
    "max-entries-per-ledger": "entries after which a ledger is closed",
    "memory-limit": "limit of all that is stored, in bytes",
    "max-unacked-messages": "messages that a consumer of a shared subscription gets unacknowledged",
    "protocol-version": "the newest version of the protocol that the broker speaks",
}
_SECONDS = {
    "keep-alive-interval": "time between two PINGs",
    "failover-delay": "how long a Failover consumer waits before it takes over",
    "policy-check-interval": "how often quotas and the time to live are looked at",
}
_LIMITS = {
    "max-producers": "producers of a topic, 0 for any number, as for the next three",
    "max-consumers": "consumers of a topic",
    "max-subscriptions": "subscriptions of a topic",
    "max-consumers-per-subscription": "consumers of a subscription",
    "message-ttl": "seconds after which messages are acknowledged, for readers too",
}
_QUOTAS = {
    "backlog-size": "bytes that subscriptions may leave unacknowledged",
    "backlog-age": "seconds that subscriptions may leave a message unacknowledged",
}
_REQUIREMENTS = {
    "no-auto-subscriptions": "clients create no durable subscriptions",
    "encryption-required": "producers without encryption are refused",
    "no-schema-updates": "clients register no schemas",
    "schema-validation-enforced": "producers without a schema are refused, if the topic has one",
}
_SWITCHES = {
    "batch-index-ack": "keep parts of batches that are acknowledged when a topic is unloaded",
    "deduplication": "drop messages with sequence ids that were stored",
    "no-transactions": "without a transaction coordinator",
    "expose-entry-metadata": "stamp a time and an index on entries, and send them to clients",
    "precise-flow": "send no more messages than there are permits",
}

# Flags that turn something off, and what that is.
_NEGATED = {
    "no-transactions": "transactions",
    "no-auto-subscriptions": "auto-subscription-creation",
    "no-schema-updates": "auto-update-schema",
}


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of EmbeddedBroker; raises OptionError."""
    created: bool | int = arguments.auto_create != "no"
    if arguments.auto_create == "partitioned":
        created = int(arguments.partitions)
    elif arguments.partitions != 1:
        raise OptionError("--partitions goes with --auto-create partitioned")
    named = (*_NUMBERS, *_SECONDS, *_SWITCHES, "listeners", "namespaces")
    settings = _given(arguments, "port", "brokers", "rest", *named)
    settings |= {"auto_create": created, "policies": _policies(arguments)}
    if arguments.tls_certificate or arguments.tls_key:
        settings["tls"] = _tls(arguments.tls_certificate, arguments.tls_key)
    if arguments.require_token:
        settings["authenticate"] = _only(_read(arguments.require_token).strip())
    return settings


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the values of the arguments that are given, by the names of parameters."""
    values = {name: getattr(arguments, name) for name in map(_parameter, names)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None
    }


def _policies(arguments: argparse.Namespace) -> TopicPolicies:
    """Return what topics allow; raises OptionError."""
    from pulsar_spark.testing import BacklogQuota, TopicPolicies

    named = (*_LIMITS, *_REQUIREMENTS, "subscription-types", "schema-compatibility")
    given = _given(arguments, *named)
    quotas, policy = _given(arguments, *_QUOTAS), _given(arguments, "backlog-policy")
    if policy and not quotas:
        raise OptionError("--backlog-policy goes with --backlog-size or --backlog-age")
    try:
        for name, limit in quotas.items():
            given[name] = BacklogQuota(limit, *policy.values())
        return TopicPolicies(**given)
    except ValueError as error:
        raise OptionError(f"a policy of topics is wrong: {error}") from None


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
    topics = [_topic(topic) for topic in arguments.topic]
    with EmbeddedBroker(**_settings(arguments)) as broker:
        for name, partitions in topics:
            broker.create_topic(name, partitions=partitions)
        told = {"service_url": broker.service_url}
        if arguments.rest is not None:
            told["admin_url"] = broker.admin_url
        if arguments.json:
            print_json_line(told)
        else:
            rest = _REST.format(**told) if "admin_url" in told else ""
            name = topics[0][0] if topics else "my-topic"
            print(_RUNNING.format(broker.service_url, name) + rest, flush=True)
        stopped.wait()
    return 0


def _topic(text: str) -> tuple[str, int]:
    """Split ``NAME[:PARTITIONS]``; a full name also contains a colon. Raises OptionError."""
    name, colon, partitions = text.rpartition(":")
    if not colon or "/" in partitions:
        return text, 0
    try:
        return name, whole_number(0, _MAX_PARTITIONS)(partitions)
    except argparse.ArgumentTypeError:
        raise OptionError(
            f"--topic {text}: the part after ':' is not a number of partitions up to "
            f"{_MAX_PARTITIONS:,}",
            f"Write {name}:4; or {text}:0 for a topic with a colon in its name.",
        ) from None
