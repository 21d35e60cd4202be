"""Writes rows at a constant rate, in a process of its own: ``python -m benchmarks.pace``.

Each row has its number and its sending time: ``number nanoseconds``. With ``--kafka`` they go to
Kafka, by kafka-python, which the environment has to have.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.protocol.outgoing_messages import MessageFields

# Rows are sent together this many times a second.
_SENDS = 100


def write(
    send: Callable[[bytes], object], flush: Callable[[], object], rows: int, rate: float
) -> None:
    """Send `rows` rows, `rate` per second; `flush` has what was sent together go out."""
    together = max(int(rate / _SENDS), 1)
    due = time.monotonic()
    for first in range(0, rows, together):
        time.sleep(max(0.0, due - time.monotonic()))
        due += together / rate
        for number in range(first, min(first + together, rows)):
            send(b"%d %d" % (number, time.time_ns()))
        flush()


def to_pulsar(url: str, topic: str, rows: int, rate: float) -> None:
    """Write rows to a topic of Pulsar."""
    with (
        ClientContext(ClientOptions(url)) as context,
        PartitionedProducer(context, topic) as writer,
    ):
        writer.open()
        write(lambda row: writer.send(MessageFields(row)), writer.flush_batches, rows, rate)
        writer.flush()


def to_kafka(address: str, topic: str, rows: int, rate: float) -> None:
    """Write rows to a topic of Kafka; what is sent goes out at once."""
    from kafka import KafkaProducer  # type: ignore[import-not-found]

    producer = KafkaProducer(bootstrap_servers=address, linger_ms=0)
    write(lambda row: producer.send(topic, row), lambda: None, rows, rate)
    producer.close()


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--kafka", action="store_true", help="--url is an address of Kafka")
    arguments = parser.parse_args()
    to = to_kafka if arguments.kafka else to_pulsar
    to(arguments.url, arguments.topic, arguments.rows, arguments.rate)


if __name__ == "__main__":
    main()
