"""Reads many JSON objects at once with Arrow's JSON reader: all rows, or none if one is invalid.

Arrow reads a stream of objects and does not tell where each ends. So that a row never gets another
row's fields, only rows whose text follows these rules are read:

- it is valid UTF-8 without NUL, which would end the stream;
- it begins with ``{`` and ends with ``}``;
- outside of strings, ``}`` is followed by ``}``, ``]``, ``,`` or the end of the row.

Rows are joined with line ends. Then each row's start must be read as a new object: if the previous
row were still open, ``{`` would follow a closed object, or a string would contain a line end, and
both are errors. By the third rule a row cannot contain two objects, or anything besides one. So as
many objects as rows means one per row. (Arrow would crash on a bare ``null`` among objects.)

For decimal columns, rows are refused if they contain numbers which Arrow converts wrongly or which
crash it. Only rows known to be safe are passed to Arrow.
"""

from __future__ import annotations

import re
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Mapping
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from pulsar_spark.schema.arrow.arithmetic import scaled
from pulsar_spark.schema.arrow.arrays import binaries, strings
from pulsar_spark.schema.json.types import JsonRule, Shape

_AFTER_OBJECT = r"\}[ \t\r\n]*[^ \t\r\n,}\]]"
_STRING = r'"(?:[^"\\]|\\.)*"'
_WHITE_SPACE = " \t\r\n"
# Numbers that Arrow cannot convert to decimals reliably: it reads powers of ten beyond the end of
# its tables, which crashes or gives any number, and it overflows 128 bits. It reads decimals with
# 256 bits, which have 76 digits. So numbers of 38 digits, times ten to the power of a scale of at
# most 38, are right, or as many digits fewer as the exponent adds; and no power beyond 76 is
# needed: a number below 1 has at most 37 digits, and 29 with its exponent. Strings may contain
# digits, signs and points as escapes, too.
_BEYOND_DECIMALS = (
    r"[0-9.]{39}"
    r"|[:,\[\" \t\r\n][+-]?[0-9.]*[eE](?:\+?[0-9]{2,}|-[0-9]{3,}|-[3-9][0-9])[\"\],} \t\r\n]"
    r"|[0-9.]{29}[eE]"
    r"|\\u00(?:2[bBdDeE]|3[0-9]|[46]5)"
)
# NUL ends the stream; the others are numbers to Arrow, but not to Python's JSON module.
_ODD = re.compile(rb"\0|-NaN|Inf(?!inity)")


# Arrow's wording; if it changes, decoding only gets slower.
_ROW = re.compile(r" in row (\d+)$")
_UNEXPECTED = "unexpected field"


class Refused(Exception):
    """These rows cannot be read together; `row` is the one to blame, if known.

    With `strictly` the reason is unwanted fields, or the `refused` pattern.
    """

    def __init__(self, row: int | None = None, *, strictly: bool = False) -> None:
        super().__init__()
        self.row = row
        self.strictly = strictly


class ObjectReader:
    """Reads fields of JSON objects as columns, with the types `wires` by name.

    With `refused`, a regular expression, rows that match it are refused if they contain ``null``,
    and all rows that have other fields, on any level.
    """

    def __init__(self, wires: Mapping[str, pa.DataType], refused: str = "") -> None:
        self._parse = pj.ParseOptions(
            explicit_schema=pa.schema(list(wires.items())),
            unexpected_field_behavior="error" if refused else "ignore",
        )
        self._refused = refused
        self._has_decimals = any(map(_has_decimals, wires.values()))
        self._line_end, self._nothing = strings(["\n", ""])

    def read(self, rows: pa.Array) -> list[pa.Array]:
        """Return the columns for a binary array without nulls.

        Raises Refused if a row is not a JSON object, or has a field of another type or twice; a
        less strict reader may accept the row.
        """
        try:
            return self._read(_checked(_as_text(rows)))
        except pa.ArrowInvalid as error:
            message = str(error)
            found = _ROW.search(message)
            row = int(found[1]) if found else None
            known = row if row is not None and row < len(rows) else None
            raise Refused(known, strictly=_UNEXPECTED in message) from None

    def _read(self, texts: pa.Array) -> list[pa.Array]:
        if self._has_decimals:
            _refuse(pc.match_substring_regex(texts, _BEYOND_DECIMALS))
        lines = pc.binary_join_element_wise(texts, self._line_end, self._nothing)
        data = lines.buffers()[2].to_pybytes()
        may_be_odd = b"\0" in data or b"NaN" in data or b"Inf" in data
        if may_be_odd and (odd := _ODD.search(data)):
            edges = memoryview(lines.buffers()[1]).cast("i")
            raise Refused(bisect_right(edges, odd.start(), 0, len(lines) + 1) - 1)
        if self._refused and b"null" in data:
            candidates = texts.filter(pc.match_substring(texts, "null"))
            if _any_matches(candidates, self._refused):
                raise Refused(strictly=True)
        # One block, so that line ends within rows do not split it.
        options = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = pj.read_json(pa.BufferReader(data), read_options=options, parse_options=self._parse)
        if table.num_rows != len(texts):
            raise Refused
        return [_whole(column) for column in table.columns]


def _has_decimals(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(
        _has_decimals(kind.field(i).type) for i in range(kind.num_fields)
    )


def _as_text(rows: pa.Array) -> pa.Array:
    try:
        return rows.cast(pa.string())
    except pa.ArrowInvalid:
        raise Refused(next(i for i, row in enumerate(rows) if not _is_text(row))) from None


def _is_text(row: pa.Scalar) -> bool:
    try:
        str(row.as_buffer(), "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _checked(texts: pa.Array) -> pa.Array:
    """Return the texts, stripped of white space; raises Refused for one that cannot be joined."""
    braced = _are_braced(texts)
    if pc.any(pc.invert(braced)).as_py():
        texts = pc.utf8_trim(texts, _WHITE_SPACE)
        braced = _are_braced(texts)
        _refuse(pc.invert(braced))
    suspicious = pc.match_substring_regex(texts, _AFTER_OBJECT)
    if pc.any(suspicious).as_py():
        # Usually the braces are in strings.
        bare = without_strings(texts.filter(suspicious))
        if _any_matches(bare, _AFTER_OBJECT):
            rows = pc.indices_nonzero(suspicious)
            first = pc.indices_nonzero(pc.match_substring_regex(bare, _AFTER_OBJECT))[0]
            raise Refused(rows[first.as_py()].as_py())
    return texts


def without_strings(texts: pa.Array) -> pa.Array:
    """Return JSON with all strings emptied."""
    return pc.replace_substring_regex(texts, _STRING, '""')


def _refuse(where: pa.Array) -> None:
    if pc.any(where).as_py():
        raise Refused(pc.indices_nonzero(where)[0].as_py())


def _any_matches(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _are_braced(texts: pa.Array) -> pa.Array:
    return pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))


# --- from Arrow's columns to columns of their shapes ------------------------------------------


def finish(column: pa.Array, shape: Shape) -> pa.Array:
    """Convert a column from its wire type to its shape's type.

    Raises Refused for the first row whose value cannot be converted.
    """
    try:
        return _finish(column, shape)
    except pa.ArrowInvalid:
        raise Refused(_first_unfit(column, shape)) from None


def _first_unfit(column: pa.Array, shape: Shape) -> int:
    """Return the first row that cannot be converted; there is at least one."""
    start, end = 0, len(column)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            # Copy the slice, so that its lists contain no items of other rows.
            _finish(pa.concat_arrays([column.slice(start, middle - start)]), shape)
            start = middle
        except pa.ArrowInvalid:
            end = middle
    return start


def _finish(column: pa.Array, shape: Shape) -> pa.Array:
    if _is_finished(shape):
        return column
    return _finish_parts(column, shape) if shape.parts else _finish_leaf(column, shape)


def _finish_leaf(column: pa.Array, shape: Shape) -> pa.Array:
    match shape.rule:
        case JsonRule.MOMENT | JsonRule.TIME:
            return scaled(column, shape.times, shape.divided).view(shape.kind)
        case JsonRule.DECIMAL:
            return _in_precision(column, shape.kind)
        case JsonRule.BASE64:
            return _decoded(column)
    assert shape.rule is JsonRule.FLOAT
    return column.cast(shape.kind, safe=False)


def _finish_parts(column: pa.Array, shape: Shape) -> pa.Array:
    if shape.rule is JsonRule.RECORD:
        parts = [_finish(column.field(i), part) for i, part in enumerate(shape.parts)]
        mask = column.is_null() if column.null_count else None
        fields = [shape.kind.field(i) for i in range(shape.kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)
    assert shape.rule is JsonRule.ARRAY
    return pa.Array.from_buffers(
        shape.kind,
        len(column),
        column.buffers()[:2],
        column.null_count,
        column.offset,
        children=[_finish(column.values, shape.parts[0])],
    )


def _is_finished(shape: Shape) -> bool:
    if shape.parts:
        return all(map(_is_finished, shape.parts))
    if shape.rule is JsonRule.DECIMAL:
        return False
    return shape.wire == shape.kind and shape.times == shape.divided == 1


def _in_precision(column: pa.Array, kind: pa.DataType) -> pa.Array:
    limit = Decimal(10) ** (kind.precision - kind.scale)
    ends = pc.min_max(column).as_py()
    if any(end is not None and abs(end) >= limit for end in ends.values()):
        raise pa.ArrowInvalid("a decimal has too many digits")
    return column.cast(kind)


def _decoded(column: pa.Array) -> pa.Array:
    try:
        return binaries(
            [
                None if text is None else b64decode(text, validate=True)
                for text in column.to_pylist()
            ]
        )
    except ValueError:
        raise pa.ArrowInvalid("a string is not base64") from None
