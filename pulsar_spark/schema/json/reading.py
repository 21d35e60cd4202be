"""Values of JSON topics → columns: many at once, or one by one if that fails.

Arrow's JSON reader reads rows together. If it refuses, the row to blame and some after it are read
one by one, so a broken or unusual value costs little more than itself. Fields that are unusual in
many rows are soon read row by row, and only the other fields together.

Arrow's JSON reader has no maps. But most maps of a topic share a few keys: they are read as records
with these fields, and converted to maps without work per row. Nothing gets lost: an unknown key, or
a known one with null, makes the reader refuse the rows.

How a value is decoded does not depend on its neighbours, with one exception: skipped fields that
are nested more deeply than Python can parse may be an error or be skipped with them.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.arrow.arrays import (
    MAX_CELLS,
    build_array,
    from_words,
    integers,
    offsets_of,
    spread,
    strings,
    widest_item,
)
from pulsar_spark.schema.codec import Decoded, Mismatch, Undecodable
from pulsar_spark.schema.json.arrow_reader import ObjectReader, Refused, finish, without_strings
from pulsar_spark.schema.json.reference import converter, parse, parse_roughly, take
from pulsar_spark.schema.json.types import JsonRule, Shape

_MOST_BYTES = 8 * 1024 * 1024
_MOST_ROWS = 65_536
_LARGEST_VALUE = 1024 * 1024 * 1024
_FEW_ROWS = 16
_MANY_ROWS = 1024
_LEAST_REACH = 256
# One in this many rows may be unusual without changing how its fields are read.
_TOLERATED = 50


# {} and a comma.
_SMALLEST_ITEM = 3
_NULL_ITEM = r"[\[,][ \t\r\n]*null"
_NULL_IN_MAP = r"[\[,:][ \t\r\n]*null"


class JsonDecoder:
    """Decodes JSON objects to columns, by the shapes of the requested fields.

    `skipped` are the shapes of the other known fields. With `whole` there is one shape: the value
    itself, of any type.
    """

    def __init__(
        self, shapes: Mapping[str, Shape], skipped: Mapping[str, Shape], *, whole: bool = False
    ) -> None:
        self._shapes = list(shapes.values())
        self._whole = whole
        self._fields = [(name, converter(shape)) for name, shape in shapes.items()]
        self._widest = max((widest_item(shape.kind) for shape in self._shapes), default=0)
        self._null_item = _NULL_IN_MAP if any(map(_has_maps, self._shapes)) else _NULL_ITEM
        self._unusual = 0
        # Fields that Arrow cannot read, such as maps, are read row by row.
        by_row = [i for i, shape in enumerate(self._shapes) if shape.wire is None]
        self._prepare(by_row, exact=any(_needs_digits(self._shapes[i]) for i in by_row))
        self._maps = MapReader(shapes, skipped) if by_row and not whole else None

    def _prepare(self, by_row: Sequence[int], *, exact: bool) -> None:
        self._by_row = frozenset(by_row)
        self._parse = parse if exact else parse_roughly
        wires = {
            name: shape.wire
            for i, ((name, _), shape) in enumerate(zip(self._fields, self._shapes, strict=True))
            if i not in self._by_row
        }
        self._reader = None if self._whole else ObjectReader(wires)

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode a binary array; null and JSON's null are null values."""
        rows = raw.drop_null() if raw.null_count else raw
        pieces = self._decode(rows, 0) if len(rows) else [self._empty()]
        columns = [
            pa.concat_arrays([piece.columns[i] for piece in pieces]) if len(pieces) > 1 else column
            for i, column in enumerate(pieces[0].columns)
        ]
        bad = [item for piece in pieces for item in piece.bad]
        if len(rows) == len(raw):
            return Decoded(columns, bad)
        present = raw.is_valid()
        places = pc.indices_nonzero(present)
        return Decoded(
            [spread(column, present) for column in columns],
            [Undecodable(places[b.row].as_py(), b.field, b.reason) for b in bad],
        )

    def _empty(self) -> Decoded:
        return Decoded([build_array([], shape.kind) for shape in self._shapes])

    def _decode(self, rows: pa.Array, first: int) -> list[Decoded]:
        """Decode rows without nulls; `first` is the first one's number, for errors."""
        size = pc.sum(pc.binary_length(rows)).as_py()
        if len(rows) == 1 and size > _LARGEST_VALUE:
            reason = f"it has {size} bytes, the limit for JSON is {_LARGEST_VALUE}"
            return [self._nulls([Undecodable(first, "", reason)])]
        most_cells = size * self._widest // _SMALLEST_ITEM
        if len(rows) > 1 and (
            size > _MOST_BYTES or len(rows) > _MOST_ROWS or most_cells > MAX_CELLS
        ):
            half = len(rows) // 2
            behind = self._decode(rows.slice(half), first + half)
            return [*self._decode(rows.slice(0, half), first), *behind]
        if most_cells > MAX_CELLS and self._items(rows) * self._widest > MAX_CELLS:
            reason = f"its lists have more than {MAX_CELLS} fields"
            return [self._nulls([Undecodable(first, "", reason)])]
        pieces: list[Decoded] = []
        start, few, reach = 0, _FEW_ROWS, len(rows)
        while start < len(rows):
            some = rows.slice(start, reach)
            try:
                pieces.append(Decoded(self._together(some)))
            except Refused as refused:
                blamed = min(refused.row or 0, len(some) - 1)
            else:
                self._unusual = max(self._unusual - len(some) // _TOLERATED, 0)
                start, reach = start + len(some), 4 * reach
                continue
            if blamed > few:
                pieces += self._decode(some.slice(0, blamed), first + start)
                start, few = start + blamed, _FEW_ROWS
            else:
                # Such rows are seldom alone, and each attempt costs as much as many rows.
                few = min(2 * few, _MANY_ROWS)
            # Limits how often the rows after a refused one are read again.
            reach = max(2 * blamed, _LEAST_REACH)
            alone = rows.slice(start, few)
            pieces.append(self._one_by_one(alone, first + start))
            self._adapt(alone, {item.row - first - start for item in pieces[-1].bad})
            start += few
        return pieces

    def _adapt(self, rows: pa.Array, bad: set[int]) -> None:
        """Start reading fields row by row that are unusual in many rows."""
        self._unusual += len(rows) - len(bad)
        if self._unusual < _MANY_ROWS or self._whole:
            return
        self._unusual = 0
        good = rows.take(integers([i for i in range(len(rows)) if i not in bad], pa.int64()))
        found = [
            i
            for i, shape in enumerate(self._shapes)
            if i not in self._by_row and not _reads(self._fields[i][0], shape, good)
        ]
        if found:
            self._prepare([*self._by_row, *found], exact=True)
            self._maps = None

    def _items(self, rows: pa.Array) -> int:
        """Return the maximum number of list items with fields in a value."""
        try:
            bare = without_strings(rows.cast(pa.string()))
        except pa.ArrowInvalid:
            return 0  # It is no JSON, which those say who read it.
        nulls = pc.count_substring_regex(bare, self._null_item)
        return int(pc.sum(pc.add(pc.count_substring(bare, "{"), nulls)).as_py())

    def _together(self, rows: pa.Array) -> list[pa.Array]:
        """Return the rows' columns; raises Refused if a row must be read alone."""
        try:
            if self._maps is None or self._maps.given_up:
                return self._read(rows)
            return self._read_maps(rows, self._maps)
        except (Mismatch, RecursionError):
            raise Refused from None

    def _read_maps(self, rows: pa.Array, maps: MapReader) -> list[pa.Array]:
        if not maps.knows_keys:
            self._learn(rows.slice(0, _FEW_ROWS), maps)
        try:
            return maps.read(rows)
        except Refused as refused:
            if not refused.strictly:
                raise
        columns = self._read(rows)
        maps.failed()
        self._learn(rows, maps)
        return columns

    def _learn(self, rows: pa.Array, maps: MapReader) -> None:
        found: dict[str, set[str]] = {name: set() for name in maps.maps}
        for value in rows.to_pylist():
            tree = parse_roughly(value)
            for name, keys in found.items():
                entries = tree.get(name) if isinstance(tree, dict) else None
                keys.update(filter(_is_text, entries if isinstance(entries, dict) else ()))
        for name, keys in found.items():
            maps.learn(name, keys)

    def _read(self, rows: pa.Array) -> list[pa.Array]:
        if self._reader is None:
            raise Refused
        found: list[pa.Array] = []
        if len(self._by_row) < max(len(self._shapes), 1):
            found = self._reader.read(rows)
        plain, by_row = iter(found), iter(self._pick(rows) if self._by_row else [])
        return [
            next(by_row) if i in self._by_row else finish(next(plain), shape)
            for i, shape in enumerate(self._shapes)
        ]

    def _pick(self, rows: pa.Array) -> list[pa.Array]:
        """Return the columns that Arrow cannot read; raises Refused for a mismatched row."""
        order = sorted(self._by_row)
        fields = [self._fields[i] for i in order]
        found: list[list[Any]] = [[] for _ in fields]
        for row, value in enumerate(rows.to_pylist()):
            try:
                tree = self._parse(value)
                if not isinstance(tree, dict):
                    raise Refused(row)
                for values, (name, convert) in zip(found, fields, strict=True):
                    values.append(take(tree, name, convert))
            except (Mismatch, RecursionError):
                raise Refused(row) from None
        return [build_array(v, self._shapes[i].kind) for i, v in zip(order, found, strict=True)]

    # --- one row --------------------------------------------------------------------------

    def _one_by_one(self, rows: pa.Array, first: int) -> Decoded:
        found: list[tuple[Any, ...]] = []
        bad: list[Undecodable] = []
        deep: list[int] = []
        nothing = (None,) * len(self._shapes)
        for row, value in enumerate(rows.to_pylist()):
            try:
                found.append(self._row(value))
            except Mismatch as mismatch:
                found.append(nothing)
                bad.append(Undecodable(first + row, mismatch.field, mismatch.reason))
            except RecursionError:
                found.append(nothing)
                deep.append(row)
        by_field = zip(*found, strict=True) if self._shapes else ()
        columns = [
            build_array(v, shape.kind) for v, shape in zip(by_field, self._shapes, strict=True)
        ]
        for row in deep:
            # Arrow's reader does not limit the nesting of skipped fields.
            try:
                single = self._together(rows.slice(row, 1))
            except Refused:
                bad.append(Undecodable(first + row, "", "it is nested too deeply"))
                continue
            columns = [_replaced(c, row, s) for c, s in zip(columns, single, strict=True)]
        return Decoded(columns, sorted(bad, key=lambda item: item.row))

    def _row(self, value: bytes) -> tuple[Any, ...]:
        tree = parse(value)
        if tree is None:
            return (None,) * len(self._shapes)
        if self._whole:
            return tuple([convert(tree) for _, convert in self._fields])
        if not isinstance(tree, dict):
            raise Mismatch("it is JSON, but not an object")
        return tuple([take(tree, name, convert) for name, convert in self._fields])

    def _nulls(self, bad: Sequence[Undecodable]) -> Decoded:
        return Decoded([pa.nulls(1, shape.kind) for shape in self._shapes], bad)


def _is_text(key: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in key)


def _replaced(column: pa.Array, row: int, single: pa.Array) -> pa.Array:
    return pa.concat_arrays([column.slice(0, row), single, column.slice(row + 1)])


def _reads(name: str, shape: Shape, rows: pa.Array) -> bool:
    """Whether Arrow can read a field of these rows."""
    try:
        finish(ObjectReader({name: shape.wire}).read(rows)[0], shape)
    except Refused:
        return False
    return True


def _needs_digits(shape: Shape) -> bool:
    """Whether floats are too inexact for its numbers with a point."""
    return shape.rule is JsonRule.DECIMAL or shape.java or any(map(_needs_digits, shape.parts))


def _has_maps(shape: Shape) -> bool:
    return shape.rule is JsonRule.MAP or any(map(_has_maps, shape.parts))


# --- maps, read as records --------------------------------------------------------------------

_MOST_KEYS = 64
_LONGEST_KEY = 200
_MOST_FAILURES = 4
_SPACE = r"[ \t\r\n]*"
# A key written with unnecessary escapes, with null.
_ESCAPED_WITH_NULL = rf'\\.(?:[^"\\]|\\.)*"{_SPACE}:{_SPACE}null'

Keys = dict[str, list[str]]


class MapReader:
    """Reads the fields `wanted` of objects whose other fields are all in `skipped`.

    Learns the keys of maps, and gives up if there are too many or rows are refused repeatedly.
    """

    def __init__(self, wanted: Mapping[str, Shape], skipped: Mapping[str, Shape]) -> None:
        self._wanted = wanted
        self._shapes = {**skipped, **wanted}
        self._keys: Keys = {
            name: [] for name, shape in self._shapes.items() if shape.rule is JsonRule.MAP
        }
        self._reader: ObjectReader | None = None
        self._failures = 0
        self.given_up = not all(map(_is_readable, self._shapes.values()))

    @property
    def maps(self) -> Sequence[str]:
        """The map fields whose keys are learned."""
        return list(self._keys)

    @property
    def knows_keys(self) -> bool:
        """Whether keys were learned, so that reading is possible."""
        return self._reader is not None

    def learn(self, name: str, keys: Iterable[str]) -> None:
        """Add to the known keys of a map."""
        known = self._keys[name]
        new = set(keys).difference(known)
        if len(known) + len(new) > _MOST_KEYS or any(len(key) > _LONGEST_KEY for key in new):
            self.given_up = True
        elif new or self._reader is None:
            known[:] = sorted([*known, *new], key=str.encode)
            self._reader = ObjectReader(
                {n: self._wire(n, shape) for n, shape in self._shapes.items()},
                refused=_with_null(chain.from_iterable(self._keys.values())),
            )

    def failed(self) -> None:
        """Rows were refused because of their maps."""
        self._failures += 1
        self.given_up = self.given_up or self._failures >= _MOST_FAILURES

    def read(self, rows: pa.Array) -> list[pa.Array]:
        """Return the wanted columns for a binary array without nulls.

        Raises Refused, with `strictly` if a map is the reason.
        """
        if self._reader is None:
            raise Refused(strictly=True)
        found = self._reader.read(rows)
        columns = dict(zip(self._shapes, found, strict=True))
        read = [self._finish(n, columns[n], shape) for n, shape in self._wanted.items()]
        self._failures = 0
        return read

    def _wire(self, name: str, shape: Shape) -> pa.DataType:
        if shape.rule is not JsonRule.MAP:
            return shape.wire
        return pa.struct([(key, shape.parts[0].wire) for key in self._keys[name]])

    def _finish(self, name: str, column: pa.Array, shape: Shape) -> pa.Array:
        if shape.rule is not JsonRule.MAP:
            return finish(column, shape)
        return _as_map(column, self._keys[name], shape)


def _is_readable(shape: Shape) -> bool:
    return shape.wire is not None or (
        shape.rule is JsonRule.MAP and shape.parts[0].wire is not None
    )


def _with_null(keys: Iterable[str]) -> str:
    """Return an RE2 pattern for one of the keys with null."""
    texts = [re.escape(json.dumps(key, ensure_ascii=False)) for key in sorted(set(keys))]
    if not texts:
        return _ESCAPED_WITH_NULL
    return rf"(?:{'|'.join(texts)}){_SPACE}:{_SPACE}null|{_ESCAPED_WITH_NULL}"


def _as_map(column: pa.StructArray, keys: Sequence[str], shape: Shape) -> pa.Array:
    """Return a map of a record's fields that are not null."""
    count, width = len(column), len(keys)
    parts = [finish(column.field(i), shape.parts[0]) for i in range(width)]
    # First by field, as they are stored; then by row.
    places: array[int] = array("i", bytes(4 * count * width))
    fields: array[int] = array("i", bytes(4 * count * width))
    for i in range(width):
        places[i::width] = array("i", range(i * count, (i + 1) * count))
        fields[i::width] = array("i", [i]) * count
    flat = pa.concat_arrays(parts or [pa.nulls(0, shape.kind.item_type)])
    values = flat.take(from_words(places, pa.int32()))
    there = values.is_valid()
    entries = pa.StructArray.from_arrays(
        [strings(keys).take(from_words(fields, pa.int32()).filter(there)), values.filter(there)],
        fields=[shape.kind.key_field, shape.kind.item_field],
    )
    return pa.Array.from_buffers(
        shape.kind,
        count,
        [_validity(column), _offsets(parts, count)],
        children=[entries],
    )


def _offsets(parts: Sequence[pa.Array], count: int) -> pa.Buffer:
    sizes = from_words(array("i", bytes(4 * count)), pa.int32())
    for part in parts:
        sizes = pc.add(sizes, part.is_valid().cast(pa.int32()))
    return offsets_of(sizes).buffers()[1]


def _validity(column: pa.Array) -> pa.Buffer | None:
    if not column.null_count:
        return None
    # A copy, so that its bits start at a byte.
    return pa.concat_arrays([column.is_valid()]).buffers()[1]
