"""``bench`` measures reading and writing, and writes only to topics made for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_spark.cli import bench as module
from pulsar_spark.cli import main as cli
from pulsar_spark.client import PulsarClient
from pulsar_spark.client.schema import StringSchema
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import store

Bench = Callable[..., dict[str, Any]]

ROWS = 5_000


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running
        assert running.internal_errors == ()


@pytest.fixture
def bench(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Bench:
    def run(*arguments: str) -> dict[str, Any]:
        place = ["--service-url", broker.service_url, "--topic", "t", "--json"]
        assert cli.main(["bench", *place, *arguments]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return run


def fill(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", partitions=2)
    for partition in range(2):
        store(broker, f"t-partition-{partition}", [b"x" * 100] * (ROWS // 2))


def named(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in found["measurements"]}


def test_a_topic_is_drained_and_decoded(broker: EmbeddedBroker, bench: Bench) -> None:
    fill(broker)
    found = bench()
    rows = named(found)
    assert list(rows) == ["drain", "decoded"]
    for row in rows.values():
        assert row["rows"] == ROWS
        assert row["rows_per_second"] == pytest.approx(ROWS / row["seconds"], rel=0.01)
        assert row["mb_per_second"] == pytest.approx(ROWS * 100 / row["seconds"] / 1e6, rel=0.01)
        assert row["cpu_us_per_row"] > 0
        assert row["limited_by"] in (module.CPU, module.ROUND_TRIPS, module.BROKER)
        assert row["why"]
    (question,) = found["latencies"]
    assert question["name"] == "question"
    assert 0 < question["p50"] <= question["p95"] <= question["p99"]
    assert found["columns"].startswith("struct<value:binary,__key:binary")


def test_reading_leaves_no_trace(broker: EmbeddedBroker, bench: Bench) -> None:
    fill(broker)
    bench()
    assert broker.faults.seen("ACK") == 0
    assert broker.faults.seen("PRODUCER") == 0
    assert not any(seen.body.durable for seen in broker.faults.log("SUBSCRIBE"))
    assert broker.subscriptions("t-partition-0") == {}


def test_it_ends_after_so_many_messages(broker: EmbeddedBroker, bench: Bench) -> None:
    broker.create_topic("t")
    for _ in range(60):
        store(broker, "t", [b"x" * 1000] * 1000)
    found = named(bench("--messages", "1"))
    # A read takes whole batches of Spark.
    assert 0 < found["drain"]["rows"] < 60_000


def test_values_are_decoded_by_the_options(broker: EmbeddedBroker, bench: Bench) -> None:
    with PulsarClient(broker.service_url) as client:
        client.create_producer("t", schema=StringSchema()).send("a")
    assert "value:string" in bench()["columns"]
    assert "value:binary" in bench("--option", "valueFormat=raw")["columns"]


def test_a_topic_made_for_it_is_written_to_again_and_again(
    broker: EmbeddedBroker, bench: Bench
) -> None:
    broker.create_topic("t", partitions=2)
    for _ in range(2):
        found = bench("--write", "--messages", "3000", "--size", "200")
        rows = named(found)
        assert list(rows) == ["write", "drain", "decoded"]
        assert rows["write"]["rows"] == 3_000
        send = found["latencies"][0]
        assert send["name"] == "send"
        assert 0 < send["count"] <= module._SENDS
        assert rows["drain"]["rows"] >= 3_000


def test_a_topic_is_created_only_where_that_is_said(
    broker: EmbeddedBroker, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--service-url", broker.service_url, "--topic", "t"]
    assert cli.main(["bench", *place]) == 1
    assert cli.main(["bench", *place, "--write"]) == 1
    assert "--create" in capsys.readouterr().err
    assert broker.faults.seen("PRODUCER") == 0
    assert named(bench("--write", "--create", "--messages", "10"))["write"]["rows"] == 10


@pytest.mark.parametrize("others", ["messages", "schema"])
def test_a_topic_of_others_is_not_written_to(
    others: str, broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    if others == "messages":
        fill(broker)
    else:
        with PulsarClient(broker.service_url) as client:
            client.create_producer("t", schema=StringSchema()).close()
    before = broker.faults.seen("PRODUCER")
    place = ["--service-url", broker.service_url, "--topic", "t"]
    assert cli.main(["bench", *place, "--write", "--create"]) == 2
    assert "only bench writes to" in capsys.readouterr().err
    assert broker.faults.seen("PRODUCER") == before


def test_a_table_says_what_the_limit_is(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(broker)
    assert cli.main(["bench", "--service-url", broker.service_url, "--topic", "t"]) == 0
    text = capsys.readouterr().out
    assert "drain is limited by" in text
    assert "decoded is limited by" in text
    assert "p99 ms" in text


@pytest.mark.parametrize(
    "busy, size, round_trip, limit",
    [
        (0.95, 10**6, 0.001, module.CPU),
        (0.2, 10**6, 0.001, module.BROKER),
        (0.2, 10**9, 0.2, module.ROUND_TRIPS),
    ],
)
def test_the_limit_is_told_from_what_was_measured(
    busy: float, size: int, round_trip: float, limit: str
) -> None:
    measured = module._Measurement("drain", 1000, size, 1.0, busy)
    assert module.limit(measured, round_trip, 64 << 20)[0] == limit
