"""What a codec is: values of one schema ↔ Arrow columns, a record batch at a time.

Each format has a module of its own (`avro/codec.py`, `json/codec.py`, `protobuf/codec.py`,
`primitives.py`); which one a schema asks for is decided in `codecs.py`. Types are those that Spark
has in Arrow: timestamps in microseconds, UTC or without a zone; date32; decimal128; string, binary,
lists, maps and structs; integers with a sign.

Each of those modules has these functions:

- ``arrow_schema(info)``: the columns that a schema's values are, flattened where they are records,
  else one column ``value``. Raises SchemaMismatch for what cannot be columns, naming the path.
- ``decoder(writer, reader, fields)``: a decoder of values written with `writer`, resolved to the
  columns of `reader` (the schema of the query), of which only `fields` are built, in that order.
- ``encoder(info, columns)``: an encoder of record batches with the Arrow schema `columns` for a
  topic whose schema is `info`. Raises SchemaMismatch that tells of every field that does not fit
  (missing, unknown, of another type) and what to do. A column that may be null is taken for a
  field that may not, as nearly all of Spark's may be: the null itself is what does not fit.
- ``definition(columns, name, namespace)``: the schema to register for such record batches on a
  topic that has none, where the format has definitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A value that does not decode.

    `row` is its place in the array that was given, `field` the path of what does not fit
    (``address.city``), "" for the value as a whole; `reason` says what was found and what the
    schema wants.
    """

    row: int
    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """The columns that were asked for, each as long as the array that was given.

    They are null where the value is null or does not decode; `bad` tells of the latter, ordered
    by row, one for each.
    """

    columns: Sequence[pa.Array]
    bad: Sequence[Undecodable] = ()


class Decoder(Protocol):
    """Decodes values that were all written with one version of a schema."""

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode a binary array; null is a value that is null (a tombstone)."""


class Encoder(Protocol):
    """Encodes rows as values of one schema."""

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return a binary array with a value for each row.

        Raises InvalidRow that names the row and the field for what the schema cannot hold.
        """
