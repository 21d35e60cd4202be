"""Messages as columns, the form in which Spark and Arrow have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pulsar_spark.engine.batching import Solo
from pulsar_spark.engine.routing import Key, key_text
from pulsar_spark.errors import InvalidRow
from pulsar_spark.protocol.batches import MessageFields

Properties = Mapping[str, str] | Sequence[tuple[str, str]]


@dataclass(slots=True)
class MessageColumns:
    """Messages as columns of equal length; a column that is None is missing in all of them.

    Payload None is a null value, a `str` key is a string key, a `bytes` key is sent as base64
    with its flag. Times are milliseconds since the epoch; None and 0 are no time. Sequence ids
    that are None are given by the producer. Errors name a message by `first_row` plus its
    index. Raises InvalidRow for columns of different lengths.
    """

    payloads: Sequence[bytes | None]
    keys: Sequence[Key | None] | None = None
    ordering_keys: Sequence[bytes | None] | None = None
    event_times: Sequence[int | None] | None = None
    properties: Sequence[Properties | None] | None = None
    deliver_at: Sequence[int | None] | None = None
    sequence_ids: Sequence[int | None] | None = None
    null_keys: Sequence[bool] | None = None
    first_row: int = 0

    def __post_init__(self) -> None:
        for name in (*_RICH, "keys"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.payloads):
                raise InvalidRow(
                    f"{len(self.payloads)} payloads were given with {len(column)} {name}"
                )

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def plain(self) -> bool:
        """Whether there is nothing but payloads and keys."""
        return all(getattr(self, name) is None for name in _RICH)

    def text_keys(self) -> list[bytes] | None:
        """Return the keys in UTF-8 if every message has a string key, else None.

        Raises InvalidRow for text that UTF-8 cannot express.
        """
        keys = self.keys or ()
        try:
            return [key.encode() for key in keys]  # type: ignore[union-attr]
        except AttributeError:
            return None
        except UnicodeEncodeError:
            row = next(index for index, key in enumerate(keys) if not _is_text(key))
            raise InvalidRow(
                f"row {self.first_row + row}: the key cannot be written as UTF-8",
                "Give such a key as bytes.",
            ) from None

    def rows(
        self, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[MessageFields, Solo | None]]:
        """Yield the messages of a range one by one, with what has to be sent by itself."""
        for index in range(start, len(self) if stop is None else stop):
            yield self._row(index)

    def _row(self, index: int) -> tuple[MessageFields, Solo | None]:
        message = MessageFields(self.payloads[index])
        if self.keys is not None and (key := self.keys[index]) is not None:
            message.key = key_text(key)
            message.key_is_base64 = not isinstance(key, str)
        if self.ordering_keys is not None:
            message.ordering_key = self.ordering_keys[index]
        if self.event_times is not None:
            message.event_time = self.event_times[index] or 0
        if self.properties is not None:
            message.properties = pairs(self.properties[index])
        if self.sequence_ids is not None:
            message.sequence_id = self.sequence_ids[index]
        if self.null_keys is not None:
            message.null_key = self.null_keys[index]
        deliver_at = None if self.deliver_at is None else self.deliver_at[index]
        return message, Solo(deliver_at=deliver_at) if deliver_at else None


def pairs(properties: Properties | None) -> Sequence[tuple[str, str]]:
    """Return properties as a list of pairs, which can repeat a name."""
    if not properties:
        return ()
    return list(properties.items()) if isinstance(properties, Mapping) else properties


_RICH = (
    "ordering_keys",
    "event_times",
    "properties",
    "deliver_at",
    "sequence_ids",
    "null_keys",
)


def _is_text(key: Key | None) -> bool:
    try:
        return isinstance(key, str) and bool(key.encode() or True)
    except UnicodeEncodeError:
        return False
