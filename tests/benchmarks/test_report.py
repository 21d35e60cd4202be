"""The benchmark's report of its runs: targets, the order of shapes, tables."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import zlib
from pathlib import Path

import pytest

from benchmarks import report, typed
from benchmarks.__main__ import FULL_PAGE, PAGES, RESULTS
from benchmarks.contenders import (
    CLIENT,
    DRAIN,
    HANDED,
    OFFICIAL,
    OURS,
    OVER_TLS,
    PUMP,
    RECEIVES,
    SCALA,
    SENDS,
    TRIVIAL_SINK,
    Contender,
)
from benchmarks.measure import Measurement, measured, on_one_core
from benchmarks.results import Result, Results
from benchmarks.targets import Target, targets
from benchmarks.workloads import WORKLOADS, Workload
from tests.support.waiting import finish

SHAPES = {workload.name: workload for workload in WORKLOADS}


def result(
    shape: str, contender: Contender, seconds: float, cpu: float = 1.0, operation: str = "read"
) -> Result:
    """Three equally long runs of a contender."""
    return Result(operation, SHAPES[shape], contender, [Measurement(seconds, cpu, 10**8)] * 3)


def ours(shape: str, seconds: float, cpu: float, implementation: str = "native") -> list[Result]:
    return [
        result(shape, Contender(OFFICIAL, "all", note="receive"), 1.0),
        result(shape, Contender(OURS, "all", implementation), seconds, cpu),
        result(shape, Contender(HANDED, "all", implementation), seconds / 2, cpu / 2),
        result(shape, Contender(DRAIN), seconds / 4),
    ]


def test_a_bound_from_above_and_one_from_below_are_missed_on_the_right_side() -> None:
    assert Target("lz4", "", value=2.0, bound=1.0).margin == 2.0
    assert Target("lz4", "", value=2.0, bound=1.0, at_most=True).margin == 0.5


def test_every_shape_that_is_read_has_a_target() -> None:
    results = Results([row for shape in SHAPES for row in ours(shape, 1.0, 1.0)])

    for shape in SHAPES:
        assert targets(results, shape)


def test_the_shape_that_is_furthest_from_its_targets_comes_first() -> None:
    results = Results([*ours("batch1000", 1.0, 1.0), *ours("batch10", 30.0, 60.0)])

    assert [shape.name for shape in report.worst_first(results)] == ["batch10", "batch1000"]


@pytest.mark.parametrize("operation", [*RECEIVES, *SENDS])
@pytest.mark.parametrize("seconds, is_held", [(0.9, True), (1.1, False)])
def test_our_client_is_to_be_as_fast_as_the_official_one_in_each_way(
    operation: str, seconds: float, is_held: bool
) -> None:
    columns = "value" if operation in RECEIVES else ""
    results = Results(
        [
            result("batch10", Contender(OFFICIAL, columns), 1.0, operation=operation),
            result("batch10", Contender(CLIENT, columns, "native"), seconds, operation=operation),
        ]
    )
    (found,) = targets(results, "batch10")
    assert found.what == f"native: speed of {operation}, of the official client"
    assert (found.margin >= 1) is is_held


def test_reading_over_tls_is_held_against_reading_without() -> None:
    over_tls = result("batch1000", Contender(OVER_TLS, "all", "native"), 1.0, 0.6)
    results = Results([*ours("batch1000", 1.0, 0.5), over_tls])

    (found,) = (each for each in targets(results, "batch1000") if "TLS" in each.what)
    assert found.value == pytest.approx(1.2)
    assert found.margin > 1


def test_tables_name_every_contender_with_what_a_row_costs() -> None:
    results = Results(ours("stored1k", 1.0, 0.5))

    text = "\n".join(report.sections(results))

    assert "| pulsar_spark native, seven columns | 200,000 | 200 | 2.50 | 100 MB | 1.00 |" in text
    assert "handed to Spark, of the raw drain | 0.50 | ≥ 0.6 | **missed**" in text


@pytest.mark.parametrize(
    "seconds, speeds",
    [
        (0.98, {"speed, of the raw drain"}),
        (1.5, {"speed, of the raw drain", "speed of reading, of the official client"}),
    ],
)
def test_where_all_wait_for_the_broker_the_raw_drain_is_the_measure(
    seconds: float, speeds: set[str]
) -> None:
    results = Results(
        [
            result("stored1k", Contender(OURS, "all", "native"), 1.0),
            result("stored1k", Contender(OFFICIAL, "all"), seconds),
            result("stored1k", Contender(DRAIN), 0.95),
            result("stored1k", Contender(SCALA, "all"), 1.1),
        ]
    )
    found = {each.what.removeprefix("native: ") for each in targets(results, "stored1k")}
    assert {what for what in found if what.startswith("speed")} == speeds


def test_writing_is_held_against_what_the_broker_takes_where_that_is_the_limit() -> None:
    writers = [
        (Contender(OFFICIAL, note="send_async"), 8.0),
        (Contender(TRIVIAL_SINK), 1.0),
        (Contender(OURS, implementation="native"), 5.0),
        (Contender(PUMP), 4.0),
    ]
    rows = [result("lz4", who, seconds, operation="write") for who, seconds in writers]
    results = Results(rows)

    table = report.contenders_table(results, "write", rows[0].workload)

    parts = [line.rsplit("|", 2)[1].strip() for line in table.splitlines()[2:]]
    assert parts == ["50%", "", "80%", ""]
    (target,) = targets(results, "lz4")
    assert (target.value, target.note) == (1.6, "80% of the raw pump")


def test_figures_of_peers_stand_beside_ours_where_they_were_not_measured() -> None:
    results = Results(ours("batch10", 1.0, 1.0))

    (line,) = (
        line
        for line in report.reading_table(results, results.workloads()).splitlines()
        if line.startswith("| 100 B, batches of 10 |")
    )
    assert line.count(" · ") == 4  # ours, the official client, Scala's connector, Kafka's source


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_messages_are_of_their_size_and_add_up(workload: Workload) -> None:
    some = workload.scaled(0)
    messages = list(some.made())

    assert {len(message.value) for message in messages} == {workload.size}
    assert len({message.value for message in messages}) == some.messages
    assert some.sums().count == len(messages)
    assert some.sums().values == sum(zlib.crc32(message.value) for message in messages)


def test_only_what_stands_between_the_markers_is_replaced(tmp_path: Path) -> None:
    start, end = report.MARKERS
    page = tmp_path / "page.md"
    page.write_text(f"before\n{start}\nold\n{end}\nafter\n", "utf-8")

    report.put_between_markers(page, "new")

    assert page.read_text("utf-8") == f"before\n{start}\nnew\n{end}\nafter\n"


def test_prose_is_wrapped_and_lines_of_tables_are_not(tmp_path: Path) -> None:
    start, end = report.MARKERS
    page = tmp_path / "page.md"
    page.write_text(f"{start}\n{end}\n", "utf-8")
    row = "| cell " * 30 + "|"

    report.put_between_markers(page, f"## Title\n\n{'word ' * 40}\n\n{row}")

    words = ("word " * 20).rstrip()
    expected = ["## Title", "", words, words, "", row]
    assert page.read_text("utf-8").splitlines()[1:-1] == expected


def test_a_page_without_markers_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n", "utf-8")

    with pytest.raises(ValueError, match="has no"):
        report.put_between_markers(page, "new")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_measured_is_the_time_the_cpu_and_the_peak_of_the_block_alone() -> None:
    with measured() as before:
        _touch(600)
    with measured() as found:
        _touch(100)

    assert found.seconds > 0
    assert found.cpu_seconds >= 0
    # Both include the other memory of this process.
    assert 100 << 20 < found.peak_python_bytes < before.peak_python_bytes - (400 << 20)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_all_threads_of_a_process_are_kept_on_one_core_and_those_that_they_start() -> None:
    ended = threading.Event()

    def cores() -> list[set[int]]:
        found = []
        for task in os.listdir(f"/proc/{os.getpid()}/task"):
            # Threads of other tests may end meanwhile.
            with contextlib.suppress(ProcessLookupError):
                found.append(os.sched_getaffinity(int(task)))
        return found

    before = os.sched_getaffinity(0)
    threads = [threading.Thread(target=ended.wait) for _ in range(2)]
    try:
        threads[0].start()
        with on_one_core(os.getpid()):
            threads[1].start()
            assert all(found == {max(before)} for found in cores())
        assert len(cores()) > 2
        assert all(found == before for found in cores())
    finally:
        ended.set()
        finish(*(thread for thread in threads if thread.ident))


def _touch(megabytes: int) -> None:
    assert len(b"x" * (megabytes << 20)) == megabytes << 20


def test_what_was_not_measured_anew_is_kept_and_what_was_replaces_what_had_been(
    tmp_path: Path,
) -> None:
    before = Results([*ours("batch10", 1.0, 1.0), *ours("lz4", 1.0, 1.0)])
    before.decoding = {("batch10", "native"): 1.0}
    path = tmp_path / "results.json"
    path.write_text(before.as_json(), "utf-8")

    now = Results()
    now.load(path)
    now.put(ours("batch10", 2.0, 1.0))

    found = {shape: now.find("read", shape, OURS, "all", "native") for shape in ("batch10", "lz4")}
    assert [row and row.median("seconds") for row in found.values()] == [2.0, 1.0]
    assert now.decoding == before.decoding
    assert len(now.all) == len(before.all)


def test_the_published_tables_are_those_of_the_published_runs() -> None:
    results = Results()
    results.load(FULL_PAGE.parent / "benchmarks" / RESULTS)
    page = FULL_PAGE.read_text("utf-8")
    tables = [section for section in report.sections(results) if section.startswith("|")]
    assert tables
    for table in tables:
        assert table in page
    for page in (each.read_text("utf-8") for each in PAGES):
        assert report.short(results) in page


def test_the_page_of_benchmarks_begins_with_its_picture_and_a_short_table() -> None:
    page = PAGES[0].read_text("utf-8")
    firsts = [page.index(text) for text in ("\n![", "\n| ", "\n## ")]
    assert firsts == sorted(firsts)
    assert page.count("\n|") < 20 + page[firsts[2] :].count("\n|")


def test_small_micro_batches_are_counted_whole_the_dearest_beside_raw_values_first() -> None:
    found = {
        shape: [
            Result("stream", shape.workload, contender, [Measurement(6.0, cpu, 0)] * 3)
            for contender, cpu in (
                (Contender(OURS, implementation="native"), dear),
                (Contender(typed.RAW), 0.9),
            )
        ]
        for shape, dear in zip(typed.SMALL, (1.2, 1.5, 0.6), strict=True)
    }
    _, _, *rows = typed.stream_table(found).splitlines()
    assert rows == [
        "| click, JSON, batches of 10 | 50.0 (5.0) |  | 30.0 (5.0) |  | +20.0 ms |",
        "| click, AVRO, batches of 10 | 40.0 (5.0) |  | 30.0 (5.0) |  | +10.0 ms |",
        "| click, PROTOBUF_NATIVE, batches of 10 | 20.0 (5.0) |  | 30.0 (5.0) |  | -10.0 ms |",
    ]
