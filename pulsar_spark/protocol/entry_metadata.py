"""What an entry's MessageMetadata has after the publish time, without protobuf.

    [22 size 0a size name 12 size value]* [2a replicated_from] [32 size key] [3a replicate_to]*
    [40 codec] [48 uncompressed_size] [58 messages] [60 event_time] [82 01 schema_version] ...

Properties, key and event time belong to a message outside of a batch and differ from message to
message; what else there is repeats. So `RESTS` reads metadata that repeats once, and other metadata
by templates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from pulsar_spark.protocol.memo import Memo
from pulsar_spark.protocol.opened_metadata import (
    UnusualMetadata,
    places_of_values,
    read_properties,
    without_repeated,
)
from pulsar_spark.protocol.templates import Templates
from pulsar_spark.protocol.varints import (
    UnusualNumber,
    match_number,
    match_shortest,
    read_number,
    take_number,
)


class Metadata(NamedTuple):
    """The fields that many messages share.

    `is_rare`: a message with them has more than payload, key, properties, event time and schema
    version, or cannot stand outside of a batch.
    """

    is_rare: bool = False
    codec: int = 0
    uncompressed_size: int = 0
    messages: int = 0
    key_is_base64: int = 0
    ordering_key: bytes | None = None
    null_value: int = 0
    schema_version: bytes = b""
    replicated_from: bytes | None = None


Rest: TypeAlias = "tuple[Metadata, tuple[bytes, ...], tuple[bytes, ...], bytes | None, int]"
"""Shared fields; names and values of the properties, key, event time (0: none).

A repeated property keeps its first place and its last value. Texts may be no UTF-8. A key that
directly follows the publish time was read before, so it is missing here.
"""

PLAIN = Metadata()
PLAIN_REST: Rest = (PLAIN, (), (), None, 0)

# Tags of what differs from message to message.
PROPERTIES, KEY, EVENT_TIME = 0x22, 0x32, 0x60
_LAST_BEFORE = 0x18  # tag of the publish time
_MAX_INT = 2**31 - 1
_REPLICATE_TO = 0x3A
# By tag. Fields of encrypted, chunked or compacted entries, or markers, are in neither table.
_SHARED = {
    0x2A: "replicated_from",
    0x40: "codec",
    0x48: "uncompressed_size",
    0x58: "messages",
    0x82: "schema_version",
    0x88: "key_is_base64",
    0x92: "ordering_key",
    0xC8: "null_value",
}
# replicate_to, deliver_at_time, both halves of the transaction, highest_sequence_id,
# null_partition_key, schema_id, entry_hash_min, entry_hash_max.
_IGNORED = frozenset({_REPLICATE_TO, 0x98, 0xB0, 0xB8, 0xC0, 0xF0, 0x102, 0x108, 0x110})
_INTEGERS = frozenset({0x40, 0x48, 0x58})
_NOT_RARE = frozenset({"uncompressed_size", "schema_version"})
# How many pieces of metadata are cached, and up to what length: longer ones rarely repeat.
_MAX_KNOWN = 1024
_KNOWN_SIZE = 64


_Field: TypeAlias = "tuple[int, int | bytes, int, int, int]"
"""Tag, value, where the field begins, its value begins, both end."""


def _fields(data: bytes, at: int, last: int) -> Iterator[_Field]:
    """Yield fields from `at` on, which follow the one with that tag."""
    size = len(data)
    while at < size:
        begin = at
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = take_number(data, begin)
        if tag <= last and not (tag == last == _REPLICATE_TO):
            raise UnusualMetadata
        last, value_at = tag, at
        number = data[at]
        at += 1
        if number > 127:
            number, at = take_number(data, value_at, match_shortest if tag & 7 else match_number)
        if tag & 7:
            value_at, at = at, at + number
            if at > size:
                raise UnusualMetadata
            yield tag, data[value_at:at], begin, value_at, at
        else:
            yield tag, number, begin, value_at, at


def _read_shared(data: bytes) -> Metadata:
    found: dict[str, Any] = {}
    for tag, value, *_ in _fields(data, 0, _LAST_BEFORE):
        name = _SHARED.get(tag)
        if name is None:
            if tag not in _IGNORED:
                raise UnusualMetadata
        elif tag in _INTEGERS and value > _MAX_INT:  # type: ignore[operator]
            raise UnusualMetadata
        else:
            found[name] = value
    if found.get("messages") == 0:
        raise UnusualMetadata
    return Metadata(not _NOT_RARE.issuperset(found), **found)


METADATA = Memo(_read_shared)
"""Shared fields by their bytes."""


class _Meaning(NamedTuple):
    """The values are those of properties with these names, key, event time."""

    metadata: Metadata
    names: tuple[bytes, ...]
    has_key: bool
    has_time: bool


TEMPLATES: Templates[tuple[int, int], _Meaning] = Templates()


def likeness_of(data: bytes) -> tuple[int, int]:
    """Return its size, and that of the first property."""
    return len(data), data[1] if data[0] == PROPERTIES else 0


class Rests(dict[bytes, Rest]):
    """Reads what follows the publish time, or the key; keeps what is likely to repeat.

    Raises UnusualMetadata, UnusualNumber or IndexError for metadata that protobuf must read.
    """

    def __missing__(self, data: bytes) -> Rest:
        if not data:
            return self._keep(data, PLAIN_REST)
        likeness = likeness_of(data)
        template = TEMPLATES.get(likeness)
        if template is not None:
            _, cut, fixed, (metadata, names, has_key, has_time) = template
            parts = cut(data, 0)
            if parts[0::2] == fixed:
                values, count = parts[1::2], len(names)
                key = values[count] if has_key else None
                try:
                    time = read_number(values[-1]) if has_time else 0
                except UnusualNumber:
                    return self._read(data, likeness)
                return metadata, names, values[:count], key, time
            TEMPLATES.drop(likeness)
        return self._read(data, likeness)

    def _read(self, data: bytes, likeness: tuple[int, int]) -> Rest:
        names: list[bytes] = []
        values: list[bytes] = []
        at, last = 0, _LAST_BEFORE
        if data[0] == PROPERTIES:
            names, values, at = read_properties(data, PROPERTIES)
            last = PROPERTIES
        parts: list[bytes] = []
        own: dict[int, Any] = {}
        own_places: list[tuple[int, int]] = []
        for tag, value, begin, value_at, end in _fields(data, at, last):
            if tag in (KEY, EVENT_TIME):
                own[tag] = value
                own_places.append((value_at, end))
            else:
                parts.append(data[begin:end])
        shared = b"".join(parts)
        metadata = METADATA[shared] if len(shared) <= _KNOWN_SIZE else _read_shared(shared)
        unique, last_values = names, values
        if len(set(names)) != len(names):
            unique, last_values = without_repeated(names, values)
        key, time = own.get(KEY), own.get(EVENT_TIME, 0)
        rest: Rest = metadata, tuple(unique), tuple(last_values), key, time
        if not (names or own):
            return self._keep(data, rest)
        if unique is names and TEMPLATES.may_add(data):
            places = places_of_values(names, values) + own_places
            meaning = _Meaning(metadata, rest[1], KEY in own, EVENT_TIME in own)
            TEMPLATES.add(likeness, data, places, meaning)
        return rest

    def _keep(self, data: bytes, rest: Rest) -> Rest:
        if len(data) <= _KNOWN_SIZE:
            if len(self) >= _MAX_KNOWN:
                self.clear()
            self[data] = rest
        return rest


RESTS = Rests()
