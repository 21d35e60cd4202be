"""Exactly-once sinks that an earlier version has left go on."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.errors import SinkStateError, TornBatch
from pulsar_spark.spark.writing.attempts import attempts_topic
from tests.integration import sinks
from tests.integration.brokers import Broker
from tests.integration.messages import readable
from tests.integration.sinks import Kept, Restored, Sink, unit_rows
from tests.integration.test_exactly_once import read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSIONS = sorted(path.parent for path in sinks.FOLDER.glob("*/done.json"))

Restore = Callable[[str], tuple[Sink, Restored]]


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def version(request: pytest.FixtureRequest) -> Path:
    """The folder of a version's kept sinks."""
    found: Path = request.param
    return found


@pytest.fixture
def restore(broker: Broker, version: Path) -> Iterator[Restore]:
    """Restore a kept sink on topics of its own; its open transactions end with the test."""
    made: list[Restored] = []
    with PulsarClient(broker.service_url) as client:

        def restore(name: str) -> tuple[Sink, Restored]:
            kept = sinks.load(version / f"{name}.json")
            topic, records = (broker.create_transactional_topic(0) for _ in range(2))
            found = sinks.restore(client, broker.service_url, kept, topic, records)
            made.append(found)
            return Sink(found.options), found

        yield restore
        for restored in made:
            for txn in restored.open.values():
                txn.abort()


def expect(broker: Broker, restored: Restored, *units: object) -> None:
    """Fail unless the topic has the rows of these units, each once."""
    found = Counter(read_all(broker, restored.topic, 0))
    assert found == Counter(value for unit in units for value in unit_rows(unit))


@pytest.mark.parametrize("name", ["checked", "fence"])
def test_a_sink_that_has_written_nothing_begins(
    broker: Broker, restore: Restore, name: str
) -> None:
    sink, restored = restore(name)
    sink.run(0)
    sink.run(1)
    expect(broker, restored, 0, 1)


def test_a_sink_continues_after_its_last_batch(broker: Broker, restore: Restore) -> None:
    sink, restored = restore("done")
    sink.run(3)
    sink.run(4)
    expect(broker, restored, 0, 1, 2, 3, 4)


def test_the_last_batch_comes_again_and_is_skipped(broker: Broker, restore: Restore) -> None:
    sink, restored = restore("done")
    sink.run(2)
    sink.run(3)
    expect(broker, restored, 0, 1, 2, 3)


@pytest.mark.parametrize("ended", ["", "-marked", "-half-committed", "-all-committed"])
def test_a_decision_is_carried_out(broker: Broker, restore: Restore, ended: str) -> None:
    sink, restored = restore(f"undone{ended}")
    sink.run(1)
    sink.run(2)
    expect(broker, restored, 0, 1, 2)


def test_a_torn_batch_stays_torn(restore: Restore) -> None:
    sink, _ = restore("undone-torn")
    with pytest.raises(TornBatch, match="batch 1 torn: 1 of 2 transactions"):
        sink.run(1)


def test_a_decision_that_was_dropped_is_made_anew(broker: Broker, restore: Restore) -> None:
    sink, restored = restore("void")
    sink.run(1)
    expect(broker, restored, 0, 1)


def test_what_readers_did_not_see_yet_is_looked_for_again(
    broker: Broker, restore: Restore, caplog: pytest.LogCaptureFixture
) -> None:
    sink, restored = restore("withheld")
    sink.run(4)
    # What was told then is long ago.
    assert "since batch 1 readers do not see all" in caplog.text
    for txn in restored.open.values():
        txn.abort()
    restored.open.clear()
    sink.run(5)
    assert "readers see again all that was committed since batch 1" in caplog.text
    expect(broker, restored, 0, 1, 2, 3, 4, 5)


def test_jobs_go_on(broker: Broker, restore: Restore) -> None:
    sink, restored = restore("job-done")
    sink.run_job("c")
    expect(broker, restored, "a", "b", "c")


@pytest.mark.parametrize("name", ["job-undone", "job-half-committed"])
def test_a_decided_job_is_finished_by_the_next_one(
    broker: Broker, restore: Restore, name: str
) -> None:
    sink, restored = restore(name)
    with pytest.raises(SinkStateError, match="committed now, and all of it is visible"):
        sink.job().check()
    expect(broker, restored, "a", "b")
    sink.run_job("c")
    expect(broker, restored, "a", "b", "c")


def test_credentials_in_a_name_are_the_same_sink(broker: Broker, restore: Restore) -> None:
    sink, restored = restore("credentials")
    sink.run(1)
    expect(broker, restored, 0, 1)


@pytest.mark.parametrize("number", range(len(sinks.SPELLINGS)))
def test_records_under_a_default_name_are_found(version: Path, number: int) -> None:
    kept = sinks.load(version / f"spelt-{number}.json")
    with sinks.source_broker(0) as own, PulsarClient(own.service_url) as client:
        restored = sinks.restore(client, own.service_url, kept)
        sink = Sink(restored.options)
        assert sink.options["checkpointLocation"] == sinks.SPELLINGS[number]
        sink.run(0)
        sink.run(1)
        records = [name for name in own.topics() if "__spark_sink-" in name]
        assert sorted(records) == [restored.state_topic, attempts_topic(restored.state_topic)]
        assert own.open_transactions() == {}
        assert seen(own.service_url) == Counter(unit_rows(0) + unit_rows(1))


def seen(url: str) -> Counter[str]:
    """Return the readable messages of the embedded broker's topic."""
    return readable(url, sinks.TOPIC)


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["next", "again"])
def test_a_query_continues_from_its_checkpoint(
    spark: SparkSession, version: Path, tmp_path: Path, again: bool
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(version / sinks.QUERY, checkpoint)
    kept: Kept = sinks.load(version / f"{sinks.QUERY}.json")
    if again:
        # As if the driver had died between the commit and Spark's record of it.
        (checkpoint / "commits" / "2").unlink()
    with sinks.source_broker(3) as own, PulsarClient(own.service_url) as client:
        restored = sinks.restore(client, own.service_url, kept)
        sinks.feed(own, 3)
        sinks.run_query(spark, checkpoint, restored.options)
        expected = Counter(value for batch in range(4) for value in sinks.source_rows(batch))
        assert seen(own.service_url) == expected
        assert own.open_transactions() == {}
