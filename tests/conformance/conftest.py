"""An embedded broker, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        yield made
        assert made.internal_errors == ()


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[PulsarClient]:
    with PulsarClient(broker.service_url) as made:
        yield made


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[WireClient]:
    made = WireClient(broker.port)
    yield made
    made.close()
