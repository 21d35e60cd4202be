"""The lag in a query's progress, from every form of progress."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.errors import InvalidOffset, UnsupportedFeature
from pulsar_spark.progress import PartitionLag, QueryLag, lag
from pulsar_spark.spark import compat

ONE, TWO, THREE = (f"persistent://public/default/t-partition-{n}" for n in range(3))

END = {"positions": {ONE: "3:10:0", TWO: "4:7:0"}, "subscription": "s", "version": 1}
LATEST = {
    "positions": {ONE: "3:15:0", TWO: "4:7:0", THREE: "5:2:0"},
    "subscription": "s",
    "version": 1,
    "lag": {
        ONE: {
            "entries": 5,
            "messages": 480,
            "bytes": 12345,
            "seconds": 3.25,
            "estimated": ["messages", "bytes"],
        },
        THREE: {"entries": 2, "messages": 7, "bytes": 80, "seconds": 1, "estimated": ["bytes"]},
    },
}


def source(end: object = END, latest: object = LATEST) -> dict[str, Any]:
    return {"description": "pulsar", "startOffset": None, "endOffset": end, "latestOffset": latest}


def progress(*sources: dict[str, Any]) -> dict[str, Any]:
    return {"id": "x", "batchId": 3, "sources": list(sources)}


class Event:
    """An event of a listener."""

    def __init__(self, found: object) -> None:
        self.progress = found


def test_the_backlog_of_each_topic_partition_is_reported() -> None:
    found = lag(progress(source()))
    assert found.partitions == (
        PartitionLag(ONE, "s", "3:10:0", "3:15:0", 5, 480, 12345, 3.25, True, True),
        PartitionLag(TWO, "s", "4:7:0", "4:7:0", 0, 0, 0, 0.0),
        PartitionLag(THREE, "s", None, "5:2:0", 2, 7, 80, 1.0, False, True),
    )
    assert (found.entries, found.messages, found.bytes, found.seconds) == (7, 487, 12425, 3.25)
    assert (found.messages_estimated, found.bytes_estimated) == (True, True)


def as_text(found: dict[str, Any]) -> dict[str, Any]:
    return {name: json.dumps(value) if value else value for name, value in found.items()}


def as_shown(found: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) for name, value in found.items()}


@pytest.mark.parametrize(
    "given",
    [
        as_shown(source()),
        Event(progress(as_shown(source()))),
        Event(progress(source())),
        Event(progress(as_text(source()))),
        json.dumps(progress(source())),
        json.dumps(progress(source())).encode(),
        source(),
        as_text(source()),
        Event(source()),
    ],
)
def test_progress_is_understood_in_every_form(given: object) -> None:
    assert lag(given) == lag(progress(source()))


def test_positions_by_number_of_partition_are_understood() -> None:
    listed = {"persistent://public/default/t": ["3:15:0", "4:7:0", "5:2:0"]}
    read = {"persistent://public/default/t": ["3:10:0", "4:7:0", None]}
    found = source({**END, "positions": read}, {**LATEST, "positions": listed})
    assert lag(found) == lag(source())


def test_the_objects_of_spark_are_understood() -> None:
    listener = pytest.importorskip("pyspark.sql.streaming.listener")
    plain = {"numInputRows": 1, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
    body = {
        **progress({**source(), **plain}),
        "id": "4f0dfe7b-1ea9-4e7a-8d4c-0d7a3a3a0a52",
        "runId": "4f0dfe7b-1ea9-4e7a-8d4c-0d7a3a3a0a52",
        "name": None,
        "timestamp": "2026-11-20T10:00:00.000Z",
        "batchDuration": 1,
        "stateOperators": [],
        "sink": {"description": "noop", "numOutputRows": -1},
    }
    made = listener.StreamingQueryProgress.fromJson(body)
    expected = lag(progress(source()))
    for given in (made, made.sources[0], made.json, Event(made)):
        assert lag(given) == expected


def test_sources_of_other_kinds_have_no_lag() -> None:
    other = {"description": "kafka", "endOffset": {"t": {"0": 5}}, "latestOffset": None}
    shown = {"description": "files", "endOffset": "[" * 5000, "latestOffset": "f(x)"}
    assert lag(progress(shown)) == QueryLag(())
    files = {"description": "files", "endOffset": {"logOffset": 0}, "latestOffset": "null"}
    assert lag(progress(other, files)) == QueryLag(())
    assert lag(progress(other, source())) == lag(progress(source()))
    assert lag(None) == QueryLag(())


def test_the_oldest_age_is_the_maximum_of_the_known_ages() -> None:
    told = {ONE: {"entries": 5}, THREE: {"entries": 2, "messages": 7, "seconds": 1}}
    assert lag(source(latest={**LATEST, "lag": told})).seconds == 1
    assert lag(source(latest={**LATEST, "lag": {}})).seconds == 0


def test_two_sources_of_a_query_are_both_told() -> None:
    again = {**LATEST, "subscription": "other"}
    found = lag(progress(source(), source(latest=again)))
    assert [part.subscription for part in found.partitions] == ["s"] * 3 + ["other"] * 3
    assert found.messages == 2 * 487


def test_what_was_not_sampled_is_not_known() -> None:
    latest = {**LATEST, "lag": {ONE: {"entries": 5}, TWO: {}}}
    found = lag(source(latest=latest))
    assert found.partitions[0] == PartitionLag(ONE, "s", "3:10:0", "3:15:0", 5, None, None, None)
    assert found.partitions[1].entries is None
    assert found.entries is found.messages is found.bytes is found.seconds is None
    assert "? messages" in str(found)


@pytest.mark.parametrize("none", [None, "null", "None", ""])
def test_a_batch_that_is_repeated_after_a_restart_has_no_known_lag(none: object) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource")
    found = lag(source(latest=none))
    assert [part.topic for part in found.partitions] == [ONE, TWO]
    assert found.messages is None


def test_it_says_clearly_that_it_needs_spark_4_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "passes_read_limits", lambda: False)
    with pytest.raises(UnsupportedFeature, match=r"Use Spark 4\.2 or later"):
        lag(progress(source(latest=None)))


@pytest.mark.parametrize(
    "given",
    ["no json", "[" * 100_000, 5, {}, {"sources": 5}, {"sources": [5]}, Event(7), [], object()],
)
def test_what_is_no_progress_is_refused(given: object) -> None:
    with pytest.raises(InvalidOffset, match="the progress of a query was expected"):
        lag(given)


@pytest.mark.parametrize(
    "told",
    [
        5,
        {ONE: 5},
        {ONE: {"entries": -1, "messages": True, "bytes": "5", "seconds": None}},
        {ONE: {"entries": 1.5, "messages": {}, "seconds": float("inf"), "estimated": 5}},
    ],
)
def test_numbers_that_make_no_sense_are_not_known(told: object) -> None:
    part = lag(source(latest={**LATEST, "lag": told})).partitions[0]
    assert part.entries is part.messages is part.bytes is part.seconds is None


def test_it_reads_well() -> None:
    found = lag(source())
    assert str(found.partitions[0]) == (
        f"{ONE}: 5 entries, about 480 messages, about 12.3 kB, oldest 3.2 s"
    )
    assert str(found.partitions[1]) == f"{TWO}: 0 entries, 0 messages, 0 bytes, oldest 0.0 s"
    assert str(found).startswith("3 topic partitions: 7 entries, about 487 messages")
    assert "messages=480" in repr(found)
    assert eval(repr(found)) == found


def test_it_loads_nothing_that_is_heavy() -> None:
    code = "import sys, pulsar_spark.progress; print(*sys.modules)"
    root = Path(__file__).resolve().parent.parent
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"pyspark", "pyarrow", "google.protobuf", "socket", "numpy"} & set(loaded)


def test_metrics_have_the_names_and_form_of_those_of_sparks_kafka_source() -> None:
    found = lag(progress(source()))
    assert found.metrics == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "480",
        "avgOffsetsBehindLatest": str(487 / 3),
    }
    assert found.min_offsets_behind_latest == 0
    assert found.max_offsets_behind_latest == 480
    assert found.avg_offsets_behind_latest == 487 / 3


def test_there_are_no_metrics_where_a_lag_is_not_known() -> None:
    assert lag(None).metrics == {}
    unknown = lag(progress(source(latest={**LATEST, "lag": {ONE: {"entries": 5}}})))
    assert unknown.metrics == {}
    assert unknown.max_offsets_behind_latest is None
