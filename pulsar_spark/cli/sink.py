"""``sink``: what exactly-once sinks have decided to write, and whether it is done.

If a driver ends before it has carried out its decision, the query's next start does so, or the
next write with the same sinkId. If there will be none, this command carries it out.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pulsar_spark.cli.arguments import (
    Commands,
    add_command,
    add_connection,
    given_options,
    resolved,
)
from pulsar_spark.cli.output import print_json, print_table, progress
from pulsar_spark.errors import OptionError, PulsarError, SinkStateError, TopicNotFound

if TYPE_CHECKING:
    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.spark.options.resolve import Values
    from pulsar_spark.spark.writing.exactly_once import SinkOptions

_DESCRIPTION = """\
Show the exactly-once sinks of the namespace of --topic (public/default without one), or of the
topic of --option sinkStateTopic=TOPIC: the last micro-batch or job that was committed, and one that
is decided but may not be committed yet. --finish ID commits that one now, as the next start of its
query or the next write would. If its transactions have timed out and none was committed, it is
dropped instead, with an error. Don't use it while the query runs: it takes the sink over from the
query.
"""

# Where topics with short names are.
_NAMESPACE = "public/default"


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands, "sink", "show exactly-once sinks, or finish their writes", _DESCRIPTION, run
    )
    add_connection(parser, "a topic that an exactly-once sink writes to")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="show the sinks (the default)")
    what.add_argument(
        "--finish", metavar="ID", help="commit the decision of the sink with this sinkId"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show sinks, or finish one sink's decision; return 1 if a sink cannot be read."""
    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.spark.options.read import client_options, single_topic
    from pulsar_spark.spark.options.table import Scope
    from pulsar_spark.spark.writing.exactly_once import check_sink, sink_options

    values = resolved(given_options(arguments), Scope.WRITE)
    topic, client = single_topic(values), client_options(values)
    given: str | None = values["sinkStateTopic"]
    if arguments.finish is not None:
        if topic is None and given is None:
            raise OptionError("no topic is given", "Give --topic TOPIC, one that it writes to.")
        sink = sink_options(arguments.finish, given, topic, values["transactionTimeout"])
        with progress("committing", quiet=arguments.json):
            with ClientContext(client) as context:
                _check_known(context, sink)
            check_sink(client, sink, finish=True)
    with ClientContext(client) as context:
        states = [sink.state_topic] if arguments.finish else _state_topics(context, values, topic)
        rows = []
        with progress("reading", total=len(states), quiet=arguments.json) as bar:
            for name in states:
                rows.append(_row(context, name))
                bar.advance()
    if arguments.json:
        print_json(rows)
    else:
        columns = ("sink", "committed", "unfinished", "transactions", "topic")
        print_table(columns, [tuple(row.values()) for row in rows])
    return 0 if all(row["sink"] is not None for row in rows) else 1


def _check_known(context: ClientContext, sink: SinkOptions) -> None:
    """Raise SinkStateError unless the sink has records. Creates nothing and takes nothing over."""
    from pulsar_spark.spark.writing.decision_log import read_state

    try:
        known = read_state(context, sink.state_topic).sink_id
    except TopicNotFound:
        known = None
    if known == sink.sink_id:
        return
    raise SinkStateError(
        f"there are no records of a sink with the sinkId {sink.sink_id!r}"
        + ("" if known is None else f", but of {known!r}"),
        "See which sinks there are: sink --list. If a sink has sinkStateTopic, give that too: "
        "--option sinkStateTopic=TOPIC.",
        topic=sink.state_topic,
    )


def _state_topics(context: ClientContext, values: Values, topic: str | None) -> list[str]:
    from pulsar_spark.protocol.topic_name import TopicName
    from pulsar_spark.spark.writing.exactly_once import STATE_PREFIX

    if values["sinkStateTopic"] is not None:
        return [str(TopicName.parse(values["sinkStateTopic"]))]
    namespace = _NAMESPACE if topic is None else TopicName.parse(topic).namespace_name
    names = context.lookup.topics_of_namespace(namespace)
    return [name for name in names if TopicName.parse(name).local_name.startswith(STATE_PREFIX)]


def _row(context: ClientContext, topic: str) -> dict[str, object]:
    from pulsar_spark.spark.writing.decision_log import read_state

    try:
        state = read_state(context, topic)
    except PulsarError as error:
        return dict.fromkeys(("sink", "committed"), None) | {
            "unfinished": error.what,
            "transactions": 0,
            "topic": topic,
        }
    return {
        "sink": state.sink_id,
        "committed": None if state.done is None else str(state.done.unit),
        "unfinished": None if state.undone is None else str(state.undone.unit),
        "transactions": 0 if state.undone is None else len(state.undone.transactions),
        "topic": topic,
    }
