"""Offsets as users write them, and the resulting ranges."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import InvalidOffset
from pulsar_spark.protocol.message_id import EARLIEST, LATEST, MessageIdAdv, Position
from pulsar_spark.spark.offsets import (
    EARLIEST_BOUND,
    LATEST_BOUND,
    Bound,
    BoundKind,
    OffsetSpec,
    end_position,
    parse_bounds,
    start_position,
)

T = "persistent://public/default/t"
P0, P1, P2 = (f"{T}-partition-{i}" for i in range(3))
TOPICS = {T: [P0, P1, P2], "persistent://a/b/plain": ["persistent://a/b/plain"]}
NOW = 1_000_000_000_000


def at(ledger: int, entry: int, partition: int = -1, index: int = -1, size: int = 0) -> Bound:
    return Bound(BoundKind.ID, MessageIdAdv(ledger, entry, partition, index, size))


def time(millis: int) -> Bound:
    return Bound(BoundKind.TIME, millis=millis)


def age(millis: int) -> Bound:
    return Bound(BoundKind.AGE, millis=millis)


def spec(value: Any, default: Bound = EARLIEST_BOUND) -> OffsetSpec:
    text = value if isinstance(value, str) else json.dumps(value)
    return parse_bounds("startingOffsets", text, default)


def signed(data: bytes) -> list[int]:
    return [byte - 256 if byte > 127 else byte for byte in data]


@pytest.mark.parametrize(
    "value,bound",
    [
        ("earliest", EARLIEST_BOUND),
        ("Latest", LATEST_BOUND),
        ("12:345", at(12, 345)),
        ("12:345:0", at(12, 345, 0)),
        ("12:345:0:7", at(12, 345, 0, 7)),
        ("12:345:-1:7", at(12, 345, -1, 7)),
        ("-1:-1", EARLIEST_BOUND),
        ("-1:-1:3:-1", EARLIEST_BOUND),
        (f"{2**63 - 1}:{2**63 - 1}", LATEST_BOUND),
        ("2026-11-20T10:00:00Z", time(1_795_168_800_000)),
        ("-1h", age(3_600_000)),
        (signed(MessageIdAdv(12, 345, 2, 7, 10).serialize()), at(12, 345, 2, 7, 10)),
        (signed(MessageIdAdv(200, 0, -1).serialize()), at(200, 0)),
        (list(MessageIdAdv(200, 0, -1).serialize()), at(200, 0)),
        (signed(EARLIEST.serialize()), EARLIEST_BOUND),
        (signed(LATEST.serialize()), LATEST_BOUND),
    ],
)
def test_every_notation_of_a_topics_offset_is_understood(value: Any, bound: Bound) -> None:
    assert spec({"t": value}).by_topic == ((T, bound),)


@pytest.mark.fault(62, 99)
@pytest.mark.parametrize(
    "value",
    [
        "",
        "first",
        "12",
        "12:345:6:7:8",
        "12:x",
        "-2:5",
        f"{2**70}:1",
        "1h",
        "-1",
        "2026-02-30",
        "1969-01-01",
        12,
        1.5,
        True,
        None,
        {"0": 5},
        [],
        [300],
        ["a"],
        [8, 1],
        signed(b"\xff\xff\xff"),
    ],
)
def test_any_other_offset_is_an_error_that_names_the_option(value: Any) -> None:
    with pytest.raises(InvalidOffset, match="startingOffsets"):
        spec({"t": value})


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "text,advice",
    [
        ("", "Expected earliest, latest, or JSON such as"),
        ("first", "Expected earliest, latest, or JSON such as"),
        ("5", "Expected earliest, latest, or JSON such as"),
        ("12:345", 'of which topic the id is: {"orders": "12:345"}.'),
        ("-1h", "for all topics use startingTime=-1h."),
        ("2026-11-20", "for all topics use startingTime=2026-11-20."),
        ("{", "Write an object"),
        ('{"t"}', "Write an object"),
        (str({"t": "earliest"}), "json.dumps(…) makes one of a dictionary."),
        ('{"t": "earliest"} x', "Write an object"),
        ("[" * 5000, "Expected earliest"),
    ],
)
def test_what_is_neither_a_word_nor_json_is_an_error_that_says_where_it_belongs(
    text: str, advice: str
) -> None:
    with pytest.raises(InvalidOffset, match="startingOffsets") as caught:
        spec(text)
    assert advice in caught.value.remedy


@pytest.mark.fault(99)
def test_json_that_nests_too_deep_is_an_error() -> None:
    with pytest.raises(InvalidOffset, match="startingOffsets"):
        spec('{"t":' + "[" * 100_000)


@pytest.mark.fault(99)
def test_a_name_that_is_none_and_a_topic_named_twice_are_errors() -> None:
    with pytest.raises(InvalidOffset, match="startingOffsets"):
        spec({"ftp://a/b/c": "earliest"})
    with pytest.raises(InvalidOffset, match="twice"):
        spec({"t": "earliest", T: "latest"})
    with pytest.raises(InvalidOffset, match="twice"):
        spec('{"t": "earliest", "t": "1:2"}')
    assert spec({"t": "1:2", T: "1:2"}).by_topic == ((T, at(1, 2)),)


def test_a_batch_starts_not_at_the_end_and_ends_not_at_the_start() -> None:
    for text in ("latest", '{"t": "latest"}'):
        with pytest.raises(InvalidOffset, match="cannot be 'latest'"):
            parse_bounds("startingOffsets", text, EARLIEST_BOUND, refused=BoundKind.LATEST)
    for text in ("earliest", '{"t": "-1:-1"}'):
        with pytest.raises(InvalidOffset, match="cannot be 'earliest'"):
            parse_bounds("endingOffsets", text, LATEST_BOUND, refused=BoundKind.EARLIEST)


@pytest.mark.parametrize(
    "text,bound",
    [
        ("1795168800000", time(1_795_168_800_000)),
        ("0", time(0)),
        ("2026-11-20T10:00:00Z", time(1_795_168_800_000)),
        ("2026-11-20T11:00:00+01:00", time(1_795_168_800_000)),
        ("-90m", age(5_400_000)),
        ("- 500ms", age(500)),
    ],
)
def test_every_notation_of_a_time_is_understood(text: str, bound: Bound) -> None:
    assert parse_bounds("startingTime", text, EARLIEST_BOUND).default == bound
    by_topic = parse_bounds("startingTime", json.dumps({"t": text}), EARLIEST_BOUND)
    assert by_topic.by_topic == ((T, bound),)
    assert by_topic.default == EARLIEST_BOUND


def test_times_per_topic_may_be_numbers_with_the_scala_connectors_words() -> None:
    parsed = parse_bounds("startingTime", '{"t": 5, "u": -1, "v": -2}', EARLIEST_BOUND)
    assert [bound for _, bound in parsed.by_topic] == [time(5), EARLIEST_BOUND, LATEST_BOUND]


@pytest.mark.parametrize(
    "bound, text",
    [
        (time(3_786_912_000_000), "2090-01-01T00:00:00Z"),
        (time(1_795_168_800_001), "2026-11-20T10:00:00.001Z"),
        (time(10**17), "100000000000000000 ms"),
        (age(5000), "-5000ms"),
        (at(1, 2), "1:2:-1:-1"),
        (LATEST_BOUND, "latest"),
    ],
)
def test_a_bound_is_shown_as_it_may_be_written(bound: Bound, text: str) -> None:
    assert str(bound) == text


@pytest.mark.parametrize("number, unit", [(1795965541, "seconds"), (1795965541000000, "microsec")])
def test_a_time_in_another_unit_is_told(
    number: int, unit: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        parse_bounds("startingTime", str(number), EARLIEST_BOUND)
        parse_bounds("startingTime", "1795965541000", EARLIEST_BOUND)
    assert caplog.text.count("milliseconds since 1970, not ") == 1
    assert f"startingTime={number} is read as milliseconds since 1970, not {unit}" in caplog.text


@pytest.mark.fault(94, 99)
@pytest.mark.parametrize("text", ["", "soon", "-5", "1.5", "12:345", '{"t": -3}', '{"t": true}'])
def test_any_other_time_is_an_error_that_names_the_option(text: str) -> None:
    with pytest.raises(InvalidOffset, match="startingTime"):
        parse_bounds("startingTime", text, EARLIEST_BOUND)


def test_a_word_stands_for_all_partitions_of_all_topics() -> None:
    assert set(spec("latest").bounds(TOPICS, NOW).values()) == {LATEST_BOUND}


def test_a_topic_stands_for_its_partitions_a_partition_wins_and_the_rest_takes_the_default() -> (
    None
):
    bounds = spec({"t": "2026-11-20", P1: "5:6"}).bounds(TOPICS, NOW)
    assert bounds == {
        P0: time(1_795_132_800_000),
        P1: at(5, 6),
        P2: time(1_795_132_800_000),
        "persistent://a/b/plain": EARLIEST_BOUND,
    }


def test_short_names_are_names_too() -> None:
    bounds = spec({"t-partition-2": "5:6", "a/b/plain": "7:8"}).bounds(TOPICS, NOW)
    assert bounds[P2] == at(5, 6)
    assert bounds["persistent://a/b/plain"] == at(7, 8)


def test_the_whole_topic_can_name_a_single_partition_that_is_read() -> None:
    assert spec({"t": "5:6"}).bounds({P1: [P1]}, NOW) == {P1: at(5, 6)}


@pytest.mark.fault(99)
def test_a_topic_that_is_not_read_is_an_error() -> None:
    for name in ("u", "t-partition-7", "t-partition-x"):
        with pytest.raises(InvalidOffset, match="does not include it"):
            spec({name: "earliest"}).bounds(TOPICS, NOW)


@pytest.mark.fault(99)
def test_one_message_id_cannot_stand_for_several_partitions() -> None:
    with pytest.raises(InvalidOffset, match="3 partitions") as caught:
        spec({"t": "5:6"}).bounds(TOPICS, NOW)
    assert caught.value.topic == T
    # Nor where they are read by their names.
    with pytest.raises(InvalidOffset, match="2 partitions"):
        spec({"t": "5:6"}).bounds({P0: [P0], P2: [P2]}, NOW)
    # One that is read alone may be named so.
    assert spec({"t": "5:6"}).bounds({P2: [P2]}, NOW) == {P2: at(5, 6)}
    assert spec({"t": "5:6", P0: "7:8"}).bounds({P0: [P0], P2: [P2]}, NOW)[P2] == at(5, 6)


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "value, plain",
    [
        ("5:6:1", '"5:6"'),
        ("5:6:1:2", '"5:6:-1:2"'),
        (signed(MessageIdAdv(5, 6, 1).serialize()), '"5:6"'),
    ],
)
@pytest.mark.parametrize(
    "name, topics",
    [("t-partition-0", TOPICS), ("t-partition-0", {P0: [P0]}), ("t", {P0: [P0]}), ("t", {T: [P0]})],
)
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_the_id_of_one_partition_cannot_stand_for_another(
    value: Any, plain: str, name: str, topics: dict[str, list[str]], option: str
) -> None:
    given = parse_bounds(option, json.dumps({name: value}), EARLIEST_BOUND)
    with pytest.raises(InvalidOffset, match=f"{option} gives .*partition 1") as caught:
        given.bounds(topics, NOW)
    assert caught.value.topic == P0
    assert plain in caught.value.remedy


@pytest.mark.parametrize(
    "name, value, topic",
    [
        (P1, "5:6:1", P1),
        (P1, "5:6", P1),
        (P1, "5:6:-1:2", P1),
        ("plain", "5:6:1", "persistent://public/default/plain"),
    ],
)
def test_an_id_without_a_partition_or_of_a_topic_without_them_is_taken(
    name: str, value: str, topic: str
) -> None:
    found = spec({name: value}).bounds({topic: [topic]}, NOW)
    assert found[topic].message_id == MessageIdAdv.parse(value)


def test_ages_count_from_the_planning() -> None:
    bounds = spec({"t": "-1h"}).bounds(TOPICS, NOW)
    assert bounds[P0] == time(NOW - 3_600_000)
    assert age(5).at(3) == time(0)


@pytest.mark.fault(62)
@pytest.mark.parametrize(
    "message_id,start,end",
    [
        (MessageIdAdv(5, 6), Position(5, 6, 0), Position(5, 7, 0)),
        (MessageIdAdv(5, 6, 0, 0, 3), Position(5, 6, 0), Position(5, 6, 1)),
        (MessageIdAdv(5, 6, 0, 2, 3), Position(5, 6, 2), Position(5, 6, 3)),
        (MessageIdAdv(5, 9, first_chunk=MessageIdAdv(5, 6)), Position(5, 6, 0), Position(5, 10, 0)),
    ],
)
def test_a_given_id_is_read_at_the_start_and_at_the_end(
    message_id: MessageIdAdv, start: Position, end: Position
) -> None:
    assert start_position(message_id) == start
    assert end_position(message_id) == end
    assert start < end


@given(st.text(max_size=60))
def test_nothing_but_our_errors_comes_of_any_text(text: str) -> None:
    parsers: tuple[Callable[[], object], ...] = (
        lambda: spec(text),
        lambda: spec({"t": text}),
        lambda: parse_bounds("startingTime", text, EARLIEST_BOUND),
    )
    for parse in parsers:
        try:
            parse()
        except InvalidOffset:
            continue
