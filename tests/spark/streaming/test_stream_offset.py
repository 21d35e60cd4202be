"""The offsets of streams."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import InvalidOffset
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.spark.streaming.stream_offset import StreamOffset

CHECKPOINTS = Path(__file__).resolve().parent.parent.parent / "data" / "checkpoints"
P0 = "persistent://public/default/t-partition-0"
P1 = "persistent://public/default/t-partition-1"

positions = st.builds(
    Position, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)
) | st.just(EARLIEST_POSITION)
NAMES = [f"persistent://public/default/{topic}" for topic in ("t", "other", "t-partition-x")]
names = st.lists(
    st.builds(
        str.__add__,
        st.sampled_from(NAMES),
        st.just("") | st.builds("-partition-{}".format, st.integers(0, 100) | st.just(2**31 - 1)),
    ),
    max_size=40,
) | st.builds(
    lambda name, count, left_out: [
        f"{name}-partition-{number}" for number in range(count) if number not in left_out
    ],
    st.sampled_from(NAMES),
    st.integers(14, 70),
    st.sets(st.integers(0, 70)),
)


def by_topic(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return names.flatmap(lambda found: st.fixed_dictionaries(dict.fromkeys(found, values)))


offsets = st.builds(
    StreamOffset,
    st.text(min_size=1),
    by_topic(positions),
    st.none() | by_topic(positions),
    by_topic(st.integers(0, 2**62)),
    by_topic(positions),
    by_topic(positions),
    listed=st.booleans(),
)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=20), inner),
    max_leaves=10,
)


@given(offsets)
def test_what_is_written_is_read_again_with_the_same_text(offset: StreamOffset) -> None:
    text = json.dumps(offset.to_json())
    again = StreamOffset.from_json(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_json()) == text
    assert json.dumps(offset.to_json(), sort_keys=True) == text


def test_equal_offsets_have_one_text() -> None:
    one = StreamOffset("s", {P1: Position(5, 6, 7), P0: Position(1, 2)})
    other = StreamOffset("s", {P0: Position(1, 2, 0), P1: Position(5, 6, 7)})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


@pytest.mark.fault(72)
@pytest.mark.parametrize("path", sorted(CHECKPOINTS.glob("offset-*.json")), ids=lambda p: p.stem)
def test_checkpoints_of_all_versions_are_still_read(path: Path) -> None:
    text = path.read_text().strip()
    offset = StreamOffset.from_json(json.loads(text))
    assert offset.positions["persistent://public/default/events-partition-1"] == (18, 9, 3)
    assert offset.subscription == "spark-pulsar-5f0c2b7a9d3e4f61"
    # Also of earlier versions: otherwise Spark would take the same offset for a new one.
    assert json.dumps(offset.to_json()) == text


@pytest.mark.fault(72)
def test_an_offset_is_written_for_the_earliest_version_that_reads_it() -> None:
    plain = StreamOffset("s", {P0: Position(1, 2)})
    assert plain.to_json()["version"] == 1
    assert replace(plain, firsts={P0: Position(1, 1)}).to_json()["version"] == 2
    assert many(16).to_json()["version"] == 3


def many(count: int, listed: bool = True) -> StreamOffset:
    name = "persistent://public/default/events-partition-"
    found = {f"{name}{number}": Position(12345678, 123456, 7) for number in range(count)}
    return StreamOffset("s", found, ends=found, firsts=found, listed=listed)


def test_a_partition_takes_25_bytes_of_a_position() -> None:
    body = many(1000).to_json()
    for name in ("positions", "ends", "firsts"):
        assert len(json.dumps(body[name])) <= 25 * 1000


@pytest.mark.fault(72)
def test_a_checkpoint_of_an_earlier_version_stays_one() -> None:
    begun = StreamOffset.from_json(many(1000, listed=False).to_json())
    assert begun.to_json()["version"] == 2
    assert begun == many(1000)
    assert StreamOffset.from_json(many(1000).to_json()).to_json()["version"] == 3


def test_topics_of_few_partitions_are_written_by_name() -> None:
    assert many(15).to_json()["version"] == 2
    assert list(many(16).to_json()["positions"]) == ["persistent://public/default/events"]


@pytest.mark.fault(72)
def test_a_partition_that_is_named_and_in_a_list_is_damage() -> None:
    body = many(16).to_json()
    body["positions"]["events-partition-3"] = "1:2:3"
    with pytest.raises(InvalidOffset, match="events-partition-3 is named twice"):
        StreamOffset.from_json(body)


@pytest.mark.fault(72)
@pytest.mark.parametrize(
    "body,what",
    [
        ([], "another data source"),
        (5, "another data source"),
        ("x", "another data source"),
        ({}, "another data source"),
        ({"t": {"0": 23}}, "another data source"),
        ({"version": "1"}, "another data source"),
        ({"version": 5, "anything": 1}, "has version 5; this package knows versions 1 to 4"),
        ({"version": 0}, "version 0"),
        ({"version": 1}, "its keys"),
        ({"version": 1, "subscription": "", "positions": {}}, "subscription is ''"),
        ({"version": 1, "subscription": "s", "positions": []}, "not an object"),
        ({"version": 1, "subscription": "s", "positions": {}, "more": 1}, "its keys"),
        ({"version": 1, "subscription": "s", "positions": {"t": "1:2"}}, "'1:2'"),
        ({"version": 1, "subscription": "s", "positions": {"t": "1:-1:0"}}, "1:-1:0"),
        ({"version": 1, "subscription": "s", "positions": {"t": "-1:-1:4"}}, "-1:-1:4"),
        ({"version": 1, "subscription": "s", "positions": {"t": "1:-5:0"}}, "1:-5:0"),
        ({"version": 1, "subscription": "s", "positions": {"t": 7}}, "is 7"),
        ({"version": 1, "subscription": "s", "positions": {"a/b": "1:2:3"}}, "a/b"),
        (
            {"version": 1, "subscription": "s", "positions": {}, "publishedFrom": {"t": -1}},
            "the time of",
        ),
    ],
)
def test_what_is_damaged_foreign_or_newer_is_an_error_that_says_so(body: Any, what: str) -> None:
    with pytest.raises(InvalidOffset, match="checkpoint") as caught:
        StreamOffset.from_json(body)
    assert what in str(caught.value)


@pytest.mark.parametrize("position", [(1, 2, -3), (1, -1, 0), (-1, 2, 0), (-1, -1, 4)], ids=str)
@pytest.mark.parametrize("name", ["positions", "starts", "ends", "firsts", "rests"])
def test_a_position_that_could_not_be_read_again_is_not_written(
    name: str, position: tuple[int, int, int]
) -> None:
    impossible: Any = {name: {P0: Position(*position)}}
    offset = replace(StreamOffset("s", {}), **impossible)
    with pytest.raises(InvalidOffset, match=f"{P0} would be {Position(*position)}.*report"):
        offset.to_json()


@given(documents)
def test_nothing_but_our_error_comes_of_any_document(document: Any) -> None:
    for body in (document, {"version": 1, "subscription": "s", "positions": document}):
        try:
            StreamOffset.from_json(body)
        except InvalidOffset:
            continue
