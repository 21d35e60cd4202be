"""The offset of a stream: where its next batch starts on each topic partition.

Spark writes it into the checkpoint as one JSON object, and compares offsets as text. So equal
offsets must have equal texts: keys are sorted, positions have one form, and nothing changes by
itself. Later versions of this package must read what earlier ones wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pulsar_spark.errors import InvalidMessageId, InvalidOffset, InvalidTopicName
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.protocol.topic_name import TopicName

VERSION = 2
"""Version of the JSON. An offset without `firsts` is written as version 1 had it."""

_DAMAGED = "The checkpoint is damaged: restore it, or start a query with a new one."
_SHOWN = 100
_FIRST_VERSION = 1
_KEYS = frozenset(
    {"version", "subscription", "positions", "starts", "publishedFrom", "ends", "firsts"}
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
    begin.
    """

    subscription: str
    positions: Mapping[str, Position]
    starts: Mapping[str, Position] | None = None
    published_from: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, Position] = field(default_factory=dict)
    firsts: Mapping[str, Position] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the object for Spark to store, with sorted keys."""
        body: dict[str, Any] = {}
        if self.ends:
            body["ends"] = _texts(self.ends)
        if self.firsts:
            body["firsts"] = _texts(self.firsts)
        body["positions"] = _texts(self.positions)
        if self.published_from:
            body["publishedFrom"] = dict(sorted(self.published_from.items()))
        if self.starts is not None:
            body["starts"] = _texts(self.starts)
        body["subscription"] = self.subscription
        body["version"] = VERSION if self.firsts else _FIRST_VERSION
        return body

    @classmethod
    def from_json(cls, body: object) -> StreamOffset:
        """Read an offset that `to_json` returned.

        Raises InvalidOffset if it is damaged, has a later version, or is another source's.
        """
        if not isinstance(body, dict):
            raise _damaged("it is not a JSON object")
        version = body.get("version")
        if not isinstance(version, int) or isinstance(version, bool):
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
        return cls(
            name,
            _positions(body["positions"]),
            _positions(body["starts"]) if "starts" in body else None,
            _times(body.get("publishedFrom", {})),
            _positions(body.get("ends", {})),
            _positions(body.get("firsts", {})),
        )


def _texts(positions: Mapping[str, Position]) -> dict[str, str]:
    return {topic: str(position) for topic, position in sorted(positions.items())}


def _positions(value: object) -> dict[str, Position]:
    parsed: dict[str, Position] = {}
    for topic, text in _items(value):
        if not isinstance(text, str):
            raise _damaged(f"the position of {topic} is {_shown(text)}")
        try:
            position = Position.parse(text)
        except InvalidMessageId as error:
            raise _damaged(error.what) from error
        if (position.ledger_id < 0 or position.entry_id < 0) and position != (-1, -1, 0):
            raise _damaged(f"the position of {topic} is {text}")
        parsed[topic] = position
    return parsed


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
    try:
        return [(str(TopicName.parse(topic)), item) for topic, item in value.items()]
    except InvalidTopicName as error:
        raise _damaged(error.what) from error


def _damaged(what: str) -> InvalidOffset:
    return InvalidOffset(f"the checkpoint's offset cannot be understood: {what}", _DAMAGED)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
