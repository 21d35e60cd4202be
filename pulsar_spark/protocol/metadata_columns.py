"""Metadata of many entries at a time, as `entry_metadata.py` reads that of one.

Messages that follow each other have few kinds of metadata: the same fields, whose sizes may differ.
So a kind is read field by field over all its messages. Where even the sizes are the same, all bytes
have their places, and each place is compared over all messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, compress, groupby, repeat
from operator import add, not_
from struct import Struct
from typing import NamedTuple, TypeAlias, TypeVar

from pulsar_spark.protocol.entry_metadata import (
    EVENT_TIME,
    KEY,
    PROPERTIES,
    RESTS,
    TEMPLATES,
    Metadata,
    Rest,
    likeness_of,
)
from pulsar_spark.protocol.opened_metadata import NAME, VALUE
from pulsar_spark.protocol.varints import are_numbers, encode_number, read_numbers, sized

# Fewer messages than that of one size, or of one kind, are not worth it.
_MIN_RUN = 16
# Nor is a run of larger metadata than so many bytes for each message: each place costs a
# comparison.
_MOST_PLACES = 3
_MOST_KINDS = 4
# A pass must find one message in so many.
_MAX_PASSES = 8
# A size that no message has.
_MISFIT = 2**31
_KEY_TAG, _TIME_TAG, _PROPERTY_TAG = (bytes((tag,)) for tag in (KEY, EVENT_TIME, PROPERTIES))
_NAME_TAG, _VALUE_TAG = (bytes((tag,)) for tag in (NAME, VALUE))

T = TypeVar("T")


class RestColumns(NamedTuple):
    """A column for each part of rests.

    The values of all properties are one after the other, and have these sizes.
    """

    metadata: Sequence[Metadata]
    names: Sequence[tuple[bytes, ...]]
    values: bytes
    value_sizes: Sequence[int]
    keys: Sequence[bytes | None]
    times: Sequence[int]


def columns_of(rests: Sequence[Rest]) -> RestColumns:
    """Return at least one rest as columns."""
    metadata, names, texts, keys, times = zip(*rests, strict=True)
    values = list(chain.from_iterable(texts))
    return RestColumns(metadata, names, b"".join(values), list(map(len, values)), keys, times)


def read_rests(data: Sequence[bytes]) -> RestColumns:
    """Read at least one rest; raises as `RESTS` does."""
    runs = [list(run) for _, run in groupby(data, len)]
    if len(data) < len(runs) * _MIN_RUN:
        return columns_of(_read_kinds(data, _MOST_KINDS))
    parts = [_read_run(run) or columns_of(_read_kinds(run, _MOST_KINDS)) for run in runs]
    if len(parts) == 1:
        return parts[0]
    metadata, names, values, sizes, keys, times = zip(*parts, strict=True)
    return RestColumns(
        _chained(metadata),
        _chained(names),
        b"".join(values),
        _chained(sizes),
        _chained(keys),
        _chained(times),
    )


def _chained(parts: Sequence[Sequence[T]]) -> list[T]:
    return list(chain.from_iterable(parts))


# --- of one size --------------------------------------------------------------------------


def _read_run(run: list[bytes]) -> RestColumns | None:
    """Read rests of one size that have one template; None if they have not."""
    first, count = run[0], len(run)
    rest = RESTS[first]
    if run.count(first) == count:
        return columns_of([rest] * count)
    template = TEMPLATES.get(likeness_of(first))
    if template is None:
        return None
    size, cut, fixed, (metadata, names, has_key, has_time) = template
    if size > _MOST_PLACES * count:
        return None
    parts = cut(first, 0)
    edges = list(accumulate(map(len, parts), initial=0))
    joined = b"".join(run)
    equal = chain.from_iterable(map(range, edges[0::2], edges[1::2]))
    if parts[0::2] != fixed or any(joined[at::size] != first[at : at + 1] * count for at in equal):
        return None
    # Of the values: those of the properties, the key, the event time.
    places = list(zip(edges[1::2], edges[2::2], strict=False))
    time_at, time_end = places[-1]
    if has_time and not are_numbers(joined, time_at, time_end, size):
        return None
    own = places[: len(names)]
    return RestColumns(
        [metadata] * count,
        [names] * count,
        _gathered(joined, [at for begin, end in own for at in range(begin, end)], size),
        [end - begin for begin, end in own] * count,
        _cut_out(joined, *places[len(names)], size) if has_key else [None] * count,
        read_numbers(joined, time_at, time_end, size) if has_time else [0] * count,
    )


def _gathered(data: bytes, places: Sequence[int], stride: int) -> bytes:
    """Return the bytes at these places of each `stride` bytes."""
    width = len(places)
    found = bytearray(len(data) // stride * width)
    for number, at in enumerate(places):
        found[number::width] = data[at::stride]
    return bytes(found)


def _cut_out(data: bytes, begin: int, end: int, stride: int) -> list[bytes]:
    """Return these bytes of each `stride` bytes."""
    parts = Struct(f"{begin}x{end - begin}s{stride - end}x").iter_unpack(data)
    return [part for (part,) in parts]


# --- of one kind --------------------------------------------------------------------------

_Heads: TypeAlias = "tuple[int, dict[bytes, int]]"
"""The size of what precedes a text: tags, sizes and name; and the text's size by these bytes."""


def _property(name: bytes, value: bytes) -> bytes:
    return _PROPERTY_TAG + sized(_NAME_TAG + sized(name) + _VALUE_TAG + sized(value))


@lru_cache(64)
def _property_heads(name: bytes) -> _Heads:
    """Return what precedes the values of a property that has at most 127 bytes."""
    width = len(_property(name, b""))
    sizes = range(130 - width)
    return width, {_property(name, bytes(size))[:width]: size for size in sizes}


_KEY_HEADS: _Heads = 2, {_KEY_TAG + bytes((size,)): size for size in range(128)}


def _read_kinds(data: Sequence[bytes], most: int) -> list[Rest]:
    """Read rests of at most so many kinds; those that are left are read one by one."""
    if most and len(data) >= _MIN_RUN:
        fitting, found = _read_kind(data)
        if len(found) == len(data):
            return found
        if len(found) * _MAX_PASSES >= len(data):
            mine = iter(found)
            others = iter(_read_kinds(list(compress(data, map(not_, fitting))), most - 1))
            return [next(mine if fits else others) for fits in fitting]
    return list(map(RESTS.__getitem__, data))


def _read_kind(data: Sequence[bytes]) -> tuple[list[bool], list[Rest]]:
    """Return which rests are of the first one's kind, and read those.

    They have the same fields, and what many messages share is equal. None is read if the first one
    does not start with its properties, key and event time, or repeats a property.
    """
    first, count = data[0], len(data)
    metadata, names, texts, key, time = RESTS[first]
    heads = [_property_heads(name) for name in names]
    known = b"".join(map(_property, names, texts))
    if key is not None:
        heads.append(_KEY_HEADS)
        known += _KEY_TAG + sized(key)
    in_time = _TIME_TAG + encode_number(time) if time else b""
    if not first.startswith(known + in_time) or first.startswith(_PROPERTY_TAG, len(known)):
        return [], []
    columns: list[list[bytes]] = []
    ends = [0] * count
    for width, sizes in heads:
        starts = [end + width for end in ends]
        found = _slices(data, ends, starts)
        ends = list(map(add, starts, map(sizes.get, found, repeat(_MISFIT))))
        columns.append(_slices(data, starts, ends))
    tail = first[len(known) :]
    is_tail = _tail_pattern(len(in_time), tail[len(in_time) :]).fullmatch
    fitting = [
        len(each) - end == len(tail) and is_tail(each, end) is not None
        for each, end in zip(data, ends, strict=True)
    ]
    columns.append(_slices(data, ends, repeat(None)))
    if not all(fitting):
        columns = [list(compress(column, fitting)) for column in columns]
    *columns, tails = columns
    count = len(tails)
    keys: Sequence[bytes | None] = columns.pop() if key is not None else [None] * count
    own = zip(*columns, strict=True) if columns else repeat((), count)
    times = [0] * count
    if time and tails:
        times = read_numbers(b"".join(tails), 1, len(in_time), len(tail))
    return fitting, list(zip([metadata] * count, [names] * count, own, keys, times, strict=True))


def _slices(
    data: Sequence[bytes], begins: Iterable[int], ends: Iterable[int | None]
) -> list[bytes]:
    return [each[begin:end] for each, begin, end in zip(data, begins, ends, strict=False)]


def _tail_pattern(time_size: int, shared: bytes) -> re.Pattern[bytes]:
    """Return the pattern of what follows properties and key: event time, shared fields."""
    time = rb"%b[\x80-\xff]{%d}[\x01-\x7f]" % (_TIME_TAG, time_size - 2) if time_size else b""
    return re.compile(time + re.escape(shared), re.DOTALL)
