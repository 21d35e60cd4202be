"""``send``: write a few messages to a topic, by hand or from a pipe."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pulsar_spark.cli.arguments import (
    Commands,
    add_command,
    add_connection,
    given_options,
    key_and_value,
    named_topic,
    resolved,
)
from pulsar_spark.cli.connection import connected
from pulsar_spark.cli.output import print_json, print_note, print_table, progress
from pulsar_spark.errors import MessageTooLarge, OptionError, TopicNotFound

if TYPE_CHECKING:
    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
    from pulsar_spark.protocol.schema_info import SchemaInfo

_DESCRIPTION = """\
Send messages to a topic: each --message, or each line of the standard input if there is none. On a
topic with a schema a message is JSON, which is encoded with the schema; text and bytes are sent as
they are. A topic that does not exist is only created with --create.

--option pulsar.producer.… sets compression and the like. The status is 0 if the broker has stored
all messages.
"""

_MAX_LINE = 64 << 20

Encode = Callable[[str], bytes]


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(commands, "send", "send messages to a topic", _DESCRIPTION, run)
    add_connection(parser, "the topic, or one of its partitions", positional=True)
    parser.add_argument(
        "--message",
        action="append",
        default=[],
        metavar="TEXT",
        help="a message; can be repeated. Other users of this machine can see it",
    )
    parser.add_argument("--key", metavar="TEXT", help="the key of all messages")
    parser.add_argument(
        "--property",
        action="append",
        default=[],
        type=key_and_value("a property"),
        metavar="KEY=VALUE",
        help="a property of all messages; can be repeated",
    )
    parser.add_argument("--create", action="store_true", help="create a topic that is missing")


def run(arguments: argparse.Namespace) -> int:
    """Send the messages, and tell how many; raises the broker's error."""
    from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
    from pulsar_spark.spark.options.table import Scope
    from pulsar_spark.spark.options.write import producer_options

    names = [name for name, _ in arguments.property]
    if len(set(names)) < len(names):
        raise OptionError("a property is given twice", "Messages have one value for each name.")
    values = resolved(given_options(arguments), Scope.WRITE, uses=("topic", "pulsar.producer."))
    if values["deliveryGuarantee"] == "exactly-once":
        raise OptionError(
            "send does not write exactly-once",
            "Leave deliveryGuarantee out, or write with Spark: see docs/delivery.md.",
        )
    topic = named_topic(values)
    options = producer_options(values)
    with connected(values, quiet=arguments.json) as context:
        with progress("asking", quiet=arguments.json):
            schema = _schema_of(context, topic, create=arguments.create)
        encode = _encoder(schema)
        with PartitionedProducer(context, topic, replace(options, schema=schema)) as writer:
            writer.open()
            _send(writer, encode, arguments)
            writer.close()
            sent = writer.counts.acknowledged
            last = {name: str(at) for name, at in sorted(writer.last_message_ids.items())}
    if arguments.json:
        print_json({"topic": topic, "messages": sent, "last": last})
    else:
        print(f"{sent} message{'' if sent == 1 else 's'} sent")
        if last:
            print_table(("partition", "last message"), list(last.items()))
    return 0


def _schema_of(context: ClientContext, topic: str, *, create: bool) -> SchemaInfo | None:
    """Return the topic's schema; raises TopicNotFound for a missing topic without `create`."""
    from pulsar_spark.schema.registry import latest_schema
    from pulsar_spark.spark.missing_topic import with_near_topics

    try:
        context.lookup.partitions(topic)
    except TopicNotFound as error:
        _check_partition(context, topic)
        if create:
            return None
        raise with_near_topics(context.lookup, error, topic, remedy="Or add --create.") from error
    return latest_schema(context.lookup, topic)


def _check_partition(context: ClientContext, topic: str) -> None:
    """Raise TopicNotFound for a partition that a topic does not have; --create adds none."""
    from pulsar_spark.protocol.topic_name import TopicName

    owner = TopicName.parse(topic).partitioned
    if str(owner) == topic:
        return
    try:
        count = context.lookup.partitions(str(owner))
    except TopicNotFound:
        return
    has = "is not partitioned" if not count else f"has {count} partitions"
    last = f"The last one is {owner.local_name}-partition-{count - 1}." if count else ""
    raise TopicNotFound(f"{owner} {has}: there is no {topic}", last or f"Send to {owner}.")


def _encoder(schema: SchemaInfo | None) -> Encode:
    """Return what makes a message's payload of its text; it raises InvalidRow, OptionError.

    Raises OptionError for schemas whose values cannot be written as JSON.
    """
    from pulsar_spark.cli.json_values import of_json
    from pulsar_spark.client.schema import DefinedSchema
    from pulsar_spark.protocol import pulsar_api_pb2 as pb
    from pulsar_spark.schema.codec import PLAIN
    from pulsar_spark.schema.python_values import definition_of

    if schema is None or schema.type in PLAIN:
        return _plain
    node = None if schema.type == pb.Schema.KeyValue else definition_of(schema)
    if node is None:
        raise OptionError(
            f"messages of the schema type {schema.type_name} cannot be sent as text",
            "Write them with Spark or PulsarClient.",
        )
    defined = DefinedSchema(schema)

    def encode(text: str) -> bytes:
        try:
            # Numbers stay exact for decimals.
            value: Any = json.loads(text, parse_float=Decimal)
        except (ValueError, RecursionError) as error:
            raise OptionError(
                f"a message is not JSON: {error}",
                f"The topic has a schema of the type {schema.type_name}; `schema TOPIC` shows it.",
            ) from None
        return defined.encode(of_json(node, value))

    return encode


def _plain(text: str) -> bytes:
    # What is not UTF-8 in arguments and lines comes as surrogates.
    return text.encode("utf-8", "surrogateescape")


def _send(writer: PartitionedProducer, encode: Encode, arguments: argparse.Namespace) -> None:
    from pulsar_spark.protocol.outgoing_messages import MessageFields

    # Whoever types wants each message to be there at once.
    typed = not arguments.message and sys.stdin.isatty()
    if typed:
        print_note("each line is a message; Ctrl-D ends")
    for text in arguments.message or _lines():
        fields = MessageFields(encode(text), arguments.key, properties=arguments.property)
        writer.send(fields, at_once=typed)


def _lines() -> Iterator[str]:
    """Yield the lines of the standard input, without their ends."""
    source = sys.stdin.buffer
    while line := source.readline(_MAX_LINE + 1):
        if len(line) > _MAX_LINE:
            raise MessageTooLarge(
                f"a line is larger than {_MAX_LINE >> 20} MiB", "Send it with PulsarClient."
            )
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")
