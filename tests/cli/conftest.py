"""The broker that commands are run against."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark.testing import EmbeddedBroker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """A broker in memory, with the topic `orders` of two partitions."""
    with EmbeddedBroker() as running:
        running.create_topic("orders", partitions=2)
        yield running
        assert running.internal_errors == ()
