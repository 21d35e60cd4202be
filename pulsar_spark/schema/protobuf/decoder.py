"""Protobuf's values to columns: a batch is parsed by one call, each column read in one pass.

The rows are framed as one message with a repeated field, which protobuf parses in C; what cannot
be parsed so is looked for row by row. The columns themselves are in `protobuf/reading`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage

from pulsar_spark.schema.arrow.arrays import binaries, integers
from pulsar_spark.schema.codec import Decoded, Undecodable
from pulsar_spark.schema.protobuf.bounds import MAX_CELLS, Counter
from pulsar_spark.schema.protobuf.classes import FRAME_TAG, batch_class
from pulsar_spark.schema.protobuf.columns import column_type
from pulsar_spark.schema.protobuf.reading import Place, reader
from pulsar_spark.schema.protobuf.types import Field, Message
from pulsar_spark.schema.protobuf.wire import varint

# A chunk of rows is parsed at once. Its size is measured: the objects of larger ones leave the
# processor's caches, and Python's collector of garbage goes over them again and again.
_CHUNK_ROWS = 1024
_CHUNK_BYTES = 16 * 1024 * 1024

_MALFORMED = "the bytes are no protobuf message of this schema"


class ProtobufDecoder:
    """Decodes values with one descriptor.

    Unknown fields are passed over, and those of another wire type than the descriptor's are
    unknown, as protobuf has it. A value is bad as a whole if its bytes are no message, and by a
    field for text that is not UTF-8 and times that are none.
    """

    def __init__(self, message: Message, fields: Sequence[Field]) -> None:
        self._class = batch_class(message, fields)
        self._counter = Counter(fields)
        harmless = self._counter.harmless
        self._chunk_bytes = _CHUNK_BYTES if harmless is None else min(_CHUNK_BYTES, harmless)
        self._types = [column_type(field) for field in fields]
        row_class = self._class().rows.add().__class__
        self._readers = [reader(field, row_class) for field in fields]

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode a binary array; null is a value that is null."""
        faults: dict[int, tuple[str, str]] = {}
        pieces: list[list[pa.Array]] = [[] for _ in self._types]
        read: list[int] = []
        raw = self._without_excess(raw, faults)
        for start, count in _chunks(raw, self._chunk_bytes):
            rows, messages = self._parse(raw.slice(start, count), start, faults)
            place = Place(faults, rows.__getitem__)
            for arrays, column in zip(pieces, self._readers, strict=True):
                arrays.append(column.read(messages, place))
            read += rows
        columns = [_joined(arrays, kind) for arrays, kind in zip(pieces, self._types, strict=True)]
        if faults or len(read) < len(raw):
            columns = _spread(columns, read, faults, len(raw))
        bad = [Undecodable(row, *faults[row]) for row in sorted(faults)]
        return Decoded(columns, bad)

    def _without_excess(self, raw: pa.Array, faults: dict[int, tuple[str, str]]) -> pa.Array:
        """Return the values with null for those that would hold too much, and note these."""
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
        """Return the messages of a chunk that begins at row `start`, and which rows they are."""
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


# The implementation in Python lets errors through that the one in C does not know: of nesting too
# deep, and of text that is not UTF-8.
_PARSE_ERRORS = (DecodeError, RecursionError, ValueError)


def _chunks(raw: pa.Array, limit: int) -> list[tuple[int, int]]:
    """Return starts and counts of rows to parse at once, of at most so many bytes or one row."""
    if len(raw) <= _CHUNK_ROWS and raw.nbytes <= limit:
        return [(0, len(raw))]
    _, offsets, _ = raw.buffers()
    ends = memoryview(offsets).cast("i")[raw.offset : raw.offset + len(raw) + 1]
    chunks = []
    start = 0
    while start < len(raw):
        count = min(_CHUNK_ROWS, len(raw) - start)
        if ends[start + count] - ends[start] > limit:
            # The last end that is within the limit.
            count = max(
                1, bisect_right(ends, ends[start] + limit, start + 1, start + count) - 1 - start
            )
        chunks.append((start, count))
        start += count
    return chunks


def _frame(raw: pa.Array) -> pa.Array:
    """Return the rows each with its length before it, as a field of a message that holds them."""
    lengths = pc.binary_length(raw).dictionary_encode()
    distinct = [FRAME_TAG + varint(length) for length in lengths.dictionary.to_pylist()]
    heads = binaries(distinct).take(lengths.indices)
    return pc.binary_join_element_wise(heads, raw, binaries([b""])[0])


def _data(array: pa.Array) -> bytes:
    """Return the bytes of all values one after the other."""
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


def _spread(
    columns: Sequence[pa.Array], read: Sequence[int], faults: dict[int, tuple[str, str]], count: int
) -> list[pa.Array]:
    """Return the columns with null in rows that were not read, and in those with faults."""
    places: list[int | None] = [None] * count
    for index, row in enumerate(read):
        if row not in faults:
            places[row] = index
    indices = integers(places, pa.int32())
    return [column.take(indices) for column in columns]
