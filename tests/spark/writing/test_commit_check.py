"""Committed messages can be read even if a coordinator forgets to tell a topic."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.engine.consumers import probe
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.errors import (
    AuthorizationError,
    OperationTimeout,
    TopicLost,
    TornBatch,
    TransactionOutcomeUnknown,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.spark.writing import commit_check
from pulsar_spark.spark.writing.task_writer import PulsarCommitMessage
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.server import Server
from pulsar_spark.testing.topic import Topic
from tests.integration.sink_job import TASKS, Sink, rows, whole
from tests.spark.writing.test_exactly_once import TOPIC, broker, die_at, seen, sink, written
from tests.support.asking import connection_of

__all__ = ["broker", "sink"]

Ends = Callable[[Topic, TxnId, bool], None]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


PARTITIONED = "persistent://public/default/p"


@pytest.fixture
def partitions(broker: EmbeddedBroker, sink: Sink) -> list[str]:
    """Two partitions, to both of which every task writes."""
    broker.create_topic(PARTITIONED, partitions=2)
    sink.options["topic"] = PARTITIONED
    # One message an entry, and partitions by turns.
    sink.options["pulsar.producer.batchingEnabled"] = "false"
    return [f"{PARTITIONED}-partition-{number}" for number in range(2)]


@pytest.fixture
def marker(monkeypatch: pytest.MonkeyPatch) -> Callable[[Ends], None]:
    """Have a function write the first markers on the test's topic, one per task."""
    original = Topic.end_transaction

    def install(ends: Ends) -> None:
        left = [TASKS]

        def end_transaction(topic: Topic, txn: TxnId, *, commit: bool) -> None:
            if topic.name == TOPIC and left[0]:
                left[0] -= 1
                ends(topic, txn, commit)
            else:
                original(topic, txn, commit=commit)

        monkeypatch.setattr(Topic, "end_transaction", end_transaction)

    return install


def end_wrongly(monkeypatch: pytest.MonkeyPatch, name: str, txn: TxnId | None, ends: Ends) -> None:
    """Have a function end one transaction on one topic partition, the first time."""
    original = Topic.end_transaction
    left = [True]

    def end_transaction(topic: Topic, ended: TxnId, *, commit: bool) -> None:
        if left[0] and (topic.name, ended) == (name, txn):
            left[0] = False
            ends(topic, ended, commit)
        else:
            original(topic, ended, commit=commit)

    monkeypatch.setattr(Topic, "end_transaction", end_transaction)


def drop(topic: Topic, txn: TxnId, commit: bool) -> None:
    """Drop the messages, as a later transaction's low watermark does."""
    topic.transactions.end(txn, commit=False)
    topic.log.skip(1)


def forget(topic: Topic, txn: TxnId, commit: bool) -> None:
    """Write no marker, like a coordinator that takes a moving topic for a deleted one."""


def on_records(monkeypatch: pytest.MonkeyPatch, ends: Ends, count: int) -> None:
    """Have a function end the first transactions on the topic of the sink's records."""
    original = Topic.end_transaction
    left = [count]

    def end_transaction(topic: Topic, txn: TxnId, *, commit: bool) -> None:
        is_records = "__spark_sink-" in topic.name and not topic.name.endswith("-attempts")
        if is_records and left[0]:
            left[0] -= 1
            ends(topic, txn, commit)
        else:
            original(topic, txn, commit=commit)

    monkeypatch.setattr(Topic, "end_transaction", end_transaction)


@pytest.mark.fault(209)
@pytest.mark.parametrize("ends", [forget, drop])
@pytest.mark.parametrize("count", [1, TASKS])
@pytest.mark.parametrize("point", ["after-ends", "after-done", None])
def test_a_coordinator_that_forgets_the_records_topic_stops_nothing_and_doubles_nothing(
    broker: EmbeddedBroker,
    sink: Sink,
    monkeypatch: pytest.MonkeyPatch,
    ends: Ends,
    count: int,
    point: str | None,
) -> None:
    on_records(monkeypatch, ends, count)
    if point is None:
        sink.run(0)
    else:
        die_at(monkeypatch, sink, point)
        sink.run(0)
    sink.run(1)
    assert seen(broker) == Counter(whole(0) + whole(1))
    assert broker.open_transactions() == {}


@pytest.mark.fault(209)
def test_a_role_that_may_not_tell_the_records_topic_is_told_who_can(
    broker: EmbeddedBroker, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_records(monkeypatch, forget, TASKS)
    sink.options["pulsar.client.operationTimeoutMs"] = "2000"
    die_at(monkeypatch, sink, "after-ends")
    refused = broker.faults.error(
        "END_TXN_ON_PARTITION", pb.NotAllowedError, "only superusers", times=None
    )
    with refused, pytest.raises(TransactionOutcomeUnknown, match="only superusers") as caught:
        sink.run(0)
    assert "superuser" in caught.value.remedy
    assert caught.value.remedy.endswith("--finish s")
    sink.run(0)
    sink.run(1)
    assert seen(broker) == Counter(whole(0) + whole(1))


@pytest.mark.fault(14, 80)
def test_markers_that_the_coordinator_left_out_are_written_again(
    broker: EmbeddedBroker, sink: Sink, marker: Callable[[Ends], None]
) -> None:
    messages = written(sink, 0)
    marker(forget)
    sink.writer().commit(list(messages), 0)
    assert seen(broker) == Counter(whole(0))
    told = [command.body for command in broker.faults.log("END_TXN_ON_PARTITION")]
    assert {(TxnId(body.txnid_most_bits, body.txnid_least_bits), body.topic) for body in told} == {
        (message.txn, TOPIC) for message in messages
    }
    assert {body.txn_action for body in told} == {pb.COMMIT}
    assert len({body.request_id for body in told}) == TASKS
    # Brokers abort open transactions up to this number, and reject the command without it.
    assert {body.txnid_least_bits_of_low_watermark for body in told} == {2**64 - 1}


def test_a_decision_that_another_driver_carries_out_is_checked_too(
    broker: EmbeddedBroker, sink: Sink, marker: Callable[[Ends], None]
) -> None:
    messages = written(sink, 0)
    refused = broker.faults.error("END_TXN_ON_PARTITION", pb.AuthorizationError, times=None)
    silent = broker.faults.error("END_TXN", pb.AuthorizationError, times=None)
    with refused, silent, pytest.raises(AuthorizationError):
        sink.writer().commit(list(messages), 0)
    marker(forget)
    sink.run(0)
    assert seen(broker) == Counter(whole(0))


def test_a_committed_transaction_that_a_topic_has_dropped_tears_the_batch(
    broker: EmbeddedBroker, sink: Sink, marker: Callable[[Ends], None]
) -> None:
    """Abort a transaction whose marker is missing, as a later one's low watermark does."""
    messages = written(sink, 0)
    original = Topic.end_transaction
    marker(lambda topic, txn, commit: original(topic, txn, commit=txn != messages[0].txn))
    for _ in range(2):
        with pytest.raises(TornBatch, match=rf"batch 0 torn: .* wrote to {TOPIC}"):
            sink.writer().commit(list(messages), 0)
    assert seen(broker) == Counter(whole(0)) - Counter(rows(0, 0))


@pytest.mark.slow
def test_a_marker_that_the_broker_refuses_is_told_with_the_next_batch(
    broker: EmbeddedBroker,
    sink: Sink,
    marker: Callable[[Ends], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    messages = written(sink, 0)
    marker(forget)
    refused = broker.faults.error(
        "END_TXN_ON_PARTITION", pb.NotAllowedError, "only superusers", times=None
    )
    with refused:
        sink.writer().commit(list(messages), 0)
        assert not warnings_in(caplog)
        sink.run(1)
    told = [text for text in warnings_in(caplog) if text.startswith("since batch 0 readers do not")]
    assert len(told) == 1
    assert "only superusers" in told[0]
    sink.run(2)
    assert seen(broker) == Counter(whole(0) + whole(1) + whole(2))


def test_rows_that_are_dropped_later_fail_the_next_batch(
    broker: EmbeddedBroker, sink: Sink, marker: Callable[[Ends], None]
) -> None:
    messages = written(sink, 0)
    marker(forget)
    with broker.faults.error("END_TXN_ON_PARTITION", pb.NotAllowedError, times=None):
        sink.writer().commit(list(messages), 0)
    # As the low watermark of a later transaction does.
    with ClientContext(ClientOptions(broker.service_url)) as context:
        for txn in [message.txn for message in messages if message.txn]:
            connection_of(context.lookup, TOPIC).request(
                commands.request(
                    pb.CommandEndTxnOnPartition,
                    topic=TOPIC,
                    txn_action=pb.ABORT,
                    **commands.txn_fields(txn),
                )
            )
    for _ in range(2):
        with pytest.raises(TornBatch, match="batch 0 torn"):
            sink.run(1)
    assert seen(broker) == Counter(whole(1))


def test_the_open_transaction_of_another_writer_holds_no_commit_up(
    broker: EmbeddedBroker, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    with PulsarClient(broker.service_url) as client:
        producer = client.create_producer(TOPIC)
        producer.send(b"first")
        other = client.new_transaction(60_000)
        producer.send(b"other", txn=other)
        sink.run(0)
        # Whether the ledger is there, what is read, what holds its first message, and what is read
        # with the markers written.
        assert broker.faults.seen("SUBSCRIBE", "t") == 4
        assert seen(broker) == Counter(["first"])
        other.commit()
    assert seen(broker) == Counter([*whole(0), "first", "other"])
    assert not warnings_in(caplog)


def test_a_commit_that_cannot_be_checked_is_told_as_committed_and_not_as_seen(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    sink.options["pulsar.client.operationTimeoutMs"] = "3000"
    with PulsarClient(broker.service_url) as client:
        other = client.new_transaction(60_000)
        client.create_producer(TOPIC).send(b"other", txn=other)
        messages = written(sink, 0)
        with (
            broker.faults.drop("CONSUMER_STATS", times=None),
            pytest.raises(OperationTimeout, match="all of batch 0 is committed; whether readers"),
        ):
            sink.writer().commit(list(messages), 0)
        assert not seen(broker)
        other.commit()
    assert seen(broker) == Counter([*whole(0), "other"])


def test_to_see_what_holds_a_commit_takes_a_part_of_the_operation_timeout(
    broker: EmbeddedBroker, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_HELD_SECONDS", (60.0, 60.0))
    sink.options["pulsar.client.operationTimeoutMs"] = "6000"
    with PulsarClient(broker.service_url) as client:
        other = client.new_transaction(60_000)
        client.create_producer(TOPIC).send(b"other", txn=other)
        sink.run(0)
        other.commit()
    assert seen(broker) == Counter([*whole(0), "other"])


def test_an_open_transaction_that_stays_delays_only_the_first_commit(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    """As that of a killed task, which stays open until it times out."""
    with PulsarClient(broker.service_url) as client:
        other = client.new_transaction(60_000)
        client.create_producer(TOPIC).send(b"other", txn=other)
        sink.run(0)
        # One question, asked until the wait for what holds the read position is over.
        waited = broker.faults.seen("CONSUMER_STATS", "t")
        for number in (1, 2, 3):
            sink.run(number)
        assert broker.faults.seen("CONSUMER_STATS", "t") == waited
        # Each marker is written once, however often its messages are looked for.
        assert broker.faults.seen("END_TXN_ON_PARTITION") == 4 * TASKS
        other.commit()
    sink.run(4)
    assert seen(broker) == Counter(sum((whole(number) for number in range(5)), ["other"]))


def test_an_open_transaction_that_stays_is_told_when_it_begins_and_when_it_is_over(
    broker: EmbeddedBroker, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    with PulsarClient(broker.service_url) as client:
        sink.run(0)
        other = client.new_transaction(60_000)
        at = client.create_producer(TOPIC).send(b"other", txn=other)
        for number in (1, 2, 3):
            sink.run(number)
        (begun,) = warnings_in(caplog)
        # What held batch 1 can be over with the next one, which is not worth a warning.
        assert begun.startswith("since batch 1 readers do not see all that is committed")
        assert f"{TOPIC} before {at.ledger_id()}:{at.entry_id() + 1}" in begun
        other.commit()
    caplog.clear()
    for number in (4, 5):
        sink.run(number)
    assert warnings_in(caplog) == ["readers see again all that was committed since batch 1"]


def test_an_open_transaction_that_stays_is_told_again_rarely(
    broker: EmbeddedBroker,
    sink: Sink,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr(commit_check, "_clock", lambda: now[0])
    told = []
    with PulsarClient(broker.service_url) as client:
        other = client.new_transaction(60_000)
        client.create_producer(TOPIC).send(b"other", txn=other)
        for number, seconds in enumerate((0, 0, 299, 1, 299, 1, -600)):
            now[0] += seconds
            sink.run(number)
            told.append(len(warnings_in(caplog)))
        other.commit()
    # The last time is that of a driver whose clock is behind.
    assert told == [0, 1, 1, 2, 2, 3, 4]
    assert all(text.startswith("since batch 0 ") for text in warnings_in(caplog))


def test_a_role_that_may_not_read_is_told_and_writes_all_the_same(
    broker: EmbeddedBroker, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    messages = written(sink, 0)
    with broker.faults.error("SUBSCRIBE", pb.AuthorizationError, topic="t", times=None):
        sink.writer().commit(list(messages), 0)
    assert "whether readers see it is unknown" in caplog.text
    assert seen(broker) == Counter(whole(0))


def test_the_marker_is_written_again_on_the_partition_that_lacks_it(
    broker: EmbeddedBroker,
    sink: Sink,
    partitions: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages = written(sink, 0)
    # What is behind the open transaction cannot be read, and is taken for lacking one too.
    end_wrongly(monkeypatch, partitions[1], messages[1].txn, forget)
    sink.writer().commit(list(messages), 0)
    told = [command.body for command in broker.faults.log("END_TXN_ON_PARTITION")]
    # They are written at the same time, in no order.
    assert Counter((body.topic, TxnId(0, body.txnid_least_bits)) for body in told) == Counter(
        (partitions[1], messages[task].txn) for task in (1, 2)
    )
    assert seen(broker, PARTITIONED) == Counter(whole(0))


@pytest.mark.parametrize("task", range(TASKS))
def test_a_transaction_that_one_partition_has_dropped_tears_the_batch(
    broker: EmbeddedBroker,
    sink: Sink,
    partitions: list[str],
    monkeypatch: pytest.MonkeyPatch,
    task: int,
) -> None:
    messages = written(sink, 0)
    end_wrongly(monkeypatch, partitions[0], messages[task].txn, drop)
    with pytest.raises(TornBatch) as caught:
        sink.writer().commit(list(messages), 0)
    assert caught.value.what.endswith(f"dropped what (0,{task}) wrote to {partitions[0]}")


def test_the_last_chunk_of_a_message_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker(max_message_size=100_000) as broker:
        broker.create_topic("t")
        sink = Sink(broker.service_url, "t", "s")
        sink.options["pulsar.producer.batchingEnabled"] = "false"
        sink.options["pulsar.producer.chunkingEnabled"] = "true"
        values = ["a" * 250_000, "b" * 250_000]

        def write() -> list[PulsarCommitMessage]:
            found = [pa.RecordBatch.from_pydict({"value": [value]}) for value in values]
            return [sink.writer().write(iter([batch])) for batch in found]

        sink.writer().commit(list(write()), 0)
        assert seen(broker) == Counter(values)
        second = write()
        end_wrongly(monkeypatch, TOPIC, second[0].txn, drop)
        with pytest.raises(TornBatch, match="batch 1 torn"):
            sink.writer().commit(list(second), 1)
        assert broker.internal_errors == ()


def test_rows_that_retention_or_compaction_removed_after_their_commit_tear_nothing(
    broker: EmbeddedBroker, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_at(monkeypatch, sink, "after-ends")
    broker.roll_ledger("t")
    broker.trim("t")
    broker.compact("t")
    sink.run(0)
    broker.compact("t")
    sink.run(1)
    assert seen(broker) == Counter(whole(1))


def test_rows_that_retention_removed_before_their_commit_are_not_committed(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    messages = [sink.write(0, 0)]
    broker.roll_ledger("t")
    broker.trim("t")
    messages += [sink.write(0, task) for task in range(1, TASKS)]
    with pytest.raises(TopicLost, match=r"batch 0 not written, .* retention removed the rows"):
        sink.writer().commit(list(messages), 0)
    assert broker.open_transactions() == {}
    sink.run(0)
    assert seen(broker) == Counter(whole(0))


# --- what it costs --------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [1, 64])
def test_a_commit_asks_about_a_partition_once_however_many_tasks_wrote_to_it(
    broker: EmbeddedBroker, sink: Sink, tasks: int
) -> None:
    messages = [sink.write(0, task) for task in range(tasks)]
    broker.faults.forget()
    sink.writer().commit(list(messages), 0)
    # Before the commit, and after it.
    asked = ("LOOKUP", "SUBSCRIBE", "GET_LAST_MESSAGE_ID")
    assert [broker.faults.seen(kind, "t") for kind in asked] == [3, 2, 2]
    # Only before it, and only after it.
    only_once = ("PRODUCER", "FLOW", "CONSUMER_STATS")
    assert [broker.faults.seen(kind, "t") for kind in only_once] == [1, 1, 0]
    assert broker.faults.seen("MESSAGE", "t") == tasks


def test_what_others_wrote_between_two_tasks_is_not_read(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    messages = [sink.write(0, 0)]
    with PulsarClient(broker.service_url) as client:
        producer = client.create_producer(TOPIC)
        for _ in range(500):
            producer.send_async(b"other", None)
        producer.flush()
    messages += [sink.write(0, task) for task in range(1, TASKS)]
    broker.faults.forget()
    sink.writer().commit(list(messages), 0)
    assert broker.faults.seen("SUBSCRIBE", "t") == 3
    assert broker.faults.seen("MESSAGE", "t") == TASKS


def test_transactions_that_end_while_they_are_looked_for_hold_nothing(
    broker: EmbeddedBroker, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    """Each holds one task's messages, and ends when the check asks what holds something."""
    with PulsarClient(broker.service_url) as client:
        producer = client.create_producer(TOPIC)
        messages = []
        for task in range(TASKS):
            producer.send(b"other", txn=client.new_transaction(60_000))
            messages.append(sink.write(0, task))
        own = [message.txn for message in messages]

        def end_first(server: Server) -> None:
            others = [txn for txn in server.coordinator.open if txn not in own]
            server.coordinator.end(others[0], commit=True)

        ended = broker.faults.call("CONSUMER_STATS", lambda _: broker._call(end_first), times=TASKS)
        sink.writer().commit(list(messages), 0)
        assert ended.hits == TASKS
    assert seen(broker) == Counter(whole(0)) + Counter(other=TASKS)
    assert not broker.faults.seen("END_TXN_ON_PARTITION")
    assert not warnings_in(caplog)
