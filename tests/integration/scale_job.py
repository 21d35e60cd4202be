"""Run by test_scale.py in processes of their own: plans a read and runs its tasks, as Spark does.

Arguments: the service URL, the topics. It plans at once and prints the cost. Then each line of
input is a number of tasks to run at the same time, after which it prints their cost.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

from pulsar_spark.engine.context import shared_connections
from pulsar_spark.spark.datasource import PulsarDataSource


def memory() -> int:
    """Return the bytes of memory that the process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def peak() -> int:
    """Return the process's peak of memory in bytes."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def say(**found: Any) -> None:
    """Print the results and the number of connections."""
    found["connections"] = len(shared_connections().connections)
    print(json.dumps(found), flush=True)


def main(service_url: str, topics: str) -> None:
    """Plan, then run tasks until standard input ends."""
    source = PulsarDataSource({"service.url": service_url, "topics": topics})
    before, started, cpu = memory(), time.monotonic(), time.process_time()
    reader = source.reader(source.schema())
    partitions: Any = reader.partitions()
    say(
        partitions=len(partitions),
        seconds=time.monotonic() - started,
        cpu=time.process_time() - cpu,
        memory=peak() - before,
    )
    for line in sys.stdin:
        count = int(line)
        start = Barrier(count)

        def run(partition: Any, start: Barrier = start) -> int:
            start.wait()
            return sum(batch.num_rows for batch in reader.read(partition))  # type: ignore[union-attr]

        started = time.monotonic()
        with ThreadPoolExecutor(count) as threads:
            rows = sum(threads.map(run, partitions[:count]))
        say(rows=rows, seconds=time.monotonic() - started)


if __name__ == "__main__":
    main(*sys.argv[1:])
