"""The soak's checker reports rows that are lost, duplicated or out of order."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from pulsar_spark.protocol.message_id import MessageIdAdv
from tests.soak.job import COLUMNS, Results
from tests.soak.rows import KEYS, Checker, key_of, rows_of_key, value_of
from tests.soak.soak import FAULTS, Report, Settings, schedule

ROWS = 5 * KEYS + 3
ALL = [(key_of(row % KEYS).encode(), value_of(row // KEYS)) for row in range(ROWS)]
ID = MessageIdAdv(1, 2, 0, 3).serialize()


def judged(rows: list[tuple[bytes, bytes]]) -> Checker:
    checker = Checker()
    for batch, first in enumerate(range(0, len(rows), 100)):
        keys, values = zip(*rows[first : first + 100], strict=True)
        checker.add(keys, values, [ID] * len(keys), batch)
    checker.end(ROWS)
    return checker


def test_all_rows_in_the_order_of_their_keys_are_right() -> None:
    assert sum(rows_of_key(ROWS, key) for key in range(KEYS)) == ROWS
    assert judged(ALL).problems == []
    assert judged(sorted(ALL)).problems == []


@pytest.mark.parametrize("place", [0, 7, 150, ROWS - 1])
def test_a_row_that_is_lost_or_doubled_is_told(place: int) -> None:
    lost = judged(ALL[:place] + ALL[place + 1 :])
    assert lost.wrong
    assert f"{ROWS - 1} rows came" in "".join(lost.problems)
    doubled = judged(ALL[: place + 1] + ALL[place:])
    assert any("comes again" in problem and "1:2" in problem for problem in doubled.problems)


def test_rows_of_a_key_in_another_order_are_told() -> None:
    swapped = list(ALL)
    swapped[5], swapped[5 + KEYS] = swapped[5 + KEYS], swapped[5]
    assert "too early" in judged(swapped).problems[0]


def test_a_last_batch_is_judged_when_it_cannot_be_run_again(tmp_path: Path) -> None:
    results = Results(tmp_path)
    (tmp_path / "sink").mkdir()
    for batch in range(2):
        rows = ALL[batch * 100 : (batch + 1) * 100]
        columns = zip(*((*row, ID) for row in rows), strict=True)
        table = pa.table(dict(zip(COLUMNS, map(list, columns), strict=True)))
        with pa.ipc.new_file(tmp_path / "sink" / f"{batch:08d}.arrow", table.schema) as writer:
            writer.write_table(table)
        results.look()
        assert (results.rows, results.batches) == ((batch + 1) * 100, batch)
    results.look(all_final=True)
    assert (results.checker.rows, results.batches) == (200, 2)
    assert not results.checker.wrong


@pytest.mark.parametrize("faults", [6, 12, 100])
def test_each_kind_of_fault_strikes(faults: int) -> None:
    settings = Settings(1000, faults, seed=3)
    planned = schedule(settings, random.Random(3))
    assert len(planned) == faults
    assert set(planned) == set(FAULTS)
    assert planned == schedule(settings, random.Random(3))


def test_a_report_with_problems_is_no_success() -> None:
    assert str(Report()).startswith("PASSED")
    assert str(Report(problems=["one row is missing"])).startswith("FAILED")
