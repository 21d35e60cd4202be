"""The writers of a soak: each key has one, which numbers its rows and sends each once.

The broker deduplicates by producer names and sequence ids, so it drops what a writer resends after
a lost receipt: the topic has each row once. A row that a query has twice or lacks is a fault of
this package, in reading or in writing.
"""

from __future__ import annotations

import threading
import time

from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.protocol.outgoing_messages import MessageFields
from tests.integration.brokers import Broker
from tests.integration.messages import clustered
from tests.soak.rows import KEYS, key_of, value_of

WRITERS = 2

# A broker takes long to start on a busy machine.
_PATIENCE = 300.0
# Rows between two checks of how many may be written; entries have other sizes.
_CHUNK = 100


class Producers:
    """Write `rows` rows in all, at most `allowed` so far, at `rate` a second."""

    def __init__(self, broker: Broker, topic: str, rows: int, rate: float) -> None:
        self.allowed = 0
        self.error: BaseException | None = None
        self.resent = 0
        """How many entries the broker had already when they were sent again."""
        self._broker = broker
        self._topic = topic
        self._rows = rows
        self._pause = _CHUNK * WRITERS / rate
        self._written = [0] * WRITERS
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"soak-writer-{number}")
            for number in range(WRITERS)
        ]

    @property
    def written(self) -> int:
        """How many rows were passed to producers."""
        return sum(self._written)

    def start(self) -> None:
        """Begin to write the allowed rows."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until all rows are acknowledged."""
        for thread in self._threads:
            thread.join(_PATIENCE)
            if thread.is_alive():
                self.error = self.error or TimeoutError("a writer does not come to its end")

    def stop(self) -> None:
        """Stop writing."""
        self._stop.set()
        self.join()

    def _run(self, number: int) -> None:
        options = ProducerOptions(
            producer_name=f"soak-{number}",
            send_timeout=_PATIENCE,
            batching_max_messages=37 + 200 * number,
        )
        try:
            with (
                clustered(self._broker, operation_timeout=_PATIENCE) as context,
                PartitionedProducer(context, self._topic, options, timed=True) as writer,
            ):
                self._write(number, writer)
                if not self._stop.is_set():
                    writer.flush(_PATIENCE)
                self.resent += writer.counts.duplicates
        except BaseException as error:
            self.error = error

    def _write(self, writer_number: int, writer: PartitionedProducer) -> None:
        # Row r is number r // KEYS of key r % KEYS; this writer has every other key.
        due = time.monotonic()
        for first in range(0, self._rows, _CHUNK):
            while first >= self.allowed or time.monotonic() < due:
                if self._stop.wait(0.005):
                    return
            due = max(due + self._pause / WRITERS, time.monotonic() - 1.0)
            for row in range(first, min(first + _CHUNK, self._rows)):
                number, key = divmod(row, KEYS)
                if key % WRITERS == writer_number:
                    writer.send(MessageFields(value_of(number), key_of(key)))
                    self._written[writer_number] += 1
