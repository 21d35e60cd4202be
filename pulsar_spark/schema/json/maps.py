"""Maps of JSON objects, many at once: read as records of the keys that they are known to have.

Arrow's JSON reader knows no maps. But most maps of a topic share a few keys, and read as records
with these fields they become maps again without looking at each. Nothing may be lost by this: a
key that is not known, or a known one that is there with null, makes the reader refuse the rows.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.arrow.arrays import from_words, offsets_of, strings
from pulsar_spark.schema.json.arrow_reader import ObjectReader, Refused, finish
from pulsar_spark.schema.json.types import Rule, Shape

_MOST_KEYS = 64
_LONGEST_KEY = 200
_MOST_FAILURES = 4
_SPACE = r"[ \t\r\n]*"
# A key that is not written as it could be most simply, with null.
_ESCAPED_WITH_NULL = rf'\\.(?:[^"\\]|\\.)*"{_SPACE}:{_SPACE}null'

Keys = dict[str, list[str]]


class MapReader:
    """Reads the fields `wanted` of objects that have no others than these and `skipped`.

    Learns the keys of maps, and gives up where there are too many or rows keep being refused.
    """

    def __init__(self, wanted: Mapping[str, Shape], skipped: Mapping[str, Shape]) -> None:
        self._wanted = wanted
        self._shapes = {**skipped, **wanted}
        self._keys: Keys = {
            name: [] for name, shape in self._shapes.items() if shape.rule is Rule.MAP
        }
        self._reader: ObjectReader | None = None
        self._failures = 0
        self.given_up = not all(map(_is_readable, self._shapes.values()))

    @property
    def maps(self) -> Sequence[str]:
        """The fields that are maps, whose keys are to be learned."""
        return list(self._keys)

    @property
    def knows_keys(self) -> bool:
        """Whether keys were learned, so that reading makes sense."""
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
        """Take note of rows that were refused for their maps."""
        self._failures += 1
        self.given_up = self.given_up or self._failures >= _MOST_FAILURES

    def read(self, rows: pa.Array) -> list[pa.Array]:
        """Return the columns wanted of a binary array without nulls.

        Raises Refused, strictly for rows that are refused for their maps, and ArrowInvalid if a
        value has no place in its column's type.
        """
        if self._reader is None:
            raise Refused(strictly=True)
        found = self._reader.read(rows)
        columns = dict(zip(self._shapes, found, strict=True))
        read = [self._finish(n, columns[n], shape) for n, shape in self._wanted.items()]
        self._failures = 0
        return read

    def _wire(self, name: str, shape: Shape) -> pa.DataType:
        if shape.rule is not Rule.MAP:
            return shape.wire
        return pa.struct([(key, shape.parts[0].wire) for key in self._keys[name]])

    def _finish(self, name: str, column: pa.Array, shape: Shape) -> pa.Array:
        if shape.rule is not Rule.MAP:
            return finish(column, shape)
        return _as_map(column, self._keys[name], shape)


def _is_readable(shape: Shape) -> bool:
    return shape.wire is not None or (shape.rule is Rule.MAP and shape.parts[0].wire is not None)


def _with_null(keys: Iterable[str]) -> str:
    """Return a pattern of RE2 for one of the keys with null."""
    texts = [re.escape(json.dumps(key, ensure_ascii=False)) for key in sorted(set(keys))]
    if not texts:
        return _ESCAPED_WITH_NULL
    return rf"(?:{'|'.join(texts)}){_SPACE}:{_SPACE}null|{_ESCAPED_WITH_NULL}"


def _as_map(column: pa.StructArray, keys: Sequence[str], shape: Shape) -> pa.Array:
    """Return the map of a record's fields that are not null."""
    count, width = len(column), len(keys)
    parts = [finish(column.field(i), shape.parts[0]) for i in range(width)]
    # By field first, as they lie one behind the other; then by row.
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
    # An array of its own, so that its bits begin with a byte.
    return pa.concat_arrays([column.is_valid()]).buffers()[1]
