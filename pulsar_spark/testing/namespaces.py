"""The tenants and namespaces of a broker, and the policies that are set for them and for topics."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.topic_name import SYSTEM_NAMESPACE, TopicName
from pulsar_spark.testing.options import BrokerOptions
from pulsar_spark.testing.policies import TopicPolicies
from pulsar_spark.testing.refusals import Refusal

# Characters that brokers accept in names of tenants and namespaces.
_NAME = re.compile(r"[-=:.\w]+\Z", re.ASCII)

AUTO_CREATE = "auto_create"
"""The setting of a namespace that TopicPolicies lack: as EmbeddedBroker's parameter."""


class Namespaces:
    """Which tenants and namespaces there are, and what is set for namespaces and single topics.

    Without `namespaces` in the options, any exists: those are listed that were created, or have
    topics. Settings are fields of TopicPolicies by name; a topic's own precede its namespace's,
    which precede the broker's.
    """

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options
        self.any = options.namespaces is None
        self.settings: dict[str, dict[str, Any]] = {
            name: {} for name in options.namespaces or ("public/default",)
        }
        self.tenants: dict[str, dict[str, list[str]]] = {}
        for name in self.settings:
            self.add_tenant(name.split("/")[0], [], [options.name])
        self.of_topics: dict[str, dict[str, Any]] = {}

    def __contains__(self, name: str) -> bool:
        return self.any or name in self.settings or name == SYSTEM_NAMESPACE

    def add_tenant(self, name: str, roles: list[str], clusters: list[str]) -> None:
        """Add a tenant, or change it."""
        self.tenants[name] = {"adminRoles": roles, "allowedClusters": clusters}

    def add(self, name: str) -> None:
        """Add a namespace, and its tenant if any tenant exists."""
        self.settings[name] = {}
        if (tenant := name.split("/", maxsplit=1)[0]) not in self.tenants:
            self.add_tenant(tenant, [], [self._options.name])

    def of_tenant(self, tenant: str, topics: Iterable[TopicName] = ()) -> list[str]:
        """The names of a tenant's namespaces, with those that have one of the topics."""
        used = {name.namespace_name for name in topics}
        return sorted(name for name in used | set(self.settings) if name.split("/")[0] == tenant)

    def check(self, name: TopicName) -> None:
        """Raise Refusal (TopicNotFound) if a topic's namespace does not exist."""
        if name.namespace_name not in self:
            raise Refusal(pb.TopicNotFound, "Namespace not found")

    def of_namespace(self, name: str) -> dict[str, Any]:
        """What is set for a namespace; changes count."""
        return self.settings.setdefault(name, {})

    def of_topic(self, name: TopicName) -> dict[str, Any]:
        """What is set for a topic and its partitions; changes count."""
        return self.of_topics.setdefault(str(name.partitioned), {})

    def policies(self, name: TopicName) -> TopicPolicies:
        """What a topic has to obey."""
        namespace = self.settings.get(name.namespace_name, {})
        own = self.of_topics.get(str(name.partitioned), {})
        return self._options.policies.with_settings(namespace, own)

    def auto_partitions(self, name: TopicName) -> int | None:
        """As `auto_partitions` of the options, for a topic's namespace."""
        settings = self.settings.get(name.namespace_name, {})
        return partitions_of(settings.get(AUTO_CREATE, self._options.auto_create))


def partitions_of(auto_create: bool | int) -> int | None:
    """Partitions of a topic created on first use: 0 for none, None if it is not created."""
    if isinstance(auto_create, bool):
        return 0 if auto_create else None
    return auto_create


def is_name(text: str) -> bool:
    """Whether a tenant or a namespace can have this name."""
    return _NAME.match(text) is not None
