"""One interface to the embedded and the real broker, so that a test can run on both.

Features of only one of them are missing, or skip the test. Methods with a topic take a full name:
of a plain topic, of a partition, or of a partitioned topic if that makes sense.
"""

from __future__ import annotations

import http.client
import uuid
from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.protocol.message_id import EARLIEST, LATEST
from pulsar_spark.testing import EmbeddedBroker, TopicPolicies
from tests.support.real_broker import KEEP_ALL, AdminError, RealBroker, ask, rest_path
from tests.support.waiting import wait_until

# States of a transaction buffer: without transactions so far, and with some.
_RECOVERED = ("NoSnapshot", "Ready")


class Broker(ABC):
    """A Pulsar to test with. `kind` is ``embedded`` or ``real``."""

    kind: str

    @property
    @abstractmethod
    def service_url(self) -> str:
        """The service URL; the same after a restart."""

    @property
    @abstractmethod
    def admin_url(self) -> str:
        """The URL of the admin REST."""

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request to the admin REST; returns its status and its answer.

        `path` as for `RealBroker.admin`. The answer is None if it is no JSON.
        """
        return ask(self.admin_url, method, path, body)

    def unique_topic(self, prefix: str = "t", namespace: str = "public/default") -> str:
        """Return a full topic name that nobody else uses. The topic is not created."""
        return f"persistent://{namespace}/{prefix}-{uuid.uuid4().hex[:12]}"

    @abstractmethod
    def create_namespace(self, prefix: str = "ns", *, retained: bool = True) -> str:
        """Create a namespace that nobody else uses and return ``tenant/name``.

        It keeps all, unless nothing is `retained` that is acknowledged.
        """

    @abstractmethod
    def create_topic(self, name: str | None = None, partitions: int = 0) -> str:
        """Create a topic, with a unique name for None, and return its full name."""

    def partitions_of(self, topic: str, partitions: int) -> list[str]:
        """Return the names of a topic's partitions, the topic itself if there are none."""
        return [f"{topic}-partition-{number}" for number in range(partitions)] or [topic]

    def create_transactional_topic(self, partitions: int) -> str:
        """Create a topic whose partitions are ready for their first transaction."""
        return self.create_topic(partitions=partitions)

    @abstractmethod
    def create_limited_topic(self, policies: TopicPolicies) -> str:
        """Create a plain topic that obeys policies, in a namespace of its own on a real broker."""

    @abstractmethod
    def add_partitions(self, topic: str, partitions: int) -> None:
        """Increase a topic's partitions to this number."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its partitions; clients are disconnected from it."""

    @abstractmethod
    def terminate(self, topic: str) -> None:
        """Terminate a plain topic or a partition."""

    @abstractmethod
    def unload(self, topic: str) -> None:
        """Unload a topic; it continues in a new ledger when clients reconnect."""

    @abstractmethod
    def roll_ledger(self, topic: str) -> None:
        """Begin a new ledger of a topic with its next entry."""

    @abstractmethod
    def entries(self, topic: str) -> int:
        """Return how many entries of a plain topic or a partition are stored."""

    @abstractmethod
    def trim(self, topic: str) -> None:
        """Delete all stored messages of a plain topic or a partition, as retention does.

        Afterwards it has one empty ledger.
        """

    @abstractmethod
    def compact(self, topic: str) -> None:
        """Compact a plain topic or a partition."""

    @abstractmethod
    def expire(self, topic: str, subscription: str | None, older_than: int) -> None:
        """Acknowledge for a subscription what was published this many seconds ago or earlier.

        Without a subscription for all of them, those of readers too, as the TTL of a topic.
        """

    @abstractmethod
    def reset_subscription(self, topic: str, subscription: str, *, to_end: bool) -> None:
        """Move a subscription, if it exists, to a topic's end or start, as an administrator."""

    @abstractmethod
    def subscriptions(self, topic: str) -> set[str]:
        """The names of the current subscriptions of a plain topic or a partition."""

    @abstractmethod
    def producers(self, topic: str) -> set[str]:
        """The names of the producers connected to a plain topic or a partition."""

    @abstractmethod
    def restart(self, *, kill: bool = False) -> None:
        """Stop it, cleanly or by a kill, and start it again on the same port and data.

        To be called on the main thread.
        """

    @abstractmethod
    def pause(self) -> None:
        """Keep all connections open and read nothing, like a machine that hangs."""

    @abstractmethod
    def resume(self) -> None:
        """Go on after `pause`."""

    def expect_no_trace(self, topic: str) -> None:
        """Fail unless a plain topic or partition soon has neither subscriptions nor producers."""
        wait_until(lambda: not self.subscriptions(topic), f"{topic} has subscriptions")
        wait_until(lambda: not self.producers(topic), f"{topic} has producers")


class Embedded(Broker):
    """The embedded broker; `own` is the broker itself, with its faults."""

    kind = "embedded"

    def __init__(self, own: EmbeddedBroker) -> None:
        self.own = own

    @property
    def service_url(self) -> str:
        return self.own.service_url

    @property
    def admin_url(self) -> str:
        return self.own.admin_url

    def create_namespace(self, prefix: str = "ns", *, retained: bool = True) -> str:
        # Any name will do: this broker has all namespaces.
        return f"public/{prefix}-{uuid.uuid4().hex[:12]}"

    def create_topic(self, name: str | None = None, partitions: int = 0) -> str:
        return self.own.create_topic(name or self.unique_topic(), partitions)

    def create_limited_topic(self, policies: TopicPolicies) -> str:
        topic = self.create_topic()
        self.own.set_policies(topic, policies)
        return topic

    def add_partitions(self, topic: str, partitions: int) -> None:
        self.own.add_partitions(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        self.own.delete_topic(topic)

    def terminate(self, topic: str) -> None:
        self.own.terminate_topic(topic)

    def unload(self, topic: str) -> None:
        self.own.unload(topic)

    def roll_ledger(self, topic: str) -> None:
        self.own.roll_ledger(topic)

    def entries(self, topic: str) -> int:
        return self.own.stats(topic).entries

    def trim(self, topic: str) -> None:
        self.own.roll_ledger(topic)
        self.own.trim(topic)

    def compact(self, topic: str) -> None:
        self.own.compact(topic)

    def expire(self, topic: str, subscription: str | None, older_than: int) -> None:
        self.own.expire_messages(topic, subscription, older_than)

    def reset_subscription(self, topic: str, subscription: str, *, to_end: bool) -> None:
        if subscription in self.own.subscriptions(topic):
            self.own.reset_subscription(topic, subscription, LATEST if to_end else EARLIEST)

    def subscriptions(self, topic: str) -> set[str]:
        return set(self.own.subscriptions(topic))

    def producers(self, topic: str) -> set[str]:
        return set(self.own.stats(topic).producers)

    def restart(self, *, kill: bool = False) -> None:
        self.own.restart(down_for=0.5)

    def pause(self) -> None:
        self.own.faults.stall_reads()

    def resume(self) -> None:
        self.own.faults.resume_reads()


class Real(Broker):
    """A real broker; `own` reaches its admin REST and its process."""

    kind = "real"

    def __init__(self, own: RealBroker) -> None:
        self.own = own

    @property
    def service_url(self) -> str:
        return self.own.service_url

    @property
    def admin_url(self) -> str:
        return self.own.admin_url

    def create_namespace(self, prefix: str = "ns", *, retained: bool = True) -> str:
        name = f"public/{prefix}-{uuid.uuid4().hex[:12]}"
        self.own.admin("PUT", f"namespaces/{name}")
        if retained:
            self.own.admin("POST", f"namespaces/{name}/retention", KEEP_ALL)
        return name

    def create_topic(self, name: str | None = None, partitions: int = 0) -> str:
        return self.own.create_topic(name or self.unique_topic(), partitions)

    def create_transactional_topic(self, partitions: int) -> str:
        # Pulsar 4.0.8 can refuse the first message of a transaction, and close its producer, while
        # a partition that was just loaded recovers its transaction buffer.
        topic = super().create_transactional_topic(partitions)
        with PulsarClient(self.service_url) as client:
            client.create_producer(topic)
            for name in self.partitions_of(topic, partitions):
                wait_until(partial(self._is_recovered, name), f"{name} takes transactions")
        return topic

    def _is_recovered(self, topic: str) -> bool:
        path = rest_path(topic).removeprefix("persistent/")
        stats = self.own.admin("GET", f"/admin/v3/transactions/transactionBufferStats/{path}")
        return stats["state"] in _RECOVERED

    def create_limited_topic(self, policies: TopicPolicies) -> str:
        # Whatever is set before a topic is loaded is obeyed from its beginning.
        namespace = self.create_namespace("limited")
        for name, value in _namespace_policies(policies).items():
            method = "PUT" if name == "schemaCompatibilityStrategy" else "POST"
            self.own.admin(method, f"namespaces/{namespace}/{name}", value)
        return self.create_topic(self.unique_topic(namespace=namespace))

    def add_partitions(self, topic: str, partitions: int) -> None:
        self.own.admin("POST", f"{rest_path(topic)}/partitions", partitions)

    def delete_topic(self, topic: str) -> None:
        path = rest_path(topic)
        partitioned = "-partition-" not in topic and self.own.admin("GET", f"{path}/partitions")
        kind = "/partitions" if partitioned and partitioned.get("partitions") else ""
        self.own.admin("DELETE", f"{path}{kind}?force=true")

    def terminate(self, topic: str) -> None:
        self.own.admin("POST", f"{rest_path(topic)}/terminate")

    def unload(self, topic: str) -> None:
        self.own.unload(topic)

    def roll_ledger(self, topic: str) -> None:
        # A topic begins a new ledger when it is loaded again. Only a loaded topic can be closed.
        self.own.unload(topic)

    def trim(self, topic: str) -> None:
        # Only closed ledgers can be deleted, and unloading closes the current one.
        self.own.unload(topic)

        def trimmed() -> bool:
            # One that runs while the topic is loading can leave a ledger behind, or meet a cursor
            # that is being closed.
            try:
                self.own.admin("DELETE", f"{rest_path(topic)}/truncate")
            except AdminError as error:
                if "Cursor was already closed" not in str(error):
                    raise
                return False
            return self.entries(topic) == 0

        wait_until(trimmed, f"{topic} is not trimmed")

    def compact(self, topic: str) -> None:
        path = f"{rest_path(topic)}/compaction"
        self.own.admin("PUT", path)

        def done() -> bool:
            status = self.own.admin("GET", path)["status"]
            assert status != "ERROR", f"{topic} could not be compacted"
            # A topic that is unloaded before its broker has noted the compacted ledger forgets it.
            return bool(
                status == "SUCCESS" and self._internal(topic)["compactedLedger"]["entries"] >= 0
            )

        wait_until(done, f"{topic} is not compacted")

    def expire(self, topic: str, subscription: str | None, older_than: int) -> None:
        which = "all_subscription" if subscription is None else f"subscription/{subscription}"
        try:
            self.own.admin("POST", f"{rest_path(topic)}/{which}/expireMessages/{older_than}")
        except AdminError as error:
            # A subscription has nothing more to expire, or just ended.
            if error.status not in (http.client.CONFLICT, http.client.NOT_FOUND):
                raise

    def reset_subscription(self, topic: str, subscription: str, *, to_end: bool) -> None:
        path = f"{rest_path(topic)}/subscription/{subscription}"

        def reset() -> bool:
            try:
                self.own.admin("POST", f"{path}/skip_all" if to_end else f"{path}/resetcursor/0")
            except AdminError as error:
                # Brokers refuse while a consumer of the subscription comes or goes.
                if "Failed to fence subscription" in str(error):
                    return False
                if error.status != http.client.NOT_FOUND:
                    raise
            return True

        wait_until(reset, f"{subscription} on {topic} is not reset")

    def entries(self, topic: str) -> int:
        return int(self._internal(topic)["numberOfEntries"])

    def subscriptions(self, topic: str) -> set[str]:
        return set(self._stats(topic).get("subscriptions", {}))

    def producers(self, topic: str) -> set[str]:
        return {found["producerName"] for found in self._stats(topic).get("publishers", [])}

    def _internal(self, topic: str) -> Any:
        return self.own.admin("GET", f"{rest_path(topic)}/internalStats")

    def _stats(self, topic: str) -> dict[str, Any]:
        try:
            stats = self.own.admin("GET", f"{rest_path(topic)}/stats")
        except AdminError as error:
            # Nobody is connected to a topic that is not loaded.
            if error.status != 404:
                raise
            return {}
        assert isinstance(stats, dict)
        return stats

    def restart(self, *, kill: bool = False) -> None:
        if kill:
            self.own.kill()
        else:
            self.own.stop()
        self.own.start()

    def pause(self) -> None:
        self.own.pause()

    def resume(self) -> None:
        self.own.resume()


def _namespace_policies(policies: TopicPolicies) -> dict[str, Any]:
    """Return what differs from a namespace's defaults, by the names of the admin REST."""
    limits = {
        "maxConsumersPerTopic": policies.max_consumers,
        "maxConsumersPerSubscription": policies.max_consumers_per_subscription,
        "maxSubscriptionsPerTopic": policies.max_subscriptions,
        "maxProducersPerTopic": policies.max_producers,
        "encryptionRequired": policies.encryption_required,
        "messageTTL": policies.message_ttl,
        "deduplication": policies.deduplication,
        "schemaValidationEnforced": policies.schema_validation_enforced,
    }
    found: dict[str, Any] = {name: value for name, value in limits.items() if value}
    for kind, quota in (
        ("destination_storage", policies.backlog_size),
        ("message_age", policies.backlog_age),
    ):
        if quota is not None:
            limit = {"limitSize": quota.limit, "limitTime": quota.limit, "policy": quota.policy}
            found[f"backlogQuota?backlogQuotaType={kind}"] = limit
    if policies.schema_compatibility != TopicPolicies().schema_compatibility:
        found["schemaCompatibilityStrategy"] = policies.schema_compatibility
    if not policies.auto_update_schema:
        found["isAllowAutoUpdateSchema"] = False
    if not policies.auto_subscription_creation:
        found["autoSubscriptionCreation"] = {"allowAutoSubscriptionCreation": False}
    if set(policies.subscription_types) != set(TopicPolicies().subscription_types):
        found["subscriptionTypesEnabled"] = list(policies.subscription_types)
    return found


def as_real(broker: Broker) -> Real:
    """Return a broker as a real one; skips the test for an embedded one."""
    if not isinstance(broker, Real):
        pytest.skip("only the real broker does this")
    return broker


def needs_pulsar(broker: Broker, version: str, what: str) -> None:
    """Skip the test on a real broker older than `version`, which introduced `what`."""
    if isinstance(broker, Real):
        found = broker.own.version
        if found < tuple(int(part) for part in version.split(".")):
            pytest.skip(f"{what} came with Pulsar {version}, this is {'.'.join(map(str, found))}")
