"""Statistics of topics: what the broker counts. Rates are left out, since nothing measures them."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.consumers import Consumer
from pulsar_spark.testing.entry_log import Place
from pulsar_spark.testing.producers import Producer
from pulsar_spark.testing.quotas import backlog_bytes, backlog_of
from pulsar_spark.testing.rest import found
from pulsar_spark.testing.rest.request import Failure, RestRequest
from pulsar_spark.testing.subscription import SingleSubscription, Subscription
from pulsar_spark.testing.topic import Topic

if TYPE_CHECKING:
    from pulsar_spark.testing.server import Server

# What is summed up over the partitions of a topic, or of a subscription.
_SUMMED = ("msgInCounter", "storageSize", "backlogSize", "waitingPublishers")
_SUMMED_OF_SUBSCRIPTIONS = ("msgBacklog", "backlogSize", "unackedMessages", "msgOutCounter")


def stats(server: Server, asked: RestRequest) -> dict[str, Any]:
    """The statistics of a topic or a partition."""
    return _of_topic(found.topic(server, asked.topic))


def partitioned_stats(server: Server, asked: RestRequest) -> dict[str, Any]:
    """The sums of a partitioned topic's statistics, and those of its partitions."""
    parts = {one.name: _of_topic(one) for one in _partitions(server, asked)}
    whole: dict[str, Any] = {name: sum(part[name] for part in parts.values()) for name in _SUMMED}
    whole["publishers"] = [one for part in parts.values() for one in part["publishers"]]
    whole["subscriptions"] = _summed(part["subscriptions"] for part in parts.values())
    whole["metadata"] = _metadata(server, asked)
    whole["partitions"] = {} if asked.query.get("perPartition") == "false" else parts
    return whole


def internal_stats(server: Server, asked: RestRequest) -> dict[str, Any]:
    """Ledgers and cursors of a topic or a partition."""
    return _internal(found.topic(server, asked.topic))


def partitioned_internal_stats(server: Server, asked: RestRequest) -> dict[str, Any]:
    """Ledgers and cursors of a topic's partitions."""
    parts = {one.name: _internal(one) for one in _partitions(server, asked)}
    return {"metadata": _metadata(server, asked), "partitions": parts}


def _partitions(server: Server, asked: RestRequest) -> list[Topic]:
    if found.partitions(server, asked.topic) is None:
        text = f"Partitioned Topic {asked.topic} not found"
        raise Failure(HTTPStatus.NOT_FOUND, text)
    return server.topics.parts(asked.topic)


def _metadata(server: Server, asked: RestRequest) -> dict[str, Any]:
    return {"partitions": found.partitions(server, asked.topic), "deleted": False}


def _summed(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for part in parts:
        for name, one in part.items():
            if name not in whole:
                whole[name] = dict(one)
                continue
            for key in _SUMMED_OF_SUBSCRIPTIONS:
                whole[name][key] += one[key]
            whole[name]["consumers"] = whole[name]["consumers"] + one["consumers"]
    return whole


def _of_topic(topic: Topic) -> dict[str, Any]:
    size, age = topic.policies.backlog_size, topic.policies.backlog_age
    return {
        "msgInCounter": topic.log.messages,
        "storageSize": topic.log.size,
        "backlogSize": backlog_of(topic),
        "backlogQuotaLimitSize": -1 if size is None else int(size.limit),
        "backlogQuotaLimitTime": -1 if age is None else int(age.limit),
        "publishers": [_of_producer(one) for one in topic.producers.by_name.values()],
        "waitingPublishers": len(topic.producers.waiting),
        "subscriptions": {name: _of_subscription(one) for name, one in topic.subscriptions.items()},
    }


def _of_producer(producer: Producer) -> dict[str, Any]:
    return {
        "accessMode": pb.ProducerAccessMode.Name(producer.access_mode),
        "producerId": producer.producer_id,
        "producerName": producer.name,
        "address": producer.session.address,
        "clientVersion": _client_version(producer),
        "metadata": producer.properties,
    }


def _of_subscription(subscription: Subscription) -> dict[str, Any]:
    cursor = subscription.cursor
    active = subscription.active if isinstance(subscription, SingleSubscription) else None
    shown = {
        "msgBacklog": cursor.backlog(),
        "backlogSize": backlog_bytes(subscription.topic, cursor),
        "unackedMessages": sum(one.unacked for one in subscription.consumers),
        "msgOutCounter": sum(one.delivered_messages for one in subscription.consumers),
        "type": pb.CommandSubscribe.SubType.Name(subscription.kind),
        "consumers": [_of_consumer(one) for one in subscription.consumers],
        # Both names: the first one is that of 4.0, the other one that of clients that read it.
        "isDurable": subscription.durable,
        "durable": subscription.durable,
    }
    return shown if active is None else {**shown, "activeConsumerName": active.name}


def _of_consumer(consumer: Consumer) -> dict[str, Any]:
    return {
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked,
        "msgOutCounter": consumer.delivered_messages,
        "address": consumer.session.address,
        "clientVersion": _client_version(consumer),
        "metadata": consumer.properties,
    }


def _client_version(client: Producer | Consumer) -> str:
    connect = client.session.connect
    return "" if connect is None else connect.client_version


def _internal(topic: Topic) -> dict[str, Any]:
    ledger_id, entry_id = topic.log.end_place()
    return {
        "numberOfEntries": topic.log.entries,
        "totalSize": topic.log.size,
        "lastConfirmedEntry": _text((ledger_id, entry_id - 1)),
        "state": "Terminated" if topic.terminated else "LedgerOpened",
        "ledgers": [{"ledgerId": number} for number in topic.log.ledger_ids],
        "cursors": {
            name: {
                "markDeletePosition": _text(one.cursor.mark_delete),
                "readPosition": _text(one.cursor.read_place),
            }
            for name, one in topic.subscriptions.items()
        },
    }


def _text(place: Place) -> str:
    return f"{place[0]}:{place[1]}"
