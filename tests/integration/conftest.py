"""The brokers of the integration tests: `broker` runs a test on the embedded and the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.brokers import Broker, Embedded, Real
from tests.integration.streams import Feed, feeding, streaming
from tests.spark.readings import Reading
from tests.spark.streams import Make
from tests.support.real_broker import OwnBroker

KINDS = ["embedded", pytest.param("real", marks=pytest.mark.real_broker)]

TUNED_MESSAGE_SIZE = 64 * 1024
TUNED_ENTRIES_PER_LEDGER = 100

_INTERCEPTORS = "org.apache.pulsar.common.intercept"


@pytest.fixture(scope="session")
def _embedded_broker() -> Iterator[Embedded]:
    with EmbeddedBroker(rest=True) as own:
        yield Embedded(own)
        assert own.internal_errors == ()


@pytest.fixture(scope="session")
def _tuned_embedded_broker() -> Iterator[Embedded]:
    with EmbeddedBroker(
        max_message_size=TUNED_MESSAGE_SIZE,
        max_entries_per_ledger=TUNED_ENTRIES_PER_LEDGER,
        expose_entry_metadata=True,
        keep_alive_interval=2.0,
        deduplication=True,
        batch_index_ack=True,
        rest=True,
    ) as own:
        yield Embedded(own)
        assert own.internal_errors == ()


@pytest.fixture(scope="session")
def _tuned_real_broker(request: pytest.FixtureRequest) -> Iterator[Real]:
    settings = {
        "maxMessageSize": str(TUNED_MESSAGE_SIZE),
        "managedLedgerMaxEntriesPerLedger": str(TUNED_ENTRIES_PER_LEDGER),
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "brokerEntryMetadataInterceptors": f"{_INTERCEPTORS}.AppendBrokerTimestamp"
        f"MetadataInterceptor,{_INTERCEPTORS}.AppendIndexMetadataInterceptor",
        "exposingBrokerEntryMetadataToClientEnabled": "true",
        "keepAliveIntervalSeconds": "2",
        "brokerDeduplicationEnabled": "true",
        "backlogQuotaCheckIntervalInSeconds": "1",
        "acknowledgmentAtBatchIndexLevelEnabled": "true",
    }
    own = OwnBroker(request.getfixturevalue("_distribution"), settings)
    try:
        own.start()
        yield Real(own)
    finally:
        own.close()


@pytest.fixture(scope="session", params=KINDS)
def broker(request: pytest.FixtureRequest) -> Broker:
    """An embedded and a real broker with their usual settings. Tests must not restart it."""
    if request.param == "real":
        return Real(request.getfixturevalue("real_broker"))
    found: Broker = request.getfixturevalue("_embedded_broker")
    return found


@pytest.fixture(scope="session", params=KINDS)
def tuned_broker(request: pytest.FixtureRequest) -> Broker:
    """Brokers that may be restarted and paused, with small limits.

    A message has at most TUNED_MESSAGE_SIZE bytes, a ledger TUNED_ENTRIES_PER_LEDGER entries;
    each entry has its index and the broker's time; PINGs come every 2 seconds; the broker
    deduplicates; parts of batches can be acknowledged.
    """
    name = "_tuned_real_broker" if request.param == "real" else "_tuned_embedded_broker"
    found: Broker = request.getfixturevalue(name)
    return found


@pytest.fixture
def make(broker: Broker) -> Iterator[Make]:
    with streaming(broker) as made:
        yield made


@pytest.fixture
def feed(broker: Broker) -> Iterator[Feed]:
    with feeding(broker) as made:
        yield made


@pytest.fixture(params=[False, True], ids=["entries", "columns"])
def read(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Callable[..., Reading]]:
    """Read ranges as tasks do: `read(topic, end, start=…)`, by entries and by columns."""
    opened: list[Reading] = []

    def reading(topic: str, end: Position, **more: Any) -> Reading:
        opened.append(Reading(broker.service_url, topic, end, columns=request.param, **more))
        return opened[-1]

    yield reading
    for one in opened:
        one.close()


@pytest.fixture
def tuned_make(tuned_broker: Broker) -> Iterator[Make]:
    with streaming(tuned_broker) as made:
        yield made


@pytest.fixture
def tuned_feed(tuned_broker: Broker) -> Iterator[Feed]:
    with feeding(tuned_broker) as made:
        yield made


@pytest.fixture
def own() -> Iterator[EmbeddedBroker]:
    """A broker of the test's own, with the topics `orders` and `copy`, of two partitions each."""
    with EmbeddedBroker(auto_create=False) as running:
        for topic in ("orders", "copy"):
            running.create_topic(topic, 2)
        yield running
        assert running.internal_errors == ()


@pytest.fixture
def client(broker: Broker) -> Iterator[PulsarClient]:
    with PulsarClient(broker.service_url, operation_timeout_seconds=60) as made:
        yield made


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic()
