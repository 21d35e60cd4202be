"""Spark's Python workers: processes that run one step of planning, or one task, after another."""

from __future__ import annotations

import gc
import os
from functools import cache

from pulsar_spark.logs import LOG_LEVEL_VARIABLE, show_log
from pulsar_spark.spark.compat import is_worker


@cache
def prepare() -> None:
    """Log with times and levels, and spare the garbage collector what this worker has imported.

    Does nothing outside of workers. Nobody can configure a worker's logging, and Python's own
    prints bare messages, among the JVM's lines.

    After each step or task, Spark's workers collect garbage in full. With all modules that a data
    source needs, that takes 30 to 40 ms of CPU, in each of the three workers of a read. Frozen
    objects are still freed when nothing refers to them, but not in cycles: so this freezes them
    only once, before the first step or task has made many objects of its own.
    """
    if is_worker():
        if not os.environ.get(LOG_LEVEL_VARIABLE):
            show_log()
        gc.freeze()
