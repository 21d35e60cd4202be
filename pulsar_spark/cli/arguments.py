"""Arguments that all commands on a cluster have in common, and the options they set."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pulsar_spark.cli.connection import (
    PROFILE_VARIABLE,
    URL_VARIABLE,
    Cluster,
    cluster_of,
)
from pulsar_spark.cli.output import print_note
from pulsar_spark.errors import OptionError, UnsupportedFeature

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from pulsar_spark.spark.options.resolve import Values
    from pulsar_spark.spark.options.table import Scope

_PLUGIN = "pulsar.client.authPluginClassName"
_PARAMS = "pulsar.client.authParams"


Commands: TypeAlias = "_SubParsersAction[argparse.ArgumentParser]"
Run: TypeAlias = Callable[[argparse.Namespace], int]

# How shells complete an argument, in shtab's form.
FILE = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
FOLDER = {"bash": "_shtab_compgen_dirs", "zsh": "_files -/", "tcsh": "d"}


def add_command(
    commands: Commands, name: str, help: str, description: str, run: Run
) -> argparse.ArgumentParser:
    """Add a command to the command line and return its parser, which already accepts --json.

    `run` does the work and returns the exit status.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # An abbreviated `--token` must not be read as --token-file and printed as a file's name.
        allow_abbrev=False,
    )
    parser.register("action", None, _Once)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run, parser=parser)
    return parser


class _Once(argparse.Action):
    """Stores a value, and refuses a second one."""

    def __call__(
        self, _: object, namespace: argparse.Namespace, value: object, flag: str | None = None
    ) -> None:
        given = namespace.__dict__.setdefault("given", set())
        if flag is not None and flag in given:
            raise argparse.ArgumentError(self, "give it once")
        given.add(flag)
        setattr(namespace, self.dest, value)


def add_connection(
    parser: argparse.ArgumentParser, topic: str, *, positional: bool = False
) -> None:
    """Add the arguments of every command on a cluster; `topic` is --topic's help text.

    With `positional`, the topic may be a word of its own, too.
    """
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--service-url",
        metavar="URL",
        help="the cluster, such as pulsar://localhost:6650 or pulsar+ssl://h1:6651,h2:6651; "
        f"without it, --profile, {URL_VARIABLE} or {PROFILE_VARIABLE} says it",
    )
    profile = group.add_argument(
        "--profile",
        metavar="FILE",
        help="a file with the cluster's address and credentials, as pulsar-admin's client.conf; "
        f"without it, {PROFILE_VARIABLE} names one",
    )
    complete_with(profile, FILE)
    if positional:
        parser.add_argument("word", metavar="TOPIC", nargs="?", help=topic)
    group.add_argument("--topic", help="the topic, too" if positional else topic)
    add_options(group)


def named_topic(values: Values) -> str:
    """Return the full name of the one topic of a command that needs one; raises OptionError."""
    from pulsar_spark.spark.options.read import single_topic

    topic = single_topic(values)
    if topic is None:
        raise OptionError("no topic is given", "Give --topic TOPIC.")
    return topic


def add_options(group: argparse._ActionsContainer) -> None:
    """Add --option and the ways to give a token."""
    group.add_argument(
        "--option",
        action="append",
        default=[],
        type=key_and_value("an option"),
        metavar="KEY=VALUE",
        help="an option of docs/options.md, written as for Spark; can be repeated. Other users of "
        "this machine can see it: keep a token in a file instead",
    )
    token = group.add_argument(
        "--token-file", metavar="FILE", help="log in with the token in this file"
    )
    complete_with(token, FILE)


def complete_with(argument: argparse.Action, kind: dict[str, str]) -> None:
    """Have shells complete an argument with FILE or FOLDER."""
    argument.complete = kind  # type: ignore[attr-defined]


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Return an argument type: a whole number from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:,} to {high:,}")
        return number

    return parse


def add_admin_url(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --admin-url; `what` says what the command needs it for."""
    parser.add_argument(
        "--admin-url",
        metavar="URL",
        help=f"the admin REST address, such as http://localhost:8080: {what}",
    )


def given_options(arguments: argparse.Namespace, cluster: Cluster | None = None) -> dict[str, str]:
    """Return the options that the arguments set, over those of the cluster.

    Without `cluster`, the environment or a profile may name it. Raises OptionError for an option
    that is given twice, and if no cluster is named.
    """
    from pulsar_spark.spark.options.resolve import over_defaults

    options: dict[str, str] = {}
    if arguments.service_url is not None:
        options["service.url"] = arguments.service_url
    named = [arguments.topic, getattr(arguments, "word", None)]
    topics = [topic for topic in named if topic is not None]
    if len(topics) > 1:
        # For `send` the word may be meant as what to send.
        sends = hasattr(arguments, "message")
        remedy = "Give a message as --message TEXT, or leave --topic out." if sends else None
        raise OptionError("the topic is given twice", remedy or "Leave --topic out.")
    if topics:
        (options["topic"],) = topics
    if arguments.token_file is not None:
        options[_PLUGIN] = "token"
        options[_PARAMS] = Path(arguments.token_file).absolute().as_uri()
    taken = {key.lower() for key in options}
    for key, value in arguments.option:
        if key.lower() in taken:
            raise OptionError(f"{key} is given twice", "Give each option once.")
        taken.add(key.lower())
        options[key] = value
    keys = {_key(name) for name in options}
    if cluster is None:
        cluster = cluster_of(arguments.profile, named="service.url" in keys)
        if cluster.note is not None:
            print_note(cluster.note)
    defaults = cluster.options
    if keys & {_PLUGIN, _PARAMS}:
        # Parameters are those of their plugin.
        defaults = {key: value for key, value in defaults.items() if key not in (_PLUGIN, _PARAMS)}
    return over_defaults(options, defaults)


def _key(name: str) -> str:
    from pulsar_spark.spark.options.table import BY_NAME

    option = BY_NAME.get(name.lower())
    return name if option is None else option.key


def take_admin_url(arguments: argparse.Namespace, options: dict[str, str]) -> str | None:
    """Return the admin REST's address, and remove it from the options: only the command uses it."""
    given: str | None = arguments.admin_url
    for name in [name for name in options if name.lower() in ("admin.url", "adminurl")]:
        value = options.pop(name)
        given = given or value
    return given


def profile_admin_url(arguments: argparse.Namespace) -> str | None:
    """Return the admin REST's address of the profile that names the cluster, if there is one."""
    named = "service.url" in {_key(name) for name, _ in arguments.option}
    return cluster_of(arguments.profile, named=named or arguments.service_url is not None).admin_url


def check_namespace(name: str) -> None:
    """Raise OptionError for a --namespace that is not written TENANT/NAMESPACE."""
    if name.count("/") != 1:
        raise OptionError("--namespace is not TENANT/NAMESPACE", "Write it as public/default.")


def agreed(question: str) -> bool:
    """Ask a person, whether to do something; raises OptionError without a terminal."""
    if not sys.stdin.isatty():
        raise OptionError("it asks before it does that", "Add --yes to do so without asking.")
    return input(question).strip().lower() in ("y", "yes")


def resolved(
    options: dict[str, str],
    scope: Scope,
    *,
    uses: Sequence[str] | None = None,
    ignores: Sequence[str] = (),
) -> Values:
    """Parse options; raises OptionError for invalid ones, and warns of those without an effect.

    `uses` are those that the command uses besides the connection's, as keys, or as prefixes that
    end with a dot; None for all but `ignores`.
    """
    from pulsar_spark.spark.options.resolve import resolve, warn_of_ignored

    try:
        values = resolve(options, scope)
    except UnsupportedFeature as error:
        raise OptionError(error.what, error.remedy) from None

    def is_used(key: str) -> bool:
        if uses is None:
            return key not in ignores
        known = ("service.url", "pulsar.client.", *uses)
        return any(key == one or (one.endswith(".") and key.startswith(one)) for one in known)

    left = sorted(key for key in values.given if key != "admin.url" and not is_used(key))
    warn_of_ignored(left)
    return values


def check_columns(values: Values) -> None:
    """Raise OptionError for a format of values whose columns only a program can give."""
    if values["valueFormat"] == "json":
        raise OptionError(
            "valueFormat=json needs the columns of the values, which no command can be given",
            "Set valueFormat=string to read them as text. If the topic has a schema, leave "
            "valueFormat out.",
        )


def key_and_value(what: str) -> Callable[[str], tuple[str, str]]:
    """Return an argument type: KEY=VALUE; `what` it is, for the error."""

    def parse(text: str) -> tuple[str, str]:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            # Not shown: it may be a credential.
            raise argparse.ArgumentTypeError(f"{what} is written KEY=VALUE")
        return key.strip(), value

    return parse
