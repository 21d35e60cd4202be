"""Our codecs compared with the obvious way: records of ten mixed fields to columns, and back.

The obvious way is the code one writes without this package: the format's own library for each
message, and `pa.Table.from_pylist`; for writing, `to_pylist` and the library for each row. The two
take turns, with record batches as large as a read's, and their results are compared before timing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.codecs_ways import Way

RECORDS = 500_000
# Each takes seconds of CPU, so more rounds add little.
ROUNDS = 2


@dataclass(frozen=True)
class Compared:
    """CPU microseconds per record, medians of the rounds; `ratio` is per round."""

    title: str
    obvious: float
    ours: float
    ratio: float


def _seconds(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def compare(way: Way, records: int, rounds: int) -> Compared:
    """Run both in turn."""
    times = [(_seconds(way.obvious), _seconds(way.ours)) for _ in range(rounds)]
    each = 1e6 / records
    return Compared(
        way.title,
        statistics.median(obvious for obvious, _ in times) * each,
        statistics.median(ours for _, ours in times) * each,
        statistics.median(obvious / ours for obvious, ours in times),
    )


def measure(records: int = RECORDS, rounds: int = ROUNDS) -> list[Compared]:
    """Compare all formats, both directions."""
    # Each needs the format's own library, which is only installed for tests.
    from benchmarks import codecs_avro, codecs_json, codecs_protobuf

    found = []
    for module in (codecs_avro, codecs_json, codecs_protobuf):
        found += [compare(way, records, rounds) for way in module.ways(records)]
    return found


def table(compared: Sequence[Compared]) -> str:
    """Return the comparisons as a Markdown table."""
    lines = [
        "| records of ten mixed fields | the obvious way | pulsar_spark | times as fast |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| {row.title} | {row.obvious:.1f} µs | {row.ours:.2f} µs | {row.ratio:.1f} |"
        for row in compared
    ]
    return "\n".join(lines)
