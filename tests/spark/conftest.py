"""Fixtures of the Spark layer's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark.engine.consumers import attachment, probe
from pulsar_spark.spark.streaming import held_back, topics
from pulsar_spark.testing import EmbeddedBroker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """A broker that creates no topics by itself."""
    with EmbeddedBroker(auto_create=False) as running:
        yield running
        assert running.internal_errors == ()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask brokers nothing because time has passed: tests count, on slow machines, too.

    Entries are not looked for twice, topics that are empty or do not move not again.
    """
    for module, name in (
        (probe, "_FIRST_PATIENCE"),
        (attachment, "_DOUBT_SECONDS"),
        (held_back, "_LOOK_SECONDS"),
        (topics, "_BEHIND_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 1000.0)
