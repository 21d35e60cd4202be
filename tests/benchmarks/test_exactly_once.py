"""The cost of exactly-once writing, as the benchmark page reports it."""

from __future__ import annotations

import pytest

from benchmarks.exactly_once import Guarantees, table


def test_the_cost_is_the_ratio_of_runs_that_follow_each_other() -> None:
    seconds = {"at-least-once": [10.0, 20.0, 40.0], "exactly-once": [12.0, 22.0, 60.0]}
    found = Guarantees(1_000_000, seconds)
    assert found.ratio == pytest.approx(1.2)
    text = table(found)
    assert "| at-least-once | 20.00 | 50,000 |" in text
    assert "| exactly-once | 22.00 | 45,455 |" in text
    assert "1.5 at most | 1.20 |" in text
