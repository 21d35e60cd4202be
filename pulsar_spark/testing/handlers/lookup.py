"""Lookups: brokers of topics, partitions, and lists of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.topic_name import topics_hash
from pulsar_spark.testing.actions import Incoming
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.topic_store import MAX_PATTERN, Watcher, filter_by_pattern, parse_topic
from pulsar_spark.testing.transactions import COORDINATOR_TOPIC

if TYPE_CHECKING:
    from pulsar_spark.testing.session import Session


def lookup(session: Session, command: Incoming) -> None:
    """Return the broker that serves a topic.

    A single broker answers like a standalone one: itself, at the service URL. Of several, each
    names the owner. Brokers redirect only about topics that none has loaded yet.
    """
    body: pb.CommandLookupTopic = command.body
    server = session.server
    parsed = parse_topic(body.topic)
    server.topics.namespaces.check(parsed)
    name = str(parsed)
    listener = body.advertised_listener_name
    if listener and listener not in server.options.listeners:
        raise Refusal(pb.ServiceNotReady, f"the broker do not have {listener} listener")
    owner = server.topics.owner(name)
    url, tls = server.service_url(owner), server.options.tls is not None
    answer = commands.build(
        pb.CommandLookupTopicResponse,
        request_id=body.request_id,
        response=pb.CommandLookupTopicResponse.Connect,
        brokerServiceUrl=None if tls else url,
        brokerServiceUrlTls=url if tls else None,
        authoritative=True,
        proxy_through_service_url=server.options.brokers == 1,
    )
    session.send(answer, name)


def partitioned_metadata(session: Session, command: Incoming) -> None:
    """Return a topic's number of partitions."""
    body: pb.CommandPartitionedTopicMetadata = command.body
    name = parse_topic(body.topic)
    create = body.metadata_auto_creation_enabled
    if str(name) == COORDINATOR_TOPIC and session.server.options.transactions:
        partitions = 1
    else:
        partitions = session.server.topics.partitions(name, auto_create=create)
    answer = commands.build(
        pb.CommandPartitionedTopicMetadataResponse,
        request_id=body.request_id,
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
        partitions=partitions,
    )
    session.send(answer, str(name))


def topics_of_namespace(session: Session, command: Incoming) -> None:
    """List a namespace's topics, filtered by a pattern if it is short enough."""
    body: pb.CommandGetTopicsOfNamespace = command.body
    names = session.server.topics.of_namespace(body.namespace, body.mode)
    filtered = body.HasField("topics_pattern") and len(body.topics_pattern) <= MAX_PATTERN
    if filtered:
        names = filter_by_pattern(names, body.topics_pattern)
    digest = topics_hash(names)
    changed = not body.HasField("topics_hash") or body.topics_hash != digest
    answer = commands.build(
        pb.CommandGetTopicsOfNamespaceResponse,
        request_id=body.request_id,
        topics=names if changed else [],
        filtered=filtered,
        topics_hash=digest,
        changed=changed,
    )
    session.send(answer)


def watch_topics(session: Session, command: Incoming) -> None:
    """From now on, report topics that appear and disappear."""
    body: pb.CommandWatchTopicList = command.body
    if len(body.topics_pattern) > MAX_PATTERN:
        raise Refusal(pb.NotAllowedError, f"The pattern has more than {MAX_PATTERN} characters")

    def notify(added: list[str], deleted: list[str], digest: str) -> None:
        update = commands.build(
            pb.CommandWatchTopicUpdate,
            watcher_id=body.watcher_id,
            new_topics=added,
            deleted_topics=deleted,
            topics_hash=digest,
        )
        session.send(update)

    store = session.server.topics
    watcher = Watcher(body.namespace, body.topics_pattern, notify)
    names = store.matching(watcher, store.of_namespace(body.namespace))
    digest = topics_hash(names)
    if body.watcher_id in session.watchers:
        session.watchers.pop(body.watcher_id)()
    store.watchers.append(watcher)
    session.watchers[body.watcher_id] = lambda: store.watchers.remove(watcher)
    answer = commands.build(
        pb.CommandWatchTopicListSuccess,
        request_id=body.request_id,
        watcher_id=body.watcher_id,
        topic=names if body.topics_hash != digest else [],
        topics_hash=digest,
    )
    session.send(answer)


def unwatch_topics(session: Session, command: Incoming) -> None:
    """Stop reporting."""
    body: pb.CommandWatchTopicListClose = command.body
    stop = session.watchers.pop(body.watcher_id, None)
    if stop is not None:
        stop()
    session.send(commands.build(pb.CommandSuccess, request_id=body.request_id))
