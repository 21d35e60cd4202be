"""Exactly-once writes on both brokers, killed at each point; the sink's writers without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.client import MessageId, PulsarClient
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.errors import TornBatch, UnsupportedFeature
from pulsar_spark.spark.options.table import Scope
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.writing import exactly_once
from pulsar_spark.spark.writing.attempts import attempts_topic
from pulsar_spark.spark.writing.crash_points import VARIABLE
from pulsar_spark.spark.writing.decision_log import read_state
from tests.integration.brokers import Broker, Real
from tests.integration.sink_job import ROWS, Sink, whole
from tests.support.crash_points import POINTS
from tests.support.real_broker import OwnBroker
from tests.support.waiting import wait_until

StartBroker = Callable[[Mapping[str, str] | None], OwnBroker]

_ROOT = Path(__file__).parents[2]


def read_all(broker: Broker, topic: str, partitions: int = 2) -> list[str]:
    """Return a topic's messages, once all of its transactions have ended."""
    found: list[str] = []
    end = b"end %d" % time.monotonic_ns()
    with PulsarClient(broker.service_url, operation_timeout_seconds=60) as client:
        for name in broker.partitions_of(topic, partitions):
            # The last message: visible when no transaction before it is open.
            client.create_producer(name).send(end)
            with client.create_reader(name, MessageId.earliest) as reader:
                while (value := reader.read_next(timeout_millis=60_000).data()) != end:
                    found.append(value.decode())
    return [value for value in found if not value.startswith("end")]


def start_and_kill(
    broker: Broker, topic: str, point: str, folder: Path, timeout: str | None = None
) -> subprocess.Popen[bytes]:
    """Start to write micro-batch 1 in a process that dies at a point."""
    crash = folder / topic.rpartition("/")[2]
    crash.mkdir()
    (crash / point).touch()
    arguments = [broker.service_url, topic, topic, timeout or "1h", "1"]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.sink_job", *arguments],
        env={**os.environ, VARIABLE: str(crash)},
        cwd=_ROOT,
    )


@pytest.mark.slow
@pytest.mark.fault(78, 79)
@pytest.mark.timeout(600)
def test_a_batch_is_written_once_wherever_its_writer_is_killed(
    broker: Broker, tmp_path: Path
) -> None:
    topics = {point: broker.create_transactional_topic(partitions=2) for point in POINTS}
    for topic in topics.values():
        Sink(broker.service_url, topic, topic).run(0)
    killed = {point: start_and_kill(broker, topics[point], point, tmp_path) for point in POINTS}
    for point, process in killed.items():
        assert process.wait(150) == -signal.SIGKILL, point
    for point, topic in topics.items():
        sink = Sink(broker.service_url, topic, topic)
        sink.run(1)
        sink.run(2)
        expected = Counter(whole(0) + whole(1) + whole(2))
        assert Counter(read_all(broker, topic)) == expected, point


@pytest.mark.slow
@pytest.mark.fault(81)
@pytest.mark.timeout(600)
def test_a_driver_that_stays_away_for_too_long_tears_its_batch_and_says_so(
    broker: Broker, tmp_path: Path
) -> None:
    fates = {"after-decision": 0, "between-ends": 1}
    topics = {point: broker.create_transactional_topic(partitions=2) for point in fates}
    for topic in topics.values():
        Sink(broker.service_url, topic, topic).run(0)
    killed = [
        start_and_kill(broker, topic, point, tmp_path, "20s") for point, topic in topics.items()
    ]
    assert [process.wait(150) for process in killed] == [-signal.SIGKILL] * len(fates)
    for point, committed in fates.items():
        sink = Sink(broker.service_url, topics[point], topics[point])
        # When this can be read, no transaction is open.
        assert len(read_all(broker, topics[point])) == len(whole(0)) + committed * ROWS
        if not committed:
            sink.run(1)
            found = read_all(broker, topics[point])
            assert Counter(found) == Counter(whole(0) + whole(1))
            continue
        for _ in range(2):
            with pytest.raises(TornBatch, match="batch 1 torn: 1 of 3 transactions"):
                sink.run(1)


@pytest.mark.slow
@pytest.mark.fault(79, 81)
@pytest.mark.timeout(600)
def test_a_decided_batch_that_is_gone_in_part_is_redone_unless_its_commits_had_begun(
    broker: Broker, tmp_path: Path
) -> None:
    points = ("after-decision", "after-markers", "between-ends")
    topics = {point: broker.create_transactional_topic(partitions=2) for point in points}
    for topic in topics.values():
        Sink(broker.service_url, topic, topic).run(0)
    killed = [start_and_kill(broker, topic, point, tmp_path) for point, topic in topics.items()]
    assert [process.wait(150) for process in killed] == [-signal.SIGKILL] * len(points)
    for point, topic in topics.items():
        sink = Sink(broker.service_url, topic, topic)
        abort_last(sink)
        if point == "after-decision":
            sink.run(1)
            sink.run(2)
            assert Counter(read_all(broker, topic)) == Counter(whole(0) + whole(1) + whole(2))
            continue
        for _ in range(2):
            with pytest.raises(TornBatch, match="batch 1 torn: 2 of 3 transactions"):
                sink.run(1)


def abort_last(sink: Sink) -> None:
    """Abort the last transaction of an unfinished decision, as its timeout does."""
    options = parse_write_options(sink.options, Scope.STREAM_WRITE)
    assert options.exactly_once is not None
    with ClientContext(options.client) as context:
        undone = read_state(context, options.exactly_once.state_topic).undone
        assert undone is not None
        ends = context.coordinators.end_all(undone.transactions[-1:], commit=False)
        assert set(ends.values()) == {None}


@pytest.mark.real_broker
@pytest.mark.slow
def test_the_official_client_sees_each_row_once(
    broker: Broker, official_client: Callable[..., Any]
) -> None:
    pulsar = pytest.importorskip("pulsar")
    topic = broker.create_transactional_topic(partitions=2)
    official = official_client(broker.service_url)
    consumer = official.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    sink = Sink(broker.service_url, topic, topic)
    expected: list[str] = []
    for batch in range(3):
        # A failed attempt of the batch, then another one of a task, then the whole batch.
        lost = [sink.write(batch, task) for task in range(2)]
        sink.writer().abort([*lost, None], batch)
        sink.run(batch)
        expected += whole(batch)
    found = [consumer.receive(timeout_millis=60_000).data().decode() for _ in expected]
    assert Counter(found) == Counter(expected)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=500)


@pytest.mark.slow
@pytest.mark.fault(79)
def test_records_outlive_retention_and_idle_topics_while_the_driver_is_down(
    start_real_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_real_broker(
        {
            "brokerDeleteInactiveTopicsEnabled": "true",
            "brokerDeleteInactiveTopicsFrequencySeconds": "1",
            "retentionCheckIntervalInSeconds": "1",
            "managedLedgerMaxEntriesPerLedger": "2",
            "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        }
    )
    broker.admin("PUT", "namespaces/public/idle")
    records, idle = (f"persistent://public/idle/{name}" for name in ("records", "idle"))
    topic = broker.create_topic(broker.unique_topic("once"), 2)
    sink = Sink(broker.service_url, topic, topic)
    sink.options["sinkStateTopic"] = records
    for batch in range(2):
        sink.run(batch)

    def die(point: str) -> None:
        if point == "after-decision":
            raise KeyboardInterrupt

    written = sink.write_all(2)
    with monkeypatch.context() as patched:
        patched.setattr(exactly_once, "reach", die)
        with pytest.raises(KeyboardInterrupt):
            sink.writer().commit(list(written), 2)
    with PulsarClient(broker.service_url) as client:
        client.create_producer(idle).send(b"held by nothing")
    left = "persistent/public/idle"
    kept = {records, attempts_topic(records)}
    wait_until(lambda: set(broker.admin("GET", left)) == kept, "the idle topic is gone", 90)
    sink.run(2)
    expected = Counter(value for batch in range(3) for value in whole(batch))
    assert Counter(read_all(Real(broker), topic)) == expected


@pytest.mark.slow
@pytest.mark.fault(83)
def test_a_real_broker_without_transactions_is_told_before_a_row_is_written(
    start_real_broker: StartBroker,
) -> None:
    broker = start_real_broker({"transactionCoordinatorEnabled": "false"})
    topic = broker.create_topic(broker.unique_topic("once"))
    with pytest.raises(UnsupportedFeature, match="transactionCoordinatorEnabled=true"):
        Sink(broker.service_url, topic, topic).writer().check()
