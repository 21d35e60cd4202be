"""Topics of exactly a workload's shape, and the broker's statistics of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.measure import Measurement
from benchmarks.workloads import Workload
from pulsar_spark.protocol.implementation import VARIABLE as IMPLEMENTATION

if TYPE_CHECKING:
    # It needs pytest, which an environment that only runs Spark does not have.
    from tests.support.real_broker import RealBroker

_OFFICIAL_SECONDS = 600


class WrongResult(Exception):
    """A run returned other messages, or a topic has another shape, than expected."""


@contextmanager
def kept_in_memory(broker: RealBroker, topic: str) -> Iterator[None]:
    """Make the broker cache what is written meanwhile, with a reader that follows.

    It is a consumer of a durable subscription, which a fast broker never considers lagging.
    """
    import pulsar

    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.service_url, logger=logger)
    try:
        client.subscribe(topic, "beside", receiver_queue_size=1)
        yield
    finally:
        client.close()


@contextmanager
def temporary_topic(broker: RealBroker, workload: Workload) -> Iterator[str]:
    """A new topic with the workload's partitions, deleted at the end to save disk space."""
    topic = make_topic(broker, workload)
    try:
        yield topic
    finally:
        suffix = "/partitions" if workload.partitions > 1 else ""
        broker.admin("DELETE", f"{_path(topic)}{suffix}?force=true")


def make_topic(broker: RealBroker, workload: Workload) -> str:
    """A new topic with the workload's partitions."""
    topic = f"persistent://public/default/bench-{workload.name}-{uuid.uuid4().hex[:8]}"
    return broker.create_topic(topic, workload.partitions if workload.partitions > 1 else 0)


def partitions(topic: str, workload: Workload) -> list[str]:
    """The names of the topic's partitions, or its own."""
    if workload.partitions == 1:
        return [topic]
    return [f"{topic}-partition-{number}" for number in range(workload.partitions)]


def fill(broker: RealBroker, workload: Workload, topic: str) -> None:
    """Write the workload with the official client, and check the size of its entries."""
    run_official(broker.service_url, "fill", workload, topic)
    found = [
        broker.admin("GET", f"{_path(name)}/internalStats")["numberOfEntries"]
        for name in partitions(topic, workload)
    ]
    # Each partition's and producer's last entry may have fewer messages.
    wanted = workload.messages / workload.batch
    if not wanted <= sum(found) <= wanted + workload.partitions * workload.producers:
        raise WrongResult(f"{workload.title}: {sum(found)} entries instead of {wanted:,.0f}")
    check_count(broker, workload, topic)


def check_count(broker: RealBroker, workload: Workload, topic: str) -> None:
    """Check the broker's number of messages. Raises WrongResult."""
    stats = [broker.admin("GET", f"{_path(name)}/stats") for name in partitions(topic, workload)]
    count = sum(each["msgInCounter"] for each in stats)
    if count != workload.messages:
        raise WrongResult(f"{workload.title}: {count:,} messages are on the topic")


def run_official(
    service_url: str,
    operation: str,
    workload: Workload,
    topic: str,
    columns: str = "value",
    *,
    implementation: str = "",
) -> Measurement:
    """Run the official client in its own process; with an `implementation`, run ours."""
    command = [
        sys.executable, "-m", "benchmarks.official", operation,
        "--url", service_url, "--topic", topic, "--columns", columns,
        "--workload", workload.name, "--messages", str(workload.messages),
    ]  # fmt: skip
    environment = dict(os.environ)
    if implementation:
        command += ["--package", "pulsar_spark.client"]
        environment[IMPLEMENTATION] = implementation
    return measure_client(command, environment)


def measure_client(command: list[str], environment: Mapping[str, str] = os.environ) -> Measurement:
    """Run a program that prints its measurement."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_OFFICIAL_SECONDS,
        check=False,
        env=environment,
    )
    # The client's own log is on the same stream.
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(lines) != 1:
        raise WrongResult(f"the client failed: {done.stdout}{done.stderr}")
    return Measurement(**json.loads(lines[0]))


def _path(topic: str) -> str:
    return topic.replace("://", "/")
