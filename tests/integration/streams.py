"""Streams without Spark on any broker: queries step by step, and writers of exact entries."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pulsar_spark.client.cluster import Cluster
from pulsar_spark.client.options import ProducerOptions
from pulsar_spark.client.topic_writer import TopicWriter
from pulsar_spark.protocol.batches import MessageFields
from tests.integration.brokers import Broker, Embedded, Real, rest_path
from tests.integration.messages import clustered
from tests.spark.streams import Make, queries


class Feed:
    """Writes numbered payloads in entries of given sizes; each payload is unique."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count()

    def __call__(self, topic: str, sizes: Iterable[int]) -> list[bytes]:
        """Store an entry for each size, 0 for a message outside a batch; returns the payloads."""
        written: list[bytes] = []
        for batched, group in itertools.groupby(sizes, bool):
            options = ProducerOptions(
                batching_enabled=batched, batching_max_messages=100_000, batching_max_delay=60.0
            )
            with TopicWriter(self._cluster, topic, options) as writer:
                for size in group:
                    payloads = [b"m%d" % next(self._numbers) for _ in range(size or 1)]
                    for payload in payloads:
                        writer.send(MessageFields(payload))
                    writer.flush()
                    written += payloads
        return written


@contextmanager
def feeding(broker: Broker) -> Iterator[Feed]:
    """Open a feed."""
    with clustered(broker) as cluster:
        yield Feed(cluster)


@contextmanager
def streaming(broker: Broker) -> Iterator[Make]:
    """Make queries on a broker, closed at the end."""
    with queries(broker.service_url) as make:
        yield make


def backlog(broker: Broker, topic: str, subscription: str) -> int:
    """Return the entries of a subscription that are not acknowledged, -1 if it does not exist."""
    if isinstance(broker, Embedded):
        view = broker.own.subscriptions(topic).get(subscription)
        return -1 if view is None else view.backlog
    assert isinstance(broker, Real)
    stats = broker.own.admin("GET", f"{rest_path(topic)}/stats?getPreciseBacklog=true")
    found: dict[str, Any] = stats["subscriptions"]
    return int(found[subscription]["msgBacklog"]) if subscription in found else -1


def remove_subscription(broker: Broker, topic: str, subscription: str) -> None:
    """Remove a subscription as an administrator does, whoever is connected to it."""
    if isinstance(broker, Real):
        path = f"{rest_path(topic)}/subscription/{subscription}?force=true"
        broker.own.admin("DELETE", path)
        return
    assert isinstance(broker, Embedded)
    broker.own.remove_subscription(topic, subscription)


def in_order(values: Sequence[bytes]) -> bool:
    """Whether payloads of a feed are in the order in which they were written."""
    numbers = [int(value[1:]) for value in values]
    return numbers == sorted(numbers)
