"""Fixtures of the Spark layer's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark.testing import EmbeddedBroker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """A broker that creates no topics by itself."""
    with EmbeddedBroker(auto_create=False) as running:
        yield running
        assert running.internal_errors == ()
