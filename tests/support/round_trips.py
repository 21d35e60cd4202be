"""What clients ask an embedded broker: how often, and how many round trips in sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from types import TracebackType

from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.rules import COMMANDS, FROM_BROKER

ANSWERED = (
    *("LOOKUP", "PARTITIONED_METADATA", "GET_TOPICS_OF_NAMESPACE", "GET_SCHEMA"),
    *("PRODUCER", "SEND", "CLOSE_PRODUCER", "SUBSCRIBE", "GET_LAST_MESSAGE_ID"),
    *("CLOSE_CONSUMER", "TC_CLIENT_CONNECT_REQUEST", "NEW_TXN", "ADD_PARTITION_TO_TXN", "END_TXN"),
    *("SEEK", "CONSUMER_STATS"),
)
"""What clients wait for an answer to."""

FROM_CLIENTS = tuple(name for name in COMMANDS if name not in FROM_BROKER)


class Asked:
    """Counts a broker's commands from here on; with `seconds` it answers so late.

    `but` are commands whose answers nobody waits for here.
    """

    def __init__(
        self, broker: EmbeddedBroker, seconds: float = 0.0, *, but: Collection[str] = ()
    ) -> None:
        self._broker = broker
        self._seconds = seconds
        self._answered = [command for command in ANSWERED if command not in but]
        self._before = self._seen()
        self._rules = [
            broker.faults.delay(command, seconds, hold=False, times=None)
            for command in (self._answered if seconds else ())
        ]
        self._logged = {command: len(broker.faults.log(command)) for command in self._answered}

    def __enter__(self) -> Asked:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for rule in self._rules:
            rule.remove()

    def _seen(self) -> Counter[str]:
        faults = self._broker.faults
        return Counter({name: faults.seen(name, direction="in") for name in FROM_CLIENTS})

    @property
    def counts(self) -> Counter[str]:
        """How often each command has come from clients."""
        return self._seen() - self._before

    @property
    def in_sequence(self) -> int:
        """The longest chain of commands of which each can have waited for the one before.

        It counts no less than there was: a command waits for another one if it came after its
        answer. Of each kind of command the last 1,000 are known.
        """
        answers: list[tuple[float, int]] = []
        longest = 0
        arrivals = sorted(
            seen.at
            for command in self._answered
            for seen in self._broker.faults.log(command)[self._logged[command] :]
        )
        for at in arrivals:
            depth = 1 + max((known for answer, known in answers if answer <= at), default=0)
            # Only the deepest that were answered by then matter.
            if not answers or depth > answers[-1][1]:
                answers.append((at + self._seconds, depth))
            longest = max(longest, depth)
        return longest
