"""Fault injection, and a record of the commands received by the broker.

Rules say which fault applies to which command. They can be set from any thread, before or while
clients are connected. Commands have the protocol's names: LOOKUP, SUBSCRIBE, SEND, FLOW, … from
clients, and LOOKUP_RESPONSE, SEND_RECEIPT, MESSAGE, … from the broker. CONNECTION stands for
accepting a connection.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pulsar_spark.errors import OptionError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import actions
from pulsar_spark.testing.actions import Action
from pulsar_spark.testing.rules import (
    COMMANDS,
    CONNECTION,
    FROM_BROKER,
    INCOMING,
    OUTGOING,
    Rule,
    Seen,
    is_of,
)
from pulsar_spark.testing.topic_store import topic_name

if TYPE_CHECKING:
    from pulsar_spark.testing.broker import EmbeddedBroker

# How many commands of each type are remembered, and how many different counters there are.
LOG_LENGTH = 1000
_MAX_COUNTS = 100_000
# Deliveries are only counted: remembering each would cost more than sending it.
_NOT_LOGGED = frozenset(("MESSAGE", "SEND_RECEIPT"))


class Faults:
    """The faults of one embedded broker. All methods can be called from any thread.

    In methods named after a fault, `command` is the command that it applies to, and keyword
    arguments are those of `on`.
    """

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        # Reentrant: a rule's predicate may ask what was seen.
        self._lock = threading.RLock()
        self._rules: dict[str, tuple[Rule, ...]] = {}
        self._counts: Counter[tuple[str, str, str | None]] = Counter()
        self._log: dict[str, deque[Seen]] = {}

    # --- rules ---

    def on(
        self,
        command: str,
        action: Action | str,
        *,
        times: int | None = 1,
        after: int = 0,
        topic: str | None = None,
        when: Callable[[Seen], bool] | None = None,
        answer: bool = False,
        direction: str | None = None,
    ) -> Rule:
        """Apply an action to a command, `times` times (None: always) after `after` passed normally.

        `topic` limits it to a topic or its partitions, `when` to commands for which the function
        (on the broker's thread) returns true. With `answer` the action applies to the request's
        answer. `direction` ("in", "out") is only needed for CLOSE_PRODUCER and CLOSE_CONSUMER from
        the broker. `action` may be the name of an action without arguments. Raises OptionError for
        a command or action that does not exist.
        """
        if command not in COMMANDS:
            raise OptionError(f"{command!r} is no command of the protocol")
        if isinstance(action, str):
            action = _named_action(action)
        if direction is None:
            direction = OUTGOING if command in FROM_BROKER else INCOMING
        is_request = direction == INCOMING and command not in ("SEND", CONNECTION)
        rule = Rule(
            command,
            action,
            times=times,
            after=after,
            topic=None if topic is None else str(topic_name(topic)),
            when=when,
            answer=answer or (is_request and action.wants_answer),
            direction=direction,
            removed_by=self._remove,
        )
        with self._lock:
            self._rules = {**self._rules, command: (*self._rules.get(command, ()), rule)}
        return rule

    def _remove(self, rule: Rule) -> None:
        with self._lock:
            left = tuple(other for other in self._rules.get(rule.command, ()) if other is not rule)
            self._rules = {**self._rules, rule.command: left}
            if not left:
                del self._rules[rule.command]

    def clear(self) -> None:
        """Remove all rules; accept connections and read again."""
        with self._lock:
            self._rules = {}
        self.accept()
        self.resume_reads()

    def drop(self, command: str, **rule: Any) -> Rule:
        """Lose a command."""
        return self.on(command, actions.Drop(), **rule)

    def delay(self, command: str, seconds: float, *, hold: bool | None = None, **rule: Any) -> Rule:
        """Delay a command; with `hold`, everything after it on its connection too."""
        return self.on(command, actions.Delay(seconds, hold), **rule)

    def error(
        self, command: str, code: int | str, message: str = "refused on demand", **rule: Any
    ) -> Rule:
        """Refuse a request with a ServerError, given by its number or name."""
        return self.on(command, actions.Error(code, message), **rule)

    def close(self, command: str, *, reset: bool = False, **rule: Any) -> Rule:
        """Close the connection when the command arrives, or instead of sending it."""
        return self.on(command, actions.Close(reset), **rule)

    def black_hole(self, command: str, **rule: Any) -> Rule:
        """Fall silent on the connection from this command on, and keep it open."""
        return self.on(command, actions.BlackHole(), **rule)

    def redirect(
        self,
        to: str | None,
        *,
        tls: str | None = None,
        authoritative: bool = False,
        **rule: Any,
    ) -> Rule:
        """Answer LOOKUP with a redirect to the broker of this URL."""
        return self.on("LOOKUP", actions.Redirect(to, tls, authoritative), **rule)

    def corrupt(self, command: str, part: str = "payload", **rule: Any) -> Rule:
        """Flip a bit in a part of the frame: payload, checksum, metadata, command, size, …"""
        return self.on(command, actions.Corrupt(part), **rule)

    def rewrite(self, command: str, function: Callable[[bytes], bytes], **rule: Any) -> Rule:
        """Change the frame's bytes with a function before they are sent."""
        return self.on(command, actions.Rewrite(function), **rule)

    def truncate(self, command: str, size: int = 6, **rule: Any) -> Rule:
        """Send only the first bytes of the frame, then close the connection."""
        return self.on(command, actions.Truncate(size), **rule)

    def duplicate(self, command: str, copies: int = 2, **rule: Any) -> Rule:
        """Send a frame, or the answer to a request, more than once."""
        return self.on(command, actions.Duplicate(copies), **rule)

    def trickle(self, command: str, size: int = 1, seconds: float = 0.001, **rule: Any) -> Rule:
        """Send a frame in small pieces with pauses between them."""
        return self.on(command, actions.Trickle(size, seconds), **rule)

    def call(self, command: str, function: Callable[[Seen], object], **rule: Any) -> Rule:
        """Call a function, on the broker's thread, when the command arrives or is sent."""
        return self.on(command, actions.Call(function), **rule)

    # --- faults of the whole broker ---

    def unload(self, topic: str, assigned_broker_url: str | None = None) -> None:
        """Unload a topic: its producers and consumers are disconnected and may reconnect."""
        self._broker.unload(topic, assigned_broker_url)

    def close_producers(self, topic: str, assigned_broker_url: str | None = None) -> int:
        """Close a topic's producers, naming their new broker if given; returns how many."""
        return self._broker.close_clients(
            topic, producers=True, consumers=False, assigned_broker_url=assigned_broker_url
        )

    def close_consumers(self, topic: str, assigned_broker_url: str | None = None) -> int:
        """Close a topic's consumers, naming their new broker if given; returns how many."""
        return self._broker.close_clients(
            topic, producers=False, consumers=True, assigned_broker_url=assigned_broker_url
        )

    def migrate(self, topic: str, url: str | None, url_tls: str | None = None) -> int:
        """Tell a topic's clients that it moved to another cluster; returns how many."""
        return self._broker.migrate(topic, url, url_tls)

    def move_readers(self, topic: str) -> int:
        """Move the cursors of a topic's readers past all that is stored; returns how many.

        So do brokers when messages expire, although a reader has nothing to acknowledge.
        """
        return self._broker.move_readers(topic)

    def disconnect(self, *, reset: bool = False) -> int:
        """Close all connections, normally or by TCP reset; returns how many."""
        return self._broker._call(lambda server: server.disconnect_all(reset=reset))

    def refuse(self) -> None:
        """Refuse new connections until `accept`; open ones stay."""
        self._broker._listen(False)

    def accept(self) -> None:
        """Accept new connections again, on the same port."""
        self._broker._listen(True)

    def stall_reads(self) -> None:
        """Read nothing from any connection until `resume_reads`, so that clients' writes block."""
        self._broker._call(lambda server: server.set_reading(False))

    def resume_reads(self) -> None:
        """Read again."""
        self._broker._call(lambda server: server.set_reading(True))

    def inject(self, data: bytes | pb.BaseCommand, connection: int | None = None) -> int:
        """Send unsolicited bytes or a command on one or all connections; returns on how many."""
        return self._broker._call(lambda server: server.inject(data, connection))

    # --- the record ---

    def seen(self, command: str, topic: str | None = None, *, direction: str | None = None) -> int:
        """How often a command passed, for one topic (with its partitions) or all."""
        wanted = None if topic is None else str(topic_name(topic))
        with self._lock:
            return sum(
                count
                for (way, name, of), count in self._counts.items()
                if name == command
                and direction in (None, way)
                and (wanted is None or is_of(of, wanted))
            )

    def log(self, command: str, topic: str | None = None) -> list[Seen]:
        """The last commands of this type, oldest first, at most `LOG_LENGTH`.

        MESSAGE and SEND_RECEIPT are counted, not logged.
        """
        wanted = None if topic is None else str(topic_name(topic))
        with self._lock:
            return [
                seen
                for seen in self._log.get(command, ())
                if wanted is None or is_of(seen.topic, wanted)
            ]

    def forget(self) -> None:
        """Clear the record."""
        with self._lock:
            self._counts.clear()
            self._log.clear()

    # --- for the broker, on its thread ---

    def match_rule(
        self, direction: str, command: str, topic: str | None, body: Any, connection: int
    ) -> tuple[Seen, Rule] | None:
        """Record a command; return it with the rule that applies, None if none does."""
        key = (direction, command, topic)
        armed = command in self._rules
        with self._lock:
            if len(self._counts) < _MAX_COUNTS or key in self._counts:
                self._counts[key] += 1
            else:
                self._counts[direction, command, None] += 1
            if command in _NOT_LOGGED and not armed:
                return None
            seen = Seen(time.monotonic(), connection, direction, command, topic, body)
            if command not in _NOT_LOGGED:
                log = self._log.get(command)
                if log is None:
                    log = self._log[command] = deque(maxlen=LOG_LENGTH)
                log.append(seen)
            if not armed:
                return None
            rules: Iterable[Rule] = self._rules.get(command, ())
            rule = next((rule for rule in rules if rule.applies_to(seen)), None)
        return None if rule is None else (seen, rule)


_NAMED: dict[str, type[Action]] = {
    "drop": actions.Drop,
    "close": actions.Close,
    "black_hole": actions.BlackHole,
    "corrupt": actions.Corrupt,
    "truncate": actions.Truncate,
    "duplicate": actions.Duplicate,
    "trickle": actions.Trickle,
}


def _named_action(name: str) -> Action:
    if name not in _NAMED:
        raise OptionError(f"{name!r} names no action without arguments", f"One of {list(_NAMED)}.")
    return _NAMED[name]()
