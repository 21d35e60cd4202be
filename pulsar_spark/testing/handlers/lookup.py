"""Lookups: brokers of topics, partitions, and lists of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.topic_name import topics_hash
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.topic_store import MAX_PATTERN, Watcher, filter_by_pattern, parse_topic
from pulsar_spark.testing.transactions import COORDINATOR_TOPIC

if TYPE_CHECKING:
    from pulsar_spark.testing.session import Session


def lookup(session: Session, body: pb.CommandLookupTopic) -> None:
    """Return the broker that serves a topic.

    A single broker answers like a standalone one: itself, at the service URL. Of several, each
    names the owner. Brokers redirect only about topics that none has loaded yet.
    """
    server = session.server
    parsed = parse_topic(body.topic)
    server.topics.namespaces.check(parsed)
    name = str(parsed)
    listener = body.advertised_listener_name
    if listener and listener not in server.options.listeners:
        raise Refusal(pb.ServiceNotReady, f"the broker do not have {listener} listener")
    owner = server.topics.owner(name)
    url, tls = server.service_url(owner), server.options.tls is not None
    session.answer(
        body,
        pb.CommandLookupTopicResponse,
        name,
        response=pb.CommandLookupTopicResponse.Connect,
        brokerServiceUrl=None if tls else url,
        brokerServiceUrlTls=url if tls else None,
        authoritative=True,
        proxy_through_service_url=server.options.brokers == 1,
    )


def partitioned_metadata(session: Session, body: pb.CommandPartitionedTopicMetadata) -> None:
    """Return a topic's number of partitions."""
    name = parse_topic(body.topic)
    create = body.metadata_auto_creation_enabled
    if str(name) == COORDINATOR_TOPIC and session.server.options.transactions:
        partitions = 1
    else:
        partitions = session.server.topics.partitions(name, auto_create=create)
    session.answer(
        body,
        pb.CommandPartitionedTopicMetadataResponse,
        str(name),
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
        partitions=partitions,
    )


def topics_of_namespace(session: Session, body: pb.CommandGetTopicsOfNamespace) -> None:
    """List a namespace's topics, filtered by a pattern if it is short enough."""
    names = session.server.topics.of_namespace(body.namespace, body.mode)
    filtered = body.HasField("topics_pattern") and len(body.topics_pattern) <= MAX_PATTERN
    if filtered:
        names = filter_by_pattern(names, body.topics_pattern)
    digest = topics_hash(names)
    changed = not body.HasField("topics_hash") or body.topics_hash != digest
    session.answer(
        body,
        pb.CommandGetTopicsOfNamespaceResponse,
        topics=names if changed else [],
        filtered=filtered,
        topics_hash=digest,
        changed=changed,
    )


def watch_topics(session: Session, body: pb.CommandWatchTopicList) -> None:
    """From now on, report topics that appear and disappear."""
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
    session.answer(
        body,
        pb.CommandWatchTopicListSuccess,
        watcher_id=body.watcher_id,
        topic=names if body.topics_hash != digest else [],
        topics_hash=digest,
    )


def unwatch_topics(session: Session, body: pb.CommandWatchTopicListClose) -> None:
    """Stop reporting."""
    stop = session.watchers.pop(body.watcher_id, None)
    if stop is not None:
        stop()
    session.answer(body, pb.CommandSuccess)
