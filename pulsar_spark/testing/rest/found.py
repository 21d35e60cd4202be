"""What the parts of a path name, with the answers of a broker where it is not there."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.testing.rest.request import Failure, RestRequest
from pulsar_spark.testing.subscription import Subscription
from pulsar_spark.testing.topic import Topic
from pulsar_spark.testing.topic_control import TopicControl

if TYPE_CHECKING:
    from pulsar_spark.testing.server import Server

T = TypeVar("T")


class Control(TopicControl):
    """What a test can do to topics, on the broker's thread."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def _call(self, function: Callable[[Server], T]) -> T:
        return function(self._server)


def namespace(server: Server, asked: RestRequest, missing: str = "Namespace does not exist") -> str:
    """The namespace that the path names."""
    if asked.namespace not in server.topics.namespaces:
        raise Failure(HTTPStatus.NOT_FOUND, missing)
    return asked.namespace


def partitions(server: Server, name: TopicName) -> int | None:
    """A topic's number of partitions, None if it is not partitioned."""
    return server.topics.partitioned.get(str(name))


def parts(server: Server, name: TopicName) -> list[Topic]:
    """A topic or its partitions."""
    found = server.topics.parts(name)
    if not found:
        raise no_topic(name)
    return found


def topic(server: Server, name: TopicName) -> Topic:
    """One topic: not partitioned, or a partition."""
    found = server.topics.topics.get(str(name))
    if found is None:
        raise no_topic(name)
    return found


def subscriptions(server: Server, asked: RestRequest) -> list[Subscription]:
    """A subscription of a topic, in all its partitions that have it."""
    name, wanted = asked.topic, asked.named["subscription"]
    having = [one for one in parts(server, name) if wanted in one.subscriptions]
    found = [one.subscriptions[wanted] for one in having]
    if not found:
        text = f"Subscription {wanted} not found for topic {name}"
        raise Failure(HTTPStatus.NOT_FOUND, text)
    return found


def no_topic(name: TopicName) -> Failure:
    """The answer where a topic is missing."""
    return Failure(HTTPStatus.NOT_FOUND, f"Topic {name} not found")
