"""Avro values one by one: turns a plan into a function that reads a value from bytes.

Avro 1.12 specification, Binary Encoding. The plain reference of the kernel's decoder
(`native/src/avro.rs`), which it also tells what is wrong with a value and where. Values have the
form that `arrow/arrays` accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, TypeAlias

import pyarrow as pa

from pulsar_spark.schema.arrow.arrays import MAX_CELLS, widened, widest_item
from pulsar_spark.schema.avro.definition import (
    Array,
    Enum,
    Fixed,
    Map,
    Node,
    Opaque,
    Primitive,
    Record,
    Reference,
    UnionOf,
)
from pulsar_spark.schema.avro.resolution import (
    IntoMember,
    Plan,
    ReadArray,
    ReadBytes,
    ReadEnum,
    ReadMap,
    ReadNull,
    ReadNumber,
    ReadOpaque,
    ReadRecord,
    ReadUnion,
    Unresolvable,
)
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.column_decoder import MAX_EMPTY_ITEMS

_FLOAT = Struct("<f")
_DOUBLE = Struct("<d")
_DOUBLE_BITS = Struct("<Q")
_DURATION = Struct("<3I")
_LONGEST = 63


class ValueCursor:
    """The current position in one value's bytes."""

    __slots__ = ("cells", "data", "empty_items", "pos")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0
        self.empty_items = 0
        self.cells = 0


Read: TypeAlias = Callable[[ValueCursor], Any]


def read_value(read: Read, data: bytes) -> Any:
    """Return the value in some bytes; raises Mismatch, also for bytes after it."""
    cursor = ValueCursor(data)
    value = read(cursor)
    if cursor.pos != len(data):
        raise Mismatch(f"{len(data) - cursor.pos} bytes follow the value")
    return value


def reader_of(plan: Plan) -> Read:
    """Return the function that reads values of a plan."""
    return _READERS[type(plan)](plan)


def read_long(cursor: ValueCursor) -> int:
    """Read a whole number: zigzag, at most 10 bytes and 64 bits."""
    data, pos = cursor.data, cursor.pos
    shift = number = 0
    try:
        byte = data[pos]
        if byte < 128:
            cursor.pos = pos + 1
            return (byte >> 1) ^ -(byte & 1)
        while (byte := data[pos]) > 127:
            number |= (byte & 127) << shift
            shift += 7
            pos += 1
            if shift > _LONGEST:
                raise Mismatch("a number has more than 10 bytes")
    except IndexError:
        raise Mismatch("the value ends within a number") from None
    number |= byte << shift
    if number >> 64:
        raise Mismatch("a number has more than 64 bits")
    cursor.pos = pos + 1
    return (number >> 1) ^ -(number & 1)


def _take(cursor: ValueCursor, size: int) -> bytes:
    data, start = cursor.data, cursor.pos
    end = start + size
    if size < 0 or end > len(data):
        raise Mismatch(f"{size} bytes are announced, {len(data) - start} are left")
    cursor.pos = end
    return data[start:end]


def _read_null(_cursor: ValueCursor) -> None:
    return None


def _read_int(cursor: ValueCursor) -> int:
    number = read_long(cursor)
    if not -(2**31) <= number < 2**31:
        raise Mismatch(f"{number} does not fit an int of 32 bits")
    return number


def _read_boolean(cursor: ValueCursor) -> bool:
    byte = _take(cursor, 1)[0]
    if byte > 1:
        raise Mismatch(f"the byte {byte} is not a boolean")
    return byte == 1


_WHOLE: dict[str, Read] = {"boolean": _read_boolean, "int": _read_int, "long": read_long}
_SIZES = {"float": 4, "double": 8}


def _number(plan: ReadNumber) -> Read:
    if pa.types.is_floating(plan.type):
        return _floating(plan)
    read = _WHOLE[plan.kind]
    factor, divisor = plan.factor, plan.divisor
    if factor == divisor:
        return read

    def scaled(cursor: ValueCursor) -> int:
        number: int = read(cursor) * factor // divisor
        if not -(2**63) <= number < 2**63:
            raise Mismatch("a time lies beyond what 64 bits hold in Spark's unit")
        return number

    return scaled


def _floating(plan: ReadNumber) -> Read:
    """Return a reader of floats or doubles, as bytes: Python floats do not keep every NaN."""
    is_float = pa.types.is_float32(plan.type)
    if plan.kind in _WHOLE:
        read, convert = _WHOLE[plan.kind], to_float if is_float else _to_double
        return lambda cursor: convert(read(cursor))
    size = _SIZES[plan.kind]
    if size == plan.type.bit_width // 8:
        return lambda cursor: _take(cursor, size)
    return lambda cursor: widened(_take(cursor, size))


def _to_double(number: int) -> bytes:
    return _DOUBLE.pack(number)


def to_float(number: int) -> bytes:
    """Return the float nearest to a 64-bit integer."""
    nearest = float(number)
    if int(nearest) != number:
        # Rounding to double and then to float would round twice. If a double's last bit says that
        # more bits followed, it is on the same side of all floats as the number.
        (bits,) = _DOUBLE_BITS.unpack(_DOUBLE.pack(nearest))
        if abs(int(nearest)) > abs(number):
            bits -= 1
        (nearest,) = _DOUBLE.unpack(_DOUBLE_BITS.pack(bits | 1))
    return _FLOAT.pack(nearest)


def _bytes(plan: ReadBytes) -> Read:
    size = plan.size
    raw = _read_sized if size is None else lambda cursor: _take(cursor, size)
    convert = conversion(plan)
    if convert is None:
        return raw
    return _read_text if convert is _text else lambda cursor: convert(raw(cursor))


def _read_sized(cursor: ValueCursor) -> bytes:
    return _take(cursor, read_long(cursor))


def _read_text(cursor: ValueCursor) -> bytes:
    return _text(_take(cursor, read_long(cursor)))


def conversion(plan: ReadBytes) -> Callable[[bytes], Any] | None:
    """Return the conversion from bytes to a value, None if there is none; it may raise Mismatch."""
    if pa.types.is_decimal(plan.type):
        return _decimal(plan)
    if pa.types.is_struct(plan.type):
        return lambda raw: list(_DURATION.unpack(raw))
    if pa.types.is_string(plan.type):
        return _uuid if plan.size is not None else _text
    return None


def _text(raw: bytes) -> bytes:
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError:
            raise Mismatch("a text is not UTF-8") from None
    return raw


def _uuid(raw: bytes) -> bytes:
    digits = raw.hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(parts).encode()


def _decimal(plan: ReadBytes) -> Callable[[bytes], int]:
    precision, scale = plan.type.precision, plan.type.scale
    bound: int = 10**precision
    factor: int = 10 ** max(scale - plan.scale, 0)
    divisor: int = 10 ** max(plan.scale - scale, 0)

    def convert(raw: bytes) -> int:
        scaled: int = int.from_bytes(raw, "big", signed=True) * factor
        number, rest = scaled // divisor, scaled % divisor
        if rest or not -bound < number < bound:
            raise Mismatch(f"a decimal does not fit decimal({precision},{scale})")
        return number

    return convert


def _enum(plan: ReadEnum) -> Read:
    words = [None if word is None else word.encode() for word in plan.symbols]

    def read(cursor: ValueCursor) -> bytes:
        word = words[_symbol(cursor, len(words))]
        if word is None:
            raise Mismatch("an enum has a symbol that the query's schema does not know")
        return word

    return read


def _symbol(cursor: ValueCursor, count: int) -> int:
    number = read_long(cursor)
    if not 0 <= number < count:
        raise Mismatch(f"an enum of {count} symbols has the number {number}")
    return number


def _blocks(plan: ReadArray | ReadMap) -> Read:
    """Avro 1.12, Arrays and Maps: blocks with a count and items, until a count of 0."""
    least = plan.least
    step = "[]"
    if isinstance(plan, ReadArray):
        read_item = reader_of(plan.items)
    else:
        step, read_item = "{}", _pair(plan)

    fields = widest_item(plan.type)

    def read(cursor: ValueCursor) -> Any:
        items: list[Any] = []
        while count := read_long(cursor):
            if count < 0:
                # A negative count is followed by the block's size, for skipping it.
                count = -count
                read_long(cursor)
            _check_count(cursor, count, least, fields)
            try:
                for _ in range(count):
                    items.append(read_item(cursor))
            except Mismatch as error:
                raise error.within(step) from None
        return items if step == "[]" else list(dict(items).items())

    return read


def _check_count(cursor: ValueCursor, count: int, least: int, fields: int) -> None:
    left = len(cursor.data) - cursor.pos
    if count * least > left:
        raise Mismatch(f"{count} items are announced, {left} bytes are left")
    if not least:
        cursor.empty_items += count * fields
        if cursor.empty_items > MAX_EMPTY_ITEMS:
            raise Mismatch(f"a value has more than {MAX_EMPTY_ITEMS} items that take no bytes")
    cursor.cells += count * fields
    if cursor.cells > MAX_CELLS:
        raise Mismatch(f"the lists of a value have more than {MAX_CELLS} fields")


def _pair(plan: ReadMap) -> Read:
    read_key = _bytes(ReadBytes(None, plan.type.key_type))
    read = reader_of(plan.values)
    return lambda cursor: (read_key(cursor), read(cursor))


def _record(plan: ReadRecord) -> Read:
    steps = [(step.name, reader_of(step.plan), step.target) for step in plan.steps]
    template: list[Any] = [None] * plan.type.num_fields
    for default in plan.defaults:
        template[default.target] = read_value(reader_of(default.plan), default.data)

    def read(cursor: ValueCursor) -> list[Any]:
        out = template.copy()
        current = ""
        try:
            for name, read_field, target in steps:
                current = name
                value = read_field(cursor)
                if target is not None:
                    out[target] = value
        except Mismatch as error:
            raise error.within(current) from None
        return out

    return read


def _union(plan: ReadUnion) -> Read:
    branches = [reader_of(branch) for branch in plan.branches]

    return lambda cursor: branches[_branch(cursor, len(branches))](cursor)


def _branch(cursor: ValueCursor, count: int) -> int:
    number = read_long(cursor)
    if not 0 <= number < count:
        raise Mismatch(f"a union of {count} types has the number {number}")
    return number


def _member(plan: IntoMember) -> Read:
    read_member = reader_of(plan.plan)
    missing = [None] * plan.type.num_fields
    place = plan.member

    def read(cursor: ValueCursor) -> list[Any]:
        out: list[Any] = missing.copy()
        out[place] = read_member(cursor)
        return out

    return read


def _unresolvable(plan: Unresolvable) -> Read:
    def read(_cursor: ValueCursor) -> Any:
        raise Mismatch(plan.reason)

    return read


# --- types without a column -------------------------------------------------------------------


def check_encoding(node: Node, data: bytes) -> None:
    """Raise Mismatch unless some bytes are a value of a type."""
    read_value(lambda cursor: _pass(cursor, node, strict=True), data)


def _opaque(plan: ReadOpaque) -> Read:
    node = plan.node
    if pa.types.is_null(plan.type):
        return lambda cursor: _pass(cursor, node, strict=False)

    def read(cursor: ValueCursor) -> bytes:
        start = cursor.pos
        _pass(cursor, node, strict=True)
        return cursor.data[start : cursor.pos]

    return read


_READERS: dict[type[Plan], Callable[[Any], Read]] = {
    ReadNull: lambda _: _read_null,
    ReadNumber: _number,
    ReadBytes: _bytes,
    ReadEnum: _enum,
    ReadArray: _blocks,
    ReadMap: _blocks,
    ReadRecord: _record,
    ReadUnion: _union,
    IntoMember: _member,
    ReadOpaque: _opaque,
    Unresolvable: _unresolvable,
}

_CHECKED: dict[str, Read] = {
    **_WHOLE,
    "null": _read_null,
    "float": lambda cursor: _take(cursor, 4),
    "double": lambda cursor: _take(cursor, 8),
    "bytes": _read_sized,
    "string": _read_text,
}
_LENIENT: dict[str, Read] = {**_CHECKED, "int": read_long, "string": _read_sized}


def _pass(cursor: ValueCursor, node: Node, *, strict: bool) -> None:
    """Pass over a value, however deep it is; without `strict`, only its extent matters."""
    leaves = _CHECKED if strict else _LENIENT
    ahead = [iter((node,))]
    # The records that begin where the last one begins: to begin one twice would never end.
    begun: set[int] = set()
    start = -1
    while ahead:
        found = next(ahead[-1], None)
        if found is None:
            ahead.pop()
            continue
        cursor.cells += 1
        if cursor.cells > MAX_CELLS:
            raise Mismatch(f"a value has more than {MAX_CELLS} parts")
        if isinstance(found, Primitive):
            leaves[found.kind](cursor)
            continue
        if isinstance(found, Reference):
            if cursor.pos > start:
                begun, start = set(), cursor.pos
            if found.number in begun:
                raise Mismatch("a record always contains itself, so that no value ends")
            begun.add(found.number)
        ahead.append(_parts(cursor, found, leaves["string"], strict))


def _parts(cursor: ValueCursor, node: Node, read_text: Read, strict: bool) -> Iterator[Node]:
    """Yield the type of each part when its turn comes; it is passed over before the next turn."""
    match node:
        case Record():
            for field in node.fields:
                yield field.type
        case Reference():
            yield node.record
        case Opaque():
            yield node.type
        case UnionOf():
            yield node.members[_branch(cursor, len(node.members))]
        case Array():
            for _ in _items(cursor):
                yield node.items
        case Map():
            for _ in _items(cursor):
                read_text(cursor)
                yield node.values
        case Fixed():
            _take(cursor, node.size)
        case Enum() if strict:
            _symbol(cursor, len(node.symbols))
        case Enum():
            read_long(cursor)


def _items(cursor: ValueCursor) -> Iterator[None]:
    """Yield for each item of a list, which is passed over before the next turn."""
    while count := read_long(cursor):
        if count < 0:
            count = -count
            read_long(cursor)
        for _ in range(count):
            start = cursor.pos
            yield
            if cursor.pos == start:
                _check_count(cursor, 1, 0, 1)
