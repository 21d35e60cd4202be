"""Writes rows at a constant rate, in a process of its own: ``python -m benchmarks.pace``.

Each row has its number and its sending time: ``number nanoseconds``.
"""

from __future__ import annotations

import argparse
import time

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.protocol.outgoing_messages import MessageFields

# Rows are sent together this many times a second.
_SENDS = 100


def write(writer: PartitionedProducer, rows: int, rate: float) -> None:
    """Send `rows` rows, `rate` per second."""
    together = max(int(rate / _SENDS), 1)
    due = time.monotonic()
    for first in range(0, rows, together):
        time.sleep(max(0.0, due - time.monotonic()))
        due += together / rate
        for number in range(first, min(first + together, rows)):
            writer.send(MessageFields(b"%d %d" % (number, time.time_ns())))
        writer.flush_batches()
    writer.flush()


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    arguments = parser.parse_args()
    with (
        ClientContext(ClientOptions(arguments.url)) as context,
        PartitionedProducer(context, arguments.topic) as writer,
    ):
        writer.open()
        write(writer, arguments.rows, arguments.rate)


if __name__ == "__main__":
    main()
