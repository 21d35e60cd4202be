"""The offset of a stream: where its next batch starts on each topic partition.

Spark writes it into the checkpoint as one JSON object, and compares offsets as text. So equal
offsets must have equal texts: keys are sorted, positions have one form, and nothing changes by
itself. Later versions of this package must read what earlier ones wrote.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pulsar_spark.errors import InvalidMessageId, InvalidOffset, InvalidTopicName
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.protocol.topic_name import PARTITION_SUFFIX, TopicName, by_partition

VERSION = 4
"""Version of the JSON. An offset is written for the earliest version that can read it."""

_DAMAGED = "The checkpoint is damaged: restore it, or start a query with a new one."
_SHOWN = 100
_FIRST_VERSION = 1
_WITH_FIRSTS = 2
_WITH_LISTS = 3
_WITH_RESTS = 4
# Topics with fewer partitions are easier to read, and to repair, by name.
_LISTED_FROM = 16
# A name takes as much as these many empty places of a list.
_PLACES_A_NAME = 8
_KEYS = frozenset(
    {"version", "subscription", "positions", "starts", "publishedFrom", "ends", "firsts", "rests"}
)
_REQUIRED = frozenset({"version", "subscription", "positions"})


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Topic partition → the position after the last message read; and the subscription's name.

    Where nothing was read, the position is where the topic partition began; EARLIEST_POSITION if
    that is not known, as in a compacted view and in what earlier versions of this package wrote.
    Topic partitions that the query's options no longer include keep theirs; earlier versions of
    this package take them for deleted, as they did before.
    `starts` are the positions where the query started; only its first offset has them, because
    Spark does not store where the first batch starts. `published_from`: if the query starts by
    time, earlier messages (in milliseconds) of a partition are skipped. `ends` are the topic
    partitions' ends when a batch did not read everything: so a restarted query knows that there
    were more messages. `firsts` are the batch's first entries where it goes on in later ledgers, so
    a task knows whether a ledger that is gone had more to read; and where new topic partitions
    begin. `rests` are, of topic partitions that were read to their ends, the positions behind what
    nobody can read there (transaction markers, aborted messages): a subscription that has passed it
    has lost nothing.

    With `listed`, the positions of a topic's partitions are written as a list: a quarter of the
    text. A query that began without goes on without, so that an earlier version of this package can
    take it over again.
    """

    subscription: str
    positions: Mapping[str, Position]
    starts: Mapping[str, Position] | None = None
    published_from: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, Position] = field(default_factory=dict)
    firsts: Mapping[str, Position] = field(default_factory=dict)
    rests: Mapping[str, Position] = field(default_factory=dict)
    listed: bool = field(default=True, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the object for Spark to store, with sorted keys.

        Raises InvalidOffset for a position that `from_json` refuses: once Spark has stored it, the
        query can never start again.
        """
        known: dict[str, Mapping[str, Position] | Mapping[str, int] | None] = {
            "ends": self.ends or None,
            "firsts": self.firsts or None,
            "positions": self.positions,
            "publishedFrom": self.published_from or None,
            "rests": self.rests or None,
            "starts": self.starts,
        }
        body: dict[str, Any] = {
            name: _written(each, self.listed) for name, each in known.items() if each is not None
        }
        needed = (
            (_WITH_FIRSTS, bool(self.firsts)),
            (_WITH_LISTS, _has_lists(body)),
            (_WITH_RESTS, bool(self.rests)),
        )
        body["subscription"] = self.subscription
        body["version"] = max((each for each, is_so in needed if is_so), default=_FIRST_VERSION)
        return body

    @classmethod
    def from_json(cls, body: object) -> StreamOffset:
        """Read an offset that `to_json` returned.

        Raises InvalidOffset if it is damaged, has a later version, or is another source's.
        """
        version = body.get("version") if isinstance(body, dict) else None
        if not isinstance(body, dict) or type(version) is not int:
            raise InvalidOffset(
                "the checkpoint's offset has no version: another data source wrote it",
                "A checkpoint belongs to one query and one source: give this query a new one.",
            )
        if not _FIRST_VERSION <= version <= VERSION:
            raise InvalidOffset(
                f"the checkpoint's offset has version {version}; this package knows versions "
                f"{_FIRST_VERSION} to {VERSION}",
                "Use the version of pulsar-spark that wrote the checkpoint or a later one, or "
                "start a query with a new checkpoint.",
            )
        if not _REQUIRED <= body.keys() <= _KEYS:
            raise _damaged(f"its keys are {_shown(sorted(map(str, body)))}")
        name = body["subscription"]
        if not isinstance(name, str) or not name:
            raise _damaged(f"subscription is {_shown(name)}")
        try:
            return cls(
                name,
                _positions(body["positions"]),
                _positions(body["starts"]) if "starts" in body else None,
                _times(body.get("publishedFrom", {})),
                _positions(body.get("ends", {})),
                _positions(body.get("firsts", {})),
                _positions(body.get("rests", {})),
                listed=version >= _WITH_LISTS and _has_lists(body),
            )
        except (InvalidMessageId, InvalidTopicName) as error:
            raise _damaged(error.what) from error


def _has_lists(body: Mapping[str, Any]) -> bool:
    return any(
        isinstance(item, list)
        for each in body.values()
        if isinstance(each, dict)
        for item in each.values()
    )


def _written(values: Mapping[str, Position] | Mapping[str, int], listed: bool) -> dict[str, Any]:
    for topic, value in values.items():
        if isinstance(value, Position) and not _is_possible(value):
            raise InvalidOffset(
                f"the next position of {topic} would be {value}, which cannot be one",
                "Nothing is stored, and the query can go on from its checkpoint: report it as a "
                "bug, with the query's options.",
            )
    written: dict[str, Any] = {
        topic: str(value) if isinstance(value, Position) else value
        for topic, value in sorted(values.items())
    }
    return _with_lists(written) if listed and len(values) >= _LISTED_FROM else written


def _with_lists(written: dict[str, Any]) -> dict[str, Any]:
    """Put lists in the place of partitions, where these are shorter."""
    topics: dict[str, dict[int, str]] = defaultdict(dict)
    for partition in written:
        number = TopicName.parse(partition).partition_index
        if number >= 0:
            topics[partition.rpartition(PARTITION_SUFFIX)[0]][number] = partition
    for topic, partitions in topics.items():
        places = max(partitions) + 1
        is_shorter = len(partitions) >= _LISTED_FROM and places <= _PLACES_A_NAME * len(partitions)
        # There can be a topic without partitions of that name, too: one came after the other.
        if is_shorter and topic not in written:
            written[topic] = [written.pop(partitions.get(at, ""), None) for at in range(places)]
    return dict(sorted(written.items()))


def _positions(value: object) -> dict[str, Position]:
    parsed: dict[str, Position] = {}
    for topic, text in _items(value):
        if not isinstance(text, str):
            raise _damaged(f"the position of {topic} is {_shown(text)}")
        position = Position.parse(text)
        if not _is_possible(position):
            raise _damaged(f"the position of {topic} is {text}")
        if topic in parsed:
            raise _damaged(f"{topic} is named twice")
        parsed[topic] = position
    return parsed


def _is_possible(position: Position) -> bool:
    return min(position) >= 0 or position == EARLIEST_POSITION


def _times(value: object) -> dict[str, int]:
    parsed: dict[str, int] = {}
    for topic, millis in _items(value):
        if not isinstance(millis, int) or isinstance(millis, bool) or millis < 0:
            raise _damaged(f"the time of {topic} is {_shown(millis)}")
        parsed[topic] = millis
    return parsed


def _items(value: object) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise _damaged(f"{_shown(value)} is not an object of topics")
    return [(str(TopicName.parse(topic)), item) for topic, item in by_partition(value)]


def _damaged(what: str) -> InvalidOffset:
    return InvalidOffset(f"the checkpoint's offset cannot be understood: {what}", _DAMAGED)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
