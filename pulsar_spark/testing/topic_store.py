"""All topics of a broker: names, partitions, creation, deletion, ownership."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from pulsar_spark.errors import InvalidTopicName
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.topic_name import TopicName, topics_hash
from pulsar_spark.testing.entry_log import Usage
from pulsar_spark.testing.namespaces import Namespaces
from pulsar_spark.testing.options import BrokerOptions
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.schemas import SchemaHistory
from pulsar_spark.testing.topic import Topic

MAX_PATTERN = 50
"""Maximum length of a pattern by which a broker filters topics."""

_MODE = pb.CommandGetTopicsOfNamespace


@lru_cache(maxsize=100_000)
def topic_name(text: str) -> TopicName:
    """Parse a topic's name; raises InvalidTopicName."""
    return TopicName.parse(text)


@dataclass(eq=False)
class Watcher:
    """A client's watch for topics that appear in or disappear from a namespace."""

    namespace: str
    pattern: str
    notify: Callable[[list[str], list[str], str], None]


class TopicStore:
    """The topics of a broker, by full name, and the schemas that partitions share."""

    def __init__(self, options: BrokerOptions, loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._loop = loop
        self._last_ledger_id = 0
        self.usage = Usage()
        self.namespaces = Namespaces(options)
        self.topics: dict[str, Topic] = {}
        self.partitioned: dict[str, int] = {}
        self._schemas: dict[str, SchemaHistory] = {}
        self._owners: dict[str, int] = {}
        self.watchers: list[Watcher] = []

    # --- finding ---

    def partitions(self, name: TopicName, *, auto_create: bool) -> int:
        """Return a topic's number of partitions; 0 if not partitioned, or not created yet.

        Without `auto_create` a missing topic raises Refusal (TopicNotFound).
        """
        self.namespaces.check(name)
        text = str(name)
        if text in self.partitioned:
            return self.partitioned[text]
        if text in self.topics:
            return 0
        count = self.namespaces.auto_partitions(name)
        if not auto_create or count is None:
            raise Refusal(pb.TopicNotFound, "")
        if count and name.partition_index < 0:
            self.create(name, count)
            return count
        return 0

    def open(self, name: TopicName, *, create: bool) -> Topic:
        """Return the topic for a producer or consumer, created if allowed.

        As in a real broker, a partitioned topic's name can also be a topic of its own, beside its
        partitions. Raises Refusal (TopicNotFound).
        """
        self.namespaces.check(name)
        text = str(name)
        if text in self.topics:
            return self.topics[text]
        known = self.partitioned.get(str(name.partitioned)) if name.partition_index >= 0 else None
        if known is not None and name.partition_index >= known:
            raise Refusal(pb.TopicNotFound, f"Topic {text} is not one of {known} partitions")
        if not create or self.namespaces.auto_partitions(name) is None:
            raise Refusal(pb.TopicNotFound, f"Topic {text} does not exist")
        return self._add(name)

    def schemas(self, name: TopicName) -> SchemaHistory:
        """A topic's schema history; partitions share their topic's."""
        return self._schemas.setdefault(str(name.partitioned), SchemaHistory())

    def schemas_if_any(self, name: TopicName) -> SchemaHistory | None:
        """As `schemas`, but None for a topic without a history."""
        return self._schemas.get(str(name.partitioned))

    def parts(self, name: TopicName) -> list[Topic]:
        """The topic with this name and its partitions; empty if it does not exist."""
        partitions = range(self.partitioned.get(str(name), 0))
        names = [*(str(name.partition(index)) for index in partitions), str(name)]
        return [self.topics[part] for part in names if part in self.topics]

    # --- creating and deleting ---

    def create(self, name: TopicName, partitions: int, ledger_id: int | None = None) -> None:
        """Create a topic, without (0) or with partitions; raises Refusal if it exists.

        `ledger_id` is its first ledger's id; later ids of the whole broker continue from it.
        """
        self.namespaces.check(name)
        text = str(name)
        if text in self.topics or text in self.partitioned:
            raise Refusal(pb.NotAllowedError, f"This topic already exists: {text}")
        if ledger_id is not None:
            self._last_ledger_id = ledger_id - 1
        if not partitions:
            self._add(name)
            return
        self.partitioned[text] = partitions
        self._add_missing(name, range(partitions))

    def add_partitions(self, name: TopicName, partitions: int) -> None:
        """Increase a topic's number of partitions; raises Refusal for a smaller number."""
        known = self.partitioned.get(str(name))
        if known is None:
            raise Refusal(pb.TopicNotFound, f"{name} is no partitioned topic")
        if partitions < known:
            raise Refusal(pb.NotAllowedError, f"{name} has {known} partitions already")
        self.partitioned[str(name)] = partitions
        self._add_missing(name, range(known, partitions))

    def _add_missing(self, name: TopicName, partitions: range) -> None:
        for index in partitions:
            if str(name.partition(index)) not in self.topics:
                self._add(name.partition(index))

    def delete(self, name: TopicName) -> None:
        """Remove a topic with its partitions and schemas."""
        gone = self.parts(name)
        self.partitioned.pop(str(name), None)
        for topic in gone:
            del self.topics[topic.name]
            self._owners.pop(topic.name, None)
            topic.log.discard()
        if name.partition_index < 0 or str(name.partitioned) not in self.partitioned:
            self._schemas.pop(str(name.partitioned), None)
            self.namespaces.of_topics.pop(str(name.partitioned), None)
        self._announce([], [topic.name for topic in gone])

    def _add(self, name: TopicName) -> Topic:
        topic = Topic(
            name,
            self._options,
            self._loop,
            self.schemas(name),
            self._new_ledger_id,
            self.usage,
        )
        topic.policies = self.namespaces.policies(name)
        self.topics[topic.name] = topic
        self._announce([topic.name], [])
        return topic

    def _new_ledger_id(self) -> int:
        self._last_ledger_id += 1
        return self._last_ledger_id

    # --- policies ---

    def apply_policies(self) -> None:
        """Give all topics the policies that are set for them now."""
        for text, topic in self.topics.items():
            topic.policies = self.namespaces.policies(topic_name(text))

    # --- listing ---

    def of_namespace(self, namespace: str, mode: int = _MODE.ALL) -> list[str]:
        """The full names of a namespace's topics, with single partitions."""
        return sorted(
            text
            for text, topic in self.topics.items()
            if topic_name(text).namespace_name == namespace
            and mode != (_MODE.NON_PERSISTENT if topic.persistent else _MODE.PERSISTENT)
        )

    def _announce(self, added: list[str], deleted: list[str]) -> None:
        for watcher in self.watchers:
            appeared = self.matching(watcher, added)
            vanished = self.matching(watcher, deleted)
            if appeared or vanished:
                everything = self.matching(watcher, self.of_namespace(watcher.namespace))
                watcher.notify(appeared, vanished, topics_hash(everything))

    @staticmethod
    def matching(watcher: Watcher, names: Iterable[str]) -> list[str]:
        """The persistent topics that match a watcher's pattern."""
        parsed = ((text, topic_name(text)) for text in names)
        mine = [
            text
            for text, name in parsed
            if name.is_persistent and name.namespace_name == watcher.namespace
        ]
        return filter_by_pattern(mine, watcher.pattern)

    # --- ownership, with several brokers ---

    def owner(self, text: str) -> int:
        """The number of the broker that serves a topic."""
        if self._options.brokers == 1:
            return 0
        return self._owners.get(text, zlib.crc32(text.encode()) % self._options.brokers)

    def move(self, text: str, broker: int) -> None:
        """Move a topic to another broker."""
        self._owners[text] = broker


def filter_by_pattern(names: Iterable[str], pattern: str) -> list[str]:
    """The topics whose whole name, without domain and partition, matches a pattern.

    The pattern may start with the domain. Raises Refusal if it is invalid.
    """
    expression = pattern.split("://", 1)[-1]
    try:
        compiled = re.compile(expression)
    except (re.error, RecursionError, OverflowError) as error:
        raise Refusal(pb.MetadataError, f"The pattern is no regular expression: {error}") from None
    return [
        text
        for text in names
        if compiled.fullmatch(str(topic_name(text).partitioned).split("://", 1)[1])
    ]


def parse_topic(text: str) -> TopicName:
    """Parse a client's topic name; raises Refusal (InvalidTopicName)."""
    try:
        return topic_name(text)
    except InvalidTopicName as error:
        raise Refusal(pb.InvalidTopicName, str(error)) from None
