"""Which broker served a topic partition last, for those who would look it up again."""

from __future__ import annotations

import threading

from pulsar_spark.engine.connections.addresses import BrokerAddress

_MOST_TOPICS = 10_000


class KnownBrokers:
    """The brokers at which somebody has registered, by topic partition. Thread-safe.

    What is known may not be so any more: the broker refuses then, and a lookup finds the new one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock; those that were noted last are behind.
        self._brokers: dict[str, BrokerAddress] = {}

    def note(self, topic: str, broker: BrokerAddress) -> None:
        """The broker has accepted a producer or consumer of the topic partition."""
        with self._lock:
            self._brokers.pop(topic, None)
            self._brokers[topic] = broker
            if len(self._brokers) > _MOST_TOPICS:
                del self._brokers[next(iter(self._brokers))]

    def broker_of(self, topic: str) -> BrokerAddress | None:
        """Return the broker of a topic partition, None if it is not known."""
        with self._lock:
            return self._brokers.get(topic)

    def forget(self, topic: str) -> None:
        """A broker has refused the topic partition."""
        with self._lock:
            self._brokers.pop(topic, None)
