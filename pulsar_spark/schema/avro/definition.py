"""Avro definitions: size-limited JSON text → a tree of types, and the bytes of defaults.

Avro 1.12 specification, Schema Declaration. AVRO and JSON topics define their records this way.
Named types are replaced by their definition wherever they are used, except where a record contains
itself. Spark has no type for that, nor for decimals of more than 38 digits: a field of such a type
is Opaque. Names are not validated: Java's reflection, for example, writes names that the
specification forbids.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import log10
from typing import Any, NamedTuple, TypeAlias

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol.validation import is_unicode
from pulsar_spark.schema.arrow.varints import zigzag
from pulsar_spark.schema.codec import Mismatch

MAX_DEFINITION = 2 * 1024 * 1024
"""Maximum length of a definition in bytes."""
MAX_NESTING = 48
"""Maximum nesting of types."""
MAX_TYPES = 20_000
"""Maximum number of types in a tree, counting each use."""
MAX_PRECISION = 38
"""Spark's maximum precision of decimals."""

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_MAX_FIXED = 16 * 1024 * 1024
# For full names, because a definition need not repeat their namespace, and for symbols, because one
# byte of a value may stand for a symbol.
LONGEST_NAME = 1000
"""Maximum length of a name in characters."""


class _NoDefault(enum.Enum):
    NO_DEFAULT = "no default"


NO_DEFAULT: Any = _NoDefault.NO_DEFAULT
"""Marks a field without default, because None is a default."""


@dataclass(frozen=True, slots=True)
class Logical:
    """A type's logical type; `precision` and `scale` are for decimals."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts; `kind` is one of PRIMITIVES."""

    kind: str
    logical: Logical | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """Exactly `size` bytes. `name` is the full name, `aliases` are others as they are given."""

    name: str
    size: int
    logical: Logical | None = None
    aliases: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Enum:
    """One of several symbols; readers replace unknown ones by `default`. Names as of Fixed."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Array:
    """Any number of items of one type."""

    items: Node


@dataclass(frozen=True, slots=True)
class Map:
    """Values of one type, with text keys."""

    values: Node


@dataclass(frozen=True, slots=True)
class UnionOf:
    """One of several types."""

    members: tuple[Node, ...]

    @property
    def nullable(self) -> bool:
        """Whether null is one of them."""
        return any(is_null(member) for member in self.members)

    @property
    def present(self) -> tuple[Node, ...]:
        """The members but null."""
        return tuple(member for member in self.members if not is_null(member))


@dataclass(frozen=True, slots=True)
class RecordField:
    """A field of a record; `default` is JSON as parsed, or NO_DEFAULT."""

    name: str
    type: Node
    default: Any = field(default=NO_DEFAULT, hash=False)
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """Fields in order. Names as of Fixed."""

    name: str
    fields: tuple[RecordField, ...]
    aliases: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Reference:
    """A record within itself: the one of this `number` among `records`, in their order."""

    number: int
    name: str = field(compare=False)
    records: Mapping[int, Record] = field(compare=False, repr=False)

    @property
    def record(self) -> Record:
        """The record."""
        return self.records[self.number]


@dataclass(frozen=True, slots=True)
class Opaque:
    """A type of a field, or a member of its union, that no column has: values stay encoded.

    They are bytes in Avro, and in JSON text.
    """

    type: Node
    is_text: bool = False


Node: TypeAlias = Primitive | Fixed | Enum | Array | Map | UnionOf | Record | Reference | Opaque
"""A type; a Reference is only in an Opaque one."""


def is_null(node: Node) -> bool:
    """Whether a type is exactly null."""
    return isinstance(node, Primitive) and node.kind == "null"


def parse_definition(data: bytes, *, for_json: bool = False, opaque: bool = True) -> Node:
    """Parse a definition.

    In JSON, Java's characters are strings; in Avro they are integers. Raises SchemaMismatch, with
    the path of the error, for an invalid definition, for one that is too large or nested too
    deeply, and unless types may be `opaque` for recursive records.
    """
    if len(data) > MAX_DEFINITION:
        raise SchemaMismatch(
            f"the Avro definition has {len(data)} bytes, the limit is {MAX_DEFINITION}"
        )
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        raise SchemaMismatch(
            "the Avro definition is not JSON, or is nested too deeply", _REMEDY
        ) from None
    parser = _Parser(for_json, opaque)
    return parser.with_column(parser.parse(tree, "", (), 0))


def with_parts(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return a type with its parts changed, one level deep."""
    match node:
        case Record():
            fields = [replace(each, type=change(each.type)) for each in node.fields]
            return replace(node, fields=tuple(fields))
        case Array():
            return Array(change(node.items))
        case Map():
            return Map(change(node.values))
        case UnionOf():
            return UnionOf(tuple(map(change, node.members)))
        case Opaque():
            return replace(node, type=change(node.type))
    return node


def without_names(node: Node) -> Node:
    """Return a type without the names of its records, enums and fixed types."""
    found = with_parts(node, without_names)
    return replace(found, name="") if isinstance(found, Record | Enum | Fixed) else found


def count_aliases(node: Node) -> int:
    """Return how many aliases a type and its parts have."""
    count = len(node.aliases) if isinstance(node, Record | Enum | Fixed) else 0
    if isinstance(node, Record):
        count += sum(len(each.aliases) for each in node.fields)

    def visit(part: Node) -> Node:
        nonlocal count
        count += count_aliases(part)
        return part

    with_parts(node, visit)
    return count


def _has_column(node: Node) -> bool:
    """Whether there is a column type, apart from the fields of records."""
    match node:
        case Primitive() | Fixed():
            return node.logical is None or node.logical.precision <= MAX_PRECISION
        case Array():
            return _has_column(node.items)
        case Map():
            return _has_column(node.values)
        case UnionOf():
            return all(map(_has_column, node.members))
    return not isinstance(node, Reference)


_REMEDY = "Have the topic's schema corrected, or read the values with valueFormat=raw."


class _Named(NamedTuple):
    """A named type, its number of types and its depth."""

    node: Node
    types: int
    height: int


class _Parser:
    """Parses one definition; knows the named types so far, of incomplete records the number."""

    def __init__(self, for_json: bool, opaque: bool) -> None:
        self._for_json = for_json
        self._opaque = opaque
        self._named: dict[str, _Named | int] = {}
        self._begun = 0
        self._records: dict[int, Record] = {}
        self._count = 0
        self._deepest = 0

    def with_column(self, node: Node) -> Node:
        """Return a field's type, opaque where it has no column."""
        if not self._opaque or _has_column(node):
            return node
        if isinstance(node, UnionOf):
            return UnionOf(tuple(map(self.with_column, node.members)))
        return Opaque(node, self._for_json)

    def parse(self, tree: Any, namespace: str, path: tuple[str, ...], depth: int) -> Node:
        """Parse a type; `namespace` is that of the enclosing type."""
        self._grow(1, depth, path)
        if isinstance(tree, str):
            return self._by_name(tree, namespace, path, depth)
        if isinstance(tree, list):
            return self._union(tree, namespace, path, depth)
        if not isinstance(tree, dict):
            raise _wrong(path, f"is {_shown(tree)}, which is not an Avro type")
        kind = tree.get("type")
        if isinstance(kind, dict | list):
            return self.parse(kind, namespace, path, depth + 1)
        if not isinstance(kind, str):
            raise _wrong(path, "is a type without a name for its kind")
        return self._by_kind(kind, tree, namespace, path, depth)

    def _by_kind(
        self, kind: str, tree: dict[str, Any], namespace: str, path: tuple[str, ...], depth: int
    ) -> Node:
        node: Node
        match kind:
            case "record" | "error":
                node = self._record(tree, namespace, path, depth)
            case "enum":
                node = self._enum(tree, namespace, path, depth)
            case "fixed":
                node = self._fixed(tree, namespace, path)
            case "array":
                node = Array(self._part(tree, "items", namespace, (*path, "[]"), depth))
                # Java's `char[]`, where a list of characters is one of strings.
                if self._for_json and tree.get("java-class") == "[C":
                    node = Primitive("string")
            case "map":
                node = Map(self._part(tree, "values", namespace, (*path, "{}"), depth))
            case _:
                node = self._by_name(kind, namespace, path, depth)
                if isinstance(node, Primitive):
                    node = replace(node, logical=_logical(tree, node.kind, 0))
                if self._for_json and tree.get("java-class") == "java.lang.Character":
                    node = Primitive("string")
        return node

    def _grow(self, count: int, depth: int, path: tuple[str, ...]) -> None:
        self._deepest = max(self._deepest, depth)
        if depth > MAX_NESTING:
            levels = (
                f"{MAX_NESTING} levels deep, of which a nullable struct, array or map takes two: "
                f"{MAX_NESTING // 2 - 1} structs fit in each other"
            )
            raise _beyond(path, f"is nested more than {levels}")
        self._count += count
        if self._count > MAX_TYPES:
            raise _beyond(path, f"makes more than {MAX_TYPES} types, with all that it refers to")

    def _part(
        self, tree: dict[str, Any], key: str, namespace: str, path: tuple[str, ...], depth: int
    ) -> Node:
        if key not in tree:
            raise _wrong(path, f"lacks {key!r}")
        return self.parse(tree[key], namespace, path, depth + 1)

    def _by_name(self, name: str, namespace: str, path: tuple[str, ...], depth: int) -> Node:
        if name in PRIMITIVES:
            return Primitive(name)
        candidates = [name] if "." in name or not namespace else [f"{namespace}.{name}", name]
        for full in candidates:
            if full not in self._named:
                continue
            known = self._named[full]
            if isinstance(known, int) and self._opaque:
                return Reference(known, full, self._records)
            if isinstance(known, int):
                raise SchemaMismatch(
                    f"the record {full!r} contains itself, in the field {_dotted(path)}: "
                    "Spark has no recursive types",
                    "Read the values with valueFormat=raw.",
                )
            self._grow(known.types, depth + known.height, path)
            return known.node
        raise _wrong(path, f"is of the unknown type {_shown(name)}")

    def _union(self, tree: list[Any], namespace: str, path: tuple[str, ...], depth: int) -> Node:
        if not tree:
            raise _wrong(path, "is a union of nothing")
        if any(isinstance(member, list) for member in tree):
            raise _wrong(path, "is a union right in a union")
        members = tuple(self.parse(member, namespace, path, depth + 1) for member in tree)
        seen = set()
        for member in members:
            kind = _kind_in_union(member)
            if kind in seen:
                raise _wrong(path, f"is a union with {kind} twice")
            seen.add(kind)
        return UnionOf(members)

    def _record(
        self, tree: dict[str, Any], namespace: str, path: tuple[str, ...], depth: int
    ) -> Node:
        name = _full_name(tree, namespace, path)
        fields = tree.get("fields")
        if not isinstance(fields, list):
            raise _wrong(path, f"is the record {_shown(name)} without a list of fields")
        count, deepest = self._count, self._deepest
        number = self._begun
        self._named[name], self._begun, self._deepest = number, number + 1, depth
        inner = name.rpartition(".")[0]
        found: dict[str, RecordField] = {}
        for item in fields:
            parsed = self._field(item, inner, path, depth)
            if parsed.name in found:
                raise _wrong((*path, parsed.name), "is there twice")
            found[parsed.name] = parsed
        aliases = _texts(tree.get("aliases"))
        node = self._records[number] = Record(name, tuple(found.values()), aliases)
        self._named[name] = _Named(node, self._count - count, self._deepest - depth)
        self._deepest = max(deepest, self._deepest)
        return node

    def _field(self, tree: Any, namespace: str, path: tuple[str, ...], depth: int) -> RecordField:
        name = tree.get("name") if isinstance(tree, dict) else None
        if not isinstance(name, str) or not name:
            raise _wrong(path, "has a field without a name")
        _check_name(name, path, "a field")
        node = self.with_column(self._part(tree, "type", namespace, (*path, name), depth))
        return RecordField(name, node, tree.get("default", NO_DEFAULT), _texts(tree.get("aliases")))

    def _enum(
        self, tree: dict[str, Any], namespace: str, path: tuple[str, ...], depth: int
    ) -> Node:
        name = _full_name(tree, namespace, path)
        symbols = tree.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(item, str) for item in symbols):
            raise _wrong(path, f"is the enum {_shown(name)} without a list of symbols")
        self._grow(len(symbols), depth, path)
        for symbol in symbols:
            _check_name(symbol, path, "a symbol")
        default = tree.get("default")
        known = default if default in symbols else None
        node = Enum(name, tuple(symbols), known, _texts(tree.get("aliases")))
        self._named[name] = _Named(node, 1, 0)
        return node

    def _fixed(self, tree: dict[str, Any], namespace: str, path: tuple[str, ...]) -> Node:
        name = _full_name(tree, namespace, path)
        size: Any = tree.get("size")
        if not 0 <= _whole(size) <= _MAX_FIXED:
            raise _wrong(path, f"is of the fixed size {_shown(size)}")
        logical = _logical(tree, "fixed", size)
        node = Fixed(name, size, logical, _texts(tree.get("aliases")))
        self._named[name] = _Named(node, 1, 0)
        return node


def _full_name(tree: dict[str, Any], namespace: str, path: tuple[str, ...]) -> str:
    name = tree.get("name")
    if not isinstance(name, str) or not name:
        raise _wrong(path, f"is of a {tree['type']} type without a name")
    own = tree.get("namespace")
    if isinstance(own, str):
        namespace = own
    # Check it before joining: each type in a namespace repeats its whole name.
    _check_name(namespace, path, "a namespace")
    _check_name(name, path, "a type")
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    _check_name(full, path, "a type")
    return full


def _check_name(name: str, path: tuple[str, ...], what: str) -> None:
    if len(name) > LONGEST_NAME:
        raise _wrong(path, f"has {what} whose name has more than {LONGEST_NAME} characters")
    if not (name.isascii() or is_unicode(name)):
        raise _wrong(path, f"has {what} with the name {_shown(name)}, which is not Unicode")


def _kind_in_union(node: Node) -> str:
    """Return what must be unique in a union: a name, or an unnamed type."""
    if isinstance(node, Primitive):
        return node.kind
    if isinstance(node, Record | Enum | Fixed | Reference):
        return node.name
    return type(node).__name__.lower()


def _texts(value: Any) -> tuple[str, ...]:
    found = value if isinstance(value, list) else []
    return tuple(item for item in found if isinstance(item, str))


# The logical types, and the types that they may annotate.
_LOGICAL: dict[str, tuple[str, ...]] = {
    "decimal": ("bytes", "fixed"),
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "uuid": ("string", "fixed"),
    "duration": ("fixed",),
}
_FIXED_SIZES = {"uuid": 16, "duration": 12}


def _logical(tree: dict[str, Any], kind: str, size: int) -> Logical | None:
    """Return a type's logical type, None if it is unknown or invalid.

    Avro 1.12, Logical Types: readers must ignore these and use the underlying type.
    """
    name = tree.get("logicalType")
    if not isinstance(name, str) or kind not in _LOGICAL.get(name, ()):
        return None
    if name != "decimal":
        fits = kind != "fixed" or size == _FIXED_SIZES[name]
        return Logical(name) if fits else None
    precision, scale = _whole(tree.get("precision")), _whole(tree.get("scale", 0))
    if not 0 <= scale <= precision or precision == 0:
        return None
    if kind == "fixed" and precision > (8 * size - 1) * log10(2):
        return None
    return Logical(name, precision, scale)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(path).replace(".[]", "[]").replace(".{}", "{}")


def _shown(value: Any) -> str:
    # repr could fail on deeply nested lists and objects.
    text = type(value).__name__ if isinstance(value, list | dict) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _wrong(path: tuple[str, ...], what: str) -> SchemaMismatch:
    return SchemaMismatch(f"the topic's Avro schema is damaged: {_where(path)} {what}", _REMEDY)


def _beyond(path: tuple[str, ...], what: str) -> SchemaMismatch:
    """Return the error for a valid schema that is larger than this package takes."""
    return SchemaMismatch(
        f"the Avro schema is beyond what can be columns: {_where(path)} {what}",
        "Write fewer levels and fields. What is on the topic can be read with valueFormat=raw.",
    )


def _where(path: tuple[str, ...]) -> str:
    return f"the field {_dotted(path)[:500]}" if path else "the definition"


_BOUNDS = {"int": 2**31, "long": 2**63}


def _none() -> Mismatch:
    return Mismatch("it is no value of the type")


class TooLarge(Exception):
    """A default with too many parts."""


def encode_default(node: Node, value: Any, most: int = 2**16) -> bytes | None:
    """Encode a default; None if `value` is not valid for this type.

    Accepts any member of a union: the specification requires the first, but the Java client writes
    others too. Raises TooLarge for values with more than about `most` parts, or without end.
    """
    try:
        return _DefaultEncoder(most).encode_if_it_fits(node, value)
    except RecursionError:
        raise TooLarge from None


class _DefaultEncoder:
    """Encodes a default of limited size: each item of a list has its type's defaults."""

    def __init__(self, most: int) -> None:
        self._left = most

    def encode_if_it_fits(self, node: Node, value: Any) -> bytes | None:
        try:
            return self._encode(node, value)
        except (Mismatch, UnicodeEncodeError, OverflowError):
            return None

    def _encode(self, node: Node, value: Any) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise TooLarge
        match node:
            case Primitive():
                data = _primitive(node.kind, value)
            case Fixed():
                data = _check(value, str).encode("latin-1")
                if len(data) != node.size:
                    raise _none()
            case Enum():
                if value not in node.symbols:
                    raise _none()
                data = zigzag(node.symbols.index(value))
            case Array():
                data = _block([self._encode(node.items, item) for item in _check(value, list)])
            case Map():
                pairs = _check(value, dict).items()
                data = _block([_text(key) + self._encode(node.values, v) for key, v in pairs])
            case Record():
                found = _check(value, dict)
                parts = [self._encode(f.type, found.get(f.name, f.default)) for f in node.fields]
                data = b"".join(parts)
            case UnionOf():
                data = self._union(node, value)
            case Opaque():
                data = self._encode(node.type, value)
            case Reference():
                data = self._encode(node.record, value)
        return data

    def _union(self, node: UnionOf, value: Any) -> bytes:
        for number, member in enumerate(node.members):
            found = self.encode_if_it_fits(member, value)
            if found is not None:
                return zigzag(number) + found
        raise _none()


def _block(items: list[bytes]) -> bytes:
    return b"".join([zigzag(len(items)), *items, b"\0" if items else b""])


def _text(value: str) -> bytes:
    data = value.encode()
    return zigzag(len(data)) + data


def _primitive(kind: str, value: Any) -> bytes:
    match kind:
        case "null" if value is None:
            data = b""
        case "boolean":
            data = bytes([_check(value, bool)])
        case "int" | "long":
            # Some writers give whole numbers a decimal point.
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not -_BOUNDS[kind] <= _check(value, int) < _BOUNDS[kind]:
                raise _none()
            data = zigzag(value)
        case "float" | "double":
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _none()
            data = struct.pack("<f" if kind == "float" else "<d", float(value))
        case "bytes":
            raw = _check(value, str).encode("latin-1")
            data = zigzag(len(raw)) + raw
        case "string":
            data = _text(_check(value, str))
        case _:
            raise _none()
    return data


def _check(value: Any, kind: type) -> Any:
    # NO_DEFAULT arrives here for fields missing in a default record.
    if value is NO_DEFAULT or not isinstance(value, kind):
        raise _none()
    return value
