"""A broker in memory and a client of it, for the tests of `PulsarClient`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.testing import EmbeddedBroker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        yield made
        assert made.internal_errors == ()


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[PulsarClient]:
    with PulsarClient(broker.service_url) as made:
        yield made
