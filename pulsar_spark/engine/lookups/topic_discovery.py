"""Finds a consumer's topic partitions: of given topics, or of all that match a pattern.

Both change: topics get more partitions, and matching topics come and go. Discovery polls, and looks
at once when a broker that watches the pattern reports a change. Brokers that cannot watch the
pattern are only polled.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from google.protobuf.message import Message

from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.topic_patterns import TopicPattern
from pulsar_spark.engine.operations import AllOf, Operation, Steps, run, start, value_of
from pulsar_spark.engine.retry import retried
from pulsar_spark.engine.timers import Timer
from pulsar_spark.errors import ClosedError, PulsarError, TopicNotFound
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.topic_name import TopicName

logger = get_logger(__name__)

_CLOSE_SECONDS = 5.0
# How long a question whether something has changed may take to begin a watch.
_WATCH_SECONDS = 5.0
# The broker's answer if it does not announce the feature flag.
_WATCHES = "supports_topic_watchers"


class TopicDiscovery:
    """Finds the topic partitions of `names`, or of a pattern's topics; close it at the end.

    After `begin`, `on_found` gets the complete set after each discovery, on a thread that must not
    wait; if it raises, that is logged, and it gets the set again after the next one. A `period` of
    0 looks again only when a broker reports a change.
    """

    def __init__(
        self,
        context: ClientContext,
        names: Sequence[str],
        pattern: TopicPattern | None,
        period: float,
        on_found: Callable[[set[str]], None],
    ) -> None:
        self.pattern = pattern
        self._context = context
        self._names = [str(TopicName.parse(name)) for name in names]
        self._period = period
        self._on_found = on_found
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._timer: Timer | None = None
        self._looking = False
        self._again = False
        self._closed = False
        self._watch: _Watch | None = None

    def finding(self) -> Steps[set[str]]:
        """Return steps for the current topic partitions; they raise if these cannot be found."""
        timeout = self._context.options.operation_timeout
        return value_of((yield AllOf([retried(self._find_operation)], timeout))[0])

    def begin(self, *, now: bool = True) -> None:
        """Start polling: `now`, or after a period."""
        if now:
            self._look()
        else:
            self._look_later()

    def _find_operation(self, deadline: Deadline) -> Operation[set[str]]:
        lookup = self._context.lookup
        names: Iterable[str] = self._names
        if self.pattern is not None:
            listed = yield from lookup.topics_operation(
                self.pattern.namespace, deadline, _mode(self.pattern)
            )
            names = self.pattern.select(listed)
        found: set[str] = set()
        for name in names:
            topic = TopicName.parse(name)
            if topic.partition_index >= 0:
                found.add(name)
                continue
            with contextlib.suppress(TopicNotFound):
                count = yield from lookup.partitions_operation(name, deadline)
                found.update(topic.partitions(count))
        return found

    # --- polling ------------------------------------------------------------------------------

    def look_soon(self) -> None:
        """Discover now: something has changed."""
        with self._lock:
            if self._looking:
                self._again = True
                return
        self._look()

    def _look(self) -> None:
        with self._lock:
            if self._closed or self._looking:
                return
            self._looking, self._again = True, False
            if self._timer is not None:
                self._timer.cancel()
        timeout = self._context.options.operation_timeout
        looked = start(self._look_operation, timeout, self._context.timers)
        looked.add_done_callback(self._on_looked)

    def _look_operation(self, deadline: Deadline) -> Operation[set[str]]:
        # Watch before listing: later changes are reported.
        if self.pattern is not None and (self._watch is None or self._watch.over):
            with contextlib.suppress(PulsarError):
                watch = yield from _watch(self._context, self.pattern, self.look_soon, deadline)
                with self._lock:
                    self._watch, closed = watch, self._closed
                if closed and watch is not None:
                    watch.close()
        return (yield from self._find_operation(deadline))

    def _on_looked(self, looked: Future[set[str]]) -> None:
        error = None if looked.cancelled() else looked.exception()
        with self._lock:
            self._looking = False
            closed, again = self._closed, self._again
        if closed:
            return
        if error is None and not looked.cancelled():
            self._tell(looked.result())
        elif error is not None:
            logger.info("topics cannot be looked for now: %s", error)
        if again:
            self._look()
        else:
            self._look_later()

    def _tell(self, found: set[str]) -> None:
        try:
            self._on_found(found)
        except Exception:
            logger.exception("the topics that were found cannot be taken now")

    def _look_later(self) -> None:
        if self._period <= 0:
            return
        with self._lock, contextlib.suppress(ClosedError):
            if not self._closed:
                self._timer = self._context.timers.after(self._period, self._look)

    def close(self) -> None:
        """Stop."""
        with self._lock:
            self._closed = True
            timer, watch = self._timer, self._watch
        if timer is not None:
            timer.cancel()
        if watch is not None:
            watch.close()


class PatternWatch:
    """Knows whether the topics that match a pattern may have changed; close it at the end.

    Brokers report changes: `on_change` is called on a receive thread. Where they do not, or cannot
    be asked now, nobody knows.
    """

    def __init__(
        self, context: ClientContext, pattern: TopicPattern, on_change: Callable[[], None]
    ) -> None:
        self._context = context
        self._pattern = pattern
        self._on_change = on_change
        self._watch: _Watch | None = None
        self._changed = threading.Event()

    @property
    def is_on(self) -> bool:
        """Whether a broker reports changes now."""
        return self._watch is not None and not self._watch.over and not self._watch.refused

    def changed(self) -> bool:
        """Return whether to look for topics: something may have changed since the last call."""
        if self._watch is None or self._watch.over:
            self._begin()
            return True
        if self._watch.refused:
            return True
        if not self._changed.is_set():
            return False
        self._changed.clear()
        return True

    def _on_report(self) -> None:
        self._changed.set()
        self._on_change()

    def _begin(self) -> None:
        self._changed.clear()
        with contextlib.suppress(PulsarError):
            self._watch = run(
                lambda deadline: _watch(self._context, self._pattern, self._on_report, deadline),
                _WATCH_SECONDS,
            )

    def close(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.close()


def _watch(
    context: ClientContext,
    pattern: TopicPattern,
    on_change: Callable[[], None],
    deadline: Deadline,
) -> Operation[_Watch | None]:
    """Return an operation that begins a watch, if the broker has such; one attempt."""
    connection = yield from context.pool.service_operation(deadline)
    if not connection.supports(_WATCHES):
        return None
    watch = _Watch(connection, on_change)
    yield from watch.begin(pattern, deadline)
    return watch


class _Watch:
    """A watch for topics at one broker: the Handler of its reports."""

    def __init__(self, connection: ClientConnection, on_change: Callable[[], None]) -> None:
        self.over = self.refused = False
        self._connection = connection
        self._on_change = on_change
        self._watcher_id = connection.handlers.add_watcher(self)

    def begin(self, pattern: TopicPattern, deadline: Deadline) -> Operation[None]:
        refusal = ""
        for regex in _watched(pattern):
            try:
                yield self._connection.request_async(
                    commands.request(
                        pb.CommandWatchTopicList,
                        watcher_id=self._watcher_id,
                        namespace=pattern.namespace,
                        topics_pattern=regex,
                    ),
                    deadline.attempt(),
                )
                return
            except PulsarError as error:
                refusal = error.what
        # Poll from now on, without another attempt to watch.
        logger.info("the broker does not watch the pattern: %s", refusal)
        self._connection.handlers.remove_watcher(self._watcher_id)
        self.refused = True

    def on_command(self, body: Message) -> None:
        """The topics have changed."""
        self._on_change()

    def on_disconnect(self, error: PulsarError) -> None:
        """The broker watches no more: changes may have been missed."""
        self.over = True
        self._on_change()

    def close(self) -> None:
        """End the watch."""
        self._connection.handlers.remove_watcher(self._watcher_id)
        if not self.over and not self._connection.closed:
            with contextlib.suppress(PulsarError):
                self._connection.request_async(
                    commands.request(pb.CommandWatchTopicListClose, watcher_id=self._watcher_id),
                    _CLOSE_SECONDS,
                )


def _watched(pattern: TopicPattern) -> tuple[str, ...]:
    """Return the texts under which a broker may watch a pattern, the best one first.

    Before 3.0.11, 3.3.6 and 4.0.4 brokers match full names. But that text can be too long.
    """
    if not pattern.local:
        return (pattern.regex,)
    name = f"{pattern.namespace}/{pattern.regex}"
    return f"persistent://{name}", name


def _mode(pattern: TopicPattern) -> int:
    if len(pattern.domains) > 1:
        return pb.CommandGetTopicsOfNamespace.ALL
    persistent = "persistent" in pattern.domains
    modes = pb.CommandGetTopicsOfNamespace
    return modes.PERSISTENT if persistent else modes.NON_PERSISTENT
