"""A consumer of the official client that looks on while an exactly-once sink writes.

It sees what any application sees: committed messages only, and what follows an open transaction
only when that has ended.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tests.support.waiting import PATIENCE, wait_until

_RECEIVE_MS = 200
_END = b"end "
_numbers = itertools.count()


class Onlooker:
    """Consumes topics without partitions from now on, until it is closed."""

    def __init__(self, client: Any, topics: Sequence[str]) -> None:
        self._producers = [client.create_producer(topic) for topic in topics]
        self._consumers = [client.subscribe(topic, "onlooker") for topic in topics]
        self._seen: list[tuple[bytes, float]] = []
        self._ends: Counter[bytes] = Counter()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._consume, args=(consumer,)) for consumer in self._consumers
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop looking on."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for one in (*self._consumers, *self._producers):
            one.close()

    def values(self, seconds: float = PATIENCE) -> Counter[bytes]:
        """Return all that was seen, once nothing holds what is sent now."""
        end = _END + b"%d" % next(_numbers)
        for producer in self._producers:
            producer.send(end)
        self._wait(lambda: self._ends[end] == len(self._producers), seconds)
        return Counter(value for value, _ in self._seen)

    def when(self, values: Iterable[bytes], seconds: float = PATIENCE) -> float:
        """Wait until all of these have been seen; return when the last one was (`time.time`)."""
        wanted = set(values)
        self._wait(lambda: wanted <= {value for value, _ in self._seen}, seconds)
        return max(at for value, at in self._seen if value in wanted)

    def _wait(self, condition: Any, seconds: float) -> None:
        wait_until(condition, f"a transaction is open behind {len(self._seen)} rows", seconds)

    def _consume(self, consumer: Any) -> None:
        import pulsar

        while not self._stop.is_set():
            try:
                message = consumer.receive(timeout_millis=_RECEIVE_MS)
            except pulsar.Timeout:
                continue
            value = message.data()
            if value.startswith(_END):
                self._ends[value] += 1
            else:
                self._seen.append((value, time.time()))
            consumer.acknowledge(message)
