"""``sink``: what exactly-once sinks have committed and decided, and how to repair one by hand.

If a driver ends before it has carried out its decision, the query's next start does so, or the
next write with the same sinkId. If there will be none, this command carries it out.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from pulsar_spark.cli.arguments import (
    Commands,
    add_command,
    add_connection,
    agreed,
    given_options,
    resolved,
)
from pulsar_spark.cli.connection import connected
from pulsar_spark.cli.output import print_error, print_rows, progress
from pulsar_spark.errors import (
    OptionError,
    PulsarError,
    SinkStateError,
    TopicNotFound,
    listed,
    printable,
)

if TYPE_CHECKING:
    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.engine.options import ClientOptions
    from pulsar_spark.spark.options.resolve import Values
    from pulsar_spark.spark.writing.exactly_once import SinkOptions

_DESCRIPTION = """\
Show the exactly-once sinks of the namespace of --topic (public/default without one), or of the
topic of --option sinkStateTopic=TOPIC: the last micro-batch or run that was committed, and one that
is decided but may not be committed yet. The other commands take the sink over from its query or
job: don't use them while it runs. ID is the sinkId, or the checkpoint's location.

--finish ID commits what was decided, as the next start of the query or the next write would. If its
transactions have timed out and none was committed, it is dropped instead, with an error.
--abort ID aborts the transactions that killed tasks and drivers have left open, so that consumers
need not wait until transactionTimeout has passed.
--accept ID lets the query go on that repeats committed micro-batches with other rows, as after its
checkpoint was restored: they are left out, from any one on up to the last one that is committed,
one after the other, each with the rows that come first. Those that have come to the query's sources
since are among them: they are left out too. Or one run of a batch write is left out.
--reset ID forgets what was committed: the next micro-batch or run is written, whatever it is.
Version 0.2 refuses what is left, too: give it a sinkId of its own.
"""

# Where topics with short names are.
_NAMESPACE = "public/default"
_USED = ("topic", "sinkStateTopic", "transactionTimeout")
_ACTIONS = {
    "finish": "commit what this sink has decided",
    "abort": "abort what killed tasks of this sink have left open",
    "accept": "keep what this sink has committed, when it is repeated with other rows, once",
    "reset": "forget what this sink has committed",
}


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands, "sink", "show exactly-once sinks, or repair one", _DESCRIPTION, run
    )
    add_connection(parser, "a topic that an exactly-once sink writes to")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="show the sinks (the default)")
    for action, text in _ACTIONS.items():
        what.add_argument(f"--{action}", metavar="ID", help=text)
    parser.add_argument("--yes", action="store_true", help="do not ask before --reset")


def run(arguments: argparse.Namespace) -> int:
    """Show sinks, or change one; return 1 if a sink cannot be read, or nothing was changed."""
    from pulsar_spark.spark.options.read import client_options, single_topic
    from pulsar_spark.spark.options.table import Scope
    from pulsar_spark.spark.writing.exactly_once import find_records

    if arguments.yes and arguments.reset is None:
        raise OptionError("--yes is for --reset", "Leave it out.")
    values = resolved(given_options(arguments), Scope.WRITE, uses=_USED)
    topic = single_topic(values)
    action = next((name for name in _ACTIONS if getattr(arguments, name) is not None), None)
    states: list[str] | None = None
    changed: dict[str, object] = {}
    if action is not None:
        with connected(values, quiet=arguments.json) as context:
            sink = _known(context, values, topic, getattr(arguments, action), action)
            states = [find_records(context, sink)]
        if (
            action == "reset"
            and not arguments.yes
            and not agreed(
                f"Forget what {printable(sink.sink_id)} has committed? Its rows stay. [y/N] "
            )
        ):
            print_error("nothing was changed")
            return 1
        with progress(action, quiet=arguments.json):
            changed = _change(client_options(values), sink, action)
    with connected(values, quiet=arguments.json) as context:
        if states is None:
            states = state_topics(context, values["sinkStateTopic"], topic)
        rows, whole = [], True
        with progress("reading", total=len(states), quiet=arguments.json) as bar:
            for name in states:
                row, is_whole = _row(context, name)
                rows.append(row | changed)
                whole = whole and is_whole
                bar.advance()
    print_rows(rows, (*_COLUMNS, *changed), as_json=arguments.json)
    return 0 if whole else 1


def _change(client: ClientOptions, sink: SinkOptions, action: str) -> dict[str, object]:
    """Change a sink; return what is to be told of it besides its state."""
    from pulsar_spark.spark.writing.exactly_once import opened

    with opened(client, sink, anew=action == "reset") as found:
        if action == "abort":
            return {"aborted": len(found.abort_open())}
        if action == "finish":
            found.finish()
        elif action == "reset":
            found.reset()
        else:
            return {"accepted": found.accept()}
    return {}


def _known(
    context: ClientContext, values: Values, topic: str | None, given: str, action: str
) -> SinkOptions:
    """Return the options of the sink with an id, or with the checkpoint, that was given.

    Raises SinkStateError unless it has records. Creates nothing and takes nothing over.
    """
    from pulsar_spark.spark.writing.exactly_once import find_records, sink_options
    from pulsar_spark.spark.writing.sink_records import known_as, one_spelling

    state_topic: str | None = values["sinkStateTopic"]
    if topic is None and state_topic is None:
        raise OptionError("no topic is given", "Give --topic TOPIC, one that it writes to.")
    timeout = values["transactionTimeout"]
    sink = sink_options(given, None, state_topic, topic, timeout)
    places = [sink]
    if one_spelling(given) != given:
        places.append(sink_options(None, given, state_topic, topic, timeout))
    for place in places:
        recorded = _recorded(context, find_records(context, place))
        if recorded is not None and known_as(recorded) in place.ids:
            return place
    # Records can be where an earlier version put them, for another notation of the checkpoint.
    wanted, others = one_spelling(known_as(given)), []
    for name in state_topics(context, state_topic, topic):
        try:
            recorded = _recorded(context, name)
        except SinkStateError:
            continue
        if recorded is not None and one_spelling(recorded) == wanted:
            return sink_options(recorded, None, name, topic, timeout)
        others += [] if recorded is None else [recorded]
    if action == "reset":
        for place in places:
            if _has_attempts(context, place):
                return place
    raise SinkStateError(
        f"there are no records of a sink with the sinkId {sink.sink_id!r}"
        + (f", but of {listed(map(repr, others))}" if others else ""),
        "See which sinks there are: sink --list. If a sink has sinkStateTopic, give that too: "
        "--option sinkStateTopic=TOPIC.",
        topic=sink.state_topic,
    )


def _recorded(context: ClientContext, topic: str) -> str | None:
    """Return the id of the sink whose records are on a topic, also if some are missing.

    Raises SinkStateError for messages that are not records.
    """
    from pulsar_spark.spark.writing.decision_log import read_state

    try:
        return read_state(context, topic, gaps=True).sink_id
    except TopicNotFound:
        return None


def _has_attempts(context: ClientContext, sink: SinkOptions) -> bool:
    """Whether a sink without any records was used before: its tasks have announced themselves."""
    from pulsar_spark.spark.writing.attempts import announced, attempts_topic

    if _recorded(context, sink.state_topic) is not None:
        return False
    try:
        context.lookup.last_message_id(attempts_topic(sink.state_topic))
    except TopicNotFound:
        return False
    return {attempt.sink for attempt in announced(context, sink.state_topic)} <= {*sink.ids}


def state_topics(context: ClientContext, given: str | None, topic: str | None) -> list[str]:
    """Return the topics of records: the given one, or all in the namespace of a topic.

    Also those that are gone, while the topic beside them is there.
    """
    from pulsar_spark.protocol.topic_name import TopicName
    from pulsar_spark.spark.writing.attempts import ATTEMPTS_SUFFIX
    from pulsar_spark.spark.writing.exactly_once import STATE_PREFIX

    if given is not None:
        return [str(TopicName.parse(given))]
    namespace = _NAMESPACE if topic is None else TopicName.parse(topic).namespace_name
    names = context.lookup.topics_of_namespace(namespace)
    ours = [name for name in names if TopicName.parse(name).local_name.startswith(STATE_PREFIX)]
    return list(dict.fromkeys(name.removesuffix(ATTEMPTS_SUFFIX) for name in ours))


_COLUMNS = (
    "sink",
    "kind",
    "query",
    "committed",
    "messages",
    "age",
    "runs",
    "oldest_run",
    "unfinished",
    "transactions",
    "topic",
)


def _row(context: ClientContext, topic: str) -> tuple[dict[str, object], bool]:
    """Return what a sink's records say, or why they do not, and whether they are all there."""
    from pulsar_spark.spark.writing.attempts import Attempts
    from pulsar_spark.spark.writing.decision_log import read_state
    from pulsar_spark.spark.writing.sink_records import records_missing

    row: dict[str, object] = dict.fromkeys(_COLUMNS) | {"transactions": 0, "topic": topic}
    try:
        row["sink"] = _recorded(context, topic)
        state = read_state(context, topic)
        if state.sink_id is not None and state.is_new and Attempts(context, topic).exist():
            raise records_missing(topic, state.sink_id)
    except TopicNotFound as error:
        return row | {"unfinished": f"the sink's records are gone: {error.what}"}, False
    except PulsarError as error:
        return row | {"unfinished": error.what}, False
    if state.sink_id is None:
        return row | {"unfinished": "the sink's records are gone: the topic is empty"}, False
    if (done := state.done) is not None:
        row["kind"] = "batch writes" if done.unit.batch is None else "stream"
        row["query"] = done.unit.query
        row["committed"] = str(done.unit)
        row["messages"] = done.written.messages
        row["age"] = round(time.time() - done.at) if done.at else None
    if state.runs:
        row["runs"], row["oldest_run"] = len(state.runs), next(iter(state.runs))
    if state.undone is not None:
        row["unfinished"] = str(state.undone.unit)
        row["transactions"] = len(state.undone.transactions)
    return row, True
