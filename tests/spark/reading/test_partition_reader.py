"""One task's read."""

from __future__ import annotations

import logging
import os
import pickle
import re
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.errors import ChecksumMismatch, DataLossError, TopicNotFound
from pulsar_spark.logs import LOG_LEVEL_VARIABLE as VARIABLE
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.schema.table.record_batches import Projection
from pulsar_spark.spark.options.read import ReadOptions, parse_read_options
from pulsar_spark.spark.reading.partition_reader import read_partition
from pulsar_spark.spark.reading.partitions import PulsarInputPartition
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import full, rows_of, store, store_many
from tests.support.waiting import finish, wait_until

SCHEMA = pa.schema([("value", pa.binary())])
VALUE = Projection(("value",))


def options(broker: EmbeddedBroker, **more: str) -> ReadOptions:
    return parse_read_options({"service.url": broker.service_url, "topic": "t", **more})


def whole(broker: EmbeddedBroker) -> PulsarInputPartition:
    last = broker.stats(full("t")).last
    assert last is not None
    end = Position(last.ledger_id, last.entry_id + 1)
    return PulsarInputPartition(full("t"), EARLIEST_POSITION, end)


def wait_until_unused(broker: EmbeddedBroker) -> None:
    wait_until(
        lambda: not (broker.clients or broker.subscriptions(full("t"))),
        "no consumer and no subscription",
    )


def test_all_rows_of_the_range_come_in_order(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    payloads = store_many(broker, "t", 1000)
    batches = list(read_partition(options(broker), whole(broker), SCHEMA, VALUE))
    assert [row["value"] for row in rows_of(batches)] == payloads
    assert all(batch.schema == SCHEMA for batch in batches)
    wait_until_unused(broker)


def test_nothing_is_connected_before_the_first_batch_is_asked_for(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"x"])
    rows = read_partition(options(broker), whole(broker), SCHEMA, VALUE)
    assert broker.connections == 0
    assert len(list(rows)) == 1


@pytest.mark.fault(68)
def test_a_read_that_is_given_up_leaves_neither_consumer_nor_subscription(
    broker: EmbeddedBroker,
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 30_000, batch_size=1000)
    rows = read_partition(options(broker), whole(broker), SCHEMA, VALUE)
    assert next(rows).num_rows == 10_000
    assert broker.clients > 0
    rows.close()  # type: ignore[attr-defined]
    wait_until_unused(broker)


@pytest.mark.fault(33)
def test_a_damaged_message_fails_the_task_with_its_id(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 30)
    broker.faults.corrupt("MESSAGE", times=None, after=1)
    with pytest.raises(ChecksumMismatch) as caught:
        list(read_partition(options(broker), whole(broker), SCHEMA, VALUE))
    assert caught.value.topic == full("t")
    assert caught.value.message_id is not None
    wait_until_unused(broker)


@pytest.mark.fault(54)
def test_a_topic_that_is_gone_fails_the_task_unless_that_is_allowed(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"x"])
    part = whole(broker)
    broker.delete_topic("t")
    with pytest.raises(DataLossError, match="the topic was deleted") as caught:
        list(read_partition(options(broker), part, SCHEMA, VALUE))
    assert isinstance(caught.value.__cause__, TopicNotFound)
    assert caught.value.topic == full("t")
    with caplog.at_level(logging.WARNING):
        going_on = options(broker, failOnDataLoss="false")
        assert list(read_partition(going_on, part, SCHEMA, VALUE)) == []
    assert "data was lost" in caplog.text
    assert broker.topics() == []


@pytest.mark.fault(58)
def test_a_start_that_is_deleted_before_the_task_runs_is_data_loss(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    ids = [store(broker, "t", [b"%d" % number]) for number in range(6)]
    part = whole(broker)
    part.start = (ids[1].ledger_id, ids[1].entry_id, 0)
    broker.trim("t", Position(ids[3].ledger_id, ids[3].entry_id))
    with pytest.raises(DataLossError) as caught:
        list(read_partition(options(broker), part, SCHEMA, VALUE))
    assert caught.value.topic == full("t")
    with caplog.at_level(logging.WARNING):
        going_on = options(broker, failOnDataLoss="false")
        batches = list(read_partition(going_on, part, SCHEMA, VALUE))
    assert [row["value"] for row in rows_of(batches)] == [b"3", b"4", b"5"]
    assert "data was lost" in caplog.text
    broker.trim("t")
    with pytest.raises(DataLossError, match="nothing remains"):
        list(read_partition(options(broker), part, SCHEMA, VALUE))


@pytest.mark.fault(61)
def test_a_gap_at_the_start_is_no_data_loss(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    before = store(broker, "t", [b"before"])
    broker.skip_entries("t", 3)
    store(broker, "t", [b"behind"])
    part = whole(broker)
    part.start = (before.ledger_id, before.entry_id + 1, 0)
    batches = list(read_partition(options(broker), part, SCHEMA, VALUE))
    assert [row["value"] for row in rows_of(batches)] == [b"behind"]


@pytest.mark.fault(8, 26)
@pytest.mark.parametrize("trouble", ["disconnect", "unload", "restart"])
def test_rows_are_exact_whatever_happens_to_the_connection(
    broker: EmbeddedBroker, trouble: str
) -> None:
    broker.create_topic("t")
    payloads = store_many(broker, "t", 20_000, batch_size=100)
    actions: dict[str, Any] = {
        "disconnect": lambda: broker.faults.disconnect(reset=True),
        "unload": lambda: broker.unload("t"),
        "restart": broker.restart,
    }
    found: list[bytes] = []
    tight = options(broker, **{"pulsar.reader.receiverQueueSize": "500"})
    for number, batch in enumerate(read_partition(tight, whole(broker), SCHEMA, VALUE)):
        found += batch.column(0).to_pylist()
        if number == 0:
            actions[trouble]()
    assert found == payloads


def test_the_client_options_reach_the_connection(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"x"])
    assert options(broker).client == ClientOptions(broker.service_url)
    list(read_partition(options(broker, subscriptionPrefix="mine"), whole(broker), SCHEMA, VALUE))
    names = [seen.body.subscription for seen in broker.faults.log("SUBSCRIBE")]
    assert names
    assert all(name.startswith("mine-") for name in names)


@pytest.mark.fault(75)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_many_reads_in_one_process_leave_no_sockets_and_threads(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    payloads = store_many(broker, "t", 100)
    counts: list[tuple[int, int]] = []
    for _ in range(30):
        batches = read_partition(options(broker), whole(broker), SCHEMA, VALUE)
        assert [row["value"] for row in rows_of(batches)] == payloads
        wait_until_unused(broker)
        counts.append((len(list(Path("/proc/self/fd").iterdir())), threading.active_count()))
    assert counts[-1] <= counts[0]


@pytest.mark.slow
@pytest.mark.fault(75)
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_ten_thousand_tasks_in_one_worker_leave_it_as_it_was(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    payloads = store_many(broker, "t", 10)
    chosen, partition = options(broker), whole(broker)

    def run(tasks: int) -> tuple[int, int, int]:
        """Return what the process has then: files, threads, and memory in MiB."""
        for _ in range(tasks):
            batches = read_partition(chosen, partition, SCHEMA, VALUE)
            assert [row["value"] for row in rows_of(batches)] == payloads
        wait_until_unused(broker)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        files = len(list(Path("/proc/self/fd").iterdir()))
        return files, threading.active_count(), pages * resource.getpagesize() // 2**20

    # The broker in this process remembers so many commands.
    before = run(2_000)
    after = run(8_000)
    assert after[:2] <= before[:2]
    # 2 KiB for each task would be twice as much.
    assert after[2] - before[2] < 8
    assert broker.faults.seen("CONNECT") == 1


@pytest.mark.fault(10)
def test_the_tasks_of_many_micro_batches_share_one_connection(broker: EmbeddedBroker) -> None:
    """Each task reads a range of its own, on parallel threads, as in workers."""
    broker.create_topic("t")
    payloads = store_many(broker, "t", 100)

    def task() -> None:
        batches = read_partition(options(broker), whole(broker), SCHEMA, VALUE)
        read.append([row["value"] for row in rows_of(batches)] == payloads)

    read: list[bool] = []
    for _ in range(11):
        tasks = [threading.Thread(target=task) for _ in range(20)]
        for thread in tasks:
            thread.start()
        finish(*tasks)
    assert read == [True] * 220
    assert broker.faults.seen("CONNECT") == 1
    wait_until_unused(broker)


def test_a_task_tells_what_it_has_read(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    payloads = store_many(broker, "t", 25)
    caplog.set_level(logging.INFO, "pulsar_spark")
    assert len(rows_of(list(read_partition(options(broker), whole(broker), SCHEMA, VALUE)))) == 25
    told = re.search(r"t: a task has read 25 messages \(about (\d+) bytes\) from", caplog.text)
    assert told is not None
    assert int(told[1]) >= sum(map(len, payloads))
    assert "0 values could not be decoded, and 0 rows were dropped" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.parametrize("level", ["INFO", "info", None, "LOUD"])
def test_the_log_is_shown_where_the_environment_asks_for_it(
    broker: EmbeddedBroker, level: str | None
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 25)
    code = (
        "import pickle, sys\n"
        "from pulsar_spark.spark.reading.partition_reader import read_partition\n"
        "task = pickle.loads(sys.stdin.buffer.read())\n"
        "assert sum(batch.num_rows for batch in read_partition(*task)) == 25\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if level is not None:
        environment[VARIABLE] = level
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps((options(broker), whole(broker), SCHEMA, VALUE)),
        env=environment,
        capture_output=True,
        timeout=60,
        check=True,
    )
    told = done.stderr.decode()
    assert told.count("a task has read 25 messages") == (level in ("INFO", "info"))
    assert ("PULSAR_SPARK_LOG_LEVEL" in told) == (level == "LOUD")
