"""``sink`` shows what sinks have committed and decided, and repairs them."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.cli import main as cli
from pulsar_spark.client import MessageId, PulsarClient
from pulsar_spark.engine import attaching
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.errors import PulsarError, SinkStateError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import EARLIEST_POSITION
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.writing import attempts, exactly_once
from pulsar_spark.spark.writing.exactly_once import opened
from pulsar_spark.spark.writing.fenced_topic import SUBSCRIPTION, read_all
from pulsar_spark.spark.writing.sink_records import known_as
from pulsar_spark.spark.writing.task_writer import transactions_of
from pulsar_spark.spark.writing.writers import PulsarBatchWriter
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.sink_job import ROWS, SCHEMA, TASKS, Sink, whole

Run = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        made.create_topic("t")
        yield made
        assert made.internal_errors == ()


@pytest.fixture
def run(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        status = cli.main(
            ["sink", "--service-url", broker.service_url, "--topic", "t", "--json", *arguments]
        )
        return status, json.loads(capsys.readouterr().out)

    return command


def test_what_was_decided_is_shown_and_finished(broker: EmbeddedBroker, run: Run) -> None:
    assert run() == (0, [])
    sink = Sink(broker.service_url, "t", "orders")
    sink.run(0)
    messages = sink.write_all(1)
    refused = broker.faults.error("END_TXN", pb.AuthorizationError, times=None)
    with refused, pytest.raises(PulsarError):
        sink.writer().commit(list(messages), 1)
    status, (row,) = run("--list")
    topic = row.pop("topic")
    assert topic.startswith("persistent://public/default/__spark_sink-")
    assert row.pop("age") >= 0
    expected = {
        "sink": "orders",
        "kind": "stream",
        "query": None,
        "committed": "batch 0",
        "messages": TASKS * ROWS,
        "runs": None,
        "oldest_run": None,
        "unfinished": "batch 1",
        "transactions": TASKS,
    }
    assert (status, row) == (0, expected)
    status, (row,) = run("--finish", "orders")
    assert status == 0
    assert (row["committed"], row["unfinished"]) == ("batch 1", None)
    assert broker.open_transactions() == {}


@pytest.mark.fault(79, 81)
def test_what_has_expired_in_part_before_a_commit_is_dropped_with_an_error(
    broker: EmbeddedBroker,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def die(point: str) -> None:
        if point == "after-decision":
            raise KeyboardInterrupt

    sink = Sink(broker.service_url, "t", "orders")
    sink.run(0)
    messages = sink.write_all(1)
    with monkeypatch.context() as patched:
        patched.setattr(exactly_once, "reach", die)
        with pytest.raises(KeyboardInterrupt):
            sink.writer().commit(list(messages), 1)
    with ClientContext(ClientOptions(broker.service_url)) as context:
        context.coordinators.end_all(transactions_of(messages[:1]), commit=False)
    where = ["sink", "--service-url", broker.service_url, "--topic", "t"]
    assert cli.main([*where, "--finish", "orders"]) == 1
    assert "transaction expired, batch 1 not written" in capsys.readouterr().err
    assert broker.open_transactions() == {}
    status, (row,) = run("--finish", "orders")
    assert (status, row["committed"], row["unfinished"]) == (0, "batch 0", None)


@pytest.fixture
def refused(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that fails with status 1, and return its error: it has changed nothing."""

    def command(*arguments: str) -> str:
        before = state(broker)
        place = ["--service-url", broker.service_url, "--topic", "t"]
        assert cli.main(["sink", *place, *arguments]) == 1
        assert state(broker) == before
        shown = capsys.readouterr()
        assert shown.out == ""
        return shown.err

    return command


def state(broker: EmbeddedBroker) -> dict[str, tuple[object, int]]:
    """Return each topic's durable subscriptions and number of messages."""
    return {
        name: (set(broker.subscriptions(name)), broker.stats(name).messages_in)
        for name in broker.topics()
    }


CHECKPOINT = "s3a://KEY:{}@bucket/checkpoints/orders"
CREDENTIAL = "canary/8b1f+x="


def records(broker: EmbeddedBroker, topic: str) -> list[str]:
    """Return the ids in a sink's records."""
    with ClientContext(ClientOptions(broker.service_url)) as context:
        last = context.lookup.last_message_id(topic)
        found = read_all(context, topic, EARLIEST_POSITION, last)
    return [json.loads(payload)["sink"] for _, payload in found]


@pytest.mark.fault(149)
def test_the_credentials_of_a_checkpoint_are_neither_stored_nor_shown(
    broker: EmbeddedBroker, run: Run, refused: Callable[..., str]
) -> None:
    sink = Sink(broker.service_url, "t", CHECKPOINT.format(CREDENTIAL))
    sink.run(0)
    ((status, (row,)), text) = run("--list"), str(parse_write_options(sink.options))
    assert (status, row["committed"]) == (0, "batch 0")
    assert row["sink"].startswith("s3a://***@bucket/checkpoints/orders#")
    stored = records(broker, row["topic"])
    assert set(stored) == {row["sink"]}
    # An id that is shown is one that the command takes.
    for given in (row["sink"], CHECKPOINT.format(CREDENTIAL)):
        status, (again,) = run("--finish", given)
        # Only time has gone on.
        assert (status, {**again, "age": row["age"]}) == (0, row)
    error = refused("--finish", CHECKPOINT.format("other-canary"))
    assert "s3a://***@bucket" in error
    for shown in (str(row), text, *stored, error):
        assert "canary" not in shown


@pytest.mark.fault(149)
def test_sinks_whose_ids_differ_in_their_credentials_alone_are_two(broker: EmbeddedBroker) -> None:
    for name in ("a", "b"):
        sink = Sink(broker.service_url, "t", CHECKPOINT.format(f"canary-{name}"))
        sink.options["sinkStateTopic"] = "records"
        if name == "a":
            sink.run(0)
    with pytest.raises(SinkStateError, match="another sink") as caught:
        sink.run(1)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "sink_id",
    [
        "orders",
        "team@orders",
        "hdfs://namenode:8020/checkpoints/a@b",
        "abfss://container@account.dfs.core.windows.net/checkpoints",
        "basic orders-daily",
        "token:orders",
    ],
)
def test_an_id_without_credentials_is_kept(sink_id: str) -> None:
    assert known_as(sink_id) == sink_id


def test_an_unknown_id_is_an_error_and_creates_nothing(
    broker: EmbeddedBroker, run: Run, refused: Callable[..., str]
) -> None:
    Sink(broker.service_url, "t", "orders").run(0)
    error = refused("--finish", "oders")
    assert "'oders'" in error
    assert "--list" in error
    assert "sinkStateTopic" in error
    assert [row["sink"] for row in run("--list")[1]] == ["orders"]


@pytest.mark.parametrize("partitions", [0, 2])
def test_an_id_is_unknown_on_a_topic_without_records(
    partitions: int, broker: EmbeddedBroker, refused: Callable[..., str]
) -> None:
    broker.create_topic("empty", partitions=partitions)
    assert "'orders'" in refused("--finish", "orders", "--option", "sinkStateTopic=empty")


def test_the_records_of_another_sink_are_left_alone(
    broker: EmbeddedBroker, refused: Callable[..., str]
) -> None:
    sink = Sink(broker.service_url, "t", "orders")
    sink.options["sinkStateTopic"] = "records"
    sink.run(0)
    error = refused("--finish", "oders", "--option", "sinkStateTopic=records")
    assert "'oders'" in error
    assert "'orders'" in error
    # Its query can go on.
    sink.run(1)


def test_a_topic_of_something_else_is_told(broker: EmbeddedBroker, run: Run) -> None:
    Sink(broker.service_url, "records", "s").run(0)
    broker.create_topic("other")
    status, (row,) = run("--option", "sinkStateTopic=records")
    assert status == 1
    assert "another sink" in row["unfinished"]


def test_without_a_topic_the_sinks_of_the_default_namespace_are_shown(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.create_topic("a/b/t")
    Sink(broker.service_url, "t", "ours").run(0)
    Sink(broker.service_url, "a/b/t", "theirs").run(0)
    for place, expected in (([], "ours"), (["--topic", "a/b/t"], "theirs")):
        assert cli.main(["sink", "--service-url", broker.service_url, *place, "--json"]) == 0
        assert [row["sink"] for row in json.loads(capsys.readouterr().out)] == [expected]


# --- as a user ------------------------------------------------------------------------------------


def job(broker: EmbeddedBroker, run: str | None, values: list[str], **options: str) -> None:
    """Write rows as a batch write does, from its check to its commit."""
    given = {**Sink(broker.service_url, "t", "runs").options, **options}
    given |= {} if run is None else {"sinkRunId": run}
    writer = PulsarBatchWriter(parse_write_options(given), SCHEMA, overwrite=False)
    writer.check()
    written = writer.write(iter([pa.RecordBatch.from_pydict({"value": values})]))
    try:
        writer.commit([written])
    except PulsarError:
        writer.abort([written])
        raise


def decide(broker: EmbeddedBroker, sink: Sink, batch: int) -> None:
    """Lose a driver after its decision."""
    messages = sink.write_all(batch)
    refused = broker.faults.error("END_TXN", pb.AuthorizationError, times=None)
    with refused, pytest.raises(PulsarError):
        sink.writer().commit(list(messages), batch)


@pytest.mark.fault(181)
def test_a_stream_is_listed_with_its_query(broker: EmbeddedBroker, run: Run) -> None:
    sink = Sink(broker.service_url, "t", "orders")
    messages = [replace(sink.write(0, task), query="the-query") for task in range(TASKS)]
    sink.writer().commit(list(messages), 0)
    (row,) = run("--list")[1]
    shown = (row["kind"], row["query"], row["committed"], row["messages"])
    assert shown == ("stream", "the-query", "batch 0", TASKS * ROWS)


@pytest.mark.fault(181)
def test_batch_writes_are_listed_with_their_runs(broker: EmbeddedBroker, run: Run) -> None:
    for name in ("2026-01-01", "2026-01-02", "2026-01-03"):
        job(broker, name, ["a", "b"])
    (row,) = run()[1]
    assert 0 <= row.pop("age") < 3600
    del row["topic"]
    assert row == {
        "sink": "runs",
        "kind": "batch writes",
        "query": None,
        "committed": "run 2026-01-03",
        "messages": 2,
        "runs": 3,
        "oldest_run": "2026-01-01",
        "unfinished": None,
        "transactions": 0,
    }
    job(broker, None, ["c"])
    (row,) = run()[1]
    assert row["committed"].startswith("job ")
    assert (row["messages"], row["runs"]) == (1, 3)


@pytest.mark.fault(181)
def test_without_json_it_is_a_table(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    Sink(broker.service_url, "t", "orders").run(0)
    where = ["sink", "--service-url", broker.service_url, "--topic", "t"]
    for arguments, column in ([], "oldest_run"), (["--abort", "orders"], "aborted"):
        assert cli.main([*where, *arguments]) == 0
        header, *_, row = capsys.readouterr().out.strip().splitlines()
        assert column in header.lower()
        assert "orders" in row
        assert "batch 0" in row


@pytest.mark.fault(181)
def test_what_cannot_be_aborted_is_an_error(
    broker: EmbeddedBroker, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = Sink(broker.service_url, "t", "orders")
    left_open(sink)
    where = ["sink", "--service-url", broker.service_url, "--topic", "t"]
    of_another_role = "Client (me) is neither the owner of the transaction (0,1) nor a super user"
    for code, text in ((pb.AuthorizationError, "no"), (pb.TransactionNotFound, of_another_role)):
        for command in ("END_TXN", "ADD_PARTITION_TO_TXN"):
            broker.faults.error(command, code, text, times=None)
        assert cli.main([*where, "--abort", "orders"]) == 1
        assert "may still be open; 0 were aborted" in capsys.readouterr().err
        broker.faults.clear()
    status, (row,) = run("--abort", "orders")
    assert (status, row["aborted"]) == (0, TASKS)


def left_open(sink: Sink) -> None:
    """Let the tasks of a driver write that is killed."""
    writer = sink.writer()
    writer.check()
    for task in range(TASKS):
        sink.write(1, task, writer)


def write_other_rows(sink: Sink, batch: int, text: str = "another") -> None:
    """Commit other rows under a micro-batch's number."""
    writer = sink.writer()
    writer.check()
    found = pa.RecordBatch.from_pydict({"value": [text]})
    sink.writer().commit([writer.write(iter([found]))], batch)


@pytest.mark.fault(181)
def test_accept_lets_a_repeated_batch_have_other_rows_once(
    broker: EmbeddedBroker, run: Run
) -> None:
    sink = Sink(broker.service_url, "t", "orders")
    sink.run(0)
    with pytest.raises(SinkStateError) as caught:
        write_other_rows(sink, 0)
    # The error prints the command.
    (printed,) = re.findall(
        r"python -m pulsar_spark (sink \S+ \S+ .*? --accept orders)", str(caught.value)
    )
    arguments = shlex.split(printed.replace("URL", broker.service_url))
    assert cli.main(arguments) == 0
    write_other_rows(sink, 0)
    sink.run(1)
    with pytest.raises(SinkStateError):
        write_other_rows(sink, 1)
    assert set(read(broker)) == {*whole(0), *whole(1)}
    assert len(read(broker)) == 2 * TASKS * ROWS


@pytest.mark.fault(181)
def test_accept_leaves_out_what_a_restored_checkpoint_repeats_once_and_in_order(
    broker: EmbeddedBroker, run: Run
) -> None:
    sink = Sink(broker.service_url, "t", "orders")
    for batch in range(4):
        sink.run(batch)

    def refused(batch: int, text: str = "another") -> None:
        with pytest.raises(SinkStateError, match="--accept orders"):
            write_other_rows(sink, batch, text)

    refused(1)
    (row,) = run("--accept", "orders")[1]
    assert row["accepted"] == (
        "micro-batches up to batch 3, one after the other, with the rows that come first, new "
        "ones too"
    )
    for batch in (1, 2):
        # Spark may repeat it, with the same rows.
        for _ in range(2):
            write_other_rows(sink, batch)
    for batch, text in ((0, "another"), (1, "another"), (2, "different")):
        refused(batch, text)
    write_other_rows(sink, 3)
    refused(3, "different")
    refused(2)
    write_other_rows(sink, 3)
    sink.run(4)
    refused(3)
    refused(4)
    assert Counter(read(broker)) == Counter(value for batch in range(5) for value in whole(batch))


@pytest.mark.fault(181)
def test_what_was_accepted_last_counts(broker: EmbeddedBroker, run: Run) -> None:
    sink = Sink(broker.service_url, "t", "orders")
    for batch in range(3):
        sink.run(batch)
    assert run("--accept", "orders")[0] == 0
    write_other_rows(sink, 1)
    with pytest.raises(SinkStateError, match="other rows than it was left out with"):
        write_other_rows(sink, 1, "different")
    assert run("--accept", "orders")[0] == 0
    write_other_rows(sink, 0, "different")
    sink.run(3)
    assert len(read(broker)) == 4 * TASKS * ROWS


@pytest.mark.fault(181)
def test_accept_holds_for_runs_as_well(broker: EmbeddedBroker, run: Run) -> None:
    job(broker, "monday", ["a"])
    with pytest.raises(SinkStateError, match="--accept runs"):
        job(broker, "monday", ["b"])
    assert run("--accept", "runs")[0] == 0
    job(broker, "monday", ["b"])
    assert read(broker) == ["a"]


@pytest.mark.fault(181)
def test_accept_lets_one_run_have_other_rows_once(broker: EmbeddedBroker, run: Run) -> None:
    for name in ("monday", "tuesday"):
        job(broker, name, [name])
    assert run("--accept", "runs")[0] == 0
    # The same rows do not use it up, and an earlier run than the last one may be meant.
    job(broker, "tuesday", ["tuesday"])
    job(broker, "monday", ["other"])
    for name in ("monday", "tuesday"):
        with pytest.raises(SinkStateError, match=f"run {name} is committed with other rows"):
            job(broker, name, ["other"])
    assert sorted(read(broker)) == ["monday", "tuesday"]


@pytest.mark.fault(181)
@pytest.mark.parametrize("what", ["begun", "jobs", "decided"])
def test_accept_is_an_error_where_there_is_nothing_to_accept(
    what: str, broker: EmbeddedBroker, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = Sink(broker.service_url, "t", "runs")
    expected = "nothing that can come again"
    if what == "begun":
        sink.writer().check()
    elif what == "jobs":
        job(broker, None, ["a"])
    else:
        sink.run(0)
        decide(broker, sink, 1)
        expected = "batch 1 is decided, but not committed yet"
    where = ["sink", "--service-url", broker.service_url, "--topic", "t"]
    assert cli.main([*where, "--accept", "runs"]) == 1
    assert expected in capsys.readouterr().err


@pytest.mark.fault(181)
@pytest.mark.parametrize("answer,status", [("y", 0), ("Yes", 0), ("n", 1), ("", 1)])
def test_reset_asks(
    answer: str,
    status: int,
    broker: EmbeddedBroker,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Sink(broker.service_url, "t", "orders").run(0)
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def ask(question: str) -> str:
        asked.append(question)
        return answer

    monkeypatch.setattr("builtins.input", ask)
    where = ["sink", "--service-url", broker.service_url, "--topic", "t"]
    assert cli.main([*where, "--reset", "orders"]) == status
    assert ("nothing was changed" in capsys.readouterr().err) == (status == 1)
    assert len(asked) == 1
    assert "Forget what orders has committed?" in asked[0]
    ((row,),) = run()[1:]
    assert (row["committed"] is None) == (status == 0)


@pytest.mark.fault(181)
@pytest.mark.parametrize(
    "arguments", [["--reset", "orders"], ["--yes"], ["--finish", "a", "--abort", "a"]]
)
def test_wrong_usage_ends_with_2_and_changes_nothing(
    arguments: list[str], broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    Sink(broker.service_url, "t", "orders").run(0)
    before = state(broker)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with contextlib.suppress(SystemExit):
        assert (
            cli.main(["sink", "--service-url", broker.service_url, "--topic", "t", *arguments]) == 2
        )
    assert state(broker) == before


@pytest.mark.fault(181)
@pytest.mark.parametrize("action", ["--finish", "--abort", "--accept", "--reset"])
def test_no_action_knows_an_unknown_id(
    action: str, broker: EmbeddedBroker, refused: Callable[..., str]
) -> None:
    Sink(broker.service_url, "t", "orders").run(0)
    yes = ["--yes"] if action == "--reset" else []
    assert "'oders', but of 'orders'" in refused(action, "oders", *yes)


@pytest.mark.fault(181)
@pytest.mark.parametrize("begun_as", ["/ck", "file:///ck/"])
@pytest.mark.parametrize("given", ["/ck", "/ck/", "//ck", "file:/ck", "file:///ck"])
def test_a_checkpoint_may_be_given_in_any_notation(
    begun_as: str, given: str, broker: EmbeddedBroker, run: Run
) -> None:
    sink = Sink(broker.service_url, "t", "")
    del sink.options["sinkId"]
    sink.options["checkpointLocation"] = begun_as
    sink.run(0)
    left_open(sink)
    status, (row,) = run("--abort", given)
    assert (status, row["sink"], row["aborted"]) == (0, "/ck", TASKS)
    assert run("--reset", given, "--yes")[0] == 0


@pytest.mark.fault(181)
@pytest.mark.parametrize("given", ["/ck", "/ck/", "file:/ck", "file:///ck"])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_sink_of_an_earlier_version_is_found_by_its_checkpoint(
    given: str, goes_on: bool, broker: EmbeddedBroker, run: Run
) -> None:
    """It kept its records under the notation that it was given."""
    sink = Sink(broker.service_url, "t", "file:/ck")
    sink.run(0)
    if goes_on:
        del sink.options["sinkId"]
        sink.options["checkpointLocation"] = "file:/ck"
        sink.run(1)
    left_open(sink)
    status, (row,) = run("--abort", given)
    assert (status, row["aborted"], row["committed"]) == (0, TASKS, f"batch {int(goes_on)}")
    status, (row,) = run("--reset", given, "--yes")
    assert (status, row["committed"]) == (0, None)


@pytest.mark.fault(181)
def test_a_sink_that_a_driver_is_writing_to_is_left_to_it(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "BUSY_SECONDS", 1.0)
    sink = Sink(broker.service_url, "t", "orders")
    sink.run(0)
    options = parse_write_options(sink.options)
    assert options.exactly_once is not None
    where = ["sink", "--service-url", broker.service_url, "--topic", "t"]
    with opened(options.client, options.exactly_once):
        for action in ("--finish", "--abort", "--accept"):
            assert cli.main([*where, action, "orders"]) == 1
            error = capsys.readouterr().err
            assert "another driver has taken this sink over, or is writing to it now" in error
            assert "ConsumerBusy" not in error
        assert cli.main([*where, "--list"]) == 0


@pytest.mark.fault(181)
def test_a_driver_whose_sink_was_changed_by_hand_is_told(broker: EmbeddedBroker, run: Run) -> None:
    sink = Sink(broker.service_url, "t", "orders")
    sink.run(0)
    writer = sink.writer()
    writer.check()
    messages = sink.write_all(1, writer)
    with pytest.MonkeyPatch.context() as patched:
        # As in another process, which spares nobody.
        patched.setattr(attempts, "this_process", lambda: "the command's")
        assert run("--abort", "orders")[1][0]["aborted"] == TASKS
    with pytest.raises(SinkStateError, match="another driver has taken this sink over"):
        sink.writer().commit(list(messages), 1)
    sink.run(1)
    assert len(read(broker)) == 2 * TASKS * ROWS


@pytest.mark.fault(166, 181)
def test_a_sink_whose_records_are_gone_is_listed_with_what_is_wrong(
    broker: EmbeddedBroker, run: Run
) -> None:
    sink = Sink(broker.service_url, "t", "orders")
    sink.run(0)
    sink.run(1)
    topic = run()[1][0]["topic"]
    broker.expire_messages(topic, SUBSCRIPTION, -3600)
    broker.roll_ledger(topic)
    broker.trim(topic)
    status, (row,) = run()
    assert (status, row["topic"]) == (1, topic)
    assert "records are gone: the topic is empty" in row["unfinished"]
    with pytest.raises(SinkStateError):
        sink.writer().check()
    status, (row,) = run()
    assert (status, row["sink"]) == (1, "orders")
    assert "records of the sink are missing" in row["unfinished"]
    broker.delete_topic(topic)
    status, (row,) = run()
    assert (status, row["topic"]) == (1, topic)
    assert "records are gone" in row["unfinished"]


@pytest.mark.fault(181)
def test_a_sink_that_was_given_anothers_topic_does_not_take_its_place_in_the_list(
    broker: EmbeddedBroker, run: Run
) -> None:
    for name in ("mine", "other"):
        sink = Sink(broker.service_url, "t", name)
        sink.options["sinkStateTopic"] = "records"
        if name == "mine":
            sink.run(0)
    with pytest.raises(SinkStateError, match="another sink"):
        sink.writer().check()
    where = ["--option", "sinkStateTopic=records"]
    assert [row["sink"] for row in run(*where)[1]] == ["mine"]
    assert run(*where, "--finish", "mine")[0] == 0


def read(broker: EmbeddedBroker) -> list[str]:
    """Return what is visible on the topic."""
    with (
        PulsarClient(broker.service_url) as client,
        client.create_reader("t", MessageId.earliest) as reader,
    ):
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(10_000).data().decode())
    return found
