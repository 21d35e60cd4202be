"""What a sink's records add up to, and which units may follow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pulsar_spark.errors import SinkStateError
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.spark.writing import sink_records
from pulsar_spark.spark.writing.repeats import Verdict, judge, place_of
from pulsar_spark.spark.writing.sink_records import (
    CommittedRun,
    Decision,
    LastMessage,
    LeftOut,
    SinkState,
    Unit,
    Withheld,
    Written,
    base_records,
    decision_of,
    one_spelling,
    record_of,
)

SAME = ("1:00ff", "s")


def decision(
    batch: int | None = None,
    messages: int = 3,
    digest: str = SAME[0],
    schemas: str = SAME[1],
    *,
    query: str | None = "q",
    run: str | None = None,
) -> Decision:
    unit = Unit(batch, None if batch is not None else "j", query, run)
    return Decision(unit, (TxnId(1, 2),), Written(messages, digest, schemas), at=1.0)


# --- the names of checkpoints -------------------------------------------------------------------


@pytest.mark.parametrize(
    "location,expected",
    [
        ("/ck", "/ck"),
        ("/ck/", "/ck"),
        ("//ck", "/ck"),
        ("/a//ck", "/a/ck"),
        ("file:/ck", "/ck"),
        ("file:///ck", "/ck"),
        ("file:////ck//", "/ck"),
        ("/", "/"),
        ("hdfs://nn:8020/ck/", "hdfs://nn:8020/ck"),
        ("s3a://bucket//a/ck", "s3a://bucket/a/ck"),
        # What these name depends on the cluster, or on the working directory.
        ("hdfs:///ck", "hdfs:///ck"),
        ("file://host/ck", "file://host/ck"),
        ("ck/", "ck/"),
        ("ck", "ck"),
    ],
)
def test_all_notations_of_a_checkpoint_are_one(location: str, expected: str) -> None:
    assert one_spelling(location) == expected
    assert one_spelling(expected) == expected


# --- what was written ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other,same",
    [
        (Written(3, *SAME), True),
        (Written(3, "1:00fe", "s"), False),
        (Written(4, *SAME), False),
        (Written(3, "2:00ff", "s"), None),
        (Written(3, "1:00fe", "other schema"), None),
        (Written(4, "1:00ff", "other schema"), False),
        (Written(3), None),
        (Written(4), False),
    ],
)
def test_rows_are_compared_by_their_digest_or_at_least_by_their_number(
    other: Written, same: bool | None
) -> None:
    assert Written(3, *SAME).is_same(other) is same
    assert other.is_same(Written(3, *SAME)) is same


# --- which unit may follow ----------------------------------------------------------------------

NEW, REPEATED, ACCEPTED, REFUSED = Verdict.NEW, Verdict.REPEATED, Verdict.ACCEPTED, None


def outcome(
    done: Decision | None, mine: Decision, *, first_stays: bool = False, accepted: bool = False
) -> Verdict | None:
    """Return what a unit is to a sink, None if it is refused."""
    state = SinkState(done=done)
    if done is not None and done.unit.run is not None:
        state.remember(done)
    state.accepted = accepted
    place = place_of(state, "s", "t", first_stays=first_stays)
    try:
        return judge(state, place, mine)
    except SinkStateError:
        return REFUSED


@pytest.mark.fault(169)
@pytest.mark.parametrize(
    "mine,expected,told",
    [
        (decision(2), NEW, ""),
        (decision(1), REPEATED, ""),
        (decision(1, digest="1:0000"), REFUSED, ""),
        (decision(1, 4), REFUSED, ""),
        (decision(1, digest="2:0000"), REPEATED, "as many messages as now"),
        (decision(1, digest="1:0000", schemas="new"), REPEATED, "as many messages as now"),
        (decision(1, digest=""), REPEATED, "as many messages as now"),
        (decision(1, 4, digest=""), REFUSED, ""),
        (decision(0), REFUSED, ""),
        (decision(7), NEW, "batches between them were not written"),
        (decision(2, query="other"), REFUSED, ""),
        (decision(1, query="other"), REFUSED, ""),
        (decision(7, query="other"), REFUSED, ""),
        # Without a query, what was written decides.
        (decision(2, query=None), NEW, ""),
        (decision(1, query=None), REPEATED, ""),
        (decision(1, digest="1:0000", query=None), REFUSED, ""),
        (decision(0, query=None), REFUSED, ""),
        (decision(), REFUSED, ""),
        (decision(run="r"), REFUSED, ""),
    ],
)
def test_a_micro_batch_after_batch_1(
    mine: Decision, expected: Verdict | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert outcome(decision(1), mine) == expected
    assert told in caplog.text
    assert bool(told) == bool(caplog.records)


@pytest.mark.fault(169)
@pytest.mark.parametrize("how", ["first_stays", "accepted"])
@pytest.mark.parametrize(
    "mine,expected",
    [
        (decision(2), NEW),
        (decision(1), REPEATED),
        (decision(1, 4, digest="1:0000"), ACCEPTED),
        (decision(0), ACCEPTED),
        (decision(2, query="other"), REFUSED),
        (decision(1, query="other"), REFUSED),
    ],
)
def test_what_was_written_first_can_be_kept(
    how: str, mine: Decision, expected: Verdict | None
) -> None:
    if how == "first_stays" and expected is ACCEPTED:
        # It needs nobody's acceptance. An earlier one comes of an older checkpoint, with new rows.
        expected = REPEATED if mine.unit.batch == 1 else REFUSED
    assert outcome(decision(1), mine, **{how: True}) == expected


@pytest.mark.parametrize("query", ["q", None])
@pytest.mark.parametrize("first_stays", [False, True])
def test_an_earlier_batch_is_left_out_only_if_that_is_accepted(
    query: str | None, first_stays: bool
) -> None:
    mine = decision(0, query=query)
    assert outcome(decision(1), mine, first_stays=first_stays) == REFUSED
    assert outcome(decision(1), mine, first_stays=first_stays, accepted=True) == ACCEPTED


@pytest.mark.parametrize("batch", [None, 1])
@pytest.mark.parametrize("then,now", [(0, 5), (5, 0)])
def test_a_unit_without_rows_that_comes_again_with_some_has_not_changed_its_topic(
    batch: int | None, then: int, now: int, caplog: pytest.LogCaptureFixture
) -> None:
    run = "monday" if batch is None else None
    done, mine = (
        replace(decision(batch, messages, run=run), topics="of all" if messages else "of none")
        for messages in (then, now)
    )
    state = SinkState(done=done)
    if run is not None:
        state.remember(done)
    with pytest.raises(SinkStateError, match=rf"other rows \({then} then, {now} now\)"):
        judge(state, place_of(state, "s", "t", first_stays=False), mine)
    assert not caplog.records


@pytest.mark.parametrize(
    "mine,expected",
    [
        (decision(run="monday"), REPEATED),
        (decision(run="monday", digest="1:0000"), REFUSED),
        (decision(run="monday", messages=4), REFUSED),
        (decision(run="tuesday"), NEW),
        (decision(), NEW),
        (decision(1), REFUSED),
    ],
)
def test_a_batch_write_after_run_monday(mine: Decision, expected: Verdict | None) -> None:
    assert outcome(decision(run="monday"), mine) == expected


def test_a_run_that_comes_again_with_other_rows_can_be_left_out() -> None:
    again = decision(run="monday", messages=4)
    assert outcome(decision(run="monday"), again, first_stays=True) == REPEATED
    assert outcome(decision(run="monday"), again, accepted=True) == ACCEPTED
    assert outcome(decision(run="monday"), again, first_stays=True, accepted=True) == REPEATED
    assert outcome(decision(run="monday"), decision(run="monday"), accepted=True) == REPEATED


def test_an_error_says_that_new_rows_are_left_out_too_if_a_checkpoint_is_older() -> None:
    state = SinkState(done=decision(1))
    place = place_of(state, "s", "t", first_stays=True)
    with pytest.raises(SinkStateError, match="the checkpoint is older") as caught:
        judge(state, place, decision(0))
    assert "what has come since" in caught.value.remedy
    assert "sinkRepeats" not in caught.value.remedy


def test_an_error_names_both_causes_and_the_ways_on() -> None:
    state = SinkState(done=decision(1))
    place = place_of(state, "my sink", "persistent://a/b/c", first_stays=False)
    with pytest.raises(SinkStateError) as caught:
        judge(state, place, decision(1, 4))
    assert "(3 then, 4 now)" in caught.value.what
    assert "restored from a backup" in caught.value.what
    assert "does not give the same rows" in caught.value.what
    command = (
        "python -m pulsar_spark sink --service-url URL "
        "--option sinkStateTopic=persistent://a/b/c --accept 'my sink'"
    )
    assert command in caught.value.remedy
    assert "sinkRepeats=first" in caught.value.remedy


# --- records ------------------------------------------------------------------------------------


def replayed(records: list[dict[str, Any]], *, gaps: bool = False) -> SinkState:
    state = SinkState(gaps=gaps)
    for number, record in enumerate(records):
        as_stored = json.loads(json.dumps({"v": 2, "sink": "s", **record}))
        state.replay(Position(1, number), as_stored, "t")
    return state


def test_a_decision_is_recorded_whole() -> None:
    ends = (LastMessage(TxnId(1, 2), "p", Position(3, 4), True),)
    made = Decision(
        Unit(batch=5, query="q"),
        (TxnId(1, 2), TxnId(1, 3)),
        Written(7, *SAME),
        "topics",
        ends,
        Withheld("batch 4", 9.0),
        10.0,
    )
    assert decision_of(json.loads(json.dumps(record_of("decided", made)))) == made


def test_a_state_is_recorded_whole_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_records, "_RUNS_OF_A_PART", 2)
    runs = {str(run): CommittedRun(str(run), Written(run, *SAME), 1.0, "t") for run in range(5)}
    left_out = LeftOut(1, Written(3, *SAME))
    state = SinkState(done=decision(run="4"), accepted=True, left_out=left_out, runs=runs)
    records = [{"n": number, **one} for number, one in enumerate(base_records(state), 4)]
    assert len(records) == 3
    found = replayed(records)
    assert found.runs == runs
    assert found.done == replace_transactions(decision(run="4"))
    assert found.accepted
    assert found.left_out == left_out
    assert found.based
    assert found.base_at == Position(1, 0)
    assert found.number == 6
    for record in records:
        # As earlier versions recorded them.
        del record["topics"]
    assert replayed(records).runs == {name: run._replace(topics="") for name, run in runs.items()}


def replace_transactions(done: Decision) -> Decision:
    return Decision(done.unit, (), done.written, at=done.at)


def test_a_base_without_its_last_parts_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_records, "_RUNS_OF_A_PART", 2)
    runs = {str(run): CommittedRun(str(run), Written(run, *SAME), 1.0, "t") for run in range(5)}
    parts = list(base_records(SinkState(runs=runs)))
    first = [{"n": 1, **one} for one in base_records(SinkState(done=decision(0)))]
    torn = [{"n": number, **one} for number, one in enumerate(parts[:2], 2)]
    whole = [{"n": number, **one} for number, one in enumerate(parts, 4)]
    assert replayed(first + torn).done is not None
    assert not replayed(torn).whole
    found = replayed(first + torn + whole)
    assert (found.runs, found.base_at) == (runs, Position(1, 3))


def numbered(*numbers: int) -> Iterator[dict[str, Any]]:
    for number in numbers:
        yield {"n": number, "base": True, **record_of("done", decision(number))}


def test_a_missing_record_is_noticed() -> None:
    assert replayed([*numbered(1, 2, 3)]).number == 3
    with pytest.raises(SinkStateError, match="records of the sink are missing"):
        replayed([*numbered(1, 3)])
    assert replayed([*numbered(1, 3)], gaps=True).number == 3


def test_a_record_that_was_stored_twice_counts_once() -> None:
    found = replayed([*numbered(1, 2, 2, 3)])
    assert found.done is not None
    assert (found.number, found.done.unit.batch) == (3, 3)


def test_records_without_a_base_are_not_whole() -> None:
    decided = {"n": 9, **record_of("decided", decision(4))}
    fence = {"kind": "fence", "driver": "d"}
    assert not replayed([fence, decided]).whole
    assert replayed([fence]).whole
    assert replayed([fence, decided, *numbered(10)]).whole


def test_more_runs_than_are_promised_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_records, "RUNS", 3)
    state = SinkState()
    for run in "abcde":
        state.remember(decision(run=run))
    assert list(state.runs) == list("cde")
    assert sink_records.RUNS == 3
