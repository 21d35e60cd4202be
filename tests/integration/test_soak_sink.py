"""The soak of the exactly-once sink: its checker, and a small run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.soak.rows import KEYS, key_of, rows_of_key
from tests.soak.sink import FAULTS, Report, Settings, SinkSoak
from tests.soak.soak import schedule
from tests.soak.witness import Witness
from tests.support import groups
from tests.support.real_cluster import RealCluster

ROWS = 3 * KEYS + 5
ALL = [(key_of(row % KEYS), row // KEYS) for row in range(ROWS)]


def judged(rows: list[tuple[str, int]]) -> Witness:
    witness = Witness("pulsar://127.0.0.1:1", [], KEYS)
    for place, (key, number) in enumerate(rows):
        witness.see(key, number, (1, place, -1))
    witness.end(ROWS)
    return witness


def test_all_rows_in_the_order_of_their_keys_are_right() -> None:
    assert sum(rows_of_key(ROWS, key) for key in range(KEYS)) == ROWS
    assert judged(ALL).problems == []
    assert judged(sorted(ALL)).problems == []


def test_when_each_micro_batch_was_seen_is_known() -> None:
    before = time.time()
    witness = judged(ALL)
    assert sorted(witness.seen_at) == [0, 1, 2, 3]
    assert list(witness.seen_at.values()) == sorted(witness.seen_at.values())
    assert witness.seen_at[0] >= before
    assert 0 <= witness.longest_pause <= time.time() - before


@pytest.mark.parametrize("place", [0, 9, ROWS - 1])
def test_a_row_that_is_lost_or_doubled_is_told(place: int) -> None:
    lost = judged(ALL[:place] + ALL[place + 1 :])
    assert f"{ROWS - 1} rows came of {ROWS}" in "".join(lost.problems)
    doubled = judged(ALL[: place + 1] + ALL[place:])
    assert any("comes again" in problem for problem in doubled.problems)


def test_each_kind_of_fault_strikes() -> None:
    for faults in (len(FAULTS), 110):
        planned = schedule(Settings(500, 4200, faults), random.Random(1), FAULTS)
        assert len(planned) == faults
        assert set(planned) == set(FAULTS)


def test_a_report_with_problems_is_no_success() -> None:
    assert str(Report()).startswith("PASSED")
    assert str(Report(problems=["one row is missing"])).startswith("FAILED")


@pytest.mark.slow
@pytest.mark.xdist_group(groups.OWN_SPARKS)
@pytest.mark.fault(78, 79, 80, 82)
@pytest.mark.timeout(1200)
def test_rows_are_seen_once_while_workers_drivers_and_brokers_are_killed(
    start_real_cluster: Callable[[Mapping[str, str] | None], RealCluster], tmp_path: Path
) -> None:
    pytest.importorskip("pulsar", reason="pulsar-client is not installed")
    settings = Settings(batches=16, rows_per_batch=4000, faults=len(FAULTS), seed=3)
    report = SinkSoak(start_real_cluster(None), tmp_path, settings).run()
    print(report)
    assert report.problems == []
    assert report.rows >= 60_000
    assert set(report.faults) == set(FAULTS)
    assert report.longest_wait < report.seconds
