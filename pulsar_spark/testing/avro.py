"""Whether one Avro schema can read what another has written, by the rules of Avro."""

from __future__ import annotations

from typing import Any

_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_NAMED = ("record", "error", "enum", "fixed")


def why_unreadable(reader: Any, writer: Any, missing: str) -> str | None:
    """Return why a reader cannot read a writer's values, None if it can.

    Both are parsed definitions; names of records do not matter. `missing` is what to call fields
    that only the reader has.
    """
    return _Reading(missing).problem(reader, writer)


class _Reading:
    def __init__(self, missing: str) -> None:
        self._missing = missing
        # Definitions by name, of the reader and of the writer; and pairs that are being compared.
        self._known: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        self._open: set[tuple[int, int]] = set()

    def problem(self, reader: Any, writer: Any) -> str | None:
        reader, writer = self._resolved(reader, 0), self._resolved(writer, 1)
        if isinstance(writer, list):
            return next(filter(None, (self.problem(reader, one) for one in writer)), None)
        if isinstance(reader, list):
            fits = any(self.problem(one, writer) is None for one in reader)
            return None if fits else "the types differ: a union has no such member"
        kind, written = _kind(reader), _kind(writer)
        if kind != written:
            return None if kind in _PROMOTIONS.get(written, ()) else "the types differ"
        check = getattr(self, f"_{kind}", None)
        return None if check is None else check(reader, writer)

    def _resolved(self, schema: Any, side: int) -> Any:
        """Return a definition for its name, and remember it under its name."""
        known = self._known[side]
        if isinstance(schema, str):
            return known.get(schema, schema)
        if isinstance(schema, dict):
            if isinstance(schema.get("type"), (dict, list)):
                return self._resolved(schema["type"], side)
            if schema.get("type") in _NAMED:
                name = str(schema.get("name"))
                known[name] = known[f"{schema.get('namespace')}.{name}"] = schema
        return schema

    def _record(self, reader: Any, writer: Any) -> str | None:
        pair = (id(reader), id(writer))
        if pair in self._open:
            return None
        self._open.add(pair)
        try:
            return self._fields(reader, writer)
        finally:
            self._open.discard(pair)

    def _fields(self, reader: Any, writer: Any) -> str | None:
        written = {field["name"]: field for field in writer.get("fields", ())}
        for field in reader.get("fields", ()):
            name = field["name"]
            if name not in written:
                if "default" not in field:
                    return f"the {self._missing} field {name!r} has no default"
            elif (problem := self.problem(field["type"], written[name]["type"])) is not None:
                return f"the field {name!r} changed its type: {problem}"
        return None

    def _enum(self, reader: Any, writer: Any) -> str | None:
        gone = set(writer["symbols"]) - set(reader["symbols"])
        return f"the symbols {sorted(gone)} are gone" if gone and "default" not in reader else None

    def _fixed(self, reader: Any, writer: Any) -> str | None:
        return None if reader["size"] == writer["size"] else "the sizes differ"

    def _array(self, reader: Any, writer: Any) -> str | None:
        return self.problem(reader["items"], writer["items"])

    def _map(self, reader: Any, writer: Any) -> str | None:
        return self.problem(reader["values"], writer["values"])


def _kind(schema: Any) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)
