"""Limits a value's size as columns, before it is parsed.

An empty message has two bytes; with a hundred fields it needs a kilobyte in protobuf's objects and
in columns. So a value of a few megabytes could use all memory. The fields of values that are long
enough for this are counted first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from pulsar_spark.schema.arrow.arrays import MAX_CELLS
from pulsar_spark.schema.arrow.varints import varint
from pulsar_spark.schema.protobuf.types import Form, MessageField, MessageType, Type

# An empty message needs a byte for the tag and one for the length.
_SMALLEST = 2
_TAG = b"\x0a"


class Counter:
    """Counts the fields in a value's repeated messages, at all levels."""

    def __init__(self, fields: Sequence[MessageField]) -> None:
        self._level = _Level(fields)
        widest = max(_widths(fields, set()), default=0)
        self.harmless = _SMALLEST * MAX_CELLS // widest if widest else None
        """Values up to this size need no counting; None if no value does."""

    def count(self, value: bytes) -> int:
        """Return the number of fields. Raises protobuf's errors for an invalid message."""
        return self._level.count([value])


def _widths(fields: Iterable[MessageField], seen: set[int]) -> Iterable[int]:
    """Yield the number of columns of each repeated message within."""
    for field in fields:
        message = field.message
        if message is None:
            continue
        if field.repeated:
            yield message.leaves
        if id(message) not in seen:
            seen.add(id(message))
            yield from _widths(message.fields, seen)


class _Level:
    """Counts in messages with these fields. Nested messages are bytes, with their own level."""

    def __init__(self, fields: Sequence[MessageField]) -> None:
        self._fields = [
            field for field in fields if field.message and field.message.form is not Form.JSON
        ]

    @cached_property
    def _within(self) -> list[tuple[MessageField, MessageType, _Level]]:
        return [
            (field, field.message, _Level(field.message.fields))
            for field in self._fields
            if field.message is not None
        ]

    def count(self, values: Sequence[bytes]) -> int:
        if not self._fields or not values:
            return 0
        framed = b"".join(_TAG + varint(len(value)) + value for value in values)
        found = self._class.FromString(framed).all
        total = 0
        for field, message, level in self._within:
            messages = getattr(found, f"f{field.number}")[:]
            if field.type == Type.TYPE_GROUP:
                messages = [each.SerializeToString() for each in messages]
            if field.repeated:
                total += len(messages) * message.leaves
            if total > MAX_CELLS:
                break
            total += level.count(messages)
        return total

    @cached_property
    def _class(self) -> Any:
        """Return a message class whose field `all` contains all values in order."""
        file = FileDescriptorProto(name="count.proto", package="count", syntax="proto2")
        file.message_type.add(name="Unread")
        level = file.message_type.add(name="Level")
        for field in self._fields:
            added = level.field.add(
                name=f"f{field.number}",
                number=field.number,
                label=Type.LABEL_REPEATED,
                type=Type.TYPE_BYTES,
            )
            if field.type == Type.TYPE_GROUP:
                added.type, added.type_name = Type.TYPE_GROUP, ".count.Unread"
        # Protobuf merges a repeated occurrence of a message, so lists continue from row to row.
        file.message_type.add(name="Framed").field.add(
            name="all",
            number=1,
            label=Type.LABEL_OPTIONAL,
            type=Type.TYPE_MESSAGE,
            type_name=".count.Level",
        )
        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(file.SerializeToString())
        return message_factory.GetMessageClass(pool.FindMessageTypeByName("count.Framed"))
