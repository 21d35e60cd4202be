"""The official Python client, in a process of its own: ``python -m benchmarks.official``.

It prints one JSON line: seconds, CPU seconds, count and checksum.
"""

from __future__ import annotations

import argparse
import json
import queue
import resource
import threading
import time
import zlib
from collections.abc import Callable

import pulsar

from benchmarks.workloads import BATCHING_MAX_BYTES, BATCHING_MAX_MESSAGES, Workload

QUEUE_SIZE = 10_000
_TIMEOUT_MS = 60_000


class Tally:
    """Counts values and sums their checksums; knows when all are there."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.count = 0
        self.checksum = 0
        self.done = threading.Event()

    def add(self, value: bytes) -> None:
        """Take one value."""
        self.checksum += zlib.crc32(value)
        self.count += 1
        if self.count == self.expected:
            self.done.set()


def subscribe(client: pulsar.Client, topic: str, listener: object = None) -> pulsar.Consumer:
    """A consumer at the beginning of the topic, on a subscription of its own."""
    return client.subscribe(
        topic,
        f"bench-{time.time_ns()}",
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=QUEUE_SIZE,
        max_total_receiver_queue_size_across_partitions=QUEUE_SIZE * 4,
        message_listener=listener,
    )


def read_by_receive(client: pulsar.Client, topic: str, tally: Tally) -> None:
    """One `receive` a message."""
    consumer = subscribe(client, topic)
    for _ in range(tally.expected):
        tally.add(consumer.receive(_TIMEOUT_MS).data())
    consumer.unsubscribe()


def read_by_batch_receive(client: pulsar.Client, topic: str, tally: Tally) -> None:
    """`batch_receive` with the client's default policy."""
    consumer = subscribe(client, topic)
    while tally.count < tally.expected:
        for message in consumer.batch_receive():
            tally.add(message.data())
    consumer.unsubscribe()


def read_by_listener(client: pulsar.Client, topic: str, tally: Tally) -> None:
    """A message listener on the client's own thread."""

    def listen(_: pulsar.Consumer, message: pulsar.Message) -> None:
        tally.add(message.data())

    consumer = subscribe(client, topic, listen)
    if not tally.done.wait(_TIMEOUT_MS / 1000):
        raise TimeoutError(f"{tally.count} of {tally.expected} messages came")
    consumer.unsubscribe()


READERS: dict[str, Callable[[pulsar.Client, str, Tally], None]] = {
    "receive": read_by_receive,
    "batch_receive": read_by_batch_receive,
    "listener": read_by_listener,
}


def write(client: pulsar.Client, topic: str, payloads: list[bytes], *, batched: bool) -> None:
    """A `send_async` loop that waits for every receipt."""
    producer = client.create_producer(
        topic,
        batching_enabled=batched,
        batching_max_messages=BATCHING_MAX_MESSAGES,
        batching_max_allowed_size_in_bytes=BATCHING_MAX_BYTES,
        max_pending_messages=50_000,
        max_pending_messages_across_partitions=200_000,
        block_if_queue_full=True,
    )
    failures: queue.SimpleQueue[object] = queue.SimpleQueue()

    def sent(result: object, _: object) -> None:
        if result != pulsar.Result.Ok:
            failures.put(result)

    for payload in payloads:
        producer.send_async(payload, sent)
    producer.flush()
    producer.close()
    if not failures.empty():
        raise RuntimeError(f"a send failed: {failures.get()}")


def main() -> None:
    """Run one operation and print what it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("operation", choices=["write", *READERS])
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--batched", action="store_true")
    arguments = parser.parse_args()

    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(arguments.url, logger=logger)
    tally = Tally(arguments.messages)
    workload = Workload("", arguments.messages, arguments.size, arguments.batched)
    payloads = list(workload.payloads()) if arguments.operation == "write" else []
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    if arguments.operation == "write":
        write(client, arguments.topic, payloads, batched=arguments.batched)
    else:
        READERS[arguments.operation](client, arguments.topic, tally)
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = after.ru_maxrss * 1024
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_seconds": cpu,
                "peak": peak,
                "count": tally.count,
                "checksum": tally.checksum,
            }
        )
    )
    client.close()


if __name__ == "__main__":
    main()
