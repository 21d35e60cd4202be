"""``topics``: lists the topics of a namespace, or those that match a pattern."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pulsar_spark.cli.arguments import (
    Commands,
    add_command,
    add_connection,
    check_namespace,
    given_options,
    resolved,
)
from pulsar_spark.cli.connection import connected
from pulsar_spark.cli.output import print_note, print_rows, progress
from pulsar_spark.errors import OptionError, PulsarError, TopicNotFound

if TYPE_CHECKING:
    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.engine.lookups.topic_patterns import TopicPattern

_DESCRIPTION = """\
List persistent topics with their number of partitions (0 if not partitioned) and schema type.
Without --topic and --pattern, list all topics of --namespace except Pulsar's system topics.
"""

_NAMESPACE = "public/default"
_ALL = ".*"
_AT_ONCE = 500


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(commands, "topics", "list topics", _DESCRIPTION, run)
    add_connection(parser, "one topic")
    parser.add_argument(
        "--namespace",
        metavar="TENANT/NAMESPACE",
        help=f"the namespace to list, or of a short --topic or --pattern ({_NAMESPACE})",
    )
    parser.add_argument(
        "--pattern",
        metavar="REGEX",
        help="list the topics that match, as with the option topicsPattern",
    )
    parser.add_argument(
        "--require", action="store_true", help="end with status 1 if there is no such topic"
    )


def run(arguments: argparse.Namespace) -> int:
    """List the topics; return 1 if there are none and --require is given.

    Raises TopicNotFound for a named topic that does not exist.
    """
    from pulsar_spark.engine.lookups.topic_patterns import TopicPattern
    from pulsar_spark.spark.options.read import single_topic
    from pulsar_spark.spark.options.table import Scope

    values = resolved(_options(arguments), Scope.READS, uses=("topic", "topicsPattern"))
    topic, pattern = single_topic(values), values["topicsPattern"]
    if topic is not None and pattern is not None:
        raise OptionError("--topic and --pattern cannot be used together", "Give one of them.")
    wanted = TopicPattern.parse(pattern or f"{arguments.namespace or _NAMESPACE}/{_ALL}")
    _check_namespace(arguments.namespace, topic, wanted)
    with connected(values, quiet=arguments.json) as context:
        with progress("listing topics", quiet=arguments.json):
            names = (
                wanted.select(context.lookup.topics_of_namespace(wanted.namespace))
                if topic is None
                else [topic]
            )
        found: list[dict[str, object]] = []
        with progress("asking about topics", total=len(names), quiet=arguments.json) as bar:
            for start in range(0, len(names), _AT_ONCE):
                some = names[start : start + _AT_ONCE]
                found += _described(context, some, gone_is_an_error=topic is not None)
                bar.advance(len(some))
    print_rows(found, ("topic", "partitions", "schema"), as_json=arguments.json)
    if found:
        return 0
    what = "has no topics, or does not exist" if pattern is None else "has no topic that matches"
    print_note(f"the namespace {wanted.namespace} {what}")
    return int(arguments.require)


def _options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options, with --pattern, and short names in --namespace."""
    options = given_options(arguments)
    if arguments.pattern is not None:
        if any(name.lower() == "topicspattern" for name in options):
            raise OptionError("topicsPattern is given twice", "Leave --pattern out.")
        options["topicsPattern"] = arguments.pattern
    namespace = arguments.namespace
    if namespace is None:
        return options
    check_namespace(namespace)
    for name, text in options.items():
        if name.lower() in ("topic", "path", "topicspattern") and "/" not in text:
            options[name] = f"{namespace}/{text.strip()}"
    return options


def _check_namespace(given: str | None, topic: str | None, wanted: TopicPattern) -> None:
    """Raise OptionError for a topic or pattern of another namespace than --namespace."""
    from pulsar_spark.protocol.topic_name import TopicName

    found = wanted.namespace if topic is None else TopicName.parse(topic).namespace_name
    if given not in (None, found):
        raise OptionError(
            f"--namespace is {given}, but the {'pattern' if topic is None else 'topic'} is of the "
            f"namespace {found}",
            "Leave --namespace out.",
        )


def _described(
    context: ClientContext, names: list[str], *, gone_is_an_error: bool
) -> list[dict[str, object]]:
    """Return name, partitions and schema type of topics; raises the broker's error."""
    from pulsar_spark.schema.registry import latest_schemas
    from pulsar_spark.spark.missing_topic import with_near_topics

    counts = context.lookup.partitions_many(names)
    schemas = latest_schemas(context.lookup, names)
    found: list[dict[str, object]] = []
    for name, count in counts.items():
        if isinstance(count, TopicNotFound) and not gone_is_an_error:
            # It was deleted after the topics were listed.
            continue
        if isinstance(count, TopicNotFound):
            raise with_near_topics(context.lookup, count, name)
        schema = schemas[name]
        for answer in (count, schema):
            if isinstance(answer, PulsarError):
                raise answer
        kind = None if schema is None or isinstance(schema, PulsarError) else schema.type_name
        found.append({"topic": name, "partitions": count, "schema": kind})
    return found
