"""Schema resolution: from the writer's type to the reader's.

Avro 1.12 specification, Schema Resolution. The result is a plan: what to read, in the order of the
bytes, and what it becomes. It is more lenient than the specification if the meaning is clear:
outside of unions, names of records, enums and fixed types may differ; fields that the writer lacks
are null if they are nullable; and timestamps are converted between units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import TypeAlias

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.avro.definition import (
    MAX_PRECISION,
    NO_DEFAULT,
    Array,
    Enum,
    Fixed,
    Logical,
    Map,
    Node,
    Opaque,
    Primitive,
    Record,
    RecordField,
    Reference,
    TooLarge,
    UnionOf,
    encode_default,
    is_null,
    without_names,
)
from pulsar_spark.schema.avro.types import arrow_type, is_nullable, sole_type
from pulsar_spark.schema.codec import Losses

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class ReadNull:
    """Reads no bytes, gives null."""

    type: pa.DataType


@dataclass(frozen=True, slots=True)
class ReadNumber:
    """A boolean, int, long, float or double (`kind`), converted to `type`.

    Whole numbers are multiplied by `factor`, then divided by `divisor` and rounded down.
    """

    kind: str
    type: pa.DataType
    factor: int = 1
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class ReadBytes:
    """Bytes, converted to `type`; `size` is None if their length precedes them.

    For decimals, `scale` and `precision` are the writer's. Without `is_whole`, not all bytes are
    text, which `type` is.
    """

    size: int | None
    type: pa.DataType
    scale: int = 0
    precision: int = 0
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class ReadEnum:
    """A symbol's number.

    Without `is_whole`, the reader lacks some of the symbols: they are its default, or else None.
    """

    symbols: tuple[str | None, ...]
    type: pa.DataType
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class ReadArray:
    """Blocks of items; `least` is an item's minimum size in bytes."""

    items: Plan
    least: int
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class ReadMap:
    """Blocks of keys and values; `least` is a pair's minimum size in bytes."""

    values: Plan
    least: int
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class FieldStep:
    """A writer's field: its name, and its place in the reader's record, None to skip it."""

    name: str
    plan: Plan
    target: int | None


@dataclass(frozen=True, slots=True)
class Default:
    """The default at `target` in the reader's record, as encoded bytes."""

    target: int
    plan: Plan
    data: bytes


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Fields in the writer's order, with their places in `type`; other places are null."""

    steps: tuple[FieldStep, ...]
    defaults: tuple[Default, ...]
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class ReadUnion:
    """A branch's number, and its value."""

    branches: tuple[Plan, ...]
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class IntoMember:
    """A value that becomes one member of the struct for the reader's union."""

    plan: Plan
    member: int
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class ReadOpaque:
    """A value of the type `node` in its encoding; skipped if `type` is null."""

    node: Node
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Unresolvable:
    """A value that the reader has no type for."""

    reason: str
    type: pa.DataType


Plan: TypeAlias = (
    ReadNull
    | ReadNumber
    | ReadBytes
    | ReadEnum
    | ReadArray
    | ReadMap
    | ReadRecord
    | ReadUnion
    | IntoMember
    | ReadOpaque
    | Unresolvable
)
"""How to read a value; `type` is the resulting column's or part's type."""

MAX_PAIRS = 40_000
"""The most pairs of types that two versions of a schema are compared by."""
# For all defaults of a schema, in bytes: each value without the fields gets all of them.
_MAX_DEFAULTS = 16 * 1024
_WHOLE = ("int", "long")
_PROMOTIONS = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "double": ("double",),
    "bytes": ("bytes", "string"),
    "string": ("string", "bytes"),
    "boolean": ("boolean",),
    "null": ("null",),
}


def resolve_columns(writer: Node, reader: Node, columns: pa.Schema) -> Plan:
    """Return the plan for a record whose `type` is a struct of `columns`.

    `columns` are some of the columns of `reader`, in any order; only they are resolved. A type that
    is no record is treated as a record with one unnamed field. Raises SchemaMismatch that names the
    field if no value of `writer` can be read as `reader`.
    """
    kind = pa.struct(list(columns))
    resolver = _Resolver()
    if not isinstance(reader, Record):
        if not len(columns):
            return ReadRecord((FieldStep("", skip(writer), None),), (), kind)
        plan = _must(resolver.resolve(writer, reader, ""), "")
        return ReadRecord((FieldStep("", plan, 0),), (), kind)
    if isinstance(writer, UnionOf) and len(writer.present) == 1:
        branches = tuple(
            ReadNull(kind) if is_null(member) else resolve_columns(member, reader, columns)
            for member in writer.members
        )
        return ReadUnion(branches, kind)
    if not isinstance(writer, Record):
        raise SchemaMismatch(
            f"values were written as {describe(writer)}, the query reads them as a record", _REMEDY
        )
    fields = {field.name: field for field in reader.fields}
    wanted = tuple(fields[name] for name in columns.names)
    return resolver.record(writer, wanted, kind, "", among=reader.fields)


_REMEDY = "Read the values with valueFormat=raw, or the query with the older schema."


def too_many_pairs() -> SchemaMismatch:
    """Return the error for versions with more than MAX_PAIRS pairs of types."""
    what = "the unions of two versions of a schema are too large, or their records"
    return SchemaMismatch(what, _REMEDY)


class _Resolver:
    """Resolves pairs of types, a limited number of them."""

    def __init__(self) -> None:
        self._pairs = 0
        self._default_bytes = 0
        # Arrow types by identity of the reader's types and unions, which the reader keeps alive.
        self._kinds: dict[int, pa.DataType] = {}
        self._members: dict[int, _Members] = {}
        # Numbers of types by identity; those that are equal but for names have the same one.
        self._shapes: dict[int, int] = {}
        self._known_shapes: dict[Node, int] = {}
        self._alike: set[tuple[int, int]] = set()

    def resolve(self, writer: Node, reader: Node, path: str, partner: int | None = None) -> Plan:
        """Return the plan for one type; Unresolvable if the types are incompatible.

        `partner` is the member of the reader's union that goes before others without the writer's
        name. Raises SchemaMismatch if only parts of the types are incompatible.
        """
        self._count_pair()
        kind = self._kind(reader, path)
        plan: Plan | None = None
        match writer, reader:
            case UnionOf(), _:
                plan = self._union(writer, reader, kind, path)
            case _, UnionOf():
                plan = self._into_union(writer, reader, kind, path, partner)
            case Primitive(), Primitive():
                plan = _primitive(writer, reader, kind)
            case Record(), Record():
                plan = self.record(writer, reader.fields, kind, path)
            case Array(), Array():
                items = self._part(writer.items, reader.items, f"{path}[]")
                plan = ReadArray(items, least_bytes(writer.items), kind)
            case Map(), Map():
                values = self._part(writer.values, reader.values, f"{path}{{}}")
                plan = ReadMap(values, 1 + least_bytes(writer.values), kind)
            case Enum(), Enum():
                known = frozenset(reader.symbols)
                words = [s if s in known else reader.default for s in writer.symbols]
                plan = ReadEnum(tuple(words), kind, known.issuperset(writer.symbols))
            case Fixed(), Fixed() if writer.size == reader.size:
                plan = _bytes(writer.size, writer.logical, kind)
            case Opaque(), Opaque():
                plan = ReadOpaque(writer.type, kind) if self._are_alike(writer, reader) else None
            case Opaque(), _:
                return self.resolve(writer.type, reader, path)
            case Reference(), _:
                return self.resolve(writer.record, reader, path)
        if plan is None:
            return Unresolvable(_misfit(writer, reader), kind)
        return plan

    def _count_pair(self) -> None:
        self._pairs += 1
        if self._pairs > MAX_PAIRS:
            raise too_many_pairs()

    def _are_alike(self, writer: Node, reader: Node) -> bool:
        """Whether the writer's values are encoded as the reader's and mean the same.

        As elsewhere, the names of types do not matter, nor do symbols and members of unions that
        the reader has behind the writer's. Pairs of records are taken to be alike until a
        difference is found.
        """
        pairs, assumed = [(writer, reader)], set(self._alike)
        while pairs:
            self._count_pair()
            one, other = pairs.pop()
            match one, other:
                case Opaque(), Opaque():
                    pairs.append((one.type, other.type))
                case Reference(), Reference():
                    # Not by number: for a default, the reader's records are compared with its own.
                    records = id(one.record), id(other.record)
                    if records not in assumed:
                        assumed.add(records)
                        pairs.append((one.record, other.record))
                case Record(), Record():
                    if [each.name for each in one.fields] != [each.name for each in other.fields]:
                        return False
                    types = zip(one.fields, other.fields, strict=True)
                    pairs += [(left.type, right.type) for left, right in types]
                case Array(), Array():
                    pairs.append((one.items, other.items))
                case Map(), Map():
                    pairs.append((one.values, other.values))
                case UnionOf(), UnionOf() if len(one.members) <= len(other.members):
                    pairs += zip(one.members, other.members, strict=False)
                case _:
                    if not _are_alike_leaves(one, other):
                        return False
        self._alike = assumed
        return True

    def _try(self, writer: Node, reader: Node, path: str, partner: int | None = None) -> Plan:
        """Return the plan for one branch; if it is Unresolvable, the caller tries another."""
        try:
            return self.resolve(writer, reader, path, partner)
        except SchemaMismatch as error:
            if self._pairs > MAX_PAIRS:
                raise
            return Unresolvable(error.what, self._kind(reader, path))

    def _kind(self, reader: Node, path: str) -> pa.DataType:
        kind = self._kinds.get(id(reader))
        if kind is None:
            kind = self._kinds[id(reader)] = arrow_type(reader, path)
        return kind

    def _part(self, writer: Node, reader: Node, path: str) -> Plan:
        return _must(self.resolve(writer, reader, path), path)

    def record(
        self,
        writer: Record,
        wanted: tuple[RecordField, ...],
        kind: pa.DataType,
        path: str,
        among: tuple[RecordField, ...] = (),
    ) -> ReadRecord:
        """Return the plan for the fields `wanted` of a record, `among` more of them."""
        prefix = f"{path}." if path else ""
        places = {field.name: place for place, field in enumerate(wanted)}
        sources = {
            number: places[name]
            for number, name in _sources(writer, among or wanted).items()
            if name in places
        }
        steps = []
        for number, field in enumerate(writer.fields):
            target = sources.get(number)
            if target is None:
                steps.append(FieldStep(field.name, skip(field.type), None))
                continue
            own = wanted[target]
            plan = self._part(field.type, own.type, prefix + own.name)
            steps.append(FieldStep(own.name, plan, target))
        found = set(sources.values())
        missing = [(i, field) for i, field in enumerate(wanted) if i not in found]
        defaults = [self._default(i, field, prefix + field.name) for i, field in missing]
        return ReadRecord(tuple(steps), tuple(item for item in defaults if item), kind)

    def _default(self, target: int, field: RecordField, path: str) -> Default | None:
        known = field.default is not NO_DEFAULT
        try:
            data = encode_default(field.type, field.default) if known else None
            self._default_bytes += len(data or b"")
            if self._default_bytes > _MAX_DEFAULTS:
                raise TooLarge
        except TooLarge:
            raise SchemaMismatch(
                f"the default of the field {path} is too large: together they may have "
                f"{_MAX_DEFAULTS} bytes",
                _REMEDY,
            ) from None
        if data is not None:
            return Default(target, self.resolve(field.type, field.type, path), data)
        if is_nullable(field.type):
            return None
        what = "a default of another type" if known else "no default"
        raise SchemaMismatch(
            f"the field {path} has {what}, and is not in the schema that values were written with",
            _REMEDY,
        )

    def _union(self, writer: UnionOf, reader: Node, kind: pa.DataType, path: str) -> Plan | None:
        partners = self._partners(writer, reader) if isinstance(reader, UnionOf) else {}
        branches = tuple(
            self._try(member, reader, path, partners.get(number))
            for number, member in enumerate(writer.members)
        )
        if all(isinstance(branch, Unresolvable) for branch in branches):
            return None
        return ReadUnion(branches, kind)

    def _members_of(self, reader: UnionOf) -> _Members:
        members = self._members.get(id(reader))
        if members is None:
            members = self._members[id(reader)] = _Members(reader)
        return members

    def _partners(self, writer: UnionOf, reader: UnionOf) -> dict[int, int]:
        """Return which members of two unions are equal but for names, in their order.

        Only those whose names the other union lacks.
        """
        members = self._members_of(reader)
        if members.sole is not None:
            return {}
        named = [members.by_name(member) for member in writer.members]
        taken = {number for found in named for number in found}
        free: dict[int, list[int]] = {}
        for number, member in enumerate(members.all):
            if number not in taken and _names(member):
                free.setdefault(self._shape(member), []).insert(0, number)
        return {
            number: alike.pop()
            for number, member in enumerate(writer.members)
            if free and not named[number]
            if (alike := free.get(self._shape(member)))
        }

    def _shape(self, node: Node) -> int:
        found = self._shapes.get(id(node))
        if found is None:
            known = self._known_shapes
            found = known.setdefault(without_names(node), len(known))
            self._shapes[id(node)] = found
        return found

    def _into_union(
        self, writer: Node, reader: UnionOf, kind: pa.DataType, path: str, partner: int | None
    ) -> Plan | None:
        if is_null(writer):
            return ReadNull(kind) if reader.nullable else None
        members = self._members_of(reader)
        if members.sole is not None:
            return self.resolve(writer, members.sole, path)
        for number in members.nearest(writer, partner):
            found = self._try(writer, members.all[number], path)
            if not isinstance(found, Unresolvable):
                return IntoMember(found, number, kind)
        return None


class _Members:
    """The members of a reader's union, indexed by name and kind."""

    def __init__(self, union: UnionOf) -> None:
        self.all = union.present
        self.sole = sole_type(union)
        self._by_type: dict[type, list[int]] = {}
        self._by_name: dict[tuple[type, str], list[int]] = {}
        for number, member in enumerate(self.all):
            self._by_type.setdefault(type(member), []).append(number)
            for name in _names(member):
                self._by_name.setdefault((type(member), name), []).append(number)
        for number, member in enumerate(self.all):
            for name in _aliases(member):
                self._by_name.setdefault((type(member), name), []).append(number)

    def by_name(self, writer: Node) -> list[int]:
        """Return the numbers of members with the name of the writer's type.

        First those with the same name, then the same name in another namespace. An alias is a name
        that comes after others.
        """
        found = (self._by_name.get((type(writer), name), ()) for name in _names(writer))
        return list(dict.fromkeys(chain.from_iterable(found)))

    def nearest(self, writer: Node, partner: int | None) -> Iterator[int]:
        """Yield the numbers of all members, the most similar to the writer's type first.

        First those with its name, then the partner, then the same kind: but for the partner, as
        Java does.
        """
        own = () if partner is None else (partner,)
        alike = self._by_type.get(type(writer), ())
        seen: set[int] = set()
        for number in chain(self.by_name(writer), own, alike, range(len(self.all))):
            if number not in seen:
                seen.add(number)
                yield number


def _names(node: Node) -> tuple[str, ...]:
    """Return the names of a union's member: the full name, and that without namespace."""
    if isinstance(node, Primitive):
        return (node.kind,)
    if isinstance(node, Opaque):
        return _names(node.type)
    if isinstance(node, Record | Enum | Fixed | Reference):
        return node.name, node.name.rpartition(".")[2]
    return ()


def _aliases(node: Node) -> Iterable[str]:
    """Return the aliases of a union's member, as `_names`."""
    aliases = node.aliases if isinstance(node, Record | Enum | Fixed) else ()
    return dict.fromkeys(name for alias in aliases for name in (alias, alias.rpartition(".")[2]))


def losses_of(plan: Plan) -> Losses:
    """Return what values lose that are read by a plan.

    Raises SchemaMismatch that lists the fields of which only nulls can be read.
    """
    lost = _Lost([], [], [])
    _find_losses(plan, "", lost)
    if lost.unfit:
        raise SchemaMismatch("; ".join(lost.unfit), _REMEDY)
    return Losses(tuple(lost.left_out), tuple(lost.partial))


@dataclass(frozen=True, slots=True)
class _Lost:
    left_out: list[str]
    partial: list[str]
    unfit: list[str]


def _find_losses(plan: Plan, path: str, lost: _Lost) -> None:
    inner: list[tuple[Plan, str]] = []
    match plan:
        case ReadRecord():
            prefix = f"{path}." if path else ""
            lost.left_out.extend(prefix + step.name for step in plan.steps if step.target is None)
            inner = [(s.plan, prefix + s.name) for s in plan.steps if s.target is not None]
        case ReadArray():
            inner = [(plan.items, f"{path}[]")]
        case ReadMap():
            inner = [(plan.values, f"{path}{{}}")]
        case ReadUnion():
            present = [each for each in plan.branches if not isinstance(each, ReadNull)]
            reasons = [each.reason for each in present if isinstance(each, Unresolvable)]
            if present and len(reasons) == len(present):
                lost.unfit.append(f"the field {path} {reasons[-1]}")
            else:
                inner = [(branch, path) for branch in plan.branches]
        case IntoMember():
            inner = [(plan.plan, path)]
        case Unresolvable():
            lost.partial.append(path)
        case ReadEnum() | ReadBytes() if not plan.is_whole:
            lost.partial.append(path)
        case ReadBytes() if pa.types.is_decimal(plan.type) and plan.precision:
            written, kept = plan.precision - plan.scale, plan.type.precision - plan.type.scale
            if plan.scale > plan.type.scale or written > kept:
                lost.partial.append(path)
    for each, at in inner:
        _find_losses(each, at, lost)


def skip(writer: Node) -> Plan:
    """Return a plan that skips a value, so lenient that it only fails if it must."""
    plan: Plan
    match writer:
        case Primitive(kind="string"):
            plan = ReadBytes(None, pa.binary())
        case Primitive(kind="int"):
            plan = ReadNumber("long", pa.int64())
        case Primitive():
            bare = Primitive(writer.kind)
            plan = _Resolver().resolve(bare, bare, "")
        case Fixed():
            plan = ReadBytes(writer.size, pa.binary())
        case Enum():
            plan = ReadNumber("long", pa.int64())
        case Array():
            items = skip(writer.items)
            plan = ReadArray(items, least_bytes(writer.items), pa.list_(items.type))
        case Map():
            values = skip(writer.values)
            kind = pa.map_(pa.binary(), values.type)
            plan = ReadMap(values, 1 + least_bytes(writer.values), kind)
        case UnionOf():
            plan = ReadUnion(tuple(skip(member) for member in writer.members), pa.null())
        case Record():
            steps = tuple(FieldStep(field.name, skip(field.type), None) for field in writer.fields)
            plan = ReadRecord(steps, (), pa.struct([]))
        case Opaque():
            plan = skip(writer.type)
        case Reference():
            plan = ReadOpaque(writer, pa.null())
    return plan


def least_bytes(node: Node) -> int:
    """Return a type's minimum size in bytes."""
    match node:
        case Primitive():
            return {"null": 0, "float": 4, "double": 8}.get(node.kind, 1)
        case Fixed():
            return node.size
        case Record():
            return sum(least_bytes(field.type) for field in node.fields)
        case UnionOf():
            return 1 + min(least_bytes(member) for member in node.members)
        case Opaque():
            return least_bytes(node.type)
        case Enum() | Array() | Map() | Reference():
            # A record within itself ends somewhere, with a list or a union.
            return 1


def describe(node: Node) -> str:
    """Describe a type in a few words."""
    match node:
        case Primitive():
            return node.logical.name if node.logical else node.kind
        case Fixed():
            return f"{node.logical.name if node.logical else 'fixed'} of {node.size} bytes"
        case UnionOf():
            shown = ", ".join(describe(member) for member in node.members[:8])
            return f"one of {shown}{', …' if len(node.members) > 8 else ''}"
        case Opaque():
            return f"{describe(node.type)} that stays {'text' if node.is_text else 'bytes'}"
        case Reference():
            return "record"
        case _:
            return type(node).__name__.lower()


def _misfit(writer: Node, reader: Node) -> str:
    """Return why no value of one type can be read as the other."""
    written, wanted = describe(writer), describe(reader)
    if isinstance(writer, Opaque) and written == wanted:
        large = f"has more than {MAX_PRECISION} digits"
        return (
            f"{'contains itself' if _is_recursive(writer.type) else large}, so it stays bytes, and "
            "its definition differs between the version that values were written with and the "
            "query's"
        )
    return f"was written as {written}, the query reads it as {wanted}"


def _is_recursive(node: Node) -> bool:
    match node:
        case Reference():
            return True
        case Array():
            return _is_recursive(node.items)
        case Map():
            return _is_recursive(node.values)
        case UnionOf():
            return any(map(_is_recursive, node.members))
    return False


def _are_alike_leaves(writer: Node, reader: Node) -> bool:
    if isinstance(writer, Enum) and isinstance(reader, Enum):
        return writer.symbols == reader.symbols[: len(writer.symbols)]
    are_plain = isinstance(writer, Primitive | Fixed) and isinstance(reader, Primitive | Fixed)
    return are_plain and without_names(writer) == without_names(reader)


def _must(plan: Plan, path: str) -> Plan:
    """Raise SchemaMismatch if no value can be resolved."""
    if isinstance(plan, Unresolvable):
        where = f"the field {path} " if path else "the value "
        raise SchemaMismatch(where + plan.reason, _REMEDY)
    return plan


def _sources(writer: Record, fields: tuple[RecordField, ...]) -> dict[int, str]:
    """Map the numbers of the writer's fields to the names of the reader's.

    An alias takes no field of a name that the reader has, unless that one is found by an alias of
    its own: fields can be renamed in turn.
    """
    numbers = {field.name: number for number, field in enumerate(writer.fields)}
    equal = {numbers[field.name]: field.name for field in fields if field.name in numbers}
    refused: set[int] = set()
    for turn in count():
        if turn == _MOST_TURNS:
            fields = tuple(field for field in fields if field.name not in numbers)
            refused |= equal.keys()
        renamed: dict[int, str] = {}
        for field in fields:
            free = (numbers[alias] for alias in field.aliases if alias in numbers)
            allowed = (each for each in free if each not in renamed and each not in refused)
            if (number := next(allowed, None)) is not None:
                renamed[number] = field.name
        kept = {number: name for number, name in equal.items() if number not in renamed}
        keepers = set(kept.values())
        read = keepers.union(renamed.values())
        unread = {number for number, name in equal.items() if name not in read}
        doubled = {number for number, name in renamed.items() if name in keepers}
        if not unread and not doubled:
            break
        refused |= unread | doubled
    return renamed | kept


_MOST_TURNS = 50
"""After so many, fields keep their names."""


def _primitive(writer: Primitive, reader: Primitive, kind: pa.DataType) -> Plan | None:
    if reader.kind not in _PROMOTIONS[writer.kind]:
        return None
    if writer.kind == "null":
        return ReadNull(kind)
    if writer.kind in ("bytes", "string"):
        is_whole = reader.kind in (writer.kind, "bytes")
        return replace(_bytes(None, writer.logical, kind), is_whole=is_whole)
    if pa.types.is_floating(kind) or writer.kind not in _WHOLE:
        return ReadNumber(writer.kind, kind)
    factor, divisor = _ratio(writer.logical, reader.logical)
    return ReadNumber(writer.kind, kind, factor, divisor)


_UNITS = {"millis": 1000, "micros": MILLION, "nanos": 1000 * MILLION}


def _ratio(writer: Logical | None, reader: Logical | None) -> tuple[int, int]:
    """Return the factors that convert a number to Spark's unit."""
    if reader is None or reader.name == "date":
        return 1, 1
    family, _, unit = reader.name.rpartition("-")
    written, _, finer = writer.name.rpartition("-") if writer else ("", "", "")
    if written == family or (written.endswith("timestamp") and family.endswith("timestamp")):
        unit = finer
    return factors(family, unit)


def units(logical: Logical) -> tuple[int, int]:
    """Return the factors that convert a type's numbers to Spark's unit."""
    family, _, unit = logical.name.rpartition("-")
    return factors(family, unit)


def factors(family: str, unit: str) -> tuple[int, int]:
    """Return the factors that convert numbers of some unit to that of Spark's column."""
    per_second, given = 1000 * MILLION if family == "time" else MILLION, _UNITS[unit]
    return (per_second // given, 1) if per_second >= given else (1, given // per_second)


def _bytes(size: int | None, writer: Logical | None, kind: pa.DataType) -> ReadBytes:
    if not pa.types.is_decimal(kind):
        return ReadBytes(size, kind)
    if writer is None or writer.name != "decimal":
        return ReadBytes(size, kind, kind.scale)
    return ReadBytes(size, kind, writer.scale, writer.precision)
