"""Fixtures for tests that need a Pulsar: pytest finds them wherever this package is installed.

The broker runs in memory, in the process of the tests, and starts when a test first asks for it.
Nothing is imported before: pytest loads this module in every project.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pulsar_spark.testing import EmbeddedBroker

_numbers = count(1)


@pytest.fixture(scope="session")
def pulsar_broker() -> Iterator[EmbeddedBroker]:
    """An `EmbeddedBroker` for all tests; it stops after the last one.

    Override it in a conftest.py to set options, or to have one for each test.
    """
    from pulsar_spark.testing import EmbeddedBroker

    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def pulsar_url(pulsar_broker: EmbeddedBroker) -> str:
    """The service URL of `pulsar_broker`, for the option `service.url` and for any client."""
    return pulsar_broker.service_url


@pytest.fixture
def pulsar_topic(pulsar_broker: EmbeddedBroker) -> str:
    """The full name of a new topic, which no other test uses; it is not partitioned."""
    return pulsar_broker.create_topic(f"test-{next(_numbers)}")
