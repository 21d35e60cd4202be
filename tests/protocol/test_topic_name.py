"""Topic names: expectations marked Java were printed by TopicName of the Java client 4.0.8."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import InvalidTopicName
from pulsar_spark.protocol.topic_name import MAX_NAME_BYTES, TopicName, topics_hash


@pytest.mark.parametrize(
    "text, full",
    [
        ("t", "persistent://public/default/t"),
        ("a/b/t", "persistent://a/b/t"),
        ("persistent://a/b/t", "persistent://a/b/t"),
        ("PERSISTENT://a/b/t", "persistent://a/b/t"),
        ("non-persistent://a/b/t", "non-persistent://a/b/t"),
        ("persistent://a/c/b/t", "persistent://a/c/b/t"),
        ("persistent://a/c/b/t/u/v", "persistent://a/c/b/t/u/v"),
        ("persistent://a.b/c:d=e_f-g/t", "persistent://a.b/c:d=e_f-g/t"),
        ("  t", "persistent://public/default/  t"),
        ("a b", "persistent://public/default/a b"),
        ("a/b/té鍵😀", "persistent://a/b/té鍵😀"),
        ("a/b/%20x%", "persistent://a/b/%20x%"),
        ("a/b/t?x=1&y", "persistent://a/b/t?x=1&y"),
    ],
)
def test_every_notation_has_the_full_name_that_java_gives(text: str, full: str) -> None:
    name = TopicName.parse(text)
    assert str(name) == full
    assert TopicName.parse(full) == name


def test_parts_of_a_full_name() -> None:
    name = TopicName.parse("persistent://tenant/ns/topic")
    assert (name.domain, name.tenant, name.namespace, name.local_name) == (
        "persistent",
        "tenant",
        "ns",
        "topic",
    )
    assert name.namespace_name == "tenant/ns"
    assert name.is_persistent
    assert not TopicName.parse("non-persistent://tenant/ns/topic").is_persistent


def test_the_legacy_form_keeps_its_cluster_in_the_namespace_and_slashes_in_the_name() -> None:
    name = TopicName.parse("persistent://tenant/cluster/ns/a/b")
    assert (name.namespace, name.local_name) == ("cluster/ns", "a/b")
    assert name.namespace_name == "tenant/cluster/ns"


@pytest.mark.parametrize(
    "text, index, base",
    [
        ("t", -1, "t"),
        ("t-partition-0", 0, "t"),
        ("t-partition-3", 3, "t"),
        ("t-partition-03", -1, "t-partition-03"),
        ("t-partition-x", -1, "t-partition-x"),
        ("t-partition-", -1, "t-partition-"),
        ("t-partition--1", -1, "t-partition--1"),
        ("t-partition-+3", -1, "t-partition-+3"),
        ("t-PARTITION-3", -1, "t-PARTITION-3"),
        ("t-partition-3-partition-4", 4, "t-partition-3"),
        ("a-partition-b-partition-12", 12, "a-partition-b"),
        ("t-partition-2147483647", 2147483647, "t"),
        ("t-partition-2147483648", -1, "t-partition-2147483648"),
        ("t-partition-99999999999999999999", -1, "t-partition-99999999999999999999"),
        ("t\n-partition-3", 3, "t\n"),
        ("t-partition-3\n", -1, "t-partition-3\n"),
    ],
)
def test_partition_suffixes_are_those_of_java(text: str, index: int, base: str) -> None:
    name = TopicName.parse(text)
    assert name.partition_index == index
    assert name.partitioned == TopicName.parse(base)


@pytest.mark.parametrize("text", ["-partition-3", "t-partition-३"])
def test_a_bare_suffix_and_foreign_digits_are_plain_names(text: str) -> None:
    name = TopicName.parse(text)
    assert name.partition_index == -1
    assert name.partitioned == name


def test_partition_names_the_partition_of_a_topic() -> None:
    name = TopicName.parse("persistent://a/c/b/t").partition(7)
    assert str(name) == "persistent://a/c/b/t-partition-7"
    assert name.partition_index == 7


@pytest.mark.parametrize("index", [-1, 2**31])
def test_partition_numbers_out_of_range_are_refused(index: int) -> None:
    with pytest.raises(InvalidTopicName, match="not the number of a partition"):
        TopicName.parse("t").partition(index)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\t\n",
        "a/t",
        "/t",
        "a//t",
        "/b/t",
        "a/b/",
        "a/b/c/t",
        "persistent://",
        "persistent://a",
        "persistent://a/b",
        "persistent://a/b/",
        "persistent://a/b/ ",
        "persistent://a/b/c/",
        "persistent://a/b/c/ ",
        "persistent://a//t",
        "persistent:///b/t",
        "persistent://a b/c/t",
        "persistent://ä/b/t",
        "persistent://a/b\n/t",
        "persistent:/a/b/t",
        "http://a/b/t",
        "://a/b/t",
        "x" * (MAX_NAME_BYTES + 1),
        "é" * (MAX_NAME_BYTES // 2 + 1),
        "a/b/\ud83d",
    ],
)
def test_what_is_not_a_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidTopicName) as caught:
        TopicName.parse(text)
    assert len(str(caught.value)) < 1000
    str(caught.value).encode()


def test_the_longest_name_is_accepted() -> None:
    text = "x" * MAX_NAME_BYTES
    assert TopicName.parse(text).local_name == text


@given(st.text(max_size=60))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        name = TopicName.parse(text)
    except InvalidTopicName:
        return
    assert TopicName.parse(str(name)) == name
    index = name.partition_index
    assert name if index < 0 else name.partitioned.partition(index) == name


@pytest.mark.parametrize(
    "text, system",
    [
        ("a/b/__change_events", True),
        ("a/b/__transaction_buffer_snapshot-partition-3", True),
        ("pulsar/system/transaction_coordinator_assign-partition-0", True),
        ("a/b/_t", False),
        ("pulsar/default/t", False),
    ],
)
def test_system_topics_are_recognised(text: str, system: bool) -> None:
    assert TopicName.parse(text).is_system is system


def test_names_survive_pickling() -> None:
    name = TopicName.parse("a/b/t-partition-3")
    assert pickle.loads(pickle.dumps(name)) == name


@pytest.mark.parametrize(
    "names, expected",
    [
        ([], "00000000"),
        (["persistent://public/default/t"], "977bd9c6"),
        (["persistent://a/b/t", "persistent://a/b/é", "persistent://a/b/A"], "85b2452b"),
        (["persistent://a/b/\U0001f600", "persistent://a/b/\uffee"], "9f787645"),
    ],
)
def test_the_hash_of_topics_equals_javas(names: list[str], expected: str) -> None:
    assert topics_hash(names) == topics_hash(reversed(names)) == expected


@pytest.mark.fault(31, 65)
@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe", b"persistent://public/default/t", b"\xff" * 50_000]
)
def test_bytes_are_no_name(text: bytes) -> None:
    with pytest.raises(InvalidTopicName):
        TopicName.parse(text)
