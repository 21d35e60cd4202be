"""Values of AVRO topics → columns: a plan → Arrow arrays, for all values of a batch at once.

Values are decoded as columns, some thousands at a time; small batches, and values with unusual
encodings, one by one.

Each value has a current position. A step of the plan reads the same part of all values and advances
their positions; unions and arrays continue with the values that have the branch or item. This path
handles only well-formed, usual encodings. If anything in a value is unusual, from a wrong byte to
an array in several blocks, its row is given up, and its columns then have no meaning.
`avro/careful` reads such rows again and reports what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.arrow.arithmetic import (
    ONE,
    ZERO,
    all_within,
    floor_divide,
    number,
    numbers,
    outside,
    zeros,
)
from pulsar_spark.schema.arrow.arrays import (
    MAX_CELLS,
    build_array,
    list_array,
    merged,
    offsets_of,
    pair_type,
    struct_array,
    widest_item,
)
from pulsar_spark.schema.avro import decimals
from pulsar_spark.schema.avro.careful import Read, conversion, read_value, reader_of
from pulsar_spark.schema.avro.resolution import (
    Constant,
    FieldStep,
    IntoMember,
    Plan,
    ReadArray,
    ReadBytes,
    ReadByVersion,
    ReadEnum,
    ReadMap,
    ReadNull,
    ReadNumber,
    ReadRecord,
    ReadUnion,
    Unresolvable,
)
from pulsar_spark.schema.avro.vectors import Window, halves
from pulsar_spark.schema.avro.versions import MAX_VERSIONS, joint_plan
from pulsar_spark.schema.codec import Decoded, Decoder, JointDecoder, Mismatch, Undecodable

# A window needs eight times the memory of its values, so larger batches are read in parts.
MAX_ROWS = 16_384
MAX_BYTES = 4 * 1024 * 1024
# Fewer values than these are decoded faster one by one: with ten mixed fields, column decoding
# costs about 2 ms per call, and a single value 6 µs. All values of one version in a record batch
# are decoded in one call, so this concerns only small record batches.
FEW = 320


class AvroDecoder:
    """Decodes values by a plan whose `type` is a struct of the columns.

    A plan of several versions needs each value's version number.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._fields = list(plan.type)
        self._widest = widest_item(plan.type)

    def __reduce__(self) -> tuple[type[AvroDecoder], tuple[Plan]]:
        return AvroDecoder, (self._plan,)

    @cached_property
    def _read(self) -> Read:
        return reader_of(self._plan)

    def together(self, decoders: Sequence[Decoder]) -> JointDecoder | None:
        """Return a decoder for values of all these decoders' versions, if there can be one."""
        plans = [each._plan for each in decoders if isinstance(each, AvroDecoder)]
        if len(plans) < len(decoders) or len(plans) > MAX_VERSIONS:
            return None
        return AvroDecoder(joint_plan(plans))

    def decode(self, raw: pa.Array, versions: pa.Array | None = None) -> Decoded:
        """Decode a binary array; null is a null value. `versions` are numbers, as int32."""
        if versions is None:
            versions = zeros(len(raw))
        versions = versions.cast(_UINT8)
        bad: list[Undecodable] = []
        parts = [
            self._chunk(_Part(raw.slice(start, count), versions.slice(start, count), start), bad)
            for start, count in _chunks(raw)
        ]
        columns = [
            _concat([part[place] for part in parts], field.type)
            for place, field in enumerate(self._fields)
        ]
        return Decoded(columns, bad)

    def _chunk(self, part: _Part, bad: list[Undecodable]) -> Sequence[pa.Array]:
        raw = part.raw
        count = len(raw) - raw.null_count
        size = pc.sum(pc.binary_length(raw)).as_py() or 0
        # Values that might become too large are read one by one, where their size is counted.
        if count < FEW or size > 2 * MAX_BYTES or size * self._widest > 2 * MAX_CELLS:
            return self._one_by_one(part, range(len(raw)), bad)
        present, versions = raw, part.versions
        if raw.null_count:
            present, versions = raw.drop_null(), versions.filter(raw.is_valid())
        columns, given_up = self._in_columns(present, versions)
        if len(present) == len(raw) and not given_up:
            return columns
        rows = _rows_of(raw)
        odd = [rows[place] for place in given_up]
        again = self._one_by_one(part, odd, bad)
        index: list[int | None] = [None] * len(raw)
        for place, row in enumerate(rows):
            index[row] = place
        for place, row in enumerate(odd, len(rows)):
            index[row] = place
        order = build_array(index, pa.int64())
        return [
            pa.concat_arrays([column, other]).take(order)
            for column, other in zip(columns, again, strict=True)
        ]

    def _in_columns(
        self, raw: pa.Array, versions: pa.Array
    ) -> tuple[Sequence[pa.Array], Sequence[int]]:
        """Decode values without nulls; return the columns, and the rows that were given up."""
        _, offsets, data = raw.buffers()
        edges = pa.Array.from_buffers(
            pa.int32(), len(raw) + 1, [None, offsets], offset=raw.offset
        ).cast(pa.int64())
        first, last = edges[0].as_py(), edges[-1].as_py()
        edges = pc.subtract(edges, edges[0])
        reader = ColumnReader(Window(data.slice(first, last - first)), versions)
        found = reader.read_values(self._plan, edges.slice(0, len(raw)), edges.slice(1))
        return found.flatten(), reader.given_up

    def _one_by_one(
        self, part: _Part, rows: Sequence[int], bad: list[Undecodable]
    ) -> Sequence[pa.Array]:
        read = self._read
        missing = [None] * len(self._fields)
        values = []
        some: Sequence[pa.Array] = (part.raw, part.versions)
        if len(rows) < len(part.raw):
            places = build_array(rows, _INT64)
            some = [array.take(places) for array in some]
        for row, data, version in zip(rows, *(array.to_pylist() for array in some), strict=True):
            value = None
            if data is not None:
                try:
                    value = read_value(read, data, version)
                except Mismatch as error:
                    bad.append(Undecodable(part.first + row, error.field, error.reason))
            values.append(missing if value is None else value)
        columns = zip(*values, strict=True) if values else [()] * len(self._fields)
        return [
            build_array(column, field.type)
            for column, field in zip(columns, self._fields, strict=True)
        ]


class _Part(NamedTuple):
    """Some values, their version numbers, and the row of the first one."""

    raw: pa.Array
    versions: pa.Array
    first: int


def _chunks(raw: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield starts and counts of parts of limited size."""
    start = 0
    step = MAX_ROWS
    if len(raw):
        average = (pc.sum(pc.binary_length(raw)).as_py() or 0) // len(raw) + 1
        step = max(1, min(MAX_ROWS, MAX_BYTES // average))
    while start < len(raw):
        yield start, min(step, len(raw) - start)
        start += step


def _rows_of(raw: pa.Array) -> list[int]:
    """Return the rows that are not null."""
    if not raw.null_count:
        return list(range(len(raw)))
    found: list[int] = pc.indices_nonzero(raw.is_valid()).to_pylist()
    return found


def _concat(parts: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    if not parts:
        return build_array([], kind)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


_INT64 = pa.int64()
_UINT64 = pa.uint64()
_UINT8 = pa.uint8()


def _byte(value: int) -> pa.Scalar:
    return _BYTES.slice(value, 1)[0]


_BYTES = pa.Array.from_buffers(_UINT8, 256, [None, pa.py_buffer(bytes(range(256)))])
_BYTE_ONE = _byte(1)
# Branch numbers of one byte; rows with others are given up.
_BRANCHES = 64
# Numbers with a fixed size.
_FLOATING = {"float": 4, "double": 8}


class ColumnReader:
    """Reads the values in one window. Rows in `given_up` must be read in another way.

    `versions` are the rows' version numbers, as uint8.
    """

    def __init__(self, window: Window, versions: pa.Array) -> None:
        self._window = window
        self._versions = versions
        self._given_up: list[pa.Array] = []
        self._readers: dict[type, Callable[..., pa.Array | None]] = {
            ReadNull: self._null,
            ReadNumber: self._number,
            ReadBytes: self._bytes,
            ReadEnum: self._enum,
            ReadArray: self._array,
            ReadMap: self._map,
            ReadRecord: self._record,
            ReadUnion: self._union,
            IntoMember: self._member,
            Unresolvable: self._unresolvable,
            Constant: self._constant,
            ReadByVersion: self._by_version,
        }

    @property
    def given_up(self) -> list[int]:
        """The rows whose columns have no meaning, in order."""
        return sorted({row for part in self._given_up for row in part.to_pylist()})

    def read_values(self, plan: Plan, starts: pa.Array, ends: pa.Array) -> pa.Array:
        """Return an array of the values between these positions, in order, none of them null."""
        rows = Rows(starts, pc.add(ends, ONE), numbers(len(starts)))
        found = self.read(plan, rows)
        self._give_up(rows, pc.not_equal(rows.places, ends))
        return found

    def read(self, plan: Plan, rows: Rows, *, build: bool = True) -> pa.Array | None:
        """Return an array of one part of these values; without `build` only skip it."""
        return self._readers[type(plan)](plan, rows, build)

    def _give_up(self, rows: Rows, where: pa.Array) -> bool:
        if not where.true_count:
            return False
        self._given_up.append(rows.rows.filter(where))
        return True

    # --- what has no parts ----------------------------------------------------------------

    def _constant(self, plan: Constant, rows: Rows, build: bool) -> pa.Array | None:
        return _repeated(plan.plan, plan.data, len(rows)) if build else None

    def _null(self, plan: ReadNull, rows: Rows, build: bool) -> pa.Array | None:
        return pa.nulls(len(rows), plan.type) if build else None

    def _unresolvable(self, plan: Unresolvable, rows: Rows, build: bool) -> pa.Array | None:
        self._given_up.append(rows.rows)
        return pa.nulls(len(rows), plan.type) if build else None

    def _number(self, plan: ReadNumber, rows: Rows, build: bool) -> pa.Array | None:
        if plan.kind in ("int", "long"):
            return self._whole(plan, rows, build)
        if plan.kind == "boolean":
            found = self._window.bytes_at(rows.places)
            self._give_up(rows, pc.greater(found, _BYTE_ONE))
            rows.advance(ONE)
            return pc.equal(found, _BYTE_ONE) if build else None
        words = self._window.words(rows.places) if build else None
        rows.advance(number(_FLOATING[plan.kind]))
        if words is None:
            return None
        if plan.kind == "float":
            words = halves(words)[0].cast(pa.int32(), safe=False)
        return words.view(pa.float32() if plan.kind == "float" else pa.float64()).cast(plan.type)

    def _whole(self, plan: ReadNumber, rows: Rows, build: bool) -> pa.Array | None:
        if not build and plan.kind == "long":
            sizes, invalid = self._window.varint_sizes(rows.places)
            self._advance(rows, sizes, invalid)
            return None
        found = self._varints(rows)
        if plan.kind == "int":
            found = self._within(rows, found, 2**31)
        if not build:
            return None
        if pa.types.is_floating(plan.type):
            return found.cast(plan.type, safe=False)
        if plan.factor != 1:
            found = self._within(rows, found, 2**63 // plan.factor)
            found = pc.multiply(found, number(plan.factor))
        if plan.divisor != 1:
            found = floor_divide(found, plan.divisor)
        if plan.type.bit_width == 32:
            return found.cast(pa.int32()).view(plan.type)
        return found.view(plan.type)

    def _varints(self, rows: Rows) -> pa.Array:
        """Read whole numbers."""
        found, sizes, invalid = self._window.varints(rows.places)
        self._advance(rows, sizes, invalid)
        return found

    def _advance(self, rows: Rows, sizes: pa.Array | pa.Scalar, invalid: pa.Array | None) -> None:
        if invalid is not None:
            self._give_up(rows, invalid)
        rows.advance(sizes)

    def _within(self, rows: Rows, found: pa.Array, bound: int) -> pa.Array:
        """Give up the rows whose numbers are not in [-bound, bound), and replace these by 0."""
        if all_within(found, -bound, bound - 1):
            return found
        wrong = outside(found, -bound, bound - 1)
        self._give_up(rows, wrong)
        return pc.if_else(wrong, ZERO, found)

    def _sizes(self, rows: Rows) -> pa.Array:
        """Read a length; 0 if it is larger than what is left."""
        found = self._varints(rows)
        left = pc.subtract(rows.limits, rows.places)
        # Read as unsigned, negative numbers are larger than any size.
        wrong = pc.greater_equal(found.view(_UINT64), left.view(_UINT64))
        return pc.if_else(wrong, ZERO, found) if self._give_up(rows, wrong) else found

    def _bytes(self, plan: ReadBytes, rows: Rows, build: bool) -> pa.Array | None:
        sizes = self._sizes(rows) if plan.size is None else number(plan.size)
        starts = rows.places
        rows.advance(sizes)
        if not build:
            return None
        if pa.types.is_decimal(plan.type) and plan.scale == plan.type.scale and _narrow(sizes):
            found = decimals.from_words(self._window.words(starts), sizes)
            if self._give_up(rows, wrong := decimals.beyond(found, plan.type.precision)):
                found = pc.if_else(wrong, ZERO, found)
            return decimals.decimals(found, plan.type)
        raw = self._window.slices(starts, rows.places)
        if pa.types.is_binary(plan.type):
            return raw
        if plan.size is None and pa.types.is_string(plan.type):
            return self._text(rows, raw)
        return self._converted(plan, rows, raw)

    def _text(self, rows: Rows, raw: pa.Array) -> pa.Array:
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            return self._converted(ReadBytes(None, pa.string()), rows, raw)

    def _converted(self, plan: ReadBytes, rows: Rows, raw: pa.Array) -> pa.Array:
        """Convert bytes one by one."""
        convert = conversion(plan) or bytes
        values: list[Any] = []
        wrong = []
        filler: Any = 0 if pa.types.is_decimal(plan.type) else b""
        if pa.types.is_struct(plan.type):
            filler = [0] * plan.type.num_fields
        for place, item in enumerate(raw.to_pylist()):
            try:
                if plan.size is not None and len(item) != plan.size:
                    raise Mismatch("the value ends within bytes of a fixed size")
                values.append(convert(item))
            except Mismatch:
                wrong.append(place)
                # Not null: the place may not allow null, for example a map's key.
                values.append(filler)
        if wrong:
            self._given_up.append(rows.rows.take(build_array(wrong, _INT64)))
        return build_array(values, plan.type)

    def _enum(self, plan: ReadEnum, rows: Rows, build: bool) -> pa.Array | None:
        found = self._varints(rows)
        last = number(len(plan.symbols) - 1)
        wrong = pc.or_(pc.less(found, ZERO), pc.greater(found, last))
        if self._give_up(rows, wrong):
            found = pc.if_else(wrong, ZERO, found)
        if not plan.symbols or not build:
            return pa.nulls(len(rows), plan.type) if build else None
        words = [None if word is None else word.encode() for word in plan.symbols]
        chosen = build_array(words, plan.type).take(found)
        if chosen.null_count:
            self._give_up(rows, chosen.is_null())
        return chosen

    # --- what has parts -------------------------------------------------------------------

    def _record(self, plan: ReadRecord, rows: Rows, build: bool) -> pa.Array | None:
        columns: list[pa.Array | None] = [None] * plan.type.num_fields
        for step in plan.steps:
            wanted = build and step.target is not None
            found = self.read(step.plan, rows, build=wanted)
            if wanted and step.target is not None:
                columns[step.target] = found
        if not build:
            return None
        for default in plan.defaults:
            columns[default.target] = _repeated(default.plan, default.data, len(rows))
        children = [
            pa.nulls(len(rows), field.type) if column is None else column
            for column, field in zip(columns, plan.type, strict=True)
        ]
        return struct_array(len(rows), children, plan.type)

    def _member(self, plan: IntoMember, rows: Rows, build: bool) -> pa.Array | None:
        found = self.read(plan.plan, rows, build=build)
        if not build:
            return None
        children = [pa.nulls(len(rows), field.type) for field in plan.type]
        children[plan.member] = found
        return struct_array(len(rows), children, plan.type)

    def _union(self, plan: ReadUnion, rows: Rows, build: bool) -> pa.Array | None:
        chosen = self._window.bytes_at(rows.places)
        rows.advance(ONE)
        branches = plan.branches[:_BRANCHES]
        # Branch numbers are zigzag-encoded.
        numbered = {2 * branch_number: branch for branch_number, branch in enumerate(branches)}
        found, count = self._chosen(numbered, chosen, rows, plan.type if build else None)
        if count < len(rows):
            odd = pc.equal(pc.bit_wise_and(chosen, _BYTE_ONE), _BYTE_ONE)
            beyond = pc.greater(chosen, _byte(2 * len(branches) - 1))
            self._give_up(rows, pc.or_(odd, beyond))
        return found

    def _by_version(self, plan: ReadByVersion, rows: Rows, build: bool) -> pa.Array | None:
        chosen = self._versions.take(rows.rows)
        numbered = dict(enumerate(plan.versions))
        return self._chosen(numbered, chosen, rows, plan.type if build else None)[0]

    def _chosen(
        self, plans: Mapping[int, Plan], chosen: pa.Array, rows: Rows, kind: pa.DataType | None
    ) -> tuple[pa.Array | None, int]:
        """Read each row by the plan with its number; return the array, and how many have a plan.

        Rows without a plan are null. With `kind` None, only skip the values.
        """
        parts = []
        count = 0
        for plan_number, plan in plans.items():
            where = pc.equal(chosen, _byte(plan_number))
            matching = where.true_count
            if not matching:
                continue
            if matching == len(rows):
                return self.read(plan, rows, build=kind is not None), matching
            count += matching
            if isinstance(plan, ReadNull):
                continue
            some = rows.select(where)
            found = self.read(plan, some, build=kind is not None)
            rows.places = pc.replace_with_mask(rows.places, where, some.places)
            if kind is not None:
                parts.append((where, found))
        return None if kind is None else merged(parts, len(rows), kind), count

    def _array(self, plan: ReadArray, rows: Rows, build: bool) -> pa.Array | None:
        lists = self._blocks(plan.items, plan.least, rows, build)
        return lists.array(plan.type) if lists is not None else None

    def _map(self, plan: ReadMap, rows: Rows, build: bool) -> pa.Array | None:
        pair = ReadRecord(
            (
                FieldStep("key", ReadBytes(None, plan.type.key_type), 0),
                FieldStep("value", plan.values, 1),
            ),
            (),
            pair_type(plan.type),
        )
        lists = self._blocks(pair, plan.least, rows, build)
        if lists is None:
            return None
        repeated = lists.repeated_keys()
        if repeated is not None:
            self._given_up.append(rows.rows.take(repeated))
        return lists.array(plan.type)

    def _blocks(self, item: Plan, least: int, rows: Rows, build: bool) -> Lists | None:
        counts = self._counts(least, rows)
        filled = pc.greater(counts, ZERO)
        if not filled.true_count:
            return Lists(counts, pa.nulls(0, item.type)) if build else None
        items: pa.Array | None
        if isinstance(item, ReadNumber) and item.kind in _FLOATING:
            items = self._floating_items(item, counts, rows, build)
        else:
            counts, items = self._items(item, counts, filled, rows, build)
        # After one block usually comes the end, a count of 0.
        following = self._window.bytes_at(rows.places)
        self._give_up(rows, pc.and_(filled, pc.not_equal(following, _byte(0))))
        rows.advance(filled.cast(_INT64))
        return None if items is None else Lists(counts, items)

    def _items(
        self, item: Plan, counts: pa.Array, filled: pa.Array, rows: Rows, build: bool
    ) -> tuple[pa.Array, pa.Array | None]:
        """Read lists item by item; return each list's number of items, and all items."""
        lists = GrowingLists(rows.select(filled), counts.filter(filled))
        while lists.rows is not None:
            lists.add(self.read(item, lists.rows, build=build))
        if lists.abandoned is not None:
            self._given_up.append(lists.abandoned.rows)
        places, taken = lists.ended()
        rows.places = pc.replace_with_mask(rows.places, filled, places)
        counts = pc.replace_with_mask(counts, filled, taken)
        return counts, lists.items() if build else None

    def _floating_items(
        self, item: ReadNumber, counts: pa.Array, rows: Rows, build: bool
    ) -> pa.Array | None:
        """Read lists of floats, whose bytes are Arrow's own: no work per item."""
        starts = rows.places
        rows.advance(pc.multiply(counts, number(_FLOATING[item.kind])))
        if not build:
            return None
        kind = pa.float32() if item.kind == "float" else pa.float64()
        data = self._window.slices(starts, rows.places).buffers()[2]
        found = pa.Array.from_buffers(kind, pc.sum(counts).as_py(), [None, data])
        return found.cast(item.type)

    def _counts(self, least: int, rows: Rows) -> pa.Array:
        """Read a number of items; 0 if it is impossibly large."""
        found = self._varints(rows)
        # The careful path limits the number of items without bytes.
        most = pc.subtract(rows.limits, rows.places) if least else zeros(len(rows))
        most = pc.divide(most, number(max(least, 1)))
        wrong = pc.greater(found.view(_UINT64), most.view(_UINT64))
        return pc.if_else(wrong, ZERO, found) if self._give_up(rows, wrong) else found


def _narrow(sizes: pa.Array | pa.Scalar) -> bool:
    """Whether these sizes allow decoding decimals as columns."""
    if isinstance(sizes, pa.Scalar):
        low = high = sizes.as_py()
    else:
        low, high = (value.as_py() for value in pc.min_max(sizes).values())
    return bool(low) and low >= 1 and bool(high <= decimals.WIDTH)


def _repeated(plan: Plan, data: bytes, count: int) -> pa.Array:
    value = read_value(reader_of(plan), data)
    return build_array([value], plan.type).take(zeros(count))


_INT64 = pa.int64()

# From this many values on, a step costs less than reading their items one by one.
_ENOUGH = 256
# With fewer, a step may still pay, because rows that are given up are read from the start.
_WORTH_A_STEP = 12


class Rows:
    """Values that are being read: their positions, the ends plus one, and their rows.

    A position never moves beyond that limit: so a value that is too short is noticed at the end,
    and no position is ever in another value's bytes.
    """

    __slots__ = ("limits", "places", "rows")

    def __init__(self, places: pa.Array, limits: pa.Array, rows: pa.Array) -> None:
        self.places = places
        self.limits = limits
        self.rows = rows

    def __len__(self) -> int:
        return len(self.places)

    def advance(self, sizes: pa.Array | pa.Scalar) -> None:
        """Advance by so many bytes, none of them negative."""
        self.places = pc.min_element_wise(pc.add(self.places, sizes), self.limits)

    def select(self, chosen: pa.Array) -> Rows:
        """Return those where `chosen` is true."""
        return Rows(*(item.filter(chosen) for item in (self.places, self.limits, self.rows)))


@dataclass(frozen=True, slots=True)
class Lists:
    """The number of items of each list, and all items."""

    counts: pa.Array
    items: pa.Array

    def array(self, kind: pa.DataType) -> pa.Array:
        """Return an array of lists, or of maps if the items are pairs."""
        return list_array(self._offsets(), self.items, kind, len(self.counts))

    def repeated_keys(self) -> pa.Array | None:
        """Return the indexes of maps with a repeated key, None if there are none."""
        keys = self.items.field(0) if len(self.items) else self.items
        if len(keys) < 2:
            return None
        lists = list_array(self._offsets(), keys, pa.list_(keys.type), len(self.counts))
        words = keys.dictionary_encode()
        size = number(len(words.dictionary))
        owners = pc.list_parent_indices(lists).cast(_INT64)
        pairs = pc.add(pc.multiply(owners, size), words.indices.cast(_INT64))
        if pc.count_distinct(pairs).as_py() == len(pairs):
            return None
        counted = pairs.value_counts()
        several = counted.field(0).filter(pc.greater(counted.field(1), ONE))
        return pc.divide(several, size)

    def _offsets(self) -> pa.Buffer:
        return offsets_of(self.counts).buffers()[1]


class GrowingLists:
    """Collects items; `rows` are the values whose next item is read next, None at the end.

    `counts` is each value's number of items, at least one. In `abandoned` values the last items are
    not read.
    """

    def __init__(self, rows: Rows, counts: pa.Array) -> None:
        self.rows: Rows | None = rows
        self.abandoned: Rows | None = None
        self._counts = counts
        self._index = numbers(len(counts))
        # The index of each list's first item among all items.
        self._first = pc.subtract(pc.cumulative_sum(counts), counts)
        self._longest = pc.max(counts).as_py()
        self._step = 0
        self._parts: list[pa.Array] = []
        self._targets: list[pa.Array] = []
        # For finished values: which, where they ended, and their number of items.
        self._done: list[pa.Array] = []
        self._places: list[pa.Array] = []
        self._taken: list[pa.Array] = []

    def add(self, items: pa.Array | None) -> None:
        """Add the items of `rows`, whose positions are now after them."""
        assert self.rows is not None
        if items is not None:
            self._parts.append(items)
            self._targets.append(pc.add(self._first, number(self._step)))
        self._step += 1
        more = pc.greater(self._counts, number(self._step))
        going_on = pc.sum(more).as_py()
        if going_on < len(self.rows):
            self._end(self.rows.places.filter(done := pc.invert(more)), self._index.filter(done))
            self.rows = self.rows.select(more) if going_on else None
            self._counts, self._first, self._index = (
                item.filter(more) for item in (self._counts, self._first, self._index)
            )
        most = _WORTH_A_STEP * (self._longest - self._step)
        if self.rows is not None and going_on < _ENOUGH and going_on < most:
            self._end(self.rows.places, self._index)
            self.abandoned, self.rows = self.rows, None

    def _end(self, places: pa.Array, index: pa.Array) -> None:
        self._places.append(places)
        self._done.append(index)
        self._taken.append(pc.add(zeros(len(index)), number(self._step)))

    def ended(self) -> tuple[pa.Array, pa.Array]:
        """Return where each value ended, and its number of items."""
        order = pc.array_sort_indices(pa.concat_arrays(self._done))
        return tuple(pa.concat_arrays(part).take(order) for part in (self._places, self._taken))

    def items(self) -> pa.Array:
        """Return all items, value by value."""
        order = pc.array_sort_indices(pa.concat_arrays(self._targets))
        return pa.concat_arrays(self._parts).take(order)
