"""The broker that the commands connect to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark.testing import EmbeddedBroker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """An embedded broker with the topic `orders`, which has two partitions."""
    with EmbeddedBroker() as running:
        running.create_topic("orders", partitions=2)
        yield running
        assert running.internal_errors == ()
