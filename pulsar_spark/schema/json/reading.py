"""Values of JSON → columns: many at once, or one by one where that does not go.

Rows are read together by Arrow's JSON reader. Where it refuses, the rows that are to be blamed are
taken one by one, or, where that is not known, rows are divided until few are left; so a value that
is broken, or written in an unusual way, costs little more than itself. Fields that are unusual in
many rows are soon taken from each row by itself, and only the others are read together.

Whether and as what a value decodes does not depend on those around it, but for one thing: what is
nested more deeply than Python parses, in fields that are skipped, may be bad or skipped with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.arrow.arrays import MAX_CELLS, build_array, integers, spread, widest_item
from pulsar_spark.schema.codec import Decoded, Misfit, Undecodable
from pulsar_spark.schema.json.arrow_reader import ObjectReader, Refused, finish
from pulsar_spark.schema.json.careful import converter, parse, parse_roughly, take
from pulsar_spark.schema.json.maps import MapReader
from pulsar_spark.schema.json.types import Rule, Shape

_MOST_BYTES = 8 * 1024 * 1024
_MOST_ROWS = 65_536
_LARGEST_VALUE = 1024 * 1024 * 1024
_FEW_ROWS = 16
_MANY_ROWS = 1024
_PART_ROWS = 256
# One row in so many may be unusual without a change of how its fields are read.
_TOLERATED = 50
_PARTS = 8


# {} and a comma.
_SMALLEST_ITEM = 3
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NULL_ITEM = re.compile(rb"[\[,][ \t\r\n]*null")
_NULL_IN_MAP = re.compile(rb"[\[,:][ \t\r\n]*null")


class JsonDecoder:
    """Decodes JSON objects to columns, by the shapes of the fields wanted.

    `skipped` are the shapes of the other fields that objects are known to have. With `whole` there
    is one shape, that of the value itself, which may be anything.
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
        # Fields that Arrow cannot read, as maps, are taken from each row by itself.
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
        """Decode a binary array; null is a value that is null, as is the JSON null."""
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
        """Decode rows without nulls; `first` is the number of the first, for what is bad."""
        size = pc.sum(pc.binary_length(rows)).as_py()
        if len(rows) == 1 and size > _LARGEST_VALUE:
            reason = f"it has {size} bytes, the limit for JSON is {_LARGEST_VALUE}"
            return [self._nulls([Undecodable(first, "", reason)])]
        most_cells = size * self._widest // _SMALLEST_ITEM
        if len(rows) > 1 and (
            size > _MOST_BYTES or len(rows) > _MOST_ROWS or most_cells > MAX_CELLS
        ):
            return self._in_parts(rows, first, 2)
        if most_cells > MAX_CELLS and self._items(rows[0].as_py()) * self._widest > MAX_CELLS:
            reason = f"its lists have more than {MAX_CELLS} fields"
            return [self._nulls([Undecodable(first, "", reason)])]
        pieces: list[Decoded] = []
        few, start = _FEW_ROWS, 0
        while start < len(rows):
            rest = rows.slice(start)
            try:
                pieces.append(Decoded(self._together(rest)))
            except Refused as refused:
                blamed = refused.row
            else:
                self._unusual = max(self._unusual - len(rest) // _TOLERATED, 0)
                return pieces
            if blamed is None and len(rest) > max(few, _PART_ROWS):
                return [*pieces, *self._in_parts(rest, first + start, _PARTS)]
            blamed = min(blamed or 0, len(rest) - 1)
            if blamed > few:
                pieces += self._decode(rest.slice(0, blamed), first + start)
                start, few = start + blamed, _FEW_ROWS
            else:
                # Rows that need it are seldom alone, and each attempt costs as much as many rows.
                few = min(2 * few, _MANY_ROWS)
            alone = rows.slice(start, few)
            pieces.append(self._one_by_one(alone, first + start))
            self._adapt(alone, {item.row - first - start for item in pieces[-1].bad})
            start += few
        return pieces

    def _adapt(self, rows: pa.Array, bad: set[int]) -> None:
        """Take the fields from each row by itself that many rows have in an unusual way."""
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

    def _items(self, value: bytes) -> int:
        """Return how many items with fields the lists of a value can have at most."""
        bare = _STRING.sub(b'""', value)
        return bare.count(b"{") + len(self._null_item.findall(bare))

    def _in_parts(self, rows: pa.Array, first: int, parts: int) -> list[Decoded]:
        step = -(-len(rows) // parts)
        return [
            piece
            for start in range(0, len(rows), step)
            for piece in self._decode(rows.slice(start, step), first + start)
        ]

    # --- many rows ------------------------------------------------------------------------

    def _together(self, rows: pa.Array) -> list[pa.Array]:
        """Return the columns of rows; raises Refused if one has to be looked at by itself."""
        try:
            if self._maps is None or self._maps.given_up:
                return self._read(rows)
            return self._read_maps(rows, self._maps)
        except (pa.ArrowInvalid, Misfit, RecursionError):
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
        """Return the columns that Arrow does not read; raises Refused if a row does not fit."""
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
            except (Misfit, RecursionError):
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
            except Misfit as misfit:
                found.append(nothing)
                bad.append(Undecodable(first + row, misfit.field, misfit.reason))
            except RecursionError:
                found.append(nothing)
                deep.append(row)
        by_field = zip(*found, strict=True) if self._shapes else ()
        columns = [
            build_array(v, shape.kind) for v, shape in zip(by_field, self._shapes, strict=True)
        ]
        for row in deep:
            # Arrow's reader does not mind how deep what it skips is nested.
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
            raise Misfit("it is JSON, but not an object")
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
    except (Refused, pa.ArrowInvalid):
        return False
    return True


def _needs_digits(shape: Shape) -> bool:
    """Whether floats would not do for numbers with a point."""
    return shape.rule is Rule.DECIMAL or shape.java or any(map(_needs_digits, shape.parts))


def _has_maps(shape: Shape) -> bool:
    return shape.rule is Rule.MAP or any(map(_has_maps, shape.parts))
