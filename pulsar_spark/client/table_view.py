"""The table view that `PulsarClient.create_table_view` returns: the official client's methods."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pulsar_spark.client.callbacks import call_logged
from pulsar_spark.client.message import Message
from pulsar_spark.client.reader import PulsarReader
from pulsar_spark.client.values import MessageValues, checked, key_of
from pulsar_spark.engine.closing import Closing

EntryCallback = Callable[[str, Any], object]
"""Callback of a table view: it gets a key and its value."""


class _Held:
    """What decoding a value needs of its message, kept so that the message's batch can be freed."""

    __slots__ = ("key", "payload", "topic", "version")

    def __init__(self, message: Message) -> None:
        self.topic = message.topic_name()
        self.version = message.version_bytes()
        self.payload = message.data()
        self.key = key_of(message.fields())

    def value(self, values: MessageValues) -> Any:
        """Return the value; raises as `Message.value`."""
        if not values.decodes:
            return values.schema.decode(self.payload)
        found = values.decode(self.topic, self.version, [self.payload or None], lambda: [self.key])
        return checked(found[0])


class TableView(Closing):
    """The latest value of each key of a topic, kept up to date. Made by `create_table_view`.

    A message without a value removes its key; messages without a key are ignored. Thread-safe.
    """

    def __init__(
        self, reader: PulsarReader, topic: str, subscription: str | None, values: MessageValues
    ) -> None:
        self._reader = reader
        self._topic = topic
        self._subscription = subscription
        self._decoder = values
        # Held while the table changes and callbacks run, so that everybody sees the same order.
        self._telling = threading.RLock()
        self._values: dict[str, _Held] = {}
        self._listeners: list[EntryCallback] = []

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    def __repr__(self) -> str:
        named = "" if self._subscription is None else f", subscription={self._subscription}"
        return f"TableView(topic={self._topic}{named})"

    def get(self, key: str) -> Any:
        """Return the latest value of a key, None if there is none."""
        found = self._values.get(key)
        return None if found is None else found.value(self._decoder)

    def for_each(self, callback: EntryCallback) -> None:
        """Call ``callback(key, value)`` for each key."""
        with self._telling:
            for key, value in list(self._values.items()):
                callback(key, value.value(self._decoder))

    def for_each_and_listen(self, callback: EntryCallback) -> None:
        """As `for_each`, then for each change, on a thread of the view.

        For a removed key the callback gets the empty value; None if the schema has a definition.
        """
        with self._telling:
            self.for_each(callback)
            self._listeners.append(callback)

    def close(self) -> None:
        """Stop updating the view. May be called twice."""
        self._reader.close()

    def load(self) -> None:
        """Read the topic's current messages, and later ones in the background."""
        for message in self._reader.read_current():
            self._apply(message)
        self._reader.listen(lambda reader, message: self._apply(message))

    def _apply(self, message: Message) -> None:
        if not message.fields().HasField("partition_key"):
            return
        key, value = message.partition_key(), _Held(message)
        with self._telling:
            if value.payload:
                self._values[key] = value
            else:
                self._values.pop(key, None)
            for listener in list(self._listeners):
                call_logged(f"a listener of {self!r}", self._tell, listener, key, value)

    def _tell(self, listener: EntryCallback, key: str, value: _Held) -> None:
        listener(key, value.value(self._decoder))
