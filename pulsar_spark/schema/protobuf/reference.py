"""Protobuf values → columns by protobuf's own parser: one call for a batch, a pass for each column.

Rows are framed as one message with a repeated field, which protobuf parses in C; if that fails,
rows are parsed one by one. Each field has a reader, which reads it from all messages of its level
at once: so a list of structs is read as one column per field, for all structs of all rows. Arrays
are built from buffers.
"""

from __future__ import annotations

import secrets
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, chain, compress, count, repeat
from operator import attrgetter
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pool, message_factory, struct_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage

from pulsar_spark.schema.arrow.arrays import MAX_CELLS, binaries, booleans, integers, strings
from pulsar_spark.schema.arrow.varints import varint
from pulsar_spark.schema.codec import Decoded, Undecodable
from pulsar_spark.schema.protobuf.bounds import Counter
from pulsar_spark.schema.protobuf.types import (
    EnumType,
    Form,
    MessageField,
    MessageType,
    Presence,
    Type,
    column_type,
    message_type,
    single_type,
)
from pulsar_spark.schema.protobuf.well_known import durations, json_texts, timestamps

# How many rows are parsed at once. Measured: objects of larger chunks exceed the processor's
# caches, and Python's garbage collector scans them again and again.
_CHUNK_ROWS = 1024
_CHUNK_BYTES = 16 * 1024 * 1024

_MALFORMED = "the bytes are not a protobuf message of this schema"


class ReferenceDecoder:
    """Decodes values with one descriptor.

    As in protobuf, unknown fields are ignored, and a field with another wire type than the
    descriptor's is unknown. A value is bad as a whole if its bytes are no message; it has a bad
    field for text that is not UTF-8 and for invalid times.
    """

    def __init__(self, message: MessageType, fields: Sequence[MessageField]) -> None:
        self._class = batch_class(message, fields)
        self._counter = Counter(fields)
        harmless = self._counter.harmless
        self._chunk_bytes = _CHUNK_BYTES if harmless is None else min(_CHUNK_BYTES, harmless)
        self._types = [column_type(field) for field in fields]
        row_class = self._class().rows.add().__class__
        self._readers = [reader(field, row_class) for field in fields]

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode a binary array; null is a null value."""
        faults: dict[int, tuple[str, str]] = {}
        pieces: list[list[pa.Array]] = [[] for _ in self._types]
        read: list[int] = []
        raw = self._without_excess(raw, faults)
        for start, size in _chunks(raw, self._chunk_bytes):
            rows, messages = self._parse(raw.slice(start, size), start, faults)
            place = Place(faults, rows.__getitem__)
            for arrays, column in zip(pieces, self._readers, strict=True):
                arrays.append(column.read(messages, place))
            read += rows
        columns = [_joined(arrays, kind) for arrays, kind in zip(pieces, self._types, strict=True)]
        if faults or len(read) < len(raw):
            columns = _spread_rows(columns, read, faults, len(raw))
        bad = [Undecodable(row, *faults[row]) for row in sorted(faults)]
        return Decoded(columns, bad)

    def _without_excess(self, raw: pa.Array, faults: dict[int, tuple[str, str]]) -> pa.Array:
        """Replace values that are too large as columns by null, and add them to the faults."""
        harmless = self._counter.harmless
        if harmless is None or raw.nbytes <= harmless:
            return raw
        lengths = pc.binary_length(raw).to_pylist()
        for row, length in enumerate(lengths):
            if length is not None and length > harmless:
                reason = self._excess(raw[row].as_py())
                if reason:
                    faults[row] = ("", reason)
        if not faults:
            return raw
        return raw.take(integers([None if r in faults else r for r in range(len(raw))], pa.int32()))

    def _excess(self, value: bytes) -> str:
        try:
            fields = self._counter.count(value)
        except _PARSE_ERRORS:
            return _MALFORMED
        return f"its messages have more than {MAX_CELLS} fields" if fields > MAX_CELLS else ""

    def _parse(
        self, raw: pa.Array, start: int, faults: dict[int, tuple[str, str]]
    ) -> tuple[Sequence[int], Sequence[ProtobufMessage]]:
        """Return the messages of a chunk that starts at row `start`, and their rows."""
        rows: Sequence[int] = range(start, start + len(raw))
        if raw.null_count:
            rows = [start + row for row, there in enumerate(raw.is_valid().to_pylist()) if there]
            raw = raw.drop_null()
        framed = _frame(raw)
        try:
            return rows, self._rows(_data(framed))
        except _PARSE_ERRORS:
            pass
        good = [self._parses(framed.slice(index, 1)) for index in range(len(framed))]
        faults.update((row, ("", _MALFORMED)) for row, ok in zip(rows, good, strict=True) if not ok)
        rows = [row for row, ok in zip(rows, good, strict=True) if ok]
        whole = b"".join(_data(framed.slice(index, 1)) for index, ok in enumerate(good) if ok)
        return rows, self._rows(whole)

    def _rows(self, framed: bytes) -> Sequence[ProtobufMessage]:
        rows: Sequence[ProtobufMessage] = self._class.FromString(framed).rows[:]
        return rows

    def _parses(self, framed: pa.Array) -> bool:
        try:
            self._class.FromString(_data(framed))
        except _PARSE_ERRORS:
            return False
        return True


# Protobuf's implementation in Python raises errors that the one in C does not: for deep nesting and
# for text that is not UTF-8.
_PARSE_ERRORS = (DecodeError, RecursionError, ValueError)


def _chunks(raw: pa.Array, limit: int) -> list[tuple[int, int]]:
    """Return starts and counts of rows to parse at once: at most so many bytes, or one row."""
    if len(raw) <= _CHUNK_ROWS and raw.nbytes <= limit:
        return [(0, len(raw))]
    _, offsets, _ = raw.buffers()
    ends = memoryview(offsets).cast("i")[raw.offset : raw.offset + len(raw) + 1]
    chunks = []
    start = 0
    while start < len(raw):
        count = min(_CHUNK_ROWS, len(raw) - start)
        if ends[start + count] - ends[start] > limit:
            # The last end within the limit.
            count = max(
                1, bisect_right(ends, ends[start] + limit, start + 1, start + count) - 1 - start
            )
        chunks.append((start, count))
        start += count
    return chunks


def _frame(raw: pa.Array) -> pa.Array:
    """Return the rows with their lengths before them, as fields of an enclosing message."""
    lengths = pc.binary_length(raw).dictionary_encode()
    distinct = [FRAME_TAG + varint(length) for length in lengths.dictionary.to_pylist()]
    heads = binaries(distinct).take(lengths.indices)
    return pc.binary_join_element_wise(heads, raw, binaries([b""])[0])


def _data(array: pa.Array) -> bytes:
    """Return the joined bytes of all values."""
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return b""
    ends = memoryview(offsets).cast("i")
    start, end = ends[array.offset], ends[array.offset + len(array)]
    return bytes(memoryview(data)[start:end])


def _joined(arrays: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    if not arrays:
        return pa.nulls(0, kind)
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _spread_rows(
    columns: Sequence[pa.Array], read: Sequence[int], faults: dict[int, tuple[str, str]], count: int
) -> list[pa.Array]:
    """Return the columns with null in rows that were not read or have faults."""
    places: list[int | None] = [None] * count
    for index, row in enumerate(read):
        if row not in faults:
            places[row] = index
    indices = integers(places, pa.int32())
    return [column.take(indices) for column in columns]


Convert = Callable[[Sequence[Any], "pa.Buffer | None", "Place"], pa.Array]
"""Makes an array of scalars from their values, their validity and their place."""

_CODES: dict[int, str] = {
    Type.TYPE_INT32: "i",
    Type.TYPE_SINT32: "i",
    Type.TYPE_SFIXED32: "i",
    Type.TYPE_UINT32: "q",
    Type.TYPE_FIXED32: "q",
    Type.TYPE_INT64: "q",
    Type.TYPE_SINT64: "q",
    Type.TYPE_SFIXED64: "q",
    # Their bits: Python's floats do not keep those of every NaN.
    Type.TYPE_FLOAT: "I",
    Type.TYPE_DOUBLE: "Q",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the current messages are: each one's row, and where to report errors."""

    faults: dict[int, tuple[str, str]]
    row: Callable[[int], int]

    def report(self, index: int, path: str, reason: str) -> None:
        """Report an error in a message's row; its first error counts."""
        self.faults.setdefault(self.row(index), (path, reason))

    def within(self, parents: Callable[[], Sequence[int]]) -> Place:
        """Return the place of messages nested in these; calls `parents` for their indexes."""
        known = cache(parents)
        return Place(self.faults, lambda index: self.row(known()[index]))

    def behind(self, count: int) -> Place:
        """Return the place of the messages after the first `count`."""
        return Place(self.faults, lambda index: self.row(count + index))


class Reader(Protocol):
    """Reads one field from messages."""

    def read(self, messages: Sequence[Any], place: Place) -> pa.Array:
        """Return the field's column, with one element per message."""


def reader(field: MessageField, owner: type[Any], path: str = "") -> Reader:
    """Return the reader of a field at `path`, for messages of the class `owner`."""
    path = f"{path}.{field.name}" if path else field.name
    if not field.repeated:
        if field.message is None:
            return _Scalar(field, owner, path)
        return _Single(field, owner, path)
    if field.message is not None and field.message.is_entry:
        return _Map(field, owner, path)
    return _List(field, owner, path)


# --- scalars ------------------------------------------------------------------------------


class _Scalar:
    """A field with one value; null if it is absent and has presence."""

    def __init__(self, field: MessageField, owner: type[Any], path: str) -> None:
        self._name = attribute(field)
        self._get = attrgetter(self._name)
        self._convert = scalar_converter(field, path)
        self._nullable = field.presence is not Presence.IMPLICIT
        self._always_ask = field.type == Type.TYPE_BOOL
        self._absent = self._get(owner())

    def read(self, messages: Sequence[Any], place: Place) -> pa.Array:
        values: Sequence[Any] = list(map(self._get, messages))
        if not self._nullable or not (self._always_ask or self._absent in values):
            return self._convert(values, None, place)
        there = [
            (value != self._absent and not self._always_ask) or message.HasField(self._name)
            for value, message in zip(values, messages, strict=True)
        ]
        filler = type(self._absent)()
        values = [value if ok else filler for value, ok in zip(values, there, strict=True)]
        return self._convert(values, bits(there), place)


def bits(flags: Sequence[bool]) -> pa.Buffer:
    """Return flags as an Arrow validity bitmap."""
    return booleans(flags).buffers()[1]


def scalar_converter(field: MessageField, path: str) -> Convert:
    """Return the function that makes an array of a field's values."""
    if field.type in _CODES:
        return _numbers(_CODES[field.type], single_type(field))
    if field.type == Type.TYPE_STRING:
        return _texts(path)
    if field.type == Type.TYPE_BYTES:
        return _bytes
    if field.type == Type.TYPE_BOOL:
        return _truths
    if field.enum is not None:
        return _enums(field.enum)
    return _unsigned


def _numbers(code: str, kind: pa.DataType) -> Convert:
    def convert(values: Sequence[Any], validity: pa.Buffer | None, place: Place) -> pa.Array:
        return pa.Array.from_buffers(kind, len(values), [validity, packed(code, values)])

    return convert


def packed(code: str, values: Sequence[Any]) -> pa.Buffer:
    """Return packed numbers; `code` is one of the module `struct`."""
    return pa.py_buffer(struct.pack(f"={len(values)}{code}", *values))


def _unsigned(values: Sequence[int], validity: pa.Buffer | None, place: Place) -> pa.Array:
    numbers = pa.Array.from_buffers(pa.uint64(), len(values), [validity, packed("Q", values)])
    return numbers.cast(pa.decimal128(20, 0))


def _truths(values: Sequence[bool], validity: pa.Buffer | None, place: Place) -> pa.Array:
    numbers = pa.Array.from_buffers(
        pa.uint8(), len(values), [validity, pa.py_buffer(bytes(values))]
    )
    return numbers.cast(pa.bool_())


def _bytes(
    values: Sequence[bytes],
    validity: pa.Buffer | None,
    place: Place,
    kind: pa.DataType = pa.binary(),  # noqa: B008
) -> pa.Array:
    offsets = packed("i", list(accumulate(map(len, values), initial=0)))
    data = pa.py_buffer(b"".join(values))
    return pa.Array.from_buffers(kind, len(values), [validity, offsets, data])


def _texts(path: str) -> Convert:
    def convert(values: Sequence[bytes], validity: pa.Buffer | None, place: Place) -> pa.Array:
        array = _bytes(values, validity, place, pa.string())
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            values = [_checked(value, i, path, place) for i, value in enumerate(values)]
            return _bytes(values, validity, place, pa.string())
        return array

    return convert


def _checked(value: bytes, index: int, path: str, place: Place) -> bytes:
    try:
        value.decode()
    except UnicodeDecodeError:
        place.report(index, path, "the text is not UTF-8")
        return b""
    return value


def _enums(enum: EnumType) -> Convert:
    to_numbers = _numbers("i", pa.int32())

    def convert(values: Sequence[int], validity: pa.Buffer | None, place: Place) -> pa.Array:
        found = to_numbers(values, validity, place).dictionary_encode()
        names = [enum.names.get(number, str(number)) for number in found.dictionary.to_pylist()]
        return strings(names).take(found.indices)

    return convert


# --- messages -----------------------------------------------------------------------------


class _Single:
    """A field with one message, null if it is absent."""

    def __init__(self, field: MessageField, owner: type[Any], path: str) -> None:
        assert field.message is not None
        self._name = attribute(field)
        self._get = attrgetter(self._name)
        # A map entry without a value has an empty message.
        self._nullable = field.presence is not Presence.IMPLICIT
        self._content = _content(field.message, type(self._get(owner())), path)

    def read(self, messages: Sequence[Any], place: Place) -> pa.Array:
        name = self._name
        there = [message.HasField(name) for message in messages] if self._nullable else [True]
        if all(there):
            return self._content(list(map(self._get, messages)), place)
        inner = place.within(lambda: list(compress(count(), there)))
        array = self._content(list(map(self._get, compress(messages, there))), inner)
        places = count()
        return array.take(integers([next(places) if ok else None for ok in there], pa.int32()))


Content = Callable[[Sequence[Any], Place], pa.Array]
"""Makes an array of messages."""


def _content(message: MessageType, own: type[Any], path: str) -> Content:
    match message.form:
        case Form.EMPTY:
            return lambda messages, place: booleans([True] * len(messages))
        case Form.BYTES:
            return lambda messages, place: _bytes(
                [each.SerializeToString() for each in messages], None, place
            )
        case Form.JSON:
            return lambda messages, place: json_texts(
                messages, lambda i, reason: place.report(i, path, reason)
            )
        case Form.TIMESTAMP | Form.DURATION:
            make = timestamps if message.form is Form.TIMESTAMP else durations
            return lambda messages, place: make(
                list(map(attrgetter("f1"), messages)),
                list(map(attrgetter("f2"), messages)),
                lambda i, reason: place.report(i, path, reason),
            )
        case Form.WRAPPER | Form.FIELD_MASK:
            return reader(message.fields[0], own, path).read
    kind = message_type(message)
    readers = [reader(field, own, path) for field in message.fields]

    def read(messages: Sequence[Any], place: Place) -> pa.Array:
        children = [each.read(messages, place) for each in readers]
        return pa.Array.from_buffers(kind, len(messages), [None], children=children)

    return read


# --- repeated fields ----------------------------------------------------------------------


class _List:
    """A repeated field."""

    def __init__(self, field: MessageField, owner: type[Any], path: str) -> None:
        self._get = attrgetter(attribute(field))
        self._kind = column_type(field)
        self._content: Content
        if field.message is not None:
            element = type(self._get(owner()).add())
            self._content = _content(field.message, element, path)
        else:
            convert = scalar_converter(field, path)
            self._content = lambda values, place: convert(values, None, place)

    def read(self, messages: Sequence[Any], place: Place) -> pa.Array:
        lists = list(map(self._get, messages))
        lengths = list(map(len, lists))
        inner = place.within(lambda: parents(lengths))
        (elements,) = _read_parts(_parts(lists), inner, self._content)
        return nested(self._kind, lengths, elements)


# Protobuf keeps a table of all message objects by address, whose entries collide if there are many:
# creating a million takes 80 seconds at once, 0.7 in parts of 16,384 with a good memory layout, 0.1
# in parts of 256.
_MOST_AT_ONCE = 256


def _parts(lists: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the elements of protobuf's lists, at least once, in parts of limited size."""
    part: list[Any] = []
    for each in lists:
        # Slicing is faster than indexing.
        start, end = 0, len(each)
        while end - start >= _MOST_AT_ONCE - len(part):
            stop = start + _MOST_AT_ONCE - len(part)
            yield part + each[start:stop]
            part, start = [], stop
        part += each[start:]
    yield part


def _read_parts(parts: Iterable[Sequence[Any]], place: Place, *contents: Content) -> list[pa.Array]:
    """Return an array for each of `contents`, from all parts."""
    found: list[list[pa.Array]] = [[] for _ in contents]
    before = 0
    for part in parts:
        here = place.behind(before) if before else place
        for arrays, content in zip(found, contents, strict=True):
            arrays.append(content(part, here))
        before += len(part)
    return [arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays) for arrays in found]


def parents(lengths: Sequence[int]) -> list[int]:
    """Return each element's list."""
    return list(chain.from_iterable(map(repeat, range(len(lengths)), lengths)))


def nested(kind: pa.DataType, lengths: Sequence[int], elements: pa.Array) -> pa.Array:
    """Return lists with these lengths, or maps with these entries."""
    offsets = packed("i", list(accumulate(lengths, initial=0)))
    return pa.Array.from_buffers(kind, len(lengths), [None, offsets], children=[elements])


class _Map:
    """A map: the last entry of a repeated key counts."""

    def __init__(self, field: MessageField, owner: type[Any], path: str) -> None:
        assert field.message is not None
        self._get = attrgetter(attribute(field))
        self._kind = column_type(field)
        entry = type(self._get(owner()).add())
        key, value = field.message.fields
        self._key = attrgetter(attribute(key))
        self._keys = reader(key, entry, path)
        self._values = reader(value, entry, path)
        self._entry = pa.struct([self._kind.key_field, self._kind.item_field])

    def read(self, messages: Sequence[Any], place: Place) -> pa.Array:
        lists = list(map(self._get, messages))
        lengths = list(map(len, lists))
        parts = _parts(lists)
        if max(lengths, default=0) > 1:
            lengths, counts = self._last(lists, lengths)
            parts = _chosen(parts, counts) if counts else parts
        inner = place.within(lambda: parents(lengths))
        keys, values = _read_parts(parts, inner, self._keys.read, self._values.read)
        # Arrow 15 crashes on keys whose nulls were not counted, so count them.
        nulls = keys.null_count
        pairs = pa.Array.from_buffers(
            self._entry, len(keys), [None], nulls, children=[keys, values]
        )
        return nested(self._kind, lengths, pairs)

    def _last(self, lists: Sequence[Any], lengths: list[int]) -> tuple[list[int], bytearray]:
        """Return each map's number of keys, and flags of their last entries; none if all are."""
        keys = [key for part in _parts(lists) for key in map(self._key, part)]
        last = dict(zip(zip(parents(lengths), keys, strict=True), count(), strict=False))
        if len(last) == len(keys):
            return lengths, bytearray()
        left, counts = [0] * len(lengths), bytearray(len(keys))
        for (owner, _), index in last.items():
            left[owner] += 1
            counts[index] = 1
        return left, counts


def _chosen(parts: Iterable[Sequence[Any]], flags: bytearray) -> Iterator[list[Any]]:
    """Yield the flagged elements of parts."""
    before = 0
    for part in parts:
        yield list(compress(part, flags[before : before + len(part)]))
        before += len(part)


# --- message classes: the schema's field numbers in our own descriptors -----------------------
#
# They have only the requested fields, under names that no method has. All are proto2, which has the
# same wire format. Strings are bytes (Arrow checks UTF-8, and no text objects are made), enums are
# numbers (unknown ones are kept), floats are their bits, map entries are messages (their order is
# kept). A field that can be absent has a random default, so `HasField` is only called if this
# default is found.

_PACKAGE = "columns"
_READ_AS: dict[int, int] = {
    Type.TYPE_STRING: Type.TYPE_BYTES,
    Type.TYPE_ENUM: Type.TYPE_INT32,
    Type.TYPE_FLOAT: Type.TYPE_FIXED32,
    Type.TYPE_DOUBLE: Type.TYPE_FIXED64,
}
_BATCH = "Batch"
_ROWS = 1

FRAME_TAG = bytes([_ROWS << 3 | 2])
"""The bytes before each row's length in a batch."""


def attribute(field: MessageField) -> str:
    """Return a field's name in this module's classes."""
    return f"f{field.number}"


def batch_class(message: MessageType, fields: Sequence[MessageField]) -> Any:
    """Return the class of a batch: its `rows` are messages with these fields of `message`."""
    file = FileDescriptorProto(
        name="columns.proto",
        package=_PACKAGE,
        syntax="proto2",
        dependency=[struct_pb2.DESCRIPTOR.name],
    )
    builder = _Builder(file)
    row = builder.add(fields, others_of_oneofs(message, fields))
    batch = file.message_type.add(name=_BATCH)
    batch.field.add(
        name="rows",
        number=_ROWS,
        label=Type.LABEL_REPEATED,
        type=Type.TYPE_MESSAGE,
        type_name=f".{_PACKAGE}.{row}",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{_BATCH}"))


def others_of_oneofs(message: MessageType, fields: Sequence[MessageField]) -> list[MessageField]:
    """Return the other members of the fields' oneofs: a later one clears an earlier one."""
    oneofs = {field.oneof for field in fields if field.oneof}
    asked_for = {field.number for field in fields}
    return [
        each for each in message.fields if each.oneof in oneofs and each.number not in asked_for
    ]


class _Builder:
    """Adds message types to a file, each once."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._names: dict[int, str] = {}

    def add(self, fields: Sequence[MessageField], only_noticed: Sequence[MessageField] = ()) -> str:
        """Add a message type with these fields, and with fields whose content does not matter."""
        # Messages refer to their fields, so no other tuple can get the same identity.
        known = self._names.get(id(fields))
        if known is not None:
            return known
        name = f"M{len(self._names)}"
        self._names[id(fields)] = name
        proto = DescriptorProto(name=name)
        for field in fields:
            self._add_field(proto, field)
        for field in only_noticed:
            self._add_field(proto, _noticed(field))
        _add_oneofs(proto, [*fields, *only_noticed])
        self._file.message_type.append(proto)
        return name

    def _add_field(self, proto: DescriptorProto, field: MessageField) -> None:
        kind = _READ_AS.get(field.type, field.type)
        label = Type.LABEL_REPEATED if field.repeated else Type.LABEL_OPTIONAL
        added = proto.field.add(name=attribute(field), number=field.number, type=kind, label=label)
        if field.message is not None:
            added.type_name = self._message_name(field.message)
        elif not field.repeated:
            default = _default(kind, field)
            if default is not None:
                added.default_value = default

    def _message_name(self, message: MessageType) -> str:
        if message.form is Form.JSON:
            return f".{message.name}"
        return f".{_PACKAGE}.{self.add(message.fields)}"


def _noticed(field: MessageField) -> MessageField:
    if field.type != Type.TYPE_MESSAGE:
        return field
    return replace(field, type=Type.TYPE_BYTES, message=None)


def _add_oneofs(proto: DescriptorProto, fields: Sequence[MessageField]) -> None:
    """Add the fields' oneofs, in the message's order."""
    indexes: dict[str, int] = {}
    for added, field in zip(proto.field, fields, strict=True):
        if field.oneof:
            if field.oneof not in indexes:
                indexes[field.oneof] = len(indexes)
                # Oneofs and fields must have different names; fields use `attribute`.
                proto.oneof_decl.add(name=f"one_of_{len(proto.oneof_decl)}")
            added.oneof_index = indexes[field.oneof]


def _default(kind: int, field: MessageField) -> str | None:
    """Return the default as descriptors write it."""
    value = default_of(field) if field.presence is Presence.IMPLICIT else _random(kind)
    if value is None:
        return None
    if kind == Type.TYPE_BYTES:
        return "".join(f"\\{byte:03o}" for byte in value)
    if kind == Type.TYPE_BOOL:
        return "true" if value else "false"
    return repr(value)


def default_of(field: MessageField) -> Any:
    """Return a field's default as it is read: text as UTF-8, a float as its bits; None if 0."""
    value = field.default
    if value is None or field.type not in (*_PACKED, Type.TYPE_STRING):
        return value
    if field.type == Type.TYPE_STRING:
        return value.encode()
    return int.from_bytes(struct.pack(_PACKED[field.type], value), "little")


_PACKED: dict[int, str] = {Type.TYPE_FLOAT: "<f", Type.TYPE_DOUBLE: "<d"}


def _random(kind: int) -> Any:
    if kind == Type.TYPE_BOOL:
        return None
    if kind == Type.TYPE_BYTES:
        return secrets.token_bytes(16)
    # At least 31 bits, which all integer types have.
    wide = kind in (Type.TYPE_INT64, Type.TYPE_SINT64, Type.TYPE_SFIXED64)
    wide = wide or kind in (Type.TYPE_UINT64, Type.TYPE_FIXED64)
    return secrets.randbits(62 if wide else 31)
