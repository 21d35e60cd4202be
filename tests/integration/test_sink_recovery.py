"""What killed tasks and drivers of an exactly-once sink leave, and what happens to its records."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.errors import (
    PulsarError,
    QuotaExceeded,
    QuotaExceededHold,
    SinkStateError,
    TransactionExpired,
)
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.spark.options.table import Scope
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.writing import (
    attempts,
    decision_log,
    exactly_once,
    fenced_topic,
    task_writer,
)
from pulsar_spark.spark.writing.attempts import Announcer, Attempt, attempts_topic
from pulsar_spark.spark.writing.fenced_topic import SUBSCRIPTION
from pulsar_spark.spark.writing.sink_records import Decision, Unit, Written
from pulsar_spark.spark.writing.task_writer import PulsarCommitMessage
from pulsar_spark.spark.writing.writers import ArrowStreamWriter, PulsarBatchWriter
from pulsar_spark.testing import EmbeddedBroker, TopicPolicies
from tests.integration.brokers import Broker, Embedded, Real, as_real
from tests.integration.messages import readable
from tests.integration.sink_job import SCHEMA, TASKS, Sink, rows, whole
from tests.integration.sinks import dying
from tests.integration.test_exactly_once import read_all
from tests.support.real_broker import OwnBroker
from tests.support.waiting import wait_until

StartBroker = Callable[[Mapping[str, str] | None], OwnBroker]


@contextmanager
def other_process(name: str) -> Iterator[None]:
    """Have tasks announce themselves as those of another process, which nobody spares."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attempts, "this_process", lambda: name)
        yield


def checked(sink: Sink) -> ArrowStreamWriter:
    """Return the writer of a driver that has started."""
    writer = sink.writer()
    writer.check()
    return writer


def state_topic(sink: Sink) -> str:
    options = parse_write_options(sink.options, Scope.STREAM_WRITE).exactly_once
    assert options is not None
    return options.state_topic


@pytest.fixture
def sink(broker: Broker) -> Sink:
    """A sink that has written micro-batch 0."""
    topic = broker.create_transactional_topic(partitions=0)
    made = Sink(broker.service_url, topic, topic.rpartition("/")[2])
    made.run(0)
    return made


def expect(broker: Broker, sink: Sink, *batches: int) -> None:
    """Fail unless readers see these micro-batches, each row once, and nothing holds them."""
    found = Counter(read_all(broker, sink.options["topic"], 0))
    assert found == Counter(value for batch in batches for value in whole(batch))


# --- what killed tasks and drivers leave open -----------------------------------------------------


@pytest.mark.fault(165)
def test_a_driver_that_starts_aborts_what_its_predecessors_tasks_left_open(
    broker: Broker, sink: Sink
) -> None:
    with other_process("killed"):
        killed = checked(sink)
        for task in range(TASKS):
            sink.write(1, task, killed)
    checked(sink)
    expect(broker, sink, 0)
    sink.run(1)
    expect(broker, sink, 0, 1)


@pytest.mark.fault(165)
def test_a_commit_aborts_the_other_attempts_of_its_tasks(broker: Broker, sink: Sink) -> None:
    writer = checked(sink)
    written = sink.write_all(1, writer)
    for task in range(TASKS):
        # The loser of a speculation: nobody tells it.
        sink.write(1, task, writer)
    sink.writer().commit(list(written), 1)
    expect(broker, sink, 0, 1)


@pytest.mark.fault(165)
@pytest.mark.parametrize("by", ["driver", "commit"])
def test_an_attempt_that_begins_too_late_gives_up_before_its_first_message(
    broker: Broker, sink: Sink, by: str
) -> None:
    writer = checked(sink)
    written = sink.write_all(1, writer)
    if by == "commit":
        sink.writer().commit(list(written), 1)
    else:
        checked(sink)
    sent: list[object] = []
    with pytest.MonkeyPatch.context() as patched, other_process("zombie"):
        patched.setattr(task_writer, "PartitionedProducer", lambda *given, **_: sent.append(given))
        with pytest.raises(SinkStateError, match="another driver has taken this sink over"):
            sink.write(1, 0, writer)
    assert not sent
    if by == "driver":
        sink.writer().commit(list(written), 1)
    expect(broker, sink, 0, 1)


@pytest.mark.fault(165)
def test_what_a_zombie_sends_into_an_aborted_transaction_is_never_seen(
    broker: Broker, sink: Sink
) -> None:
    held, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "task-announced":
            held.set()
            assert go_on.wait(60)

    with other_process("zombie"):
        writer = checked(sink)
        with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(1) as pool:
            patched.setattr(attempts, "reach", hold)
            zombie = pool.submit(sink.write, 1, 0, writer)
            assert held.wait(60)
            checked(sink)
            go_on.set()
            # It ends with its error or with receipts that count for nothing.
            failed = zombie.exception(60)
    messages = [] if failed is not None else [zombie.result()]
    sink.run(1)
    if messages:
        with pytest.raises((SinkStateError, TransactionExpired)):
            sink.writer().commit(list(messages), 2)
    expect(broker, sink, 0, 1)


@pytest.mark.fault(165)
@pytest.mark.parametrize(
    "module,point",
    [
        (task_writer, "task-begun"),
        (attempts, "task-announced"),
        (task_writer, "task-midway"),
        (task_writer, "task-sent"),
        (task_writer, "task-left"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_task_that_is_killed_holds_nobody_once_a_driver_starts(
    broker: Broker, sink: Sink, module: object, point: str
) -> None:
    writer = checked(sink)
    with other_process("killed"), pytest.MonkeyPatch.context() as patched:
        patched.setattr(task_writer.TaskWriter, "abort", lambda self, **_: None)
        with dying(point, module):
            sink.write(1, 0, writer)
    checked(sink)
    expect(broker, sink, 0)


@pytest.mark.fault(165)
@pytest.mark.parametrize("point", ["attempts-fenced", "attempts-aborted"])
def test_a_driver_that_dies_while_it_aborts_leaves_that_to_the_next_one(
    broker: Broker, sink: Sink, point: str
) -> None:
    with other_process("killed"):
        sink.write(1, 0, checked(sink))
    with dying(point, attempts):
        checked(sink)
    checked(sink)
    expect(broker, sink, 0)


@pytest.mark.fault(165, 166)
@pytest.mark.parametrize("how", ["expired", "skipped"])
def test_announcements_that_are_not_retained_any_more_are_read_as_long_as_they_are_stored(
    broker: Broker, sink: Sink, how: str
) -> None:
    with other_process("killed"):
        sink.write(1, 0, checked(sink))
    move_over(broker, attempts_topic(state_topic(sink)), how)
    checked(sink)
    expect(broker, sink, 0)


@pytest.mark.fault(165, 166)
@pytest.mark.parametrize("error", [QuotaExceeded, QuotaExceededHold])
def test_a_task_whose_announcement_a_quota_refuses_writes_all_the_same(
    broker: Broker,
    sink: Sink,
    error: type[PulsarError],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(announcer: Announcer, attempt: Attempt) -> None:
        raise error("the quota is exceeded")

    writer = checked(sink)
    with monkeypatch.context() as patched:
        patched.setattr(Announcer, "announce", refuse)
        written = sink.write_all(1, writer)
    assert "could not be announced" in caplog.text
    sink.writer().commit(list(written), 1)
    expect(broker, sink, 0, 1)


@pytest.mark.fault(165)
def test_a_driver_that_dies_before_its_decision_leaves_its_tasks_to_the_next_one(
    broker: Broker, sink: Sink
) -> None:
    with other_process("killed"):
        writer = checked(sink)
        written = sink.write_all(1, writer)
        with dying("before-decision"):
            sink.writer().commit(list(written), 1)
    checked(sink)
    expect(broker, sink, 0)


@pytest.mark.fault(165)
def test_a_write_in_the_same_process_is_not_taken_for_a_killed_one(
    broker: Broker, sink: Sink
) -> None:
    writer = checked(sink)
    written = sink.write_all(1, writer)
    # A writer that is made only to commit is checked, too, where nobody can tell.
    checked(sink).commit(list(written), 1)
    expect(broker, sink, 0, 1)


@pytest.mark.fault(165)
def test_a_driver_whose_transactions_another_one_aborted_is_told_so(
    broker: Broker, sink: Sink
) -> None:
    with other_process("older"):
        older = checked(sink)
        written = sink.write_all(1, older)
    sink.run(1)
    with pytest.raises(SinkStateError, match="another driver has taken this sink over"):
        sink.writer().commit(list(written), 2)
    expect(broker, sink, 0, 1)


@pytest.mark.fault(165)
@pytest.mark.parametrize("known", [True, False], ids=["one task succeeded", "none succeeded"])
def test_a_failed_write_aborts_what_its_killed_tasks_left_open(
    broker: Broker, sink: Sink, known: bool
) -> None:
    writer = checked(sink)
    with other_process("killed"):
        sink.write(1, 0, writer)
    messages = [sink.write(1, 1, writer)] if known else []
    sink.writer().abort([*messages, None], 1)
    expect(broker, sink, 0)


@pytest.mark.fault(165)
def test_an_attempt_waits_for_one_answer_more() -> None:
    """It connects to announce itself while its transaction begins."""
    with EmbeddedBroker() as own:
        own.create_topic("t")
        sink = Sink(own.service_url, "t", "s")
        sink.run(0)
        writer, plain = checked(sink), sink.writer()
        own.faults.forget()
        seen = []
        commands = ("LOOKUP", "PARTITIONED_METADATA", "PRODUCER", "SEND", "NEW_TXN", "SUBSCRIBE")
        for one in (plain, writer):
            sink.write(1, 0, one)
            seen.append({command: own.faults.seen(command) for command in commands})
            own.faults.forget()
        more = {command: seen[1][command] - seen[0][command] for command in commands}
        more = {command: count for command, count in more.items() if count}
        # Its broker is known: the first run of this process has announced there.
        assert more == {"PRODUCER": 1, "SEND": 1}


@pytest.mark.fault(165)
def test_a_task_without_rows_announces_nothing(broker: Broker, sink: Sink) -> None:
    writer = checked(sink)
    with pytest.MonkeyPatch.context() as patched:
        patched.delattr(task_writer, "Announcer")
        empty = writer.write(iter([]))
    sink.writer().commit([empty], 1)
    expect(broker, sink, 0)


@pytest.mark.fault(165)
def test_announcements_are_acknowledged(broker: Broker, sink: Sink) -> None:
    for batch in (1, 2, 3):
        sink.run(batch)
    with (
        ClientContext(parse_write_options(sink.options, Scope.STREAM_WRITE).client) as context,
        fenced_topic.FencedTopic(context, attempts_topic(state_topic(sink)), "") as log,
    ):
        log.attach()
        end = log.end()
        assert end.done is not None
        left = log.read(end.done, end.last)
    assert len(left) <= 1


@pytest.mark.fault(165)
def test_where_attempts_cannot_be_announced_the_sink_works_and_names_the_topic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with EmbeddedBroker(auto_create=False) as own:
        own.create_topic("t")
        own.create_topic("records")
        sink = Sink(own.service_url, "t", "s")
        sink.options["sinkStateTopic"] = "records"
        writer = checked(sink)
        expected = "Create persistent://public/default/records-attempts, without partitions"
        assert expected in caplog.text
        written = sink.write_all(0, writer)
        sink.writer().commit(list(written), 0)
        assert own.open_transactions() == {}
        assert own.internal_errors == ()


@pytest.mark.fault(165)
def test_more_tasks_than_the_topic_of_attempts_allows_producers(broker: Broker) -> None:
    namespace = broker.create_namespace()
    topic = broker.create_topic(broker.unique_topic(namespace=namespace))
    records = broker.create_topic(broker.unique_topic("records", namespace))
    sink = Sink(broker.service_url, topic, "s")
    sink.options["sinkStateTopic"] = records
    limited = broker.create_topic(attempts_topic(records))
    if isinstance(broker, Embedded):
        broker.own.set_policies(limited, TopicPolicies(max_producers=2))
    else:
        as_real(broker).own.admin("POST", f"namespaces/{namespace}/maxProducersPerTopic", 8)
    writer = checked(sink)
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(lambda task: sink.write(0, task, writer), range(16)))
    sink.writer().commit(list(written), 0)
    found = Counter(read_all(broker, topic, 0))
    assert found == Counter(value for task in range(16) for value in rows(0, task))


@pytest.mark.slow
@pytest.mark.fault(165)
def test_5000_attempts_are_aborted_in_a_moment(broker: Broker, sink: Sink) -> None:
    turn = checked(sink)._plan.turn
    assert turn is not None
    assert turn.announcing is not None
    where, topic = turn.announcing, sink.options["topic"]
    options = parse_write_options(sink.options, Scope.STREAM_WRITE).client
    with ClientContext(options) as context:

        def attempt(number: int) -> TxnId:
            txn = context.coordinators.begin(3600.0)
            with Announcer(context, where) as announcer:
                announcer.announce(Attempt(txn, "s", f"attempt {number}", topic, time.time()))
            return txn

        with other_process("killed"), ThreadPoolExecutor(16) as pool:
            begun = list(pool.map(attempt, range(5000)))
        started = time.monotonic()
        checked(sink)
        took = time.monotonic() - started
        ends = context.coordinators.end_all(begun[::100], commit=True)
    assert all(error is not None for error in ends.values())
    # 10 s are promised; a busy machine can need more.
    assert took < 30
    logging.getLogger(__name__).info("5,000 attempts were aborted in %.1f s", took)


# --- records --------------------------------------------------------------------------------------


@pytest.mark.fault(166)
@pytest.mark.parametrize("how", ["expired", "skipped"])
def test_records_that_are_not_retained_any_more_are_read_as_long_as_they_are_stored(
    broker: Broker, sink: Sink, how: str
) -> None:
    sink.run(1)
    move_over(broker, state_topic(sink), how)
    sink.run(1)
    expect(broker, sink, 0, 1)
    move_over(broker, state_topic(sink), how)
    sink.run(2)
    sink.run(2)
    expect(broker, sink, 0, 1, 2)


def move_over(broker: Broker, topic: str, how: str) -> None:
    """Move the subscription of the records over the last one."""
    if how == "expired":
        time.sleep(1.1)
        broker.expire(topic, SUBSCRIPTION, 1)
    else:
        broker.reset_subscription(topic, SUBSCRIPTION, to_end=True)


@pytest.mark.fault(166)
def test_records_that_are_gone_are_told_before_the_first_row(broker: Broker, sink: Sink) -> None:
    sink.run(1)
    move_over(broker, state_topic(sink), "skipped")
    broker.trim(state_topic(sink))
    for _ in range(2):
        with pytest.raises(SinkStateError, match="records of the sink are missing") as caught:
            checked(sink)
        assert f"{state_topic(sink)} --reset " in caught.value.remedy
    expect(broker, sink, 0, 1)


@pytest.mark.fault(166)
def test_a_sink_that_has_begun_and_written_nothing_begins(broker: Broker) -> None:
    topic = broker.create_transactional_topic(partitions=0)
    sink = Sink(broker.service_url, topic, topic.rpartition("/")[2])
    for module, point in ((decision_log, "records-fenced"), (attempts, "attempts-fenced")):
        with dying(point, module):
            checked(sink)
    sink.run(0)
    expect(broker, sink, 0)


@pytest.mark.slow
@pytest.mark.real_broker
@pytest.mark.fault(166)
@pytest.mark.parametrize("policy", ["producer_exception", "producer_request_hold"])
def test_a_backlog_quota_by_age_does_not_lock_a_sink_out(
    start_real_broker: StartBroker, policy: str
) -> None:
    own = start_real_broker(
        {"backlogQuotaCheckIntervalInSeconds": "1", "transactionCoordinatorEnabled": "true"}
    )
    broker = Real(own)
    namespace = broker.create_namespace()
    topic = broker.create_topic(broker.unique_topic(namespace=namespace))
    sink = Sink(broker.service_url, topic, "s")
    sink.run(0)
    with other_process("killed"):
        sink.write(1, 0, checked(sink))
    quota = {"limitSize": -1, "limitTime": 1, "policy": policy}
    own.admin("POST", f"namespaces/{namespace}/backlogQuota?backlogQuotaType=message_age", quota)
    # A quota by age looks at closed ledgers only.
    for name in (state_topic(sink), attempts_topic(state_topic(sink))):
        own.unload(name)

    def is_locked(name: str) -> bool:
        with PulsarClient(own.service_url, operation_timeout_seconds=3) as client:
            try:
                client.create_producer(name).close()
            except PulsarError:
                return True
        return False

    wait_until(lambda: is_locked(state_topic(sink)), "no quota is exceeded")
    sink.run(0)
    sink.run(1)
    expect(broker, sink, 0, 1)


# --- two drivers, and runs ------------------------------------------------------------------------


@pytest.mark.fault(167)
def test_of_two_drivers_at_the_same_time_one_goes_on(broker: Broker, sink: Sink) -> None:
    """Nothing is missing that either reported as committed."""
    committed: Counter[str] = Counter(whole(0))
    errors: list[PulsarError] = []
    lock = threading.Lock()

    def drive(name: str) -> None:
        with lock:
            writer = checked(sink)
            batch = sink.write_all(1, writer)
        try:
            sink.writer().commit(list(batch), 1)
            committed.update(whole(1) if not committed[whole(1)[0]] else [])
        except PulsarError as error:
            errors.append(error)

    threads = [threading.Thread(target=drive, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        assert isinstance(error, SinkStateError), error
        assert "another driver" in str(error)
        assert "visible" in str(error)
    assert len(errors) < 2
    assert Counter(read_all(broker, sink.options["topic"], 0)) == committed


@pytest.mark.fault(167)
def test_a_driver_that_was_overtaken_leaves_the_newer_one_alone_when_it_gives_up(
    broker: Broker, sink: Sink
) -> None:
    with other_process("older"):
        older = checked(sink)
        given_up = sink.write_all(1, older)
    newer = checked(sink)
    written = sink.write_all(1, newer)
    sink.writer().abort(list(given_up), 1)
    sink.writer().commit(list(written), 1)
    expect(broker, sink, 0, 1)


@pytest.mark.fault(167)
def test_a_driver_that_was_overtaken_leaves_the_newer_one_alone_when_it_commits(
    broker: Broker, sink: Sink
) -> None:
    with other_process("older"):
        older = checked(sink)
        given_up = sink.write_all(1, older)
    with other_process("newer"):
        newer = checked(sink)
        written = sink.write_all(1, newer)
    with other_process("older"), pytest.raises(SinkStateError, match="another driver"):
        sink.writer().commit(list(given_up), 1)
    sink.writer().commit(list(written), 1)
    expect(broker, sink, 0, 1)


@pytest.mark.fault(167)
def test_a_driver_that_is_overtaken_while_it_starts_writes_nothing_unannounced() -> None:
    """As one whose process stood still for a while."""
    with EmbeddedBroker() as broker:
        sink = Sink(broker.service_url, broker.create_topic("t"), "s")
        sink.run(0)

        def stand_still(point: str) -> None:
            if point == "attempts-fenced" and not stood_still.is_set():
                stood_still.set()
                broker.faults.disconnect()
                others.append(checked(sink))
                broker.faults.disconnect()

        stood_still, others = threading.Event(), list[ArrowStreamWriter]()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(attempts, "reach", stand_still)
            with pytest.raises(SinkStateError, match="another driver"):
                sink.write(1, 0, checked(sink))
        written = sink.write_all(1, others[0])
        sink.writer().commit(list(written), 1)
        assert readable(broker.service_url, "t") == Counter([*whole(0), *whole(1)])


class Runs:
    """Batch writes of a sink; each call is a job."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.options = {
            "service.url": broker.service_url,
            "topic": topic,
            "deliveryGuarantee": "exactly-once",
            "sinkId": "runs",
            "sinkStateTopic": f"{topic}-records",
        }

    def job(self, run: str | None, **options: str) -> PulsarBatchWriter:
        """Return a job's writer, checked."""
        given = {**self.options, **options, **({} if run is None else {"sinkRunId": run})}
        writer = PulsarBatchWriter(parse_write_options(given), SCHEMA, overwrite=False)
        writer.check()
        return writer

    def written(self, writer: PulsarBatchWriter, *values: str) -> PulsarCommitMessage:
        """Run its only task."""
        return writer.write(iter([pa.RecordBatch.from_pydict({"value": list(values)})]))

    def opened(self) -> contextlib.AbstractContextManager[exactly_once.OpenSink]:
        """Take the sink over."""
        options = parse_write_options(self.options)
        assert options.exactly_once is not None
        return exactly_once.opened(options.client, options.exactly_once)

    def save(self, run: str | None, *values: str, **options: str) -> None:
        """Write rows from the check to the commit."""
        writer = self.job(run, **options)
        message = self.written(writer, *values)
        try:
            writer.commit([message])
        except PulsarError:
            writer.abort([message])
            raise


@pytest.fixture
def runs(broker: Broker) -> Runs:
    return Runs(broker, broker.create_transactional_topic(partitions=0))


def found_in(broker: Broker, runs: Runs) -> list[str]:
    return sorted(read_all(broker, runs.options["topic"], 0))


@pytest.mark.fault(167, 169)
@pytest.mark.parametrize("spelling", ["{}", "file:{}", "file://{}/"])
def test_the_driver_of_another_query_leaves_the_tasks_of_a_sinks_own_query_alone(
    broker: Broker, sink: Sink, tmp_path: Path, spelling: str
) -> None:
    with other_process("own"):
        writer = checked(sink)
        own = [replace(sink.write(1, task, writer), query="own query") for task in range(TASKS)]
        sink.writer().commit(list(own), 1)
        writer = checked(sink)
        own = [replace(sink.write(2, task, writer), query="own query") for task in range(TASKS)]
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": "another query"}))
    other = Sink(broker.service_url, sink.options["topic"], sink.options["sinkId"])
    other.options["checkpointLocation"] = spelling.format(checkpoint)
    with pytest.raises(SinkStateError, match="belongs to the query own query"):
        checked(other)
    sink.writer().commit(list(own), 2)
    expect(broker, sink, 0, 1, 2)


@pytest.mark.fault(168)
def test_a_run_that_comes_again_is_left_out(broker: Broker, runs: Runs) -> None:
    for run in ("monday", "tuesday", "monday", "tuesday"):
        runs.save(run, f"{run} 1", f"{run} 2")
    runs.save(None, "by hand")
    runs.save(None, "by hand")
    expected = ["by hand", "by hand", "monday 1", "monday 2", "tuesday 1", "tuesday 2"]
    assert found_in(broker, runs) == expected


@pytest.mark.fault(168)
def test_a_run_that_comes_again_with_other_rows_is_refused(broker: Broker, runs: Runs) -> None:
    runs.save("monday", "a")
    with pytest.raises(SinkStateError, match="run monday is committed with other rows"):
        runs.save("monday", "a", "b")
    runs.save("monday", "a", "b", sinkRepeats="first")
    assert found_in(broker, runs) == ["a"]


@pytest.mark.fault(168)
@pytest.mark.parametrize("later", [0, 3], ids=["at once", "behind a base"])
def test_a_run_of_the_same_name_to_another_topic_is_no_repeated_one(
    broker: Broker, runs: Runs, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    monkeypatch.setattr(decision_log, "_MANY_RECORDS", 1)
    other = broker.create_transactional_topic(partitions=0)
    runs.save("monday", "a", "b")
    for run in range(later):
        runs.save(f"{run}", f"row {run}")
    with pytest.raises(
        SinkStateError, match=r"run monday is committed already, to other topics.*--accept runs"
    ):
        runs.save("monday", "a", "b", topic=other)
    runs.save("monday b", "a", "b", topic=other)
    # Nothing is written where what came first shall stay.
    runs.save("monday", "a", "b", topic=other, sinkRepeats="first")
    assert sorted(read_all(broker, other, 0)) == ["a", "b"]
    runs.save("monday", "a", "b")
    with runs.opened() as sink:
        sink.accept()
    runs.save("monday", "a", "b", topic=other)
    with pytest.raises(SinkStateError, match="to other topics"):
        runs.save("monday", "a", "b", topic=other)


@pytest.mark.fault(168)
@pytest.mark.parametrize("following,refused", [(None, True), ("monday", False), ("tuesday", False)])
def test_an_unfinished_write_is_finished_first(
    broker: Broker, runs: Runs, following: str | None, refused: bool
) -> None:
    killed = runs.job("monday")
    message = runs.written(killed, "monday")
    with dying("after-decision"):
        killed.commit([message])
    if refused:
        with pytest.raises(
            SinkStateError, match=r"run monday with 1 messages. It is committed now"
        ):
            runs.save(following, "other")
    value = "monday" if following == "monday" else "other"
    runs.save(following, value)
    assert found_in(broker, runs) == sorted({"monday", value})


@pytest.mark.fault(168)
def test_run_1_is_known_after_3000_others() -> None:
    with EmbeddedBroker() as own:
        own.create_topic("t")
        runs = Runs(Embedded(own), "persistent://public/default/t")
        first = ("0", "1")
        for run in first:
            runs.save(run, f"row {run}")
        remember(runs, 3000)
        for run in first:
            runs.save(run, f"row {run}")
        with pytest.raises(SinkStateError, match="run 1 is committed with other rows"):
            runs.save("1", "row 1", "row 2")
        with pytest.raises(SinkStateError, match="run 2999 is committed with other rows"):
            runs.save("2999", "row 2999")
        runs.save("3000", "row 3000")
        assert found_in(Embedded(own), runs) == ["row 0", "row 1", "row 3000"]
        # What is retained stays bounded.
        (kept,) = own.subscriptions(runs.options["sinkStateTopic"]).values()
        assert kept.backlog < 2 * decision_log._MANY_RECORDS


def remember(runs: Runs, count: int) -> None:
    """Record runs that have written nothing to the topic, as many writes in a row do."""
    for start in range(2, count, 1000):
        with runs.opened() as sink:
            for run in range(start, min(start + 1000, count)):
                sink.log.finish(Decision(Unit(job="j", run=str(run)), (), Written(7)))
