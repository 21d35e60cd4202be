"""``sink`` and ``doctor`` on what exactly-once sinks leave: both brokers answer the same."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_spark.cli import main as cli
from pulsar_spark.client import PulsarClient
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.errors import SinkStateError, TornBatch
from pulsar_spark.spark.writing.attempts import attempts_topic
from pulsar_spark.spark.writing.fenced_topic import SUBSCRIPTION
from pulsar_spark.spark.writing.task_writer import transactions_of
from tests.integration.brokers import Broker
from tests.integration.sink_job import TASKS, Sink, rows, whole
from tests.integration.sinks import dying
from tests.integration.test_exactly_once import read_all
from tests.integration.test_sink_recovery import (
    checked,
    expect,
    move_over,
    other_process,
    sink,
    state_topic,
)

__all__ = ["sink"]

Run = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def run(broker: Broker, sink: Sink, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command ``sink`` on that sink; return its status and rows."""

    def command(option: str, *more: str) -> tuple[int, list[dict[str, Any]]]:
        where = ["sink", "--service-url", broker.service_url, "--topic", sink.options["topic"]]
        status = cli.main([*where, "--json", option, sink.options["sinkId"], *more])
        shown = capsys.readouterr()
        return status, json.loads(shown.out or "[]")

    return command


@pytest.mark.fault(180)
def test_the_doctor_names_what_holds_a_topic_and_the_command_that_ends_it(
    broker: Broker, sink: Sink, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--service-url", broker.service_url, "--topic", sink.options["topic"]]

    def read_step() -> dict[str, str]:
        assert cli.main(["doctor", *where, "--json"]) == 0
        steps = json.loads(capsys.readouterr().out)["steps"]
        found: dict[str, str] = next(step for step in steps if step["name"] == "read")
        return found

    with other_process("killed"):
        killed = checked(sink)
        left = transactions_of(sink.write_all(1, killed))
    for _ in range(2):
        # It changes nothing: it finds the same again.
        step = read_step()
        assert "open transaction holds the read position" in step["detail"]
        assert f"sink {sink.options['sinkId']!r}" in step["remedy"]
        assert "that are open, since" in step["remedy"]
        for txn in left:
            assert f"({txn.most_bits},{txn.least_bits})" in step["remedy"]
    command = step["remedy"].partition("python -m pulsar_spark ")[2].partition(" pulsar-admin")[0]
    assert cli.main(shlex.split(command.replace("URL", broker.service_url))) == 0
    capsys.readouterr()
    assert "open transaction" not in read_step()["detail"]
    expect(broker, sink, 0)
    sink.run(1)
    expect(broker, sink, 0, 1)


@pytest.mark.fault(181)
def test_abort_tells_how_many_transactions_were_open(broker: Broker, sink: Sink, run: Run) -> None:
    with other_process("killed"):
        killed = checked(sink)
        for task in range(TASKS):
            sink.write(1, task, killed)
    for aborted in (TASKS, 0):
        status, (row,) = run("--abort")
        assert (status, row["aborted"], row["committed"]) == (0, aborted, "batch 0")
    expect(broker, sink, 0)


@pytest.mark.fault(181)
def test_abort_spares_what_was_decided_on(broker: Broker, sink: Sink, run: Run) -> None:
    writer = checked(sink)
    written = sink.write_all(1, writer)
    with dying("after-decision"):
        sink.writer().commit(list(written), 1)
    status, (row,) = run("--abort")
    assert (status, row["aborted"], row["unfinished"]) == (0, 0, "batch 1")
    status, (row,) = run("--finish")
    assert (status, row["committed"], row["unfinished"]) == (0, "batch 1", None)
    expect(broker, sink, 0, 1)


def skipped(broker: Broker, sink: Sink) -> None:
    move_over(broker, state_topic(sink), "skipped")
    broker.trim(state_topic(sink))


def deleted(broker: Broker, sink: Sink) -> None:
    broker.delete_topic(state_topic(sink))


def unsubscribed(broker: Broker, sink: Sink) -> None:
    with PulsarClient(broker.service_url) as client:
        client.subscribe(state_topic(sink), SUBSCRIPTION).unsubscribe()


def attempts_unsubscribed(broker: Broker, sink: Sink) -> None:
    unsubscribed(broker, sink)
    with PulsarClient(broker.service_url) as client:
        client.subscribe(attempts_topic(state_topic(sink)), SUBSCRIPTION).unsubscribe()


def torn(broker: Broker, sink: Sink) -> None:
    """Half of micro-batch 1 is committed, the rest has timed out."""
    writer = checked(sink)
    written = sink.write_all(1, writer)
    with dying("after-markers"):
        sink.writer().commit(list(written), 1)
    first, *others = transactions_of(written)
    with ClientContext(ClientOptions(broker.service_url)) as context:
        assert context.coordinators.end_all([first], commit=True) == {first: None}
        context.coordinators.end_all(others, commit=False)


@pytest.mark.fault(166, 181)
@pytest.mark.parametrize("is_told", [True, False], ids=["told", "at once"])
@pytest.mark.parametrize(
    "harm", [skipped, deleted, unsubscribed, attempts_unsubscribed, torn], ids=lambda f: f.__name__
)
def test_a_sink_is_begun_anew_on_purpose_whatever_became_of_its_records(
    harm: Callable[[Broker, Sink], None], is_told: bool, broker: Broker, sink: Sink, run: Run
) -> None:
    harm(broker, sink)
    if is_told:
        with pytest.raises((SinkStateError, TornBatch)) as caught:
            checked(sink)
        assert " --reset " in caught.value.remedy + caught.value.what or harm is torn
        assert run("--finish") == (1, [])
    status, (row,) = run("--reset", "--yes")
    assert (status, row["sink"], row["committed"]) == (0, sink.options["sinkId"], None)
    sink.run(1)
    sink.run(2)
    left = rows(1, 0) if harm is torn else []
    found = Counter(read_all(broker, sink.options["topic"], 0))
    assert found == Counter([*left, *whole(0), *whole(1), *whole(2)])
