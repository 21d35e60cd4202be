"""Tenants and namespaces, and which settings a topic obeys."""

from __future__ import annotations

import pytest

from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.testing import TopicPolicies
from pulsar_spark.testing.namespaces import AUTO_CREATE, Namespaces, is_name, partitions_of
from pulsar_spark.testing.options import BrokerOptions

TOPIC = TopicName.parse("a/b/t")
PARTITION = TOPIC.partition(3)


def test_without_names_any_namespace_exists_and_those_in_use_are_listed() -> None:
    found = Namespaces(BrokerOptions())
    assert "a/b" in found
    assert found.of_tenant("public") == ["public/default"]
    assert found.of_tenant("a", [TOPIC]) == ["a/b"]
    found.add("a/c")
    assert found.of_tenant("a", [TOPIC]) == ["a/b", "a/c"]
    assert sorted(found.tenants) == ["a", "public"]


def test_with_names_only_these_exist() -> None:
    found = Namespaces(BrokerOptions(namespaces=("a/b",)))
    assert "a/b" in found
    assert "public/default" not in found
    assert list(found.tenants) == ["a"]


def test_a_topics_settings_precede_its_namespaces_and_the_brokers() -> None:
    found = Namespaces(BrokerOptions(policies=TopicPolicies(max_producers=1, max_consumers=1)))
    assert found.policies(PARTITION) == TopicPolicies(max_producers=1, max_consumers=1)
    found.of_namespace("a/b").update(max_producers=2, message_ttl=2)
    found.of_topic(PARTITION).update(message_ttl=3)
    wanted = TopicPolicies(max_producers=2, max_consumers=1, message_ttl=3)
    assert found.policies(PARTITION) == found.policies(TOPIC) == wanted
    other = TopicName.parse("a/b/other")
    assert found.policies(other) == TopicPolicies(max_producers=2, max_consumers=1, message_ttl=2)


def test_a_namespace_can_create_topics_its_own_way() -> None:
    found = Namespaces(BrokerOptions(auto_create=2))
    assert found.auto_partitions(TOPIC) == 2
    found.of_namespace("a/b")[AUTO_CREATE] = False
    assert found.auto_partitions(TOPIC) is None
    assert found.policies(TOPIC) == TopicPolicies()


@pytest.mark.parametrize("value,partitions", [(True, 0), (False, None), (1, 1), (5, 5)])
def test_auto_creation_is_plain_off_or_a_number(value: int, partitions: int | None) -> None:
    assert partitions_of(value) == partitions


@pytest.mark.parametrize("name,valid", [("a-b=c:d.e_f", True), ("a/b", False), ("", False)])
def test_names_are_those_that_brokers_take(name: str, valid: bool) -> None:
    assert is_name(name) == valid
