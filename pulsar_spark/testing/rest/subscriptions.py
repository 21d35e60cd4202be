"""Subscriptions: listed, made, moved, deleted."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from pulsar_spark.protocol.message_id import EARLIEST, LATEST, MessageIdAdv
from pulsar_spark.testing.rest import found
from pulsar_spark.testing.rest.request import Failure, RestRequest, typed
from pulsar_spark.testing.subscription import Subscription
from pulsar_spark.testing.topic import Topic

if TYPE_CHECKING:
    from pulsar_spark.testing.server import Server


_PARTS = ("ledger", "entry")


def subscriptions(server: Server, asked: RestRequest) -> list[str]:
    """The names of a topic's durable and other subscriptions."""
    parts = found.parts(server, asked.topic)
    return sorted({name for one in parts for name in one.subscriptions})


def create(server: Server, asked: RestRequest) -> None:
    """Create a durable subscription, and the topic if it may be created."""
    name, wanted = asked.topic, asked.named["subscription"]
    start = _start(asked)
    if not server.topics.partitions(name, auto_create=True):
        server.topics.open(name, create=True)
    if any(wanted in one.subscriptions for one in server.topics.parts(name)):
        raise Failure(HTTPStatus.CONFLICT, "Subscription already exists for topic")
    found.Control(server).create_subscription(str(name), wanted, start)


def _start(asked: RestRequest) -> MessageIdAdv:
    """The message id in the body, the latest one without it."""
    value = asked.json()
    if value is None or value == "latest":
        return LATEST
    if value == "earliest":
        return EARLIEST
    ledger_id, entry_id = (typed(typed(value, dict).get(f"{one}Id"), int) for one in _PARTS)
    return MessageIdAdv(ledger_id, entry_id)


def delete(server: Server, asked: RestRequest) -> None:
    """Delete a subscription, with its consumers if `force` is given."""
    if any(one.consumers for one in _in_partitions(server, asked)) and not asked.flag("force"):
        text = "Subscription has active connected consumers"
        raise Failure(HTTPStatus.PRECONDITION_FAILED, text)
    found.Control(server).remove_subscription(str(asked.topic), asked.named["subscription"])


def _in_partitions(server: Server, asked: RestRequest) -> list[Subscription]:
    if found.partitions(server, asked.topic) is None:
        return found.subscriptions(server, asked)
    try:
        return found.subscriptions(server, asked)
    except Failure:
        raise Failure(HTTPStatus.NOT_FOUND, "Subscription not found") from None


def skip(server: Server, asked: RestRequest) -> None:
    """Acknowledge the next entries of a subscription, as many as the path says."""
    count = asked.whole("count")
    if found.partitions(server, asked.topic) is not None:
        text = "Skip messages on a partitioned topic is not allowed"
        raise Failure(HTTPStatus.METHOD_NOT_ALLOWED, text)
    for one in found.subscriptions(server, asked):
        one.topic.skip(one.name, count)


def skip_all(server: Server, asked: RestRequest) -> None:
    """Acknowledge everything that a subscription has not."""
    for one in found.subscriptions(server, asked):
        one.topic.skip(one.name, None)


def reset_to_time(server: Server, asked: RestRequest) -> None:
    """Move a subscription to what was published at a time in ms, or later."""
    to = asked.whole("timestamp")
    for one in found.subscriptions(server, asked):
        one.topic.reset(one.name, one.topic.log.first_published_at(to))


def reset_to_id(server: Server, asked: RestRequest) -> None:
    """Move a subscription to the message in the body."""
    if asked.json() is None:
        raise Failure(HTTPStatus.INTERNAL_SERVER_ERROR, "The body has no message id")
    start = _start(asked)
    if found.partitions(server, asked.topic) is not None:
        text = "Reset-cursor at position is not allowed for partitioned-topic"
        raise Failure(HTTPStatus.METHOD_NOT_ALLOWED, text)
    for one in found.subscriptions(server, asked):
        one.topic.reset(one.name, (start.ledger_id, start.entry_id))


def expire(server: Server, asked: RestRequest) -> None:
    """Acknowledge for a subscription what is older than some seconds."""
    before = _before(asked)
    for one in found.subscriptions(server, asked):
        _expire(one.topic, one.name, before)


def expire_all(server: Server, asked: RestRequest) -> None:
    """Acknowledge for all subscriptions what is older than some seconds."""
    before = _before(asked)
    for one in found.parts(server, asked.topic):
        for name in list(one.subscriptions):
            _expire(one, name, before)


def _before(asked: RestRequest) -> int:
    return time.time_ns() // 1_000_000 - asked.whole("seconds") * 1000


def _expire(one: Topic, name: str, before: int) -> None:
    if not one.subscriptions[name].cursor.backlog():
        raise Failure(
            HTTPStatus.CONFLICT,
            f"Expire message by timestamp not issued on topic {one.name} for subscription {name} "
            "due to ongoing message expiration not finished or subscription almost catch  up. If "
            "it's performed on a partitioned topic operation might succeeded on other partitions, "
            "please check stats of individual partition.",
        )
    one.expire(name, before)
