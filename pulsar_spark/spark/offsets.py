"""Offsets as users write them → positions; converts inclusive and exclusive ends.

A user names messages and times. Starting and ending ids are both read; times are half-open, [start,
end). All other modules use positions, which are between messages, and read [start, end) of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any

from pulsar_spark.errors import InvalidMessageId, InvalidOffset, InvalidTopicName, listed
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.message_id import (
    EARLIEST,
    EARLIEST_POSITION,
    LATEST,
    MessageIdAdv,
    Position,
)
from pulsar_spark.protocol.topic_name import TopicName, topic_of
from pulsar_spark.spark.options.parsers import duration_millis, iso_millis, iso_text

logger = get_logger(__name__)

START_OPTIONS = ("startingOffsets", "startingTime")
"""Where a read starts, by position or by time."""
END_OPTIONS = ("endingOffsets", "endingTime")
"""Where a read ends."""

_AGE = re.compile(r"-\s*(\d+\s*[A-Za-z]+)")
_ID = re.compile(r"-?\d+:-?\d+(:-?\d+){0,2}")
# Python's own text of a dictionary, whose quotes JSON does not have.
_PYTHON_DICT = re.compile(r"\{\s*'")
_WHOLE_NUMBER = re.compile(r"\d{1,18}")
# What streamnative/pulsar-spark writes for earliest and latest as a time.
_JAVA_EARLIEST_TIME = -1
_JAVA_LATEST_TIME = -2
_SHOWN = 100
# How many topic partitions a warning names.
_NAMED = 3


class BoundKind(Enum):
    """The kind of a range's bound."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ID = "message id"
    TIME = "time"
    AGE = "age"


@dataclass(frozen=True, slots=True)
class Bound:
    """Start or end of a read of a topic: a word, a message id, a time or an age.

    `millis` is a publish time (TIME) or how long ago (AGE), in milliseconds.
    """

    kind: BoundKind
    message_id: MessageIdAdv | None = None
    millis: int = 0

    def at(self, now_millis: int) -> Bound:
        """Return the bound with an age converted to a time."""
        if self.kind is not BoundKind.AGE:
            return self
        return Bound(BoundKind.TIME, millis=max(now_millis - self.millis, 0))

    def __str__(self) -> str:
        if self.kind is BoundKind.ID:
            return str(self.message_id)
        if self.kind is BoundKind.TIME:
            return iso_text(self.millis)
        if self.kind is BoundKind.AGE:
            return f"-{self.millis}ms"
        return str(self.kind.value)


EARLIEST_BOUND = Bound(BoundKind.EARLIEST)
LATEST_BOUND = Bound(BoundKind.LATEST)


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """An option's starts or ends: a bound for all topics, and exceptions.

    `by_topic` has full names, of topics or of single partitions.
    """

    option: str
    default: Bound
    by_topic: tuple[tuple[str, Bound], ...] = ()

    def bounds(
        self, topics: Mapping[str, Sequence[str]], now_millis: int, *, waiting: bool = False
    ) -> dict[str, Bound]:
        """Return the bound of each partition of `topics` (full name → its partitions' names).

        A partition's own bound takes precedence over its topic's. Raises InvalidOffset for a topic
        that is not read, unless the read is `waiting` for topics, and for a message id that would
        apply to several partitions or that is another partition's.
        """
        given = dict(self.by_topic)
        # A topic of which only one partition is read may be named as a whole.
        parents = {
            partition: topic_of(partition)
            for partitions in (topics.values() if given else ())
            for partition in partitions
        }
        known = set(topics).union(parents, parents.values())
        for name in given:
            if name not in known and waiting:
                logger.warning(
                    "%s names the topic %r, which is not there: a topic that is made later is read "
                    "from its beginning",
                    self.option,
                    name,
                )
            elif name not in known:
                raise InvalidOffset(
                    f"{self.option} names the topic {name!r}, but this read does not include it",
                    "Name only topics of this read.",
                )
        bounds: dict[str, Bound] = {}
        used: dict[str, list[str]] = {}
        for topic, partitions in topics.items():
            for partition in partitions:
                names = (partition, topic, parents.get(partition, topic))
                name = next((name for name in names if name in given), "")
                used.setdefault(name, []).append(partition)
                bounds[partition] = given.get(name, self.default).at(now_millis)
        unnamed = used.pop("", [])
        for name, found in used.items():
            if len(found) > 1 and given[name].kind is BoundKind.ID:
                raise InvalidOffset(
                    f"{self.option} gives one message id for a topic of {len(found)} partitions",
                    f'Name the partition: "{name}-partition-<n>".',
                    topic=name,
                    message_id=given[name].message_id,
                )
        for partition, bound in bounds.items():
            self._check_partition(partition, bound)
        # Only a stream's starts: those of a batch begin at the earliest message.
        skips = self.option in START_OPTIONS and self.default.kind is BoundKind.LATEST
        if given and unnamed and skips:
            logger.warning(
                "%s does not name %s: they begin at latest, so what they have now is not read",
                self.option,
                listed(unnamed, _NAMED),
            )
        return bounds

    def _check_partition(self, partition: str, bound: Bound) -> None:
        """Raise InvalidOffset for a message id that says it is of another partition."""
        one = bound.message_id
        index = -1 if one is None else TopicName.parse(partition).partition_index
        if one is None or min(index, one.partition) < 0 or index == one.partition:
            return
        plain = f"{one.ledger_id}:{one.entry_id}"
        if one.batch_index >= 0:
            plain += f":-1:{one.batch_index}"
        raise InvalidOffset(
            f"{self.option} gives {partition!r} a message id of partition {one.partition}",
            f'Name that partition, or write the id without its number: "{plain}".',
            topic=partition,
            message_id=one,
        )


def start_position(message_id: MessageIdAdv) -> Position:
    """Return where reading starts for a starting id; the message itself is read."""
    return Position.before(message_id)


def end_position(message_id: MessageIdAdv) -> Position:
    """Return where reading ends for an ending or last id; the message itself is read.

    An id without a batch index means its whole entry.
    """
    return Position.after(message_id)


def entry_end(message_id: MessageIdAdv) -> Position:
    """Return the position after the entry of a topic's last message: the next entry's.

    EARLIEST_POSITION for an empty topic. A broker returns the last entry's last message, so nothing
    is between the two forms of that position.
    """
    if message_id.entry_id < 0:
        return EARLIEST_POSITION
    return Position(message_id.ledger_id, message_id.entry_id + 1)


def parse_bounds(
    option: str, text: str, default: Bound, refused: BoundKind | None = None
) -> OffsetSpec:
    """Return the spec in an option of START_OPTIONS or END_OPTIONS: for all topics, or JSON.

    By position, it is `earliest` or `latest` for all topics. By time, it is a publish time:
    milliseconds, ISO-8601 or an age. Topics that the JSON object leaves out get `default`. Raises
    InvalidOffset for anything else, and for the kind `refused`.
    """
    try:
        return _parsed(option, text.strip(), default, refused)
    except (InvalidMessageId, InvalidTopicName) as error:
        raise InvalidOffset(f"{option}: {error.what}", error.remedy) from error


def _parsed(option: str, text: str, default: Bound, refused: BoundKind | None) -> OffsetSpec:
    by_time = option in (START_OPTIONS[1], END_OPTIONS[1])
    parse_bound = _time_bound if by_time else _offset_bound
    if not text.startswith("{"):
        bound = _time_bound(option, text) if by_time else _word_bound(option, text)
        return OffsetSpec(option, _allowed(option, bound, refused))
    by_topic: dict[str, Bound] = {}
    for name, value in _json_object(option, text):
        topic = str(TopicName.parse(name))
        bound = _allowed(option, parse_bound(option, value), refused)
        if by_topic.setdefault(topic, bound) != bound:
            raise InvalidOffset(f"{option} names the topic twice", topic=topic)
    return OffsetSpec(option, default, tuple(sorted(by_topic.items(), key=lambda item: item[0])))


def _json_object(option: str, text: str) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []

    def keep(items: list[tuple[str, Any]]) -> dict[str, Any]:
        # Inner objects come first and the outermost last; a dict would lose duplicates.
        pairs[:] = items
        return dict(items)

    try:
        json.loads(text, object_pairs_hook=keep)
    except (ValueError, RecursionError) as error:
        remedy = 'Write an object such as {"my-topic": "earliest"}.'
        if _PYTHON_DICT.match(text):
            remedy += " json.dumps(…) makes one of a dictionary."
        raise InvalidOffset(f"{option} is not valid JSON: {str(error)[:_SHOWN]}", remedy) from None
    return pairs


def _allowed(option: str, bound: Bound, refused: BoundKind | None) -> Bound:
    if bound.kind is refused:
        raise InvalidOffset(
            f"{option} cannot be {bound.kind.value!r} in a batch read: nothing would be read",
            "Read a stream to wait for new messages."
            if bound.kind is BoundKind.LATEST
            else "Give an end after the start.",
        )
    return bound


def _word_bound(option: str, text: str) -> Bound:
    """Return the bound by position for all topics: earliest or latest."""
    expected = 'earliest, latest, or JSON such as {"orders": "12:345"}'
    if _ID.fullmatch(text) or text.lower() in ("earliest", "latest"):
        bound = _offset_bound(option, text)
        if bound.kind is not BoundKind.ID:
            return bound
        expected = f'JSON that says of which topic the id is: {{"orders": "{text}"}}'
    elif _moment(text) is not None:
        expected = (
            f"JSON with a topic; for all topics use {option.replace('Offsets', 'Time')}={text}"
        )
    raise _wrong(option, text, expected)


def _offset_bound(option: str, value: Any) -> Bound:
    _refuse_kafka(option, value, "12:345")
    if isinstance(value, list):
        return _id_bound(_java_id(option, value))
    if not isinstance(value, str):
        raise _wrong(option, value, "a text or an array of signed bytes for each topic")
    word = value.strip()
    if word.lower() in ("earliest", "latest"):
        return EARLIEST_BOUND if word.lower() == "earliest" else LATEST_BOUND
    if _ID.fullmatch(word):
        return _id_bound(MessageIdAdv.parse(word))
    bound = _moment(word)
    if bound is None:
        raise _wrong(
            option,
            value,
            "earliest, latest, ledger:entry[:partition[:batchIndex]], an ISO time or an age "
            "such as -1h",
        )
    return bound


def _refuse_kafka(option: str, value: Any, instead: str) -> None:
    """Raise InvalidOffset for what Kafka's source takes for a topic: an object by partition."""
    if isinstance(value, dict) and value and all(number.isdecimal() for number in value):
        raise InvalidOffset(
            f"{option} has numbers of partitions inside a topic, as for Kafka's source",
            f'Name each partition as a topic: {{"my-topic-partition-{next(iter(value))}": '
            f'"{instead}"}}. Pulsar has message ids and times in place of offsets; earliest and '
            "latest are words, not -2 and -1.",
        )


def _time_bound(option: str, value: Any) -> Bound:
    _refuse_kafka(option, value, "2026-11-20T10:00:00Z")
    if isinstance(value, int) and not isinstance(value, bool):
        if value in (_JAVA_EARLIEST_TIME, _JAVA_LATEST_TIME):
            return EARLIEST_BOUND if value == _JAVA_EARLIEST_TIME else LATEST_BOUND
        value = str(value)
    bound: Bound | None = None
    if isinstance(value, str):
        word = value.strip()
        if _WHOLE_NUMBER.fullmatch(word):
            bound = Bound(BoundKind.TIME, millis=int(word))
            _warn_of_unit(option, bound.millis)
        else:
            bound = _moment(word)
    if bound is None:
        raise _wrong(
            option,
            value,
            "milliseconds since 1970, an ISO time such as 2026-11-20T10:00:00Z or an age such as "
            "-1h",
        )
    return bound


# Of times in seconds and in microseconds, as far as these are between 1973 and 2100.
_SECONDS, _MICROS = range(10**8, 41 * 10**8), range(10**14, 41 * 10**14)


@lru_cache
def _warn_of_unit(option: str, number: int) -> None:
    """Warn once of a number that is a likely time in another unit than milliseconds."""
    for unit, numbers in (("seconds", _SECONDS), ("microseconds", _MICROS)):
        if number in numbers:
            logger.warning("%s=%d is read as milliseconds since 1970, not %s", option, number, unit)


def _moment(word: str) -> Bound | None:
    try:
        if age := _AGE.fullmatch(word):
            return Bound(BoundKind.AGE, millis=duration_millis(age[1]))
        millis = iso_millis(word)
    except ValueError:
        return None
    return Bound(BoundKind.TIME, millis=millis) if millis >= 0 else None


def _java_id(option: str, value: list[Any]) -> MessageIdAdv:
    if not all(isinstance(byte, int) and -128 <= byte <= 255 for byte in value):
        raise _wrong(option, value, "bytes from -128 to 127 in the array")
    return MessageIdAdv.deserialize(bytes(byte & 0xFF for byte in value))


def _id_bound(message_id: MessageIdAdv) -> Bound:
    plain = replace(message_id, partition=-1, batch_index=-1, batch_size=0)
    if plain == EARLIEST:
        return EARLIEST_BOUND
    if plain == LATEST:
        return LATEST_BOUND
    return Bound(BoundKind.ID, message_id)


def _wrong(option: str, value: Any, expected: str) -> InvalidOffset:
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
    return InvalidOffset(f"{option} cannot be {shown}", f"Expected {expected}.")
