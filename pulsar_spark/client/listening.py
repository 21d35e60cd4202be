"""Passes messages to callbacks: those of `receive_async`, and a message listener."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from pulsar_spark.client.callbacks import CallbackThread
from pulsar_spark.client.enums import Result, result_of
from pulsar_spark.client.incoming import IncomingMessages
from pulsar_spark.client.message import Message
from pulsar_spark.engine.closing import weakly
from pulsar_spark.engine.retry import can_pass
from pulsar_spark.errors import ClosedError, OptionError, PulsarError
from pulsar_spark.logs import get_logger

logger = get_logger(__name__)

ReceiveCallback: TypeAlias = "Callable[[Result, Message | None], object]"
"""Callback of `receive_async`: it gets the result, and the message if there is one."""


class Listening:
    """Calls those who wait for a message, one message at a time. Thread-safe.

    Callbacks run on the client's callback thread, and take turns with those of other consumers.
    `pull` is called when no message is ready.
    """

    def __init__(
        self,
        topic: str,
        incoming: IncomingMessages,
        listener: Callable[[Message], object] | None,
        callbacks: CallbackThread,
        pull: Callable[[], None] = lambda: None,
    ) -> None:
        self._topic = topic
        self._incoming = incoming
        self._listener = listener
        self._callbacks = callbacks
        self._pull = pull
        self._served = weakly(self._serve)
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._waiting: deque[ReceiveCallback] = deque()
        self._scheduled = False
        self._paused = False
        self._closed = False

    def add(self, callback: ReceiveCallback) -> None:
        """Pass the next message to a callback."""
        self._wait(callback)
        self._pull()
        self.on_ready()

    def _wait(self, callback: ReceiveCallback, *, first: bool = False) -> None:
        """Let a callback wait for a message; tell it if there will be none."""
        with self._lock:
            if not self._closed:
                self._waiting.insert(0 if first else len(self._waiting), callback)
                return
        self._callbacks.run(partial(callback, Result.AlreadyClosed, None))

    def pause(self) -> None:
        """Stop calling the listener; raises OptionError if there is none."""
        self._check()
        with self._lock:
            self._paused = True

    def resume(self) -> None:
        """Call the listener again."""
        self._check()
        with self._lock:
            self._paused = False
        self.on_ready()

    def _check(self) -> None:
        if self._listener is None:
            raise OptionError("the consumer was made without a message_listener")

    def on_ready(self) -> None:
        """Schedule the callbacks that wait; on any thread."""
        with self._lock:
            wanted = self._waiting or (self._listener is not None and not self._paused)
            if not wanted or self._scheduled:
                return
            self._scheduled = True
        self._callbacks.run(self._served)

    def _serve(self) -> None:
        """Pass on one message; others take their turn before the next one."""
        with self._lock:
            self._scheduled = False
            if self._closed or (self._paused and not self._waiting):
                return
            callback = self._waiting.popleft() if self._waiting else None
        try:
            message = self._incoming.next()
        except PulsarError as error:
            self._tell(callback, error)
            return
        if message is None:
            if callback is not None:
                self._wait(callback, first=True)
            self._pull()
            return
        try:
            if callback is not None:
                callback(Result.Ok, message)
            elif self._listener is not None:
                self._listener(message)
        finally:
            self.on_ready()

    def _tell(self, callback: ReceiveCallback | None, error: PulsarError) -> None:
        if callback is not None:
            try:
                callback(result_of(error), None)
            finally:
                self.on_ready()
        elif not isinstance(error, ClosedError):
            logger.error("%s: a message cannot be given to the listener: %s", self._topic, error)
            # An entry that could not be fetched now is the next one still, and told of again.
            if not can_pass(error, lives=True) and not self._incoming.over:
                self.on_ready()

    def close(self) -> None:
        """Stop; tell the callbacks that still wait."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
        for callback in waiting:
            self._callbacks.run(partial(callback, Result.AlreadyClosed, None))
