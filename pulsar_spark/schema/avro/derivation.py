"""Columns → the Avro definition of a record with such fields, for topics that have no schema.

What can be null is a union of null and the type, null by default, so that a later version may do
without the field or bring in others: brokers ask for that unless told otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.avro.types import usual_type

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_PLAIN: tuple[tuple[pa.DataType, Any], ...] = (
    (pa.null(), "null"),
    (pa.bool_(), "boolean"),
    (pa.int8(), "int"),
    (pa.int16(), "int"),
    (pa.int32(), "int"),
    (pa.int64(), "long"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.string(), "string"),
    (pa.binary(), "bytes"),
    (pa.date32(), {"type": "int", "logicalType": "date"}),
    (pa.time64("ns"), {"type": "long", "logicalType": "time-micros"}),
    (pa.timestamp("us", tz="UTC"), {"type": "long", "logicalType": "timestamp-micros"}),
    (pa.timestamp("us"), {"type": "long", "logicalType": "local-timestamp-micros"}),
)


def record_definition(columns: pa.Schema, name: str, namespace: str = "") -> bytes:
    """Return the definition, as JSON, of a record `name` whose fields are `columns`.

    Raises SchemaMismatch that lists the columns that Avro has no type or no name for.
    """
    maker = _Maker()
    if not _NAME.fullmatch(name):
        maker.misfits.append(f"{name!r} is no name of a record")
    if namespace and not all(_NAME.fullmatch(part) for part in namespace.split(".")):
        maker.misfits.append(f"{namespace!r} is no namespace")
    record = maker.record(list(columns), name, "")
    if maker.misfits:
        raise SchemaMismatch(
            f"the data frame cannot be records of Avro: {'; '.join(maker.misfits[:50])}",
            "Names have letters, digits and underscores: rename with withColumnRenamed, cast "
            "columns, or set schema.name and schema.namespace.",
        )
    if namespace:
        record = {"type": "record", "name": name, "namespace": namespace} | record
    return json.dumps(record, separators=(",", ":")).encode()


class _Maker:
    """Makes definitions of types; what cannot be one is collected in `misfits`."""

    def __init__(self) -> None:
        self.misfits: list[str] = []
        self._names: set[str] = set()

    def record(self, fields: Sequence[pa.Field], name: str, path: str) -> dict[str, Any]:
        """Return the definition of a record."""
        self._names.add(name)
        made = []
        seen = set()
        for field in fields:
            at = f"{path}.{field.name}" if path else field.name
            if not _NAME.fullmatch(field.name):
                self.misfits.append(f"the column {at!r} has a name that Avro does not allow")
            if field.name in seen:
                self.misfits.append(f"there are two columns {at!r}")
            seen.add(field.name)
            item = {"name": field.name, "type": self._field_type(field, f"{name}_{field.name}", at)}
            if field.nullable:
                item["default"] = None
            made.append(item)
        return {"type": "record", "name": name, "fields": made}

    def _field_type(self, field: pa.Field, name: str, path: str) -> Any:
        kind = self._type(field.type, name, path)
        return ["null", kind] if field.nullable and kind != "null" else kind

    def _type(self, kind: pa.DataType, name: str, path: str) -> Any:
        kind = usual_type(kind)
        if pa.types.is_struct(kind):
            return self.record(list(kind), self._unique(name), path)
        if pa.types.is_list(kind):
            return {"type": "array", "items": self._field_type(kind.value_field, name, f"{path}[]")}
        if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
            values = self._field_type(kind.item_field, name, f"{path}{{}}")
            return {"type": "map", "values": values}
        if pa.types.is_decimal128(kind):
            size = {"precision": kind.precision, "scale": kind.scale}
            return {"type": "bytes", "logicalType": "decimal", **size}
        for known, definition in _PLAIN:
            if kind == known:
                return definition
        self.misfits.append(f"the column {path!r} is {kind}, which Avro has no type for")
        return "null"

    def _unique(self, name: str) -> str:
        name = re.sub(r"[^A-Za-z0-9_]", "_", name)
        number = 2
        found = name
        while found in self._names:
            found = f"{name}_{number}"
            number += 1
        return found
