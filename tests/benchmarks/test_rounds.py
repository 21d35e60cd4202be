"""Rounds of the benchmark: contenders run in turn, once their JVMs are warm."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import WARM_UPS, alternate, parse
from benchmarks.contenders import DRAIN, OURS, SCALA, Contender
from benchmarks.measure import Measurement, compile_seconds_of
from benchmarks.workloads import Workload

TICKS = 100
SHAPE = Workload("s", 1000, 100)


@pytest.mark.parametrize(
    "warm_after, warm_ups",
    [(0, WARM_UPS["read"][0]), (6, 7), (1000, WARM_UPS["read"][1])],
    ids=["at once", "later", "never"],
)
def test_runs_are_counted_once_no_jvm_compiles_much(warm_after: int, warm_ups: int) -> None:
    rounds: list[str] = []
    mine, others, drain = Contender(OURS, "all", "native"), Contender(SCALA), Contender(DRAIN)

    def run(contender: Contender) -> Measurement:
        rounds.append(contender.kind)
        is_cold = contender is others and rounds.count(SCALA) <= warm_after
        return Measurement(len(rounds), 1.0, compile_seconds=0.2 if is_cold else 0.1)

    named = {each: lambda each=each: run(each) for each in (mine, others, drain)}
    found = alternate("read", SHAPE, named, 2)  # type: ignore[arg-type]

    assert rounds == [OURS, SCALA] * warm_ups + [OURS, SCALA, DRAIN] * 2
    first = 2 * warm_ups + 1
    assert [[measured.seconds for measured in result.runs] for result in found] == [
        [first, first + 3], [first + 1, first + 4], [first + 2, first + 5]
    ]  # fmt: skip


def test_of_a_jvm_the_times_of_its_compilers_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.measure._TICK", TICKS)
    threads = {"C2 CompilerThre": (30, 4), "C1 CompilerThre": (5, 1), "GC Thread#0": (700, 0)}
    for number, (name, (user, system)) in enumerate(threads.items()):
        folder = tmp_path / "task" / str(number)
        folder.mkdir(parents=True)
        before = " ".join(["0"] * 10)
        (folder / "stat").write_text(f"{number} ({name}) S {before} {user} {system} 0 0\n", "utf-8")
    (tmp_path / "task" / "9").mkdir()

    assert compile_seconds_of(tmp_path) == pytest.approx(0.4)
    assert compile_seconds_of(tmp_path / "ended") == 0


def test_settings_of_spark_are_given_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "--conf", "a=1", "--conf", "b=c=d"])
    assert dict(parse().conf) == {"a": "1", "b": "c=d"}
