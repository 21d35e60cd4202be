"""Patterns of topics, for topicsPattern."""

from __future__ import annotations

import pytest

from pulsar_spark.engine.lookups.topic_patterns import TopicPattern
from pulsar_spark.errors import OptionError

LISTED = [
    "persistent://public/default/orders",
    "persistent://public/default/orders-eu-partition-0",
    "persistent://public/default/orders-eu-partition-1",
    "persistent://public/default/orders-partition-x",
    "persistent://public/default/__orders",
    "non-persistent://public/default/orders-np",
    "persistent://public/default/other",
    "persistent://pub/lic/orders",
    "not a topic://",
]


def names(*local: str) -> list[str]:
    return [f"persistent://public/default/{name}" for name in local]


@pytest.mark.parametrize(
    "pattern,expected",
    [
        ("orders.*", names("orders", "orders-eu", "orders-partition-x")),
        ("orders", names("orders")),
        ("rders", []),
        ("orders|other", names("orders", "other")),
        ("(?i)ORDERS", names("orders")),
        ("public/default/orders-.*", names("orders-eu", "orders-partition-x")),
        (
            "persistent://public/default/orders.*",
            names("orders", "orders-eu", "orders-partition-x"),
        ),
        ("persistent://public/default/(orders|other)", names("orders", "other")),
        (
            "persistent://public/default/orders|persistent://public/default/other",
            names("orders", "other"),
        ),
        ("^persistent://public/default/orders$", names("orders")),
        (".*-partition-1", []),
        ("__.*", []),
        (".*np", []),
        ("public/default/[^/|]+s", names("orders")),
        ("public/default/(orders|other)", names("orders", "other")),
        ("pub/lic/.*", ["persistent://pub/lic/orders"]),
    ],
)
def test_topics_match_by_their_whole_name_without_partition(
    pattern: str, expected: list[str]
) -> None:
    assert TopicPattern.parse(pattern).select(LISTED) == expected


def test_the_namespace_tells_what_to_list() -> None:
    assert TopicPattern.parse("a.*").namespace == "public/default"
    assert TopicPattern.parse("persistent://te.nant/n-s/a.*").namespace == "te.nant/n-s"


def test_a_dot_in_the_namespace_is_a_dot() -> None:
    pattern = TopicPattern.parse("persistent://a.b/c/.*")
    assert pattern.select(["persistent://axb/c/t", "persistent://a.b/c/t"]) == [
        "persistent://a.b/c/t"
    ]


def test_a_shells_pattern_is_told_how_to_write_it() -> None:
    with pytest.raises(OptionError, match=r"Write \.\* for any characters"):
        TopicPattern.parse("*orders")


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "wrong",
    [
        "orders(",
        "persistent://public/.*/orders",
        "persistent://(public|other)/default/orders",
        "persistent://public/default",
        "non-persistent://public/default/.*",
        ".*://public/default/.*",
        "default/orders",
        "pub.*/default/x",
        "a/b/c|a/b/d",
        "a/b/c|d/e/f.*",
        "persistent://a/b/c|persistent://a/d/e",
        "persistent://a/b/c|non-persistent://a/b/e",
    ],
)
def test_patterns_beyond_one_namespace_are_refused(wrong: str) -> None:
    with pytest.raises(OptionError, match="topicsPattern"):
        TopicPattern.parse(wrong)
