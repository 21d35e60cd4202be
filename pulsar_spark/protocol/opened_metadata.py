"""Messages' metadata with properties or event times, without protobuf.

    [0a size 0a size name 12 size value]* [12 size key] 18 payload_size [28 event_time] [30 00]
    [40 sequence_id]

Metadata that was read field by field becomes a template for what follows it.
"""

from __future__ import annotations

import re
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, TypeAlias

from pulsar_spark.protocol.memo import Memo
from pulsar_spark.protocol.single_metadata import PARTITION_KEY, PAYLOAD_SIZE, PROPERTIES
from pulsar_spark.protocol.templates import Templates
from pulsar_spark.protocol.varints import (
    HIGHS,
    NUMBER,
    UnusualNumber,
    encode_number,
    read_number,
    sized,
    take_number,
)

Opened: TypeAlias = "tuple[tuple[bytes, ...], tuple[bytes, ...], bytes | None, int, int]"
"""Names and values of the properties, key, payload size, event time (0: none).

A repeated property keeps its first place and its last value. Texts may be no UTF-8.
"""

_U32 = Struct(">I")
_MAX_SIZE = 2**31 - 1
# Behind the payload's size: event time, "the key is not base64", sequence id.
_BEHIND_SIZE = re.compile(rb"(?:\x28(%b))?(?:\x30\0)?(?:\x40(%b))?" % (NUMBER, NUMBER)).fullmatch
# Of a property.
NAME, VALUE = 0x0A, 0x12


class UnusualMetadata(Exception):
    """Metadata in another shape than all writers send it."""


def read_properties(data: bytes, tag: int) -> tuple[list[bytes], list[bytes], int]:
    """Return names and values of the properties at the start of metadata, and where they end.

    Raises UnusualMetadata, UnusualNumber or IndexError for another shape.
    """
    names: list[bytes] = []
    values: list[bytes] = []
    at, end = 0, len(data)
    while at < end and data[at] == tag:
        # Nearly always the size of the whole, of the name and of the value have one byte each.
        size, name_tag, name_size = data[at + 1], data[at + 2], data[at + 3]
        name_at, name_end = at + 4, at + 4 + name_size
        value_at = name_end + 2
        stop = at + 2 + size
        if (size | name_size) > 127 or value_at > end or data[value_at - 1] > 127:
            name_at, name_end, value_at, stop = _find_texts(data, at + 1)
        elif name_tag != NAME or value_at + data[value_at - 1] != stop:
            raise UnusualMetadata
        if data[name_end] != VALUE or stop > end:
            raise UnusualMetadata
        names.append(data[name_at:name_end])
        values.append(data[value_at:stop])
        at = stop
    return names, values, at


def _find_texts(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Return where name and value of a property begin and end, from its size on."""
    size, at = take_number(data, at)
    stop = at + size
    if data[at] != NAME:
        raise UnusualMetadata
    name_size, name_at = take_number(data, at + 1)
    name_end = name_at + name_size
    value_size, value_at = take_number(data, name_end + 1)
    if value_at + value_size != stop:
        raise UnusualMetadata
    return name_at, name_end, value_at, stop


def may_run(body: bytes, at: int) -> bool:
    """Whether `open_run` may find messages from `at` on."""
    return body[at + 3 : at + 6] in TEMPLATES


def open_run(body: bytes, at: int, most: int) -> tuple[list[Opened], list[int]]:
    """Read messages of a batch from `at` on, as long as they are like others before them.

    Returns what `open_metadata` does for each, and where their payloads begin and end in the body,
    alternating. A payload may end behind the body.
    """
    found: list[Opened] = []
    edges: list[int] = []
    get_template, sizes, highs = TEMPLATES.get, _SIZES, HIGHS
    try:
        while len(found) < most:
            likeness = body[at + 3 : at + 6]
            template = get_template(likeness)
            if template is None:
                break
            length, cut, fixed, (names, size_at, has_key, has_time, has_sequence) = template
            parts = cut(body, at)
            if parts[0::2] != fixed:
                TEMPLATES.drop(likeness)
                break
            values = parts[1::2]
            size, time = sizes[values[size_at]], 0
            # As `read_number`, without a call.
            if has_time:
                digits = values[size_at + 1]
                time = highs[digits[1:]] | digits[0] & 127
                if (digits[0] > 127) != (len(digits) > 1):
                    break
            if has_sequence:
                digits = values[-1]
                highs[digits[1:]]
                if (digits[0] > 127) != (len(digits) > 1):
                    break
            if has_key:
                found.append((names, values[: size_at - 1], values[size_at - 1], size, time))
            else:
                found.append((names, values[:size_at], None, size, time))
            edges.append(at + length)
            at += length + size
            edges.append(at)
    except (UnusualNumber, StructError):
        pass
    return found, edges


class _Meaning(NamedTuple):
    """The values are those of properties with these names, the key, the payload's size at this
    place, event time, sequence id.
    """

    names: tuple[bytes, ...]
    size_at: int
    has_key: bool
    has_time: bool
    has_sequence: bool


# By the size of the metadata (its last byte), its first tag and that field's size; the fixed bytes
# begin with that size.
TEMPLATES: Templates[bytes, _Meaning] = Templates()


def _payload_size(digits: bytes) -> int:
    size = read_number(digits)
    if size > _MAX_SIZE:
        raise UnusualNumber
    return size


_SIZES = Memo(_payload_size)


def open_metadata(data: bytes) -> Opened | None:
    """Read metadata field by field; None for another shape. `open_run` may read what follows."""
    try:
        names, values, at = read_properties(data, PROPERTIES)
        key_at = key_end = 0
        if data[at] == PARTITION_KEY:
            key_at = at + 2
            size = data[at + 1]
            if size > 127:
                size, key_at = take_number(data, at + 1)
            at = key_end = key_at + size
        if data[at] != PAYLOAD_SIZE:
            return None
        payload_size, end = data[at + 1], at + 2
        if payload_size > 127:
            payload_size, end = take_number(data, at + 1)
        behind = _BEHIND_SIZE(data, end)
        if behind is None or payload_size > _MAX_SIZE:
            return None
        time = 0 if behind[1] is None else read_number(behind[1])
    except (UnusualMetadata, UnusualNumber, IndexError):
        return None
    key = data[key_at:key_end] if key_at else None
    may_add = TEMPLATES.may_add(data)
    if len(set(names)) != len(names):
        names, values = without_repeated(names, values)
    elif may_add:
        places = places_of_values(names, values)
        if key_at:
            places.append((key_at, key_end))
        places.append((at + 1, end))
        places += [behind.span(number) for number in (1, 2) if behind[number] is not None]
        has_key, has_time, has_sequence = (part is not None for part in (key, *behind.groups()))
        message = _U32.pack(len(data)) + data
        TEMPLATES.add(
            message[3:6],
            message,
            [(4 + start, 4 + stop) for start, stop in places],
            _Meaning(tuple(names), len(names) + has_key, has_key, has_time, has_sequence),
        )
    return tuple(names), tuple(values), key, payload_size, time


def without_repeated(names: list[bytes], values: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return each name once, at its first place, with its last value."""
    properties = dict(zip(names, values, strict=True))
    return list(properties), list(properties.values())


def places_of_values(names: list[bytes], values: list[bytes]) -> list[tuple[int, int]]:
    """Return where the values of properties begin and end, which start the metadata."""
    places, end = [], 0
    for name, value in zip(names, values, strict=True):
        inside = 2 + len(sized(name)) + len(sized(value))
        end += 1 + len(encode_number(inside)) + inside
        places.append((end - len(value), end))
    return places
