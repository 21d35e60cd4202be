"""A consumer of the official client beside the query, which sees only committed messages."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

from tests.soak.rows import KEY_NUMBERS, KEYS, rows_of_key

_SHOWN = 20
_RECEIVE_MS = 200
_ACK_EACH = 500


class Witness:
    """Consumes topic partitions, one thread each, and checks that keys' rows come once, in order.

    Redeliveries of unacknowledged messages are recognized by their message ids. `seen_at` is when
    the last row of each micro-batch came, `longest_pause` the longest time without any row.
    """

    def __init__(self, service_url: str, partitions: Sequence[str], rows_per_batch: int) -> None:
        self.rows = 0
        self.redelivered = 0
        self.wrong = 0
        self.problems: list[str] = []
        self.error: BaseException | None = None
        self.seen_at: dict[int, float] = {}
        self.longest_pause = 0.0
        self._rows_per_batch = rows_per_batch
        self._last_seen = math.inf
        self._service_url = service_url
        self._lock = threading.Lock()
        self._next = [0] * KEYS
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(name,), name=f"witness-{number}")
            for number, name in enumerate(partitions)
        ]

    def start(self) -> None:
        """Begin to consume."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop consuming."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def end(self, rows: int) -> None:
        """Check that all of `rows` rows came."""
        if self.rows != rows:
            self._tell(f"{self.rows} rows came of {rows}")
        for key, found in enumerate(self._next):
            if found != rows_of_key(rows, key):
                self._tell(f"key-{key} ends at {found} of {rows_of_key(rows, key)}")

    def _run(self, topic: str) -> None:
        import pulsar

        client = pulsar.Client(
            self._service_url,
            operation_timeout_seconds=120,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        try:
            earliest = pulsar.InitialPosition.Earliest
            consumer = client.subscribe(topic, "witness", initial_position=earliest)
            self._consume(pulsar, consumer)
        except BaseException as error:
            if not self._stop.is_set():
                self.error = error
        finally:
            client.close()

    def _consume(self, pulsar: Any, consumer: Any) -> None:
        last = (-1, -1, -1)
        unacked = 0
        while not self._stop.is_set():
            try:
                message = consumer.receive(timeout_millis=_RECEIVE_MS)
            except pulsar.Timeout:
                continue
            found = message.message_id()
            place = (found.ledger_id(), found.entry_id(), found.batch_index())
            if place <= last:
                self.redelivered += 1
                continue
            last = place
            self.see(message.partition_key(), int(message.data()), place)
            unacked += 1
            if unacked >= _ACK_EACH:
                unacked = 0
                try:
                    consumer.acknowledge_cumulative(found)
                except pulsar.PulsarException:
                    # The broker is down: the next acknowledgement covers this one.
                    time.sleep(0.1)

    def see(self, key: str, number: int, place: tuple[int, int, int]) -> None:
        """Record a key's row, by its number, and its message id."""
        now = time.time()
        with self._lock:
            self.rows += 1
            self.longest_pause = max(self.longest_pause, now - self._last_seen)
            self._last_seen = now
            known = KEY_NUMBERS[key.encode()]
            self.seen_at[(number * KEYS + known) // self._rows_per_batch] = now
            upcoming = self._next[known]
            if number != upcoming:
                kind = "again or too late" if number < upcoming else "too early: rows are missing"
                self._tell(f"{key}: {number} comes {kind}, {upcoming} is next, at {place}")
            self._next[known] = max(upcoming, number + 1)

    def _tell(self, problem: str) -> None:
        self.wrong += 1
        if len(self.problems) < _SHOWN:
            self.problems.append(problem)
