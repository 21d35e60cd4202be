"""Messages of KEY_VALUE topics: inline and separated keys and values.

    i32 size, key, i32 size, value      (big endian; the size -1 stands for null)

This is the encoding INLINE. Whole arrays are split and joined with buffers, without an object per
row, unless one is not a pair. With the encoding SEPARATED the key is the message key, and the
payload is the value.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from struct import Struct

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.arrow.arithmetic import number
from pulsar_spark.schema.arrow.arrays import (
    as_words,
    booleans,
    constant,
    from_words,
    integers,
    joined,
    struct_array,
)
from pulsar_spark.schema.codec import (
    Decoded,
    Decoder,
    Undecodable,
    Unreadable,
    check_types,
    codec_of,
    decoder_of,
    is_record,
    key_value_parts,
    typed_columns,
)
from pulsar_spark.schema.table.names import KEY


class PairDecoder:
    """Decodes messages written with `writer` to the columns `names` of `reader`.

    With `separated`, keys are message keys, not in the payloads. Raises SchemaMismatch if the
    messages are no pairs. Keys, or values, that cannot be read as the reader's are all bad, because
    of `error`, as `told`.
    """

    def __init__(
        self,
        writer: SchemaInfo,
        reader: SchemaInfo,
        names: Sequence[str],
        told: Callable[[SchemaMismatch], SchemaMismatch] = lambda error: error,
        *,
        as_java: bool = False,
    ) -> None:
        check_types(writer, reader)
        written, wanted = key_value_parts(writer), key_value_parts(reader)
        self.separated = written.separated
        self.error: SchemaMismatch | None = None
        self._told = told
        self._names = tuple(names)
        self._fields = [name for name in names if name != KEY]
        self._value = self._key = None
        found = typed_columns(reader)
        if self._fields:
            types = [found.fields.field(name).type for name in self._fields]
            self._value = self._part(
                types,
                lambda: decoder_of(written.value, wanted.value, self._fields, as_java=as_java),
            )
        if KEY in names:
            self._key = self._part(
                [found.key], lambda: _KeyDecoder(written.key, wanted.key, as_java)
            )

    def _part(self, types: Sequence[pa.DataType], make: Callable[[], Decoder]) -> Decoder:
        try:
            return make()
        except SchemaMismatch as error:
            told = self._told(error)
            self.error = self.error or told
            return Unreadable(told, types)

    def decode(self, raw: pa.Array, keys: pa.Array | None) -> Decoded:
        """Decode payloads; `keys` are the message keys, needed if separated."""
        bad: list[Undecodable] = []
        if not self.separated:
            keys, raw, bad = split_pairs(raw)
        columns: dict[str, pa.Array] = {}
        if self._value is not None:
            decoded = self._value.decode(raw)
            columns.update(zip(self._fields, decoded.columns, strict=True))
            bad += decoded.bad
        if self._key is not None:
            decoded = self._key.decode(keys)
            columns[KEY] = decoded.columns[0]
            bad += self._bad_keys(decoded.bad, keys)
        return Decoded([columns[name] for name in self._names], _one_each(bad))

    def _bad_keys(self, bad: Iterable[Undecodable], keys: pa.Array) -> Iterable[Undecodable]:
        """Return what is wrong with keys, with the bytes of those that are not in the payload."""
        for found in bad:
            data = keys[found.row].as_py() if self.separated else None
            yield replace(found, field=f"{KEY}.{found.field}".rstrip("."), data=data)


class _KeyDecoder:
    """Decodes keys to one column: a struct if they are records."""

    def __init__(self, writer: SchemaInfo, reader: SchemaInfo, as_java: bool) -> None:
        self._schema = codec_of(reader).arrow_schema(reader)
        self._is_record = is_record(reader)
        self._decoder = decoder_of(writer, reader, self._schema.names, as_java=as_java)

    def decode(self, raw: pa.Array) -> Decoded:
        decoded = self._decoder.decode(raw)
        if not self._is_record:
            return decoded
        rows = {found.row for found in decoded.bad}
        absent = raw.is_null().to_pylist()
        present = booleans([not (absent[row] or row in rows) for row in range(len(raw))])
        kind = pa.struct(list(self._schema))
        struct = struct_array(len(raw), decoded.columns, kind, present.buffers()[1])
        return Decoded([struct], decoded.bad)


def _one_each(bad: Iterable[Undecodable]) -> list[Undecodable]:
    """Return the first of each row, ordered by row."""
    first: dict[int, Undecodable] = {}
    for found in bad:
        first.setdefault(found.row, found)
    return [first[row] for row in sorted(first)]


_SIZE = Struct(">i")
_BOTH_SIZES = 2 * _SIZE.size
_INT32, _BINARY = pa.int32(), pa.binary()


def split_pairs(raw: pa.Array) -> tuple[pa.Array, pa.Array, list[Undecodable]]:
    """Return the payloads' keys and values, and the payloads that are no pair.

    For payloads that are null or no pair, key and value are null. Sizes are checked against the
    number of bytes before they are used.
    """
    pairs = raw.drop_null()
    found = _split(pairs)
    if found is not None and len(pairs) == len(raw):
        return *found, []
    bad: list[Undecodable] = []
    places: list[int | None] = []
    good = 0
    for row, payload in enumerate(raw.to_pylist()):
        problem = _problem(payload) if payload is not None and found is None else ""
        if problem:
            bad.append(Undecodable(row, "", problem))
        is_pair = payload is not None and not problem
        places.append(good if is_pair else None)
        good += is_pair
    if found is None:
        rows = [row for row, place in enumerate(places) if place is not None]
        found = _split(raw.take(integers(rows, _INT32)))
        assert found is not None
    indices = integers(places, _INT32)
    return found[0].take(indices), found[1].take(indices), bad


def join_pairs(keys: pa.Array, values: pa.Array) -> pa.Array:
    """Return payloads of these keys and values, which may be null."""
    nothing = constant(b"")
    parts = []
    for part in (keys, values):
        sizes = pc.if_else(part.is_valid(), pc.binary_length(part), number(-1, _INT32))
        parts += [_to_big_endian(sizes), pc.if_else(part.is_valid(), part, nothing)]
    return joined(parts, len(keys))


def _split(pairs: pa.Array) -> tuple[pa.Array, pa.Array] | None:
    """Return the keys and values of payloads without nulls, None if one is no pair."""
    if not len(pairs):
        return pairs, pairs
    lengths = pc.binary_length(pairs)
    if pc.min(lengths).as_py() < _BOTH_SIZES:
        return None
    key_sizes = _from_big_endian(pc.binary_slice(pairs, 0, _SIZE.size))
    key_bytes = _bytes_of(key_sizes)
    rest = pc.subtract(lengths, number(_BOTH_SIZES, _INT32))
    if key_bytes is None or not _all(pc.less_equal(key_bytes, rest)):
        return None
    segments = _segments(pairs, key_bytes)
    value_sizes = _from_big_endian(_every_fourth(segments, 2))
    value_bytes = _bytes_of(value_sizes)
    if value_bytes is None or not _all(pc.equal(value_bytes, pc.subtract(rest, key_bytes))):
        return None
    keys, values = _every_fourth(segments, 1), _every_fourth(segments, 3)
    return _null_where_absent(keys, key_sizes), _null_where_absent(values, value_sizes)


def _segments(pairs: pa.Array, key_bytes: pa.Array) -> pa.Array:
    """Return four parts of each payload in order: size, key, size, value."""
    _, offsets, data = pairs.buffers()
    count = len(pairs)
    ends = pa.Array.from_buffers(_INT32, count + 1, [None, offsets], offset=pairs.offset)
    size = number(_SIZE.size, _INT32)
    key = pc.add(ends.slice(0, count), size)
    value_size = pc.add(key, key_bytes)
    bounds = array("i", bytes(4 * (4 * count + 1)))
    for index, starts in enumerate(
        (ends.slice(0, count), key, value_size, pc.add(value_size, size))
    ):
        bounds[index : 4 * count : 4] = as_words(starts, "i")
    bounds[4 * count] = as_words(ends.slice(count), "i")[0]
    return pa.Array.from_buffers(_BINARY, 4 * count, [None, pa.py_buffer(bounds), data])


def _every_fourth(segments: pa.Array, first: int) -> pa.Array:
    places = array("i", range(first, len(segments), 4))
    return segments.take(from_words(places, _INT32))


def _from_big_endian(fours: pa.Array) -> pa.Array:
    """Decode big-endian 32-bit numbers; the array contains nothing else."""
    start = fours.buffers()[1].slice(4 * fours.offset, 4)
    begin = array("i", bytes(start))[0]
    found = array("i")
    found.frombytes(fours.buffers()[2].slice(begin, 4 * len(fours)))
    _swap(found)
    return from_words(found, _INT32)


def _to_big_endian(numbers: pa.Array) -> pa.Array:
    found = as_words(numbers, "i")
    _swap(found)
    fours = pa.Array.from_buffers(pa.binary(4), len(found), [None, pa.py_buffer(found)])
    return fours.cast(_BINARY)


def _swap(numbers: array[int]) -> None:
    if sys.byteorder == "little":
        numbers.byteswap()


def _bytes_of(sizes: pa.Array) -> pa.Array | None:
    """Return sizes as numbers of bytes, 0 for -1; None if one is smaller."""
    if pc.min(sizes).as_py() < -1:
        return None
    return pc.if_else(pc.less(sizes, number(0, _INT32)), number(0, _INT32), sizes)


def _null_where_absent(parts: pa.Array, sizes: pa.Array) -> pa.Array:
    absent = pc.less(sizes, number(0, _INT32))
    return pc.if_else(absent, pa.nulls(1, _BINARY)[0], parts) if pc.any(absent).as_py() else parts


def _all(flags: pa.Array) -> bool:
    return bool(pc.all(flags).as_py())


# --- invalid pairs ------------------------------------------------------------------------


def _problem(payload: bytes) -> str:
    """Return why a payload is not a pair, "" if it is one."""
    end = 0
    for what in ("key", "value"):
        begin = end + _SIZE.size
        if begin > len(payload):
            return f"it ends before the {what}"
        (size,) = _SIZE.unpack_from(payload, end)
        if size < -1 or size > len(payload) - begin:
            return f"its {what} has {size} bytes, but {len(payload) - begin} follow"
        end = begin + max(size, 0)
    return f"{len(payload) - end} bytes follow the value" if end < len(payload) else ""
