"""Topics are found, created, listed and deleted by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.testing.options import BrokerOptions
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.topic_store import (
    TopicStore,
    Watcher,
    filter_by_pattern,
    parse_topic,
)

_MODE = pb.CommandGetTopicsOfNamespace


def store(**options: object) -> TopicStore:
    # Nothing is to be scheduled here.
    return TopicStore(BrokerOptions(**options), None)  # type: ignore[arg-type]


def name(text: str) -> TopicName:
    return TopicName.parse(text)


def code_of(action: Callable[[], object]) -> int:
    with pytest.raises(Refusal) as caught:
        action()
    return caught.value.code


def test_a_topic_with_partitions_consists_of_them() -> None:
    topics = store()
    topics.create(name("p"), 2)
    assert topics.partitions(name("p"), auto_create=False) == 2
    assert topics.partitions(name("p-partition-0"), auto_create=False) == 0
    assert [part.partition for part in topics.parts(name("p"))] == [0, 1]


def test_what_exists_cannot_be_created_again() -> None:
    topics = store()
    topics.create(name("t"), 0)
    assert code_of(lambda: topics.create(name("t"), 3)) == pb.NotAllowedError


def test_asking_without_creating_finds_nothing() -> None:
    topics = store()
    assert code_of(lambda: topics.partitions(name("t"), auto_create=False)) == pb.TopicNotFound
    assert topics.partitions(name("t"), auto_create=True) == 0
    assert topics.topics == {}


def test_asking_creates_partitions_where_that_is_the_policy() -> None:
    topics = store(auto_create=3)
    assert topics.partitions(name("t"), auto_create=True) == 3
    assert len(topics.topics) == 3


def test_nothing_is_created_where_that_is_off() -> None:
    topics = store(auto_create=False)
    assert code_of(lambda: topics.partitions(name("t"), auto_create=True)) == pb.TopicNotFound
    assert code_of(lambda: topics.open(name("t"), create=True)) == pb.TopicNotFound


def test_a_partition_that_the_topic_does_not_have_is_not_created() -> None:
    topics = store()
    topics.create(name("p"), 2)
    beyond = name("p-partition-2")
    assert code_of(lambda: topics.open(beyond, create=True)) == pb.TopicNotFound


def test_unknown_namespaces_are_refused_where_they_are_named() -> None:
    topics = store(namespaces=("public/default",))
    topics.create(name("t"), 0)
    with pytest.raises(Refusal, match="Namespace not found"):
        topics.partitions(name("a/b/t"), auto_create=True)


def test_partitions_can_only_grow() -> None:
    topics = store()
    topics.create(name("p"), 2)
    topics.add_partitions(name("p"), 4)
    assert topics.partitions(name("p"), auto_create=False) == 4
    assert len(topics.parts(name("p"))) == 4
    assert code_of(lambda: topics.add_partitions(name("p"), 3)) == pb.NotAllowedError
    assert code_of(lambda: topics.add_partitions(name("t"), 3)) == pb.TopicNotFound


def test_deleting_forgets_partitions_schemas_and_bytes() -> None:
    topics = store()
    topics.create(name("p"), 2)
    part = topics.parts(name("p"))[0]
    part.append(b"data", pb.MessageMetadata())
    topics.schemas(name("p-partition-1")).add(pb.Schema(name="", type=1, schema_data=b""))
    assert topics.usage.stored_bytes == 4
    topics.delete(name("p"))
    assert topics.topics == {}
    assert topics.usage.stored_bytes == 0
    assert topics.schemas_if_any(name("p")) is None
    assert code_of(lambda: topics.partitions(name("p"), auto_create=False)) == pb.TopicNotFound


def test_partitions_share_their_schemas() -> None:
    topics = store()
    topics.create(name("p"), 2)
    first, second = topics.parts(name("p"))
    assert first.schemas is second.schemas is topics.schemas(name("p"))


def test_ledger_ids_grow_over_all_topics_and_can_be_chosen() -> None:
    topics = store()
    topics.create(name("a"), 0)
    topics.create(name("b"), 0)
    topics.create(name("c"), 0, ledger_id=1000)
    ids = [topics.parts(name(each))[0].log.ledger_ids for each in "abc"]
    assert ids == [(1,), (2,), (1000,)]


def test_topics_of_a_namespace_are_listed_by_domain() -> None:
    topics = store()
    for each in ("b", "a", "other/ns/x", "non-persistent://public/default/n"):
        topics.open(name(each), create=True)
    prefix = "persistent://public/default/"
    assert topics.of_namespace("public/default", _MODE.PERSISTENT) == [prefix + "a", prefix + "b"]
    assert topics.of_namespace("public/default", _MODE.NON_PERSISTENT) == ["non-" + prefix + "n"]
    assert len(topics.of_namespace("public/default", _MODE.ALL)) == 3
    assert topics.of_namespace("no/such") == []


def test_patterns_match_the_whole_name_without_partition() -> None:
    names = [str(name(each)) for each in ("a-partition-0", "a", "ab")]
    assert filter_by_pattern(names, "persistent://public/default/a") == names[:2]
    assert filter_by_pattern(names, "public/default/a.*") == names
    with pytest.raises(Refusal, match="no regular expression"):
        filter_by_pattern(names, "(")


def test_watchers_hear_of_topics_that_match() -> None:
    topics = store()
    heard: list[tuple[list[str], list[str]]] = []
    watcher = Watcher(
        "public/default", "public/default/a.*", lambda new, gone, _: heard.append((new, gone))
    )
    topics.watchers.append(watcher)
    for each in ("a1", "b1", "other/ns/a2"):
        topics.create(name(each), 0)
    topics.delete(name("a1"))
    assert heard == [([str(name("a1"))], []), ([], [str(name("a1"))])]


def test_topics_belong_to_one_of_the_brokers() -> None:
    topics = store(brokers=3)
    owners = {topics.owner(f"persistent://public/default/t{number}") for number in range(50)}
    assert owners == {0, 1, 2}
    topics.move("persistent://public/default/t0", 2)
    assert topics.owner("persistent://public/default/t0") == 2
    assert store().owner("anything") == 0


def test_names_that_are_none_are_refused() -> None:
    assert code_of(lambda: parse_topic("persistent://a/b")) == pb.InvalidTopicName
