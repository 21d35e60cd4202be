"""``sink`` shows recorded decisions, and finishes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_spark.cli import main as cli
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.errors import PulsarError, SinkStateError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import EARLIEST_POSITION
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.writing import exactly_once
from pulsar_spark.spark.writing.fenced_topic import read_all
from pulsar_spark.spark.writing.sink_records import known_as
from pulsar_spark.spark.writing.task_writer import transactions_of
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.sink_job import ROWS, TASKS, Sink

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
    messages = [sink.write(1, task) for task in range(TASKS)]
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
    messages = [sink.write(1, task) for task in range(TASKS)]
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
    status, again = run("--finish", row["sink"])
    assert (status, again) == (0, [row])
    assert run("--finish", CHECKPOINT.format(CREDENTIAL)) == (0, [row])
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
