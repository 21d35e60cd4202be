"""Exactly-once writes: decisions, their execution, recovery, and errors."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from pulsar_spark.client import PulsarClient
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.transactions import COORDINATORS, Coordinators
from pulsar_spark.errors import (
    AuthorizationError,
    ConnectionLost,
    OptionError,
    PulsarError,
    SinkStateError,
    TopicNotFound,
    TopicTerminated,
    TornBatch,
    TransactionCoordinatorNotFound,
    TransactionExpired,
    TransactionNotFound,
    TransactionOutcomeUnknown,
    UnsupportedFeature,
    from_server_error,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.spark.options.table import Scope
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.writing import exactly_once
from pulsar_spark.spark.writing.decision_log import DecisionLog
from pulsar_spark.spark.writing.fenced_topic import SUBSCRIPTION
from pulsar_spark.spark.writing.task_writer import PulsarCommitMessage, transactions_of
from pulsar_spark.spark.writing.writers import ArrowStreamWriter, PulsarBatchWriter
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import reading, stored_entry
from tests.integration.messages import readable
from tests.integration.sink_job import ROWS, SCHEMA, TASKS, Sink, rows, whole
from tests.spark.topics import full, store
from tests.support.waiting import wait_until

TOPIC = "persistent://public/default/t"
TIMEOUT = "pulsar.client.operationTimeoutMs"


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        made.create_topic("t")
        yield made
        assert made.internal_errors == ()


@pytest.fixture
def sink(broker: EmbeddedBroker) -> Sink:
    made = Sink(broker.service_url, "t", "s")
    made.options[TIMEOUT] = "5000"
    return made


def seen(broker: EmbeddedBroker, topic: str = "t") -> Counter[str]:
    """Return the readable messages of a topic."""
    return readable(broker.service_url, topic)


def state_topic(broker: EmbeddedBroker) -> str:
    return next(name for name in broker.topics() if "__spark_sink-" in name)


def written(sink: Sink, batch: int) -> list[PulsarCommitMessage]:
    return sink.write_all(batch)


def end_all(sink: Sink, transactions: list[TxnId], *, commit: bool) -> list[PulsarError | None]:
    """End transactions without the sink's knowledge; return their errors."""
    options = parse_write_options(sink.options, Scope.STREAM_WRITE)
    with ClientContext(options.client) as context:
        return list(context.coordinators.end_all(transactions, commit=commit).values())


def end(sink: Sink, messages: list[PulsarCommitMessage], *, commit: bool) -> None:
    """End tasks' transactions without the sink's knowledge."""
    assert set(end_all(sink, transactions_of(messages), commit=commit)) == {None}


def take_over(broker: EmbeddedBroker, sink: Sink, batch: int) -> None:
    """Write a micro-batch in another driver, while one that has lost its consumer still runs."""
    broker.close_clients(state_topic(broker), producers=False)
    sink.run(batch)


class Died(BaseException):
    """Instead of a driver's death: nothing handles it."""


def die_at(
    monkeypatch: pytest.MonkeyPatch, sink: Sink, point: str, batch: int = 0
) -> list[PulsarCommitMessage]:
    """Write a micro-batch, and lose the driver at a crash point of its commit."""

    def die(reached: str) -> None:
        if reached == point:
            raise Died

    messages = written(sink, batch)
    with monkeypatch.context() as patched:
        patched.setattr(exactly_once, "reach", die)
        with pytest.raises(Died):
            sink.writer().commit(list(messages), batch)
    return messages


def fail_after_decision(
    broker: EmbeddedBroker, sink: Sink, batch: int
) -> list[PulsarCommitMessage]:
    """Record the decision of a micro-batch, and lose the driver before it ends a transaction."""
    messages = written(sink, batch)
    refused = broker.faults.error("END_TXN", pb.AuthorizationError, times=None)
    with refused, pytest.raises(PulsarError):
        sink.writer().commit(list(messages), batch)
    return messages


# --- what is decided is carried out --------------------------------------------------------------


def test_rows_are_seen_when_their_batch_is_committed_and_not_before(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    sink.writer().check()
    messages = written(sink, 0)
    assert seen(broker) == Counter()
    sink.writer().commit(list(messages), 0)
    assert seen(broker) == Counter(whole(0))
    assert broker.open_transactions() == {}


def test_a_batch_that_was_decided_is_finished_and_its_second_writing_dropped(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    sink.run(0)
    first = fail_after_decision(broker, sink, 1)
    sink.writer().abort(list(first), 1)
    assert seen(broker) == Counter(whole(0))
    sink.run(1)
    assert seen(broker) == Counter(whole(0) + whole(1))
    assert broker.open_transactions() == {}


def test_an_abort_before_the_decision_leaves_nothing(broker: EmbeddedBroker, sink: Sink) -> None:
    messages = written(sink, 0)
    sink.writer().abort([*messages, None], 0)
    assert broker.open_transactions() == {}
    sink.run(0)
    assert seen(broker) == Counter(whole(0))


def test_a_task_that_fails_aborts_its_own_transaction(broker: EmbeddedBroker, sink: Sink) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": rows(0, 0)})
        raise ValueError("a row")

    with pytest.raises(ValueError, match="a row"):
        sink.writer().write(failing())
    assert broker.open_transactions() == {}
    assert seen(broker) == Counter()


@pytest.mark.parametrize("disturb", ["disconnect", "unload"])
def test_rows_whose_receipt_is_lost_are_not_sent_again_in_their_transaction(
    broker: EmbeddedBroker, sink: Sink, disturb: str
) -> None:
    """They can be stored: sent again, they would be there twice when it is committed."""
    lost = broker.faults.drop("SEND_RECEIPT")

    def end_session() -> None:
        wait_until(lambda: lost.hits, "the receipt was lost")
        broker.faults.unload(TOPIC) if disturb == "unload" else broker.faults.disconnect()

    ending = threading.Thread(target=end_session)
    ending.start()
    with pytest.raises(ConnectionLost, match="sent again in transaction") as caught:
        sink.write(0, 0)
    ending.join()
    assert "deduplication" in caught.value.remedy
    assert "the last error was: " in caught.value.what
    assert broker.open_transactions() == {}
    sink.run(0)
    assert seen(broker) == Counter(whole(0))


def test_a_topic_that_deduplicates_is_sent_rows_again_whose_receipt_was_lost() -> None:
    with EmbeddedBroker(deduplication=True) as broker:
        broker.create_topic("t")
        sink = Sink(broker.service_url, "t", "s")
        lost = broker.faults.close("SEND_RECEIPT", topic="t")
        sink.run(0)
        assert lost.hits == 1
        assert seen(broker) == Counter(whole(0))


def test_a_batch_without_rows_is_done_all_the_same(broker: EmbeddedBroker, sink: Sink) -> None:
    for batch in range(2):
        empty = sink.writer().write(iter([]))
        assert empty.txn is None
        sink.writer().commit([empty], batch)
    sink.run(2)
    assert seen(broker) == Counter(whole(2))


def test_many_tasks_are_committed_in_one_round(broker: EmbeddedBroker, sink: Sink) -> None:
    messages = [sink.write(0, task) for task in range(64)]
    broker.faults.forget()
    asked: dict[str, list[int]] = {}
    for command in ("ADD_PARTITION_TO_TXN", "END_TXN"):
        # Late answers show whether requests wait for each other.
        broker.faults.delay(command, 1.0, times=None, hold=False)

        def count(_: object, command: str = command) -> None:
            asked.setdefault(command, []).append(broker.faults.seen(command))

        broker.faults.call(f"{command}_RESPONSE", count, times=None)
    sink.writer().commit(list(messages), 0)
    assert asked == dict.fromkeys(asked, [64] * 64)
    assert sum(seen(broker).values()) == 64 * ROWS


@pytest.mark.fault(80)
def test_lost_answers_to_all_commits_are_found_out(broker: EmbeddedBroker, sink: Sink) -> None:
    messages = written(sink, 0)
    broker.faults.close("END_TXN", answer=True, times=2)
    sink.writer().commit(list(messages), 0)
    assert seen(broker) == Counter(whole(0))


@pytest.mark.fault(80)
def test_an_answer_that_never_comes_is_no_commit(broker: EmbeddedBroker, sink: Sink) -> None:
    messages = written(sink, 0)
    patient, sink.options = sink.options, sink.options | {TIMEOUT: "1000"}
    with broker.faults.drop("END_TXN", times=None), pytest.raises(TransactionOutcomeUnknown):
        sink.writer().commit(list(messages), 0)
    sink.options = patient
    sink.writer().abort(list(messages), 0)
    assert seen(broker) == Counter()
    sink.run(0)
    assert seen(broker) == Counter(whole(0))


@pytest.mark.fault(82)
def test_the_coordinator_moves_at_each_step_of_a_commit() -> None:
    with EmbeddedBroker(brokers=2) as broker:
        broker.create_topic("t")
        sink = Sink(broker.service_url, "t", "s")
        commands = ("NEW_TXN", "ADD_PARTITION_TO_TXN", "END_TXN", "TC_CLIENT_CONNECT_REQUEST")
        for batch, command in enumerate(commands):
            broker.move_coordinator(0)
            broker.faults.call(command, lambda seen: broker.move_coordinator(1))
            sink.run(batch)
        expected = [value for batch in range(len(commands)) for value in whole(batch)]
        assert seen(broker) == Counter(expected)
        assert broker.internal_errors == ()


# --- what has expired ----------------------------------------------------------------------------


@pytest.mark.fault(81)
def test_transactions_that_expired_before_the_decision_fail_the_batch_as_a_whole(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    messages = written(sink, 0)
    end(sink, messages[:1], commit=False)
    with pytest.raises(TransactionExpired, match="batch 0 not written"):
        sink.writer().commit(list(messages), 0)
    assert broker.open_transactions() == {}
    sink.run(0)
    assert seen(broker) == Counter(whole(0))


@pytest.mark.fault(81)
def test_a_decided_batch_of_which_nothing_is_left_is_redone(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    first = fail_after_decision(broker, sink, 0)
    end(sink, first, commit=False)
    sink.run(0)
    sink.run(1)
    assert seen(broker) == Counter(whole(0) + whole(1))


@pytest.mark.fault(81)
def test_a_torn_batch_is_an_error_at_every_restart(broker: EmbeddedBroker, sink: Sink) -> None:
    first = fail_after_decision(broker, sink, 0)
    end(sink, first[:1], commit=True)
    end(sink, first[1:], commit=False)
    for _ in range(2):
        with pytest.raises(TornBatch, match="batch 0 torn: 1 of 3 transactions"):
            sink.run(0)
    for messages in (written(sink, 1), written(sink, 0)):
        with pytest.raises(TornBatch):
            sink.writer().commit(list(messages), 1)
        sink.writer().abort(list(messages), 1)
    assert seen(broker) == Counter(rows(0, 0))


@pytest.mark.fault(81)
def test_tasks_time_out_by_themselves(broker: EmbeddedBroker, sink: Sink) -> None:
    sink.options["transactionTimeout"] = "2s"
    messages = written(sink, 0)
    wait_until(lambda: not broker.open_transactions(), "they are open")
    with pytest.raises(TransactionExpired):
        sink.writer().commit(list(messages), 0)
    assert seen(broker) == Counter()


@pytest.mark.fault(78, 84)
def test_an_attempt_that_spark_does_not_choose_is_never_seen_and_holds_nothing_for_long(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    # The loser of speculation is killed or succeeds; nobody tells it to abort.
    loser = Sink(broker.service_url, "t", "s", "2s").write(0, 0)
    assert loser.txn is not None
    sink.run(0)
    wait_until(lambda: not broker.open_transactions(), "they are open")
    assert seen(broker) == Counter(whole(0))


# --- what has expired in part, while no driver was there -----------------------------------------


@pytest.mark.fault(79, 81)
@pytest.mark.parametrize("gone", [[0], [2], [0, 1], [0, 2]])
def test_a_decided_batch_without_markers_is_redone_though_only_some_of_it_is_gone(
    broker: EmbeddedBroker, sink: Sink, monkeypatch: pytest.MonkeyPatch, gone: list[int]
) -> None:
    sink.run(0)
    first = die_at(monkeypatch, sink, "after-decision", 1)
    end(sink, [first[task] for task in gone], commit=False)
    sink.run(1)
    assert broker.open_transactions() == {}
    sink.run(2)
    assert seen(broker) == Counter(whole(0) + whole(1) + whole(2))


@pytest.mark.fault(79, 81)
def test_a_decided_job_without_markers_of_which_some_is_gone_is_dropped_as_a_whole(
    broker: EmbeddedBroker, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(point: str) -> None:
        if point == "after-decision":
            raise Died

    writer = batch_writer(sink)
    first = [writer.write(iter([pa.RecordBatch.from_pydict({"value": [one]})])) for one in "ab"]
    with monkeypatch.context() as patched:
        patched.setattr(exactly_once, "reach", die)
        with pytest.raises(Died):
            writer.commit(first)
    end(sink, first[:1], commit=False)
    batch_writer(sink).check()
    assert broker.open_transactions() == {}
    batch_write(sink, ["a", "b"])
    assert seen(broker) == Counter("ab")


@pytest.mark.fault(79)
@pytest.mark.parametrize("committed", [[0], [2], [0, 2], [0, 1, 2]])
def test_a_batch_of_which_some_is_committed_already_is_finished(
    broker: EmbeddedBroker, sink: Sink, monkeypatch: pytest.MonkeyPatch, committed: list[int]
) -> None:
    """Those that are committed are as gone for the coordinator as those that timed out."""
    first = die_at(monkeypatch, sink, "after-markers")
    end(sink, [first[task] for task in committed], commit=True)
    sink.run(0)
    sink.run(1)
    assert seen(broker) == Counter(whole(0) + whole(1))


@pytest.mark.fault(79, 81)
def test_a_batch_whose_markers_are_there_is_not_redone(
    broker: EmbeddedBroker, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is gone can have been committed: nothing tells, before the others have ended."""
    first = die_at(monkeypatch, sink, "after-markers")
    end(sink, first[:1], commit=False)
    for _ in range(2):
        with pytest.raises(TornBatch, match="batch 0 torn: 2 of 3 transactions"):
            sink.run(0)
    assert seen(broker) == Counter(rows(0, 1) + rows(0, 2))


@pytest.mark.fault(79, 81)
def test_a_marker_whose_transaction_is_aborted_is_no_sign_of_a_commit(
    broker: EmbeddedBroker, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mark_one(log: DecisionLog, transactions: list[TxnId]) -> None:
        mark(log, transactions[:1])
        raise Died

    mark = DecisionLog.mark
    first = written(sink, 0)
    with monkeypatch.context() as patched:
        patched.setattr(DecisionLog, "mark", mark_one)
        with pytest.raises(Died):
            sink.writer().commit(list(first), 0)
    end(sink, first[:1], commit=False)
    sink.run(0)
    assert seen(broker) == Counter(whole(0))


@pytest.mark.fault(79, 81)
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_driver_that_dies_while_it_drops_a_decision_leaves_that_to_the_next_one(
    broker: EmbeddedBroker, sink: Sink, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    def abort_some(
        context: ClientContext, transactions: list[TxnId], stuck: Collection[TxnId] = ()
    ) -> None:
        abort(context, transactions[:after], stuck)
        raise Died

    abort = exactly_once.abort_all
    first = die_at(monkeypatch, sink, "after-decision")
    end(sink, first[:1], commit=False)
    with monkeypatch.context() as patched:
        patched.setattr(exactly_once, "abort_all", abort_some)
        with pytest.raises(Died):
            sink.run(0)
    sink.run(0)
    assert broker.open_transactions() == {}
    assert seen(broker) == Counter(whole(0))


@pytest.mark.fault(79, 81, 85)
def test_a_driver_that_wakes_up_behind_its_decision_finds_it_dropped(
    broker: EmbeddedBroker, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = written(sink, 0)

    def sleep(point: str) -> None:
        if point == "after-decision":
            monkeypatch.undo()
            end(sink, first[:1], commit=False)
            take_over(broker, sink, 0)

    monkeypatch.setattr(exactly_once, "reach", sleep)
    with pytest.raises(SinkStateError, match="taken this sink over"):
        sink.writer().commit(list(first), 0)
    # Not even a commit that arrives late makes a second copy visible.
    assert {type(error) for error in end_all(sink, transactions_of(first), commit=True)} == {
        TransactionNotFound
    }
    sink.run(1)
    assert seen(broker) == Counter(whole(0) + whole(1))


@pytest.mark.fault(79, 81)
def test_a_driver_that_is_overtaken_while_it_drops_a_decision_drops_nothing_of_the_next_one(
    broker: EmbeddedBroker, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(
        context: ClientContext, transactions: list[TxnId], stuck: Collection[TxnId] = ()
    ) -> None:
        monkeypatch.undo()
        take_over(broker, sink, 0)
        exactly_once.abort_all(context, transactions, stuck)

    first = die_at(monkeypatch, sink, "after-decision")
    end(sink, first[:1], commit=False)
    again = written(sink, 0)
    monkeypatch.setattr(exactly_once, "abort_all", overtaken)
    with pytest.raises(SinkStateError, match="taken this sink over"):
        sink.writer().commit(list(again), 0)
    sink.writer().abort(list(again), 0)
    assert broker.open_transactions() == {}
    sink.run(1)
    assert seen(broker) == Counter(whole(0) + whole(1))


@pytest.mark.fault(80, 81)
def test_a_dropped_transaction_that_cannot_be_aborted_now_times_out(
    broker: EmbeddedBroker, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = die_at(monkeypatch, sink, "after-decision")
    end(sink, first[:1], commit=False)
    again = written(sink, 0)
    broker.faults.error("END_TXN", pb.AuthorizationError, times=2)
    sink.writer().commit(list(again), 0)
    assert len(broker.open_transactions()) == 2
    assert seen(broker) == Counter()
    end(sink, first[1:], commit=False)
    assert seen(broker) == Counter(whole(0))


@pytest.mark.fault(80, 82)
@pytest.mark.parametrize("command", ["ADD_PARTITION_TO_TXN", "END_TXN"])
@pytest.mark.parametrize("disturb", ["answer", "move"])
def test_a_decision_is_dropped_though_its_coordinator_is_disturbed(
    monkeypatch: pytest.MonkeyPatch, command: str, disturb: str
) -> None:
    with EmbeddedBroker(brokers=2) as broker:
        broker.create_topic("t")
        sink = Sink(broker.service_url, "t", "s")
        first = die_at(monkeypatch, sink, "after-decision")
        end(sink, first[:1], commit=False)
        again = written(sink, 0)
        if disturb == "move":
            broker.move_coordinator(0)
            broker.faults.call(command, lambda seen: broker.move_coordinator(1))
        else:
            broker.faults.close(command, answer=True)
        sink.writer().commit(list(again), 0)
        assert broker.open_transactions() == {}
        assert seen(broker) == Counter(whole(0))
        assert broker.internal_errors == ()


# --- ids -----------------------------------------------------------------------------------------


def test_the_last_batch_comes_again_and_is_skipped(
    broker: EmbeddedBroker, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    sink.run(0)
    sink.run(0)
    sink.run(1)
    sink.run(1)
    assert seen(broker) == Counter(whole(0) + whole(1))
    with pytest.raises(SinkStateError, match=r"other rows \(120 then, 40 now\)"):
        sink.writer().commit([sink.write(1, 0)], 1)
    sink.options["sinkRepeats"] = "first"
    sink.writer().commit([sink.write(1, 0)], 1)
    assert "committed already with 120 messages; what comes now, 40 messages" in caplog.text
    assert seen(broker) == Counter(whole(0) + whole(1))
    assert broker.open_transactions() == {}


def test_the_last_batch_that_comes_again_for_another_topic_is_told(
    broker: EmbeddedBroker, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    sink.options["sinkStateTopic"] = "state"
    for batch in range(2):
        sink.run(batch)
    sink.run(1)
    assert "other topics" not in caplog.text
    sink.options["topic"] = "another"
    sink.run(1)
    assert "batch 1 is committed already, to other topics than now" in caplog.text
    assert "not known, because they were written to other topics" in caplog.text
    assert "schema" not in caplog.text
    assert seen(broker) == Counter(whole(0) + whole(1))


def test_a_query_can_begin_to_write_exactly_once_and_is_told_from_when_on(
    broker: EmbeddedBroker, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    sink.run(7)
    assert "batch 7 is the first one" in caplog.text
    caplog.clear()
    sink.run(8)
    assert not caplog.records
    assert seen(broker) == Counter(whole(7) + whole(8))


@pytest.mark.parametrize("when", ["between batches", "before the commit"])
def test_records_that_are_deleted_with_the_announcements_are_missed(
    broker: EmbeddedBroker, sink: Sink, when: str
) -> None:
    for batch in range(2):
        sink.run(batch)
    go_on: Callable[[], None] = partial(sink.run, 1)
    if when == "before the commit":
        writer = sink.writer()
        writer.check()
        go_on = partial(sink.writer().commit, [sink.write(1, 0, writer)], 1)
    for topic in broker.topics():
        if "__spark_sink-" in topic:
            broker.delete_topic(topic)
    with pytest.raises(SinkStateError, match="deleted"):
        go_on()
    with pytest.raises(SinkStateError, match="deleted"):
        sink.run(2)
    assert seen(broker) == Counter(whole(0) + whole(1))


def test_another_checkpoint_is_an_error_and_drops_nothing_in_silence(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    sink.run(0)
    with pytest.raises(SinkStateError, match=r"checkpoint is older than the sink.*--accept s"):
        sink.writer().commit([sink.write(0, 0)], 0)
    for batch in (1, 2):
        sink.run(batch)
    with pytest.raises(SinkStateError, match="batch 0 comes behind batch 2"):
        sink.run(0)


def test_a_stream_and_batch_writes_have_sinks_of_their_own(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    sink.run(0)
    with pytest.raises(SinkStateError, match="share a sinkId"):
        batch_write(sink, ["a"])


def test_a_stranger_fences_no_attempts_of_the_query_whose_the_sink_is(
    broker: EmbeddedBroker, sink: Sink, tmp_path: Path
) -> None:
    """Neither at first, nor when the query itself was checked in the same process."""

    def checked(query: str) -> ArrowStreamWriter:
        folder = tmp_path / query
        folder.mkdir(exist_ok=True)
        (folder / "metadata").write_text(json.dumps({"id": query}))
        sink.options["checkpointLocation"] = str(folder)
        writer = sink.writer()
        writer.check()
        return writer

    for batch in range(3):
        writer = checked("mine")
        messages = [sink.write(batch, 0, writer)]
        if batch:
            with pytest.raises(SinkStateError, match="belongs to the query mine"):
                checked("another")
        # A task that begins now is let write.
        messages.append(sink.write(batch, 1, writer))
        sink.writer().commit([replace(one, query="mine") for one in messages], batch)
    expected = [value for batch in range(3) for task in range(2) for value in rows(batch, task)]
    assert seen(broker) == Counter(expected)


def test_sinks_do_not_know_each_other(broker: EmbeddedBroker, sink: Sink) -> None:
    other = Sink(broker.service_url, "t", "other")
    for one in (sink, other):
        one.run(0)
    assert seen(broker) == Counter(whole(0) * 2)


# --- batch writes --------------------------------------------------------------------------------


def batch_writer(sink: Sink) -> PulsarBatchWriter:
    return PulsarBatchWriter(parse_write_options(sink.options), SCHEMA, overwrite=False)


def batch_write(sink: Sink, values: list[str]) -> None:
    writer = batch_writer(sink)
    writer.check()
    messages = [
        writer.write(iter([pa.RecordBatch.from_pydict({"value": [value]})])) for value in values
    ]
    writer.commit(messages)


def test_a_batch_write_is_all_or_nothing(broker: EmbeddedBroker, sink: Sink) -> None:
    batch_write(sink, ["a", "b"])
    failing = batch_writer(sink)
    lost = failing.write(iter([pa.RecordBatch.from_pydict({"value": ["lost"]})]))
    assert seen(broker) == Counter(["a", "b"])
    failing.abort([lost, None])
    batch_write(sink, ["c"])
    assert seen(broker) == Counter("abc")
    assert broker.open_transactions() == {}


def test_a_decided_job_is_finished_by_the_next_one_which_does_not_write_it_again(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    killed = batch_writer(sink)
    message = killed.write(iter([pa.RecordBatch.from_pydict({"value": ["first"]})]))
    refused = broker.faults.error("END_TXN", pb.AuthorizationError, times=None)
    with refused, pytest.raises(PulsarError):
        killed.commit([message])
    with pytest.raises(SinkStateError, match="committed now, and all of it is visible"):
        batch_writer(sink).check()
    assert seen(broker) == Counter(["first"])
    batch_write(sink, ["second"])
    assert seen(broker) == Counter(["first", "second"])


# --- fencing, and the topic of the records ------------------------------------------------------


@pytest.mark.fault(88)
def test_a_driver_that_is_overtaken_cannot_decide_any_more(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    messages = written(sink, 0)

    def overtake(_: object) -> None:
        # As a newer driver does.
        broker.close_clients(state_topic(broker), producers=False)
        topic = broker._parts()[1].topics.topics[state_topic(broker)]
        topic.close_producers()
        topic.producers.epoch = 99

    # The first record is the fence, the second one the decision.
    broker.faults.call("SEND", overtake, after=1, topic="persistent://public/default/x")
    sink.writer().check()
    rule = broker.faults.call("SEND", overtake, after=1, topic=state_topic(broker))
    with pytest.raises(SinkStateError, match="taken this sink over"):
        sink.writer().commit(list(messages), 0)
    assert rule.hits == 1
    assert seen(broker) == Counter()


def test_records_stay_as_long_as_they_are_needed_and_no_longer(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    for batch in range(3):
        sink.run(batch)
    (kept,) = broker.subscriptions(state_topic(broker)).values()
    assert kept.name == SUBSCRIPTION
    assert (kept.backlog, kept.consumers) == (1, ())
    broker.collect_inactive()
    assert state_topic(broker) in broker.topics()


def test_records_without_their_subscription_are_an_error(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    sink.run(0)
    broker.remove_subscription(state_topic(broker), SUBSCRIPTION)
    with pytest.raises(SinkStateError, match=r"subscription pulsar-spark-sink is gone"):
        sink.writer().check()


def own_entries(broker: EmbeddedBroker) -> Iterator[tuple[str, ReceivedEntry]]:
    """Yield what is stored on the sink's own topics, with the topic."""
    with ClientContext(ClientOptions(broker.service_url)) as context:
        for topic in broker.topics():
            if "__spark_sink-" in topic:
                end = Position.after(context.lookup.last_message_id(topic))
                with reading(broker, topic, end=end) as reader:
                    yield from ((topic, entry) for entry in reader)


def replicate(origin: EmbeddedBroker, broker: EmbeddedBroker) -> None:
    """Do with a sink's records what brokers do if nothing keeps them in their cluster."""
    for topic, entry in own_entries(origin):
        if topic not in broker.topics():
            broker.create_topic(topic)
        broker.append(topic, stored_entry(bytes(entry.payload), replicated_from="west"))


def test_records_stay_in_their_cluster(broker: EmbeddedBroker, sink: Sink) -> None:
    sink.run(0)
    found = [tuple(entry.metadata.replicate_to) for _, entry in own_entries(broker)]
    assert len(found) > 2 * TASKS
    assert set(found) == {("__local__",)}


@pytest.mark.parametrize("is_used", [False, True])
def test_what_another_cluster_has_recorded_is_not_carried_out(
    broker: EmbeddedBroker, sink: Sink, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transactions, which have the same numbers as some of this cluster, and its positions."""
    if is_used:
        sink.run(0)
    with EmbeddedBroker() as west:
        west.create_topic("t")
        there = Sink(west.service_url, "t", "s")
        there.run(0)
        there.run(1)
        die_at(monkeypatch, there, "after-decision", 2)
        replicate(west, broker)
    with PulsarClient(broker.service_url) as client:
        others = [client.new_transaction(600_000) for _ in range(3 * TASKS)]
        for batch in (1, 2):
            sink.run(batch)
        for transaction in others:
            transaction.commit()
    batches = (0, 1, 2) if is_used else (1, 2)
    assert seen(broker) == Counter(value for batch in batches for value in whole(batch))


def test_a_topic_with_foreign_records_is_an_error(broker: EmbeddedBroker, sink: Sink) -> None:
    sink.options["sinkStateTopic"] = "shared"
    sink.run(0)
    other = Sink(broker.service_url, "t", "other")
    other.options["sinkStateTopic"] = "shared"
    with pytest.raises(SinkStateError, match="another sink"):
        other.run(0)


@pytest.mark.parametrize("topic", ["records", "records-attempts"])
@pytest.mark.parametrize(
    "value",
    [b"m", b"1", b'{"k": 1, "v": 2}', b"[" * 100_000],
    ids=["text", "a number", "JSON", "deep"],
)
def test_a_topic_with_the_messages_of_others_is_told_as_such(
    broker: EmbeddedBroker, sink: Sink, topic: str, value: bytes
) -> None:
    """And not as one that has lost its subscription: to begin the sink anew would be no help."""
    sink.options["sinkStateTopic"] = "records"
    broker.create_topic(topic)
    for _ in range(2):
        store(broker, topic, [value], batched=False)
    for _ in range(2):
        with pytest.raises(SinkStateError, match="is no record of this sink") as caught:
            sink.writer().check()
        assert caught.value.topic == full(topic)
        assert caught.value.remedy.startswith("Give each sink a sinkStateTopic of its own")
    assert broker.open_transactions() == {}


def test_a_message_among_the_records_that_resembles_one_is_told_as_such(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    sink.run(0)
    records = state_topic(broker).removesuffix("-attempts")
    store(broker, records, [b'{"v": 1, "sink": "s"}'], batched=False)
    with pytest.raises(SinkStateError, match="is no record of this sink"):
        sink.run(1)


# --- what cannot be promised --------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes,told",
    [
        ({"sinkId": None}, "needs sinkId"),
        ({"topic": "non-persistent://public/default/t"}, "persistent topics"),
        ({"sinkStateTopic": "non-persistent://public/default/t"}, "persistent topics"),
        ({"topic": None}, "sinkStateTopic"),
        ({"deliveryGuarantee": "at-least-once"}, "only for exactly-once"),
        ({"pulsar.producer.producerName": "p"}, "producerName"),
    ],
)
def test_what_cannot_be_promised_is_told_by_the_options(
    changes: dict[str, str | None], told: str
) -> None:
    given = {**Sink("pulsar://h", "t", "s").options, **changes}
    options = {key: value for key, value in given.items() if value is not None}
    with pytest.raises((OptionError, UnsupportedFeature), match=told):
        parse_write_options(options, Scope.STREAM_WRITE)


ROWS_AMONG_RECORDS = [
    ("public/default/records", "records"),
    ("records-partition-3", "records"),
    ("records", "persistent://public/default/records-partition-0"),
    ("records-attempts", "records"),
    ("records-attempts-partition-0", "records"),
]
"""Topics that rows cannot be written to, and the sink's own."""


@pytest.mark.parametrize("topic,records", ROWS_AMONG_RECORDS)
def test_rows_cannot_be_written_to_a_topic_of_the_sinks_own(topic: str, records: str) -> None:
    options = {**Sink("pulsar://h", topic, "s").options, "sinkStateTopic": records}
    for scope in (Scope.WRITE, Scope.STREAM_WRITE):
        with pytest.raises(OptionError, match=r"records of this sink .*sinkStateTopic") as caught:
            parse_write_options(options, scope)
        assert "Set topic" in caught.value.remedy


def test_rows_cannot_be_written_to_the_records_of_a_sink_that_names_no_topic_for_them() -> None:
    options = Sink("pulsar://h", "t", "s").options
    found = parse_write_options(options).exactly_once
    assert found is not None
    with pytest.raises(OptionError, match="records of this sink"):
        parse_write_options({**options, "topic": found.state_topic})


def test_the_checkpoint_is_the_name_of_a_sink_without_one() -> None:
    options = {**Sink("pulsar://h", "t", "s").options, "checkpointLocation": "/c"}
    del options["sinkId"]
    found = parse_write_options(options, Scope.STREAM_WRITE).exactly_once
    assert found is not None
    assert found.sink_id == "/c"
    assert found.state_topic.startswith("persistent://public/default/__spark_sink-")


def write_to(broker: EmbeddedBroker, topic: str, records: str) -> None:
    """Run a task whose rows name a topic."""
    sink = Sink(broker.service_url, "t", "s")
    del sink.options["topic"]
    sink.options["sinkStateTopic"] = records
    frame = pa.RecordBatch.from_pydict({"value": ["x", "y"], "__topic": ["t", topic]})
    schema = StructType([*SCHEMA.fields, StructField("__topic", StringType())])
    writer = PulsarBatchWriter(parse_write_options(sink.options), schema, overwrite=False)
    writer.write(iter([frame]))


def test_rows_that_name_a_topic_without_transactions_are_an_error(broker: EmbeddedBroker) -> None:
    with pytest.raises(UnsupportedFeature, match="persistent topics"):
        write_to(broker, "non-persistent://public/default/n", "state")
    assert broker.open_transactions() == {}


@pytest.mark.parametrize("topic,records", ROWS_AMONG_RECORDS)
def test_rows_that_name_a_topic_of_the_sinks_own_are_an_error(
    broker: EmbeddedBroker, topic: str, records: str
) -> None:
    with pytest.raises(OptionError, match=r"records of this sink .*sinkStateTopic") as caught:
        write_to(broker, topic, records)
    assert "__topic" in caught.value.remedy
    assert broker.open_transactions() == {}
    assert broker.faults.seen("SEND") == 0


@pytest.mark.fault(83)
def test_a_broker_without_transactions_is_told_before_a_row_is_written() -> None:
    with EmbeddedBroker(transactions=False) as broker:
        broker.create_topic("t")
        with pytest.raises(UnsupportedFeature, match="transactionCoordinatorEnabled"):
            Sink(broker.service_url, "t", "s").writer().check()
        assert broker.faults.seen("SEND") == 0


@pytest.mark.fault(81)
def test_a_time_out_that_the_coordinator_does_not_allow_is_told_before_a_row_is_written(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    refused = broker.faults.error("NEW_TXN", pb.NotAllowedError, "2 minutes at most", times=None)
    sink.options["transactionTimeout"] = "2h"
    with refused, pytest.raises(PulsarError, match=r"7200 s \(transactionTimeout\).* 2 minutes"):
        sink.writer().check()
    assert broker.faults.seen("SEND") == 0
    sink.writer().check()
    assert broker.faults.log("NEW_TXN")[-1].body.txn_ttl_millis == 7_200_000
    assert broker.open_transactions() == {}


@pytest.mark.fault(81)
def test_a_time_out_that_has_passed_at_once_is_too_short(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    ended = broker.faults.error("END_TXN", pb.InvalidTxnStatus, times=None)
    sink.options["transactionTimeout"] = "1s"
    with ended, pytest.raises(PulsarError, match="ended before it could be used") as caught:
        sink.writer().check()
    assert caught.value.remedy == "Raise transactionTimeout."


@pytest.mark.fault(82)
def test_a_coordinator_that_no_broker_runs_has_nothing_to_do_with_the_time_out(
    broker: EmbeddedBroker, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(coordinators: Coordinators, timeout: float) -> None:
        raise from_server_error(pb.TransactionCoordinatorNotFound, "coordinator 3 not found")

    # What is left when all attempts have had this answer.
    monkeypatch.setattr(Coordinators, "check", check)
    with pytest.raises(TransactionCoordinatorNotFound) as caught:
        sink.writer().check()
    assert "is retried" in caught.value.remedy
    assert "transactionCoordinatorEnabled=true" in caught.value.remedy
    assert "initialize-transaction-coordinator-metadata" in caught.value.remedy
    assert "transactionTimeout" not in str(caught.value)
    assert broker.faults.seen("SEND") == 0


@pytest.mark.parametrize("command", ["PARTITIONED_METADATA", "LOOKUP"])
def test_a_missing_right_to_the_coordinators_is_told_with_the_remedy(
    broker: EmbeddedBroker, sink: Sink, command: str
) -> None:
    topic = str(COORDINATORS)
    denied = broker.faults.error(command, pb.AuthorizationError, topic=topic, times=None)
    with denied, pytest.raises(AuthorizationError, match="grant-permission pulsar/system"):
        sink.writer().check()
    assert broker.faults.seen("SEND") == 0


@pytest.mark.parametrize("command", ["PRODUCER", "SUBSCRIBE"])
def test_a_missing_right_to_the_records_is_told_before_a_row_is_written(
    broker: EmbeddedBroker, sink: Sink, command: str
) -> None:
    sink.options["sinkStateTopic"] = "state"
    broker.create_topic("state")
    denied = broker.faults.error(command, pb.AuthorizationError, topic="state", times=None)
    with denied, pytest.raises(AuthorizationError, match="state"):
        sink.writer().check()
    assert broker.faults.seen("SEND") == 0


def test_records_that_no_broker_creates_a_topic_for_are_told_with_the_remedy() -> None:
    with EmbeddedBroker(auto_create=False) as broker:
        broker.create_topic("t")
        sink = Sink(broker.service_url, "t", "s")
        sink.options["sinkStateTopic"] = "records"
        with pytest.raises(TopicNotFound, match="topics create persistent://public/default/rec"):
            sink.writer().check()
        broker.create_topic("records")
        sink.run(0)
        assert seen(broker) == Counter(whole(0))


def test_records_on_a_terminated_topic_are_told_with_the_remedy(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    sink.run(0)
    broker.terminate_topic(state_topic(broker).removesuffix("-attempts"))
    with pytest.raises(TopicTerminated, match="the sink's records was terminated") as caught:
        sink.run(1)
    assert "sinkStateTopic" in caught.value.remedy
    assert "sink --service-url URL" in caught.value.remedy
    assert seen(broker) == Counter(whole(0))


def test_announcements_on_a_terminated_topic_are_done_without(
    broker: EmbeddedBroker, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    sink.run(0)
    broker.terminate_topic(state_topic(broker).removesuffix("-attempts") + "-attempts")
    sink.run(1)
    assert "the sink's attempts was terminated" in caplog.text
    assert seen(broker) == Counter(whole(0) + whole(1))


def test_records_on_several_partitions_are_an_error(broker: EmbeddedBroker, sink: Sink) -> None:
    sink.options["sinkStateTopic"] = "state"
    broker.create_topic("state", partitions=2)
    with pytest.raises(SinkStateError, match="has partitions"):
        sink.writer().check()
