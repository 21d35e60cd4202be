"""Compatibility of a JSON schema's versions: whether values of one are read as the other's.

JSON says itself which fields a value has and of which kind they are, so values are read without a
plan for each version. But whether one of another version fits a column is only known from both
definitions. A missing field is null, whatever its type; names alone count, not aliases.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.avro import definition as avro
from pulsar_spark.schema.avro.resolution import MAX_PAIRS, describe, too_many_pairs
from pulsar_spark.schema.codec import Losses
from pulsar_spark.schema.json.types import is_java_map, kind_of, only_type

_TEXTS = ("string", "uuid")
_INTO_TEXT = ("boolean", "int", "long", "float", "double", "decimal", "enum", "bytes", *_TEXTS)
_INTO: Mapping[str, Collection[str]] = {
    "string": _INTO_TEXT,
    "uuid": _INTO_TEXT,
    "bytes": _TEXTS,
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
}
"""What is read as another type."""


def losses_of(writer: avro.Node, reader: avro.Node, fields: Collection[str]) -> Losses:
    """Return what values of `writer` lose, read into these fields of the record `reader`.

    Raises SchemaMismatch that lists the fields whose values do not fit.
    """
    found = _Comparison()
    if isinstance(writer, avro.Record) and isinstance(reader, avro.Record):
        wanted = tuple(field for field in reader.fields if field.name in fields)
        found.record(writer, wanted, "")
    else:
        found.compare(writer, reader, "")
    if found.unfit:
        raise SchemaMismatch("; ".join(found.unfit), "Read the values with valueFormat=raw.")
    return Losses(tuple(found.left_out), tuple(found.partial))


class _Comparison:
    """Compares types of two versions, and collects the fields that differ."""

    def __init__(self, pairs: Iterator[int] | None = None) -> None:
        self._pairs = itertools.count() if pairs is None else pairs
        self.left_out: list[str] = []
        self.partial: list[str] = []
        self.unfit: list[str] = []

    def record(self, writer: avro.Record, wanted: tuple[avro.RecordField, ...], path: str) -> None:
        """Compare a record's fields with those that are read."""
        prefix = f"{path}." if path else ""
        types = {field.name: field.type for field in wanted}
        for field in writer.fields:
            if field.name in types:
                self.compare(field.type, types[field.name], prefix + field.name)
            else:
                self.left_out.append(prefix + field.name)

    def compare(self, writer: avro.Node, reader: avro.Node, path: str) -> None:
        """Compare two types of a field, which may be null in both."""
        if next(self._pairs) > MAX_PAIRS:
            raise too_many_pairs()
        source, node = only_type(writer), only_type(reader)
        match source, node:
            case avro.Record(), avro.Record():
                self.record(source, node.fields, path)
            case avro.Array(), avro.Array() if is_java_map(source) == is_java_map(node):
                self.compare(source.items, node.items, f"{path}[]")
            case avro.Map(), avro.Map():
                self.compare(source.values, node.values, f"{path}{{}}")
            case avro.Enum(), avro.Enum():
                if not set(source.symbols) <= set(node.symbols):
                    self.partial.append(path)
            case avro.UnionOf(), _:
                unfit = sum(not self._is_read(member, node) for member in source.present)
                if unfit == len(source.present):
                    self._refuse(source, node, path)
                elif unfit:
                    self.partial.append(path)
            case _, avro.UnionOf() if any(self._is_read(source, member) for member in node.present):
                pass
            case _ if not _leaf_fits(source, node):
                self._refuse(source, node, path)
            case _ if not _all_fit(source, node):
                self.partial.append(path)

    def _is_read(self, writer: avro.Node, reader: avro.Node) -> bool:
        """Whether all values of a type can be read as another."""
        found = _Comparison(self._pairs)
        found.compare(writer, reader, "")
        return not found.unfit and not found.partial

    def _refuse(self, writer: avro.Node, reader: avro.Node, path: str) -> None:
        where = f"the field {path}" if path else "the value"
        self.unfit.append(
            f"{where} was written as {describe(writer)}, the query reads it as {describe(reader)}"
        )


def _leaf_fits(writer: avro.Node, reader: avro.Node) -> bool:
    if isinstance(reader, avro.Opaque):
        return True
    if not isinstance(reader, avro.Primitive | avro.Fixed):
        return False
    written, wanted = kind_of(writer), kind_of(reader)
    return written in (wanted, "null") or written in _INTO.get(wanted, ())


def _all_fit(writer: avro.Node, reader: avro.Node) -> bool:
    """Whether all values fit, of a type that fits: not all bytes are text, for example."""
    if kind_of(writer) != "decimal" or kind_of(reader) != "decimal":
        return kind_of(writer) != "bytes" or kind_of(reader) == "bytes"
    assert isinstance(writer, avro.Primitive | avro.Fixed)
    assert isinstance(reader, avro.Primitive | avro.Fixed)
    one, other = writer.logical, reader.logical
    assert one is not None
    assert other is not None
    return one.scale <= other.scale and one.precision - one.scale <= other.precision - other.scale
