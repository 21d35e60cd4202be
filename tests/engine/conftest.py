"""Fixtures that several tests of the engine share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark.engine.timers import Timers


@pytest.fixture
def timers() -> Iterator[Timers]:
    made = Timers("test-timers")
    yield made
    made.close()
