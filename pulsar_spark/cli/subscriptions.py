"""``subscriptions``: the durable subscriptions of topics, and their backlog.

The binary protocol cannot list subscriptions, so the user or a checkpoint has to name them. To ask
about a subscription one must subscribe, which would create it. So the command first checks that
it exists, by an attempt that leaves no trace.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pulsar_spark.cli.arguments import (
    FOLDER,
    Commands,
    add_admin_url,
    add_command,
    add_connection,
    agreed,
    check_namespace,
    complete_with,
    given_options,
    profile_admin_url,
    resolved,
    take_admin_url,
)
from pulsar_spark.cli.connection import connected, partitions_of
from pulsar_spark.cli.output import (
    Bar,
    print_error,
    print_note,
    print_rows,
    progress,
)
from pulsar_spark.errors import (
    ConsumerBusy,
    NotAllowed,
    OptionError,
    PulsarError,
    TopicNotFound,
)

if TYPE_CHECKING:
    from pulsar_spark.cli.admin import Admin
    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.engine.deadline import Deadline
    from pulsar_spark.engine.operations import Operation
    from pulsar_spark.protocol.message_id import Position
    from pulsar_spark.spark.options.resolve import Values

_DESCRIPTION = """\
Show durable subscriptions: whether they exist, whether they are in use, and their backlog, which is
the number of unacknowledged entries (a batch is one entry). Name them with --subscription and
--topic, or pass a query's checkpoint with --checkpoint. With --admin-url, all subscriptions of a
topic are shown, with the backlog of those in use too.

--drop removes the subscriptions, and with them the messages that only they retained. A subscription
in use is not removed: stop its query first.

--drop-matching removes those whose whole name matches a regular expression, on --topic or on all
topics of --namespace. It needs the admin REST, shows what it found, and asks first.
"""

_AT_ONCE = 500

IDLE, IN_USE, MISSING, DROPPED = "idle", "in use", "does not exist", "dropped"


@dataclass(slots=True)
class _Subscription:
    """A subscription on a topic partition. `position` is the checkpoint's, None without one."""

    subscription: str
    topic: str
    backlog: int | None = None
    state: str = MISSING
    position: Position | None = field(default=None, repr=False)


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "subscriptions",
        "show the backlog of subscriptions, or drop them",
        _DESCRIPTION,
        run,
    )
    add_connection(parser, "the topic that they are on, or one of its partitions")
    parser.add_argument(
        "--subscription",
        action="append",
        default=[],
        metavar="NAME",
        help="a subscription; can be repeated",
    )
    checkpoint = parser.add_argument(
        "--checkpoint", metavar="FOLDER", help="a query's checkpoint, a folder on this machine"
    )
    complete_with(checkpoint, FOLDER)
    add_admin_url(parser, "it lists all subscriptions of a topic")
    parser.add_argument(
        "--namespace",
        metavar="TENANT/NAMESPACE",
        help="all topics of this namespace, in place of --topic",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--drop", action="store_true", help="remove the subscriptions")
    what.add_argument(
        "--drop-matching",
        metavar="REGEX",
        help="remove the subscriptions whose whole name matches, after a question",
    )
    parser.add_argument("--yes", action="store_true", help="--drop-matching does not ask")


def run(arguments: argparse.Namespace) -> int:
    """Show or drop subscriptions; return 1 if one should have been dropped and was not."""
    from pulsar_spark.spark.options.read import single_topic
    from pulsar_spark.spark.options.table import Scope

    options = given_options(arguments)
    admin_url = take_admin_url(arguments, options)
    if admin_url is None and not (arguments.subscription or arguments.checkpoint):
        # Only the admin REST lists them.
        admin_url = profile_admin_url(arguments)
    values = resolved(options, Scope.READS, uses=("topic",))
    topic = single_topic(values)
    _check(arguments, topic, admin_url)
    found = _of_checkpoint(arguments.checkpoint, topic) if arguments.checkpoint else []
    quiet = arguments.json
    with connected(values, quiet=quiet) as context, progress("asking", quiet=quiet) as bar:
        partitions = [] if arguments.checkpoint else _places(context, topic, arguments.namespace)
        found += [
            _Subscription(name, partition)
            for name in dict.fromkeys(arguments.subscription)
            for partition in partitions
        ]
        if admin_url is None:
            _look(context, found, bar)
        else:
            found = _from_admin(context, admin_url, found, partitions)
        if arguments.drop:
            bar.tell("dropping")
            _drop(context, found, bar)
    if arguments.drop_matching is None:
        _show(found, as_json=arguments.json)
        return _status(found) if arguments.drop else 0
    return _drop_matching(values, found, arguments)


def _show(found: list[_Subscription], *, as_json: bool) -> None:
    columns = ("subscription", "topic", "backlog", "state")
    rows = [{name: getattr(entry, name) for name in columns} for entry in found]
    print_rows(rows, columns, as_json=as_json)


def _drop_matching(
    values: Values, found: list[_Subscription], arguments: argparse.Namespace
) -> int:
    """Ask, and remove those that match; return 1 if one of them stays."""
    pattern = _pattern(arguments.drop_matching)
    matching = [entry for entry in found if pattern.fullmatch(entry.subscription)]
    idle = sum(entry.state == IDLE for entry in matching)
    if not matching:
        print_note(f"none of {len(found)} subscriptions matches")
    if idle and not arguments.yes:
        _show(matching, as_json=False)
        question = f"Drop {idle} of these, and the messages that only they retain? [y/N] "
        if not agreed(question):
            print_error("nothing was dropped")
            return 1
    quiet = arguments.json
    with connected(values, quiet=quiet) as context, progress("dropping", quiet=quiet) as bar:
        _drop(context, matching, bar)
    _show(matching, as_json=arguments.json)
    return int(any(entry.state != DROPPED for entry in matching))


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise OptionError(
            f"--drop-matching is not a regular expression: {error}",
            "It has to match a whole name, such as spark-pulsar-batch-.*",
        ) from None


def _places(context: ClientContext, topic: str | None, namespace: str | None) -> list[str]:
    """Return the topic partitions of a topic, or of all topics of a namespace."""
    from pulsar_spark.protocol.topic_name import TopicName

    if namespace is None:
        return [] if topic is None else _partitions(context, topic)
    topics = context.lookup.topics_of_namespace(namespace)
    if not topics:
        print_note(f"the namespace {namespace} has no topics, or does not exist")
    counts = context.lookup.partitions_many(topics)
    return [
        partition
        for topic, count in counts.items()
        # Those that were deleted after they were listed have no partitions.
        if isinstance(count, int)
        for partition in TopicName.parse(topic).partitions(count)
    ]


def _check(arguments: argparse.Namespace, topic: str | None, admin_url: str | None) -> None:
    """Raise OptionError for arguments that do not go together."""
    named = bool(arguments.subscription or arguments.checkpoint)
    matching = arguments.drop_matching is not None
    if arguments.yes and not matching:
        raise OptionError("--yes is for --drop-matching", "Leave it out.")
    if matching:
        _pattern(arguments.drop_matching)
        if arguments.json and not arguments.yes:
            raise OptionError("--drop-matching asks, which --json cannot", "Add --yes.")
        if named:
            raise OptionError(
                "--drop-matching finds subscriptions by itself",
                "Leave out --subscription and --checkpoint, or use --drop.",
            )
        if admin_url is None:
            raise OptionError(
                "brokers list subscriptions by the admin REST only",
                "Give --admin-url http://HOST:8080.",
            )
    if not named and (admin_url is None or arguments.drop):
        raise OptionError(
            "no subscription is named, and brokers list them by the admin REST only",
            "Give --subscription NAME or --checkpoint FOLDER."
            if arguments.drop
            else "Give --subscription NAME, --checkpoint FOLDER, or --admin-url "
            "http://HOST:8080 to see all subscriptions of --topic.",
        )
    if arguments.subscription and arguments.checkpoint:
        raise OptionError(
            "--subscription and --checkpoint cannot be used together", "Give one of them."
        )
    if arguments.namespace is not None:
        check_namespace(arguments.namespace)
        if topic is not None or arguments.checkpoint:
            raise OptionError(
                "--namespace stands in place of --topic and --checkpoint", "Give one of them."
            )
    elif not arguments.checkpoint and topic is None:
        raise OptionError("no topic is given", "Give --topic TOPIC.")


def _from_admin(
    context: ClientContext, admin_url: str, named: list[_Subscription], partitions: list[str]
) -> list[_Subscription]:
    """Return these partitions' subscriptions, all or the named ones, from the admin REST."""
    from urllib.parse import quote

    from pulsar_spark.cli.admin import Admin
    from pulsar_spark.protocol.topic_name import TopicName

    wanted = {(entry.topic, entry.subscription): entry for entry in named}
    with Admin(context.options, context.pool.auth, admin_url) as admin:
        for topic in dict.fromkeys([*(entry.topic for entry in named), *partitions]):
            name = TopicName.parse(topic)
            place = f"{name.namespace_name}/{quote(name.local_name, safe='')}"
            try:
                found = _of_topic(admin, f"persistent/{place}/stats")
            except TopicNotFound:
                continue
            for subscription, (backlog, state) in found.items():
                key = topic, subscription
                if named and key not in wanted:
                    continue
                entry = wanted.setdefault(key, _Subscription(subscription, topic))
                entry.backlog, entry.state = backlog, state
    return list(wanted.values())


def _of_topic(admin: Admin, path: str) -> dict[str, tuple[int, str]]:
    """Return backlog and state of a topic's subscriptions by name, from the admin REST.

    Raises RemoteProtocolError for an answer that Pulsar never gives.
    """
    from pulsar_spark.cli.admin import unexpected

    try:
        return {
            name: (int(told["msgBacklog"]), IN_USE if told["consumers"] else IDLE)
            for name, told in admin.get_object(path)["subscriptions"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise unexpected(path) from None


def _of_checkpoint(folder: str, topic: str | None) -> list[_Subscription]:
    """Return a checkpoint's subscriptions, or only those of `topic`."""
    from pulsar_spark.cli.checkpoint import check_topic, is_of, stream_offsets

    offsets = stream_offsets(folder)
    check_topic(offsets, topic)
    return [
        _Subscription(offset.subscription, partition, position=position)
        for offset in offsets
        for partition, position in offset.positions.items()
        if is_of(partition, topic)
    ]


def _partitions(context: ClientContext, topic: str) -> list[str]:
    from pulsar_spark.protocol.topic_name import TopicName

    return TopicName.parse(topic).partitions(partitions_of(context, topic))


def _look(context: ClientContext, found: list[_Subscription], bar: Bar) -> None:
    """Fill in state and backlog; raises the broker's error."""
    for name, entries in _pieces(found):
        bar.tell(f"asking about {name}")
        for entry, answer in _ask(context, name, entries, drop=False):
            if answer is None or isinstance(answer, TopicNotFound):
                entry.state = MISSING
            elif isinstance(answer, ConsumerBusy):
                entry.state = IN_USE
            elif isinstance(answer, PulsarError):
                raise answer
            else:
                entry.state, entry.backlog = IDLE, answer
    _count_from_checkpoint(context, [entry for entry in found if entry.state == IN_USE])


def _drop(context: ClientContext, found: list[_Subscription], bar: Bar) -> None:
    """Remove idle subscriptions."""
    idle = [entry for entry in found if entry.state == IDLE]
    for name, entries in _pieces(idle):
        bar.tell(f"dropping {name}")
        for entry, answer in _ask(context, name, entries, drop=True):
            if isinstance(answer, ConsumerBusy):
                entry.state = IN_USE
            elif isinstance(answer, PulsarError) and not isinstance(answer, TopicNotFound):
                raise answer
            else:
                entry.state, entry.backlog = DROPPED, None


def _status(found: list[_Subscription]) -> int:
    """Return the exit status of a drop: 0 if everything named existed and is gone."""
    kept = any(entry.state == IN_USE for entry in found)
    seen = {entry.subscription for entry in found if entry.state == DROPPED}
    return 1 if kept or seen != {entry.subscription for entry in found} else 0


def _pieces(found: list[_Subscription]) -> Iterator[tuple[str, list[_Subscription]]]:
    """Yield groups to ask about at the same time: those of one name."""
    grouped: dict[str, list[_Subscription]] = {}
    for entry in found:
        grouped.setdefault(entry.subscription, []).append(entry)
    for name, entries in grouped.items():
        for start in range(0, len(entries), _AT_ONCE):
            yield name, entries[start : start + _AT_ONCE]


def _ask(
    context: ClientContext, name: str, entries: list[_Subscription], *, drop: bool
) -> list[tuple[_Subscription, int | PulsarError | None]]:
    def attempt(topic: str, deadline: Deadline) -> Operation[int | None]:
        return _visit(context, topic, name, deadline, drop=drop)

    answers = context.lookup.ask_many([entry.topic for entry in entries], attempt)
    return [(entry, answers[entry.topic]) for entry in entries]


def _visit(
    context: ClientContext, topic: str, name: str, deadline: Deadline, *, drop: bool
) -> Operation[int | None]:
    """Return an operation for a subscription's backlog, or to remove it; None if it does not exist.

    Raises ConsumerBusy if another consumer holds it.
    """
    from pulsar_spark.engine.consumers.consumer_session import ConsumerSession, SubscribeRequest
    from pulsar_spark.engine.consumers.probe import Probe
    from pulsar_spark.protocol import pulsar_api_pb2 as pb

    # Each attempt checks: an earlier one may have removed it and got no answer.
    # A topic that may have no further subscription does not tell, but nor does it create one.
    with suppress(NotAllowed):
        if not (yield from Probe(context.pool).exists_operation(topic, name, deadline)):
            return None
    connection = yield from context.lookup.connection_operation(topic, deadline)
    wanted = SubscribeRequest(topic, name, None, initial=pb.CommandSubscribe.Earliest)
    with ConsumerSession(connection, wanted) as session:
        yield from session.subscribe(deadline)
        if drop:
            yield session.ask(pb.CommandUnsubscribe, deadline)
            return None
        answer: pb.CommandConsumerStatsResponse = yield session.stats(deadline)
        # This consumer must not be in the next one's way.
        if (closed := session.close()) is not None:
            yield closed
    return int(answer.msgBacklog)


def _count_from_checkpoint(context: ClientContext, busy: list[_Subscription]) -> None:
    """Count what is after the checkpoint: a subscription in use tells nobody else its backlog."""
    from pulsar_spark.engine.consumers.probe import Probe

    asked = [(entry, entry.position) for entry in busy if entry.position is not None]
    counts = Probe(context.pool).entries_from(
        [(entry.topic, position) for entry, position in asked]
    )
    for (entry, _), count in zip(asked, counts, strict=True):
        if isinstance(count, int):
            entry.backlog = count
