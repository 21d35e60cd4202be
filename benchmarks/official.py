"""The official Python client, in a process of its own: ``python -m benchmarks.official``.

It prints one JSON line: seconds, CPU seconds and peak memory. The settings are its fastest known
ones, and the timed code only takes what is in the messages. With ``--package pulsar_spark.client``
the same program runs with our client.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import cycle
from typing import Any

import pulsar

from benchmarks.workloads import ALL, Message, Workload

QUEUE_SIZE = 10_000
MAX_PENDING = 20_000
PUBLISH_DELAY_MS = 10
MAX_BATCH_BYTES = 4 * 1024 * 1024
_TIMEOUT_MS = 60_000
_FOR_EVER_MS = 3_600_000

Take = Callable[[Any], object]


OFFICIAL_PACKAGE = "pulsar"


def package_of(client: Any) -> Any:
    """Return a client's package, which has its enums and policies."""
    name = type(client).__module__
    return pulsar if name == OFFICIAL_PACKAGE else importlib.import_module(name.rpartition(".")[0])


def subscribe(client: Any, topic: str, **more: object) -> Any:
    """A consumer at the start of the topic, with its own subscription."""
    return client.subscribe(
        topic,
        f"bench-{time.time_ns()}",
        initial_position=package_of(client).InitialPosition.Earliest,
        receiver_queue_size=QUEUE_SIZE,
        max_total_receiver_queue_size_across_partitions=QUEUE_SIZE * 4,
        **more,
    )


def read_by_receive(client: Any, topic: str, messages: int, take: Take) -> None:
    """Call `receive` for each message."""
    consumer = subscribe(client, topic)
    receive = consumer.receive
    for _ in range(messages):
        take(receive(_TIMEOUT_MS))
    consumer.close()


def read_by_batch_receive(client: Any, topic: str, messages: int, take: Take) -> None:
    """Call `batch_receive`, for all available messages at a time."""
    policy = package_of(client).ConsumerBatchReceivePolicy(1_000, -1, 10)
    consumer = subscribe(client, topic, batch_receive_policy=policy)
    left = messages
    while left > 0:
        received = consumer.batch_receive()
        for message in received:
            take(message)
        left -= len(received)
    consumer.close()


def read_by_reader(client: Any, topic: str, messages: int, take: Take) -> None:
    """Use a reader; the official client has none for partitioned topics."""
    reader = client.create_reader(
        topic, package_of(client).MessageId.earliest, receiver_queue_size=QUEUE_SIZE
    )
    read_next = reader.read_next
    for _ in range(messages):
        take(read_next(_TIMEOUT_MS))
    reader.close()


# A message listener takes five times as long, because its calls alternate between threads.
READERS: dict[str, Callable[[Any, str, int, Take], None]] = {
    "receive": read_by_receive,
    "batch_receive": read_by_batch_receive,
    "reader": read_by_reader,
}


def all_columns(message: Any) -> tuple[object, ...]:
    """Take the contents of a DataFrame's seven columns."""
    return (
        message.data(),
        message.partition_key(),
        message.topic_name(),
        message.message_id().serialize(),
        message.publish_timestamp(),
        message.event_timestamp(),
        message.properties(),
    )


def value(message: Any) -> object:
    """Take the payload."""
    return message.data()


TAKES: dict[str, Take] = {"value": value, "all": all_columns}


def ways(workload: Workload) -> list[str]:
    """Return the ways to read a topic."""
    return [name for name in READERS if name != "reader" or workload.partitions == 1]


def producers(client: Any, topic: str, workload: Workload, delay_ms: int) -> list[Any]:
    """Return the workload's producers; several have names of different lengths."""
    package = package_of(client)
    return [
        client.create_producer(
            topic,
            producer_name=None if workload.producers == 1 else "producer-" + "x" * number * 7,
            batching_enabled=workload.batch > 1,
            batching_max_messages=max(2, workload.batch),
            batching_max_allowed_size_in_bytes=MAX_BATCH_BYTES,
            batching_max_publish_delay_ms=delay_ms,
            max_pending_messages=MAX_PENDING,
            max_pending_messages_across_partitions=MAX_PENDING * 5,
            block_if_queue_full=True,
            compression_type=getattr(package.CompressionType, workload.compression),
            message_routing_mode=package.PartitionsRoutingMode.RoundRobinDistribution,
        )
        for number in range(workload.producers)
    ]


SendCallback = Callable[[Any, Any], None]


def send_all(
    senders: list[Any], messages: Iterable[Message], callback: SendCallback | None = None
) -> None:
    """Send in a `send_async` loop, then wait for all receipts; producers take turns.

    It is fastest without a callback: the broker's count of messages then shows what is lost.
    """
    sends = cycle([sender.send_async for sender in senders])
    for send, (value, key, event_time, properties) in zip(sends, messages, strict=False):
        if properties is None:
            send(value, callback, partition_key=key)
        else:
            send(value, callback, properties, key, event_timestamp=event_time)
    for sender in senders:
        sender.flush()


def send_with_callback(senders: list[Any], messages: list[Message]) -> None:
    """As `send_all`, with a callback that counts the messages that were stored."""
    results: list[str] = []

    def note(result: Any, _: Any) -> None:
        results.append(result.name)

    send_all(senders, messages, note)
    if results != ["Ok"] * len(messages):
        raise RuntimeError(f"{len(results)} callbacks were called, some with an error")


def fill(client: Any, topic: str, workload: Workload) -> None:
    """Write entries of exactly the workload's batch size: each is sent when it is full."""
    send_all(producers(client, topic, workload, _FOR_EVER_MS), workload.made())


WRITERS: dict[str, Callable[[list[Any], list[Message]], None]] = {
    "write": send_all,
    "write_with_callback": send_with_callback,
}


def main() -> None:
    """Run one operation and print its measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("operation", choices=["fill", *WRITERS, *READERS])
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--workload", required=True, choices=[w.name for w in ALL])
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--package", default=OFFICIAL_PACKAGE)
    parser.add_argument("--columns", choices=TAKES, default="value")
    arguments = parser.parse_args()
    (shape,) = (w for w in ALL if w.name == arguments.workload)
    workload = replace(shape, messages=arguments.messages)
    operation, topic = arguments.operation, arguments.topic

    package = importlib.import_module(arguments.package)
    client = package.Client(arguments.url, logger=package.ConsoleLogger(package.LoggerLevel.Error))
    messages = list(workload.made()) if operation in WRITERS else []
    senders = producers(client, topic, workload, PUBLISH_DELAY_MS) if messages else []
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    if operation in WRITERS:
        WRITERS[operation](senders, messages)
    elif operation == "fill":
        fill(client, topic, workload)
    else:
        READERS[operation](client, topic, workload.messages, TAKES[arguments.columns])
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    answer = {
        "seconds": seconds,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_python_bytes": after.ru_maxrss * 1024,
    }
    print(json.dumps(answer), flush=True)
    client.close()


if __name__ == "__main__":
    main()
