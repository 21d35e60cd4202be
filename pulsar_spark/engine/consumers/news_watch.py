"""Has the broker tell that a topic partition has news, instead of asking it again and again.

A non-durable consumer with one permit gets the entry after the last readable one, whose content
does not matter. (An open transaction may have written it already.) The durable consumer of a stream
cannot do that: a broker acknowledges what it skips for a consumer with permits, and then a loss
cannot be told from it.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.consumers.consumer_session import (
    ConsumerSession,
    SubscribeRequest,
    unique_name,
)
from pulsar_spark.engine.consumers.probe import ProbeHandler
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.operations import Operation
from pulsar_spark.errors import PulsarError
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import Position

logger = get_logger(__name__)

T = TypeVar("T")

# So many equal answers, no further apart, begin a watch.
_LOOKS = 10
_OFTEN_SECONDS = 5.0
# An answer is believed for this long at most: brokers can forget a consumer.
_BELIEVED_SECONDS = 10.0
_SPREAD_SECONDS = 5.0
# After a refusal, no watch is attempted for this long.
_REFUSED_SECONDS = 60.0


class NewsWatch(ProbeHandler, Generic[T]):
    """Watches a topic partition while answers `T` about it stay the same; close it at the end.

    `on_news` is called on the receive thread when the last answer is not to be believed any more.
    Answers come from one thread at a time.
    """

    def __init__(self, topic: str, on_news: Callable[[], None]) -> None:
        self._topic = topic
        self._on_news = on_news
        self._before: T | None = None
        self._same = 0
        self._asked_at = self._refused_until = -math.inf
        self._lock = threading.Lock()
        # The following are guarded by _lock: the watching consumer, and how long the last answer
        # is believed.
        self._session: ConsumerSession | None = None
        self._until = -math.inf

    @property
    def is_on(self) -> bool:
        """Whether the broker reports news, and there is none."""
        return self._session is not None and self._until > -math.inf

    def check(self, answer: T) -> bool:
        """Whether the last answer is still true, given another one."""
        if answer == self._before and self._believe():
            return True
        self.close()
        return False

    def last(self) -> T | None:
        """Return the last answer if it is still true, None if the topic is to be asked."""
        return self._before if time.monotonic() < self._until else None

    def settle(
        self,
        answer: T,
        connection: ClientConnection,
        end: Position | None,
        look: Callable[[], Operation[T]],
        deadline: Deadline,
    ) -> Operation[T]:
        """Return an operation that takes an answer, and begins to watch after some equal ones.

        `end` is where news begins, None if there is some. `look` asks once more after that, on the
        same connection.
        """
        now = time.monotonic()
        often, self._asked_at = now - self._asked_at < _OFTEN_SECONDS, now
        if end is None or answer != self._before:
            self._before, self._same = answer, 0
            self.close()
            return answer
        if self._believe():
            return answer
        self._same = self._same + 1 if often else 0
        if self._same < _LOOKS or now < self._refused_until:
            return answer
        try:
            yield from self._begin(connection, end, deadline)
        except PulsarError as error:
            logger.info("%s: is asked again and again: %s", self._topic, error.what)
            self._refused_until = now + _REFUSED_SECONDS
            return answer
        found = yield from look()
        if found == answer:
            self._believe()
        else:
            self._before, self._same = found, 0
            self.close()
        return found

    def _begin(
        self, connection: ClientConnection, end: Position, deadline: Deadline
    ) -> Operation[None]:
        name = unique_name(f"{connection.name_prefix}pulsar-spark-watch")
        wanted = SubscribeRequest(self._topic, name, end)
        session = ConsumerSession(connection, wanted, self)
        with self._lock:
            self._session = session
        try:
            yield from session.subscribe(deadline)
            session.flow(1)
        except BaseException:
            self.close()
            raise

    def _believe(self) -> bool:
        with self._lock:
            if self._session is not None:
                spread = random.SystemRandom().uniform(0, _SPREAD_SECONDS)
                self._until = time.monotonic() + _BELIEVED_SECONDS + spread
            return self._session is not None

    # --- events, on the receive thread ----------------------------------------------------------

    def on_messages(self, block: MessageBlock) -> int:
        """There is an entry."""
        self.close()
        self._on_news()
        return 0

    def _end(self, error: PulsarError) -> None:
        self.close()
        self._on_news()

    def close(self) -> None:
        """Stop watching."""
        with self._lock:
            session, self._session = self._session, None
            self._until = -math.inf
        if session is not None:
            session.close()
