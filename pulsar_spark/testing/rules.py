"""Rules: which fault applies to which command, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pulsar_spark.errors import InvalidTopicName
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.actions import Action
from pulsar_spark.testing.topic_store import topic_name

CONNECTION = "CONNECTION"
COMMANDS = (CONNECTION, *pb.BaseCommand.Type.keys())

INCOMING = "in"
OUTGOING = "out"
FROM_BROKER = frozenset(
    name
    for name in COMMANDS
    if name.endswith(("_RESPONSE", "_SUCCESS", "_RECEIPT", "_UPDATE")) and name != "AUTH_RESPONSE"
) | {"CONNECTED", "SUCCESS", "ERROR", "SEND_ERROR", "MESSAGE", "PONG", "AUTH_CHALLENGE"} | {
    "REACHED_END_OF_TOPIC", "ACTIVE_CONSUMER_CHANGE", "TOPIC_MIGRATED"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """A command that passed: time (time.monotonic), connection, direction, content.

    `body` is the command's own protobuf message; do not change it.
    """

    at: float
    connection: int
    direction: str
    command: str
    topic: str | None
    body: Any


@dataclass(eq=False)
class Rule:
    """A fault that was set; `hits` counts its uses. A context manager that removes it."""

    command: str
    action: Action
    times: int | None
    after: int
    topic: str | None
    when: Callable[[Seen], bool] | None
    answer: bool
    direction: str
    removed_by: Callable[[Rule], None]
    hits: int = 0
    passed: int = 0

    def applies_to(self, seen: Seen) -> bool:
        """Whether the rule applies to a command; counts it if so."""
        if self.direction != seen.direction or (self.times is not None and self.hits >= self.times):
            return False
        if self.topic is not None and not is_of(seen.topic, self.topic):
            return False
        if self.when is not None and not self.when(seen):
            return False
        self.passed += 1
        if self.passed <= self.after:
            return False
        self.hits += 1
        return True

    def remove(self) -> None:
        """Remove the rule."""
        self.removed_by(self)

    def __enter__(self) -> Rule:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def is_of(topic: str | None, wanted: str) -> bool:
    """Whether a topic is the wanted one, or a partition of it."""
    if topic is None:
        return False
    if topic == wanted:
        return True
    try:
        return str(topic_name(topic).partitioned) == wanted
    except InvalidTopicName:
        return False
