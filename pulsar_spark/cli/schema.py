"""``schema``: the schema of a topic, and the columns that Spark makes of it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from pulsar_spark.cli.arguments import (
    Commands,
    add_command,
    add_connection,
    given_options,
    named_topic,
    resolved,
)
from pulsar_spark.cli.connection import connected, partitions_of
from pulsar_spark.cli.output import print_json, print_table, progress
from pulsar_spark.errors import printable

if TYPE_CHECKING:
    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.protocol.schema_info import SchemaInfo

_DESCRIPTION = """\
Show the newest schema of a topic: its type, version and definition, and the columns that Spark
makes of it. A topic without one has values that are bytes.
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(commands, "schema", "show the schema of a topic", _DESCRIPTION, run)
    add_connection(parser, "the topic, or one of its partitions", positional=True)


def run(arguments: argparse.Namespace) -> int:
    """Show the schema; raises TopicNotFound for a topic that does not exist."""
    from pulsar_spark.spark.options.table import Scope

    values = resolved(given_options(arguments), Scope.READS, uses=("topic",))
    topic = named_topic(values)
    quiet = arguments.json
    with connected(values, quiet=quiet) as context, progress("asking", quiet=quiet):
        partitions_of(context, topic)
        found = _of_topic(context, topic)
    if arguments.json:
        print_json(found)
    else:
        _show(found)
    return 0


def _of_topic(context: ClientContext, topic: str) -> dict[str, Any]:
    from pulsar_spark.protocol.topic_name import topic_of
    from pulsar_spark.schema.registry import version_number
    from pulsar_spark.spark.value_types import value_type

    owner = topic_of(topic)
    lookup = context.lookup
    found = lookup.ask(owner, lambda name, end: lookup.schema_operation(name, None, end))
    info = None if found is None else found.schema
    fields = value_type({owner: info}, allow_different=False).fields
    told: dict[str, Any] = {
        "topic": owner,
        "type": None if info is None else info.type_name,
        "name": None if info is None else info.name,
        "version": None if found is None else version_number(found.version),
        "properties": {} if info is None else dict(info.properties),
        "columns": [
            {"name": field.name, "type": field.dataType.simpleString()} for field in fields
        ],
        "definition": None if info is None else _definition(info),
    }
    return told


def _definition(info: SchemaInfo) -> Any:
    """Return a definition as JSON if it is; a pair's as that of its two parts, else as text."""
    from pulsar_spark.protocol import pulsar_api_pb2 as pb
    from pulsar_spark.protocol.schema_info import split_key_value

    if info.type == pb.Schema.KeyValue:
        parts = split_key_value(info)
        return {"key": _definition(parts.key), "value": _definition(parts.value)}
    text = info.schema_data.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text or None


def _show(found: dict[str, Any]) -> None:
    if found["type"] is None:
        print(printable(f"{found['topic']} has no schema: values are bytes"))
    else:
        print(printable(f"{found['topic']}: {found['type']}, version {found['version']}"))
    print()
    print_table(("column", "type"), [tuple(column.values()) for column in found["columns"]])
    if found["definition"] is not None:
        print()
        print_json(found["definition"])
