"""Digests tell whether the same rows were written, however they came and went."""

from __future__ import annotations

import copy
import pickle
import random
from itertools import combinations, permutations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from pulsar_spark.protocol import implementation
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, SchemaInfo, join_key_value
from pulsar_spark.spark.writing.columns import WriteColumns
from pulsar_spark.spark.writing.outgoing_rows import RowConverter
from pulsar_spark.spark.writing.row_digest import DIGEST_VERSION, Digest
from pulsar_spark.spark.writing.row_encoder import RowEncoder

TOPIC = "persistent://public/default/t"
MAP = pa.map_(pa.string(), pa.string())
KINDS = {
    "value": pa.binary(),
    "__topic": pa.string(),
    "__key": pa.binary(),
    "__orderingKey": pa.binary(),
    "__eventTime": pa.int64(),
    "__messageProperties": MAP,
}
Row = dict[str, Any]
EMPTY: Row = dict.fromkeys(KINDS) | {"__topic": "t"}
FULL: Row = {
    "value": b"value",
    "__topic": "persistent://a/b/t",
    "__key": b"key",
    "__orderingKey": b"order",
    "__eventTime": 1_700_000_000_000,
    "__messageProperties": [("name", "x"), ("other", "y")],
}
ROWS: list[Row] = [
    EMPTY,
    FULL,
    EMPTY | {"value": b""},
    EMPTY | {"value": b"v", "__key": b"\xff"},
    EMPTY | {"value": "ü".encode(), "__key": b"", "__orderingKey": b""},
    FULL | {"__topic": "u", "__messageProperties": [("", "")]},
]


def batch_of(rows: list[Row], kinds: dict[str, pa.DataType] = KINDS) -> pa.RecordBatch:
    arrays = {name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()}
    return pa.RecordBatch.from_pydict(arrays)


def digest(
    *batches: pa.RecordBatch,
    topic: str | None = None,
    schema: SchemaInfo | None = None,
    key: StructField | None = None,
    **options: Any,
) -> Digest:
    """Return the digest of a task's record batches."""
    columns = batches[0].schema.names
    fields = {"value": StructField("value", BinaryType()), "__key": key}
    frame = StructType([fields.get(name) or StructField(name, StringType()) for name in columns])
    named = [(name, place) for place, name in enumerate(columns) if name.startswith("__")]
    planned = WriteColumns((columns.index("value"),), tuple(sorted(named)), frame)
    encoder = RowEncoder(planned, schema)
    converter = RowConverter(planned, topic, digests=True, **options)
    for batch in batches:
        for part in converter.split(batch):
            converter.messages(part, encoder)
    assert converter.digest is not None
    return converter.digest


def of(*rows: Row, **options: Any) -> Digest:
    return digest(batch_of(list(rows)), **options)


# --- what it always was ---------------------------------------------------------------------------

GOLDEN = [
    0x1A2064FA4A7D8744,
    0x14EB1CC23190657B,
    0x47E6C040F6D5F22B,
    0x6BB8EF5E49416A3D,
    0x6A7E576465B83A4D,
    0x845358F80DBE6D8A,
]


@pytest.mark.fault(155)
@pytest.mark.usefixtures("each_implementation")
def test_digests_are_what_they_always_were() -> None:
    """Digests are stored with a sink's state: a change of any is another DIGEST_VERSION."""
    assert DIGEST_VERSION == 1
    assert [of(row) for row in ROWS] == [Digest(1, total) for total in GOLDEN]
    assert of(*ROWS) == Digest(len(ROWS), sum(GOLDEN) % 2**64)
    assert of() == Digest(0, 0)


# --- the same rows have the same ------------------------------------------------------------------


@pytest.mark.fault(155)
@pytest.mark.usefixtures("each_implementation")
def test_neither_order_nor_record_batches_nor_tasks_count() -> None:
    expected = of(*ROWS)
    for order in list(permutations(ROWS))[::97]:
        assert of(*order) == expected
    dice = random.Random(3)
    for _ in range(20):
        first, second = sorted(dice.choices(range(len(ROWS) + 1), k=2))
        parts = [ROWS[:first], ROWS[first:second], ROWS[second:]]
        assert digest(*[batch_of(part) for part in parts]) == expected
        tasks = [of(*part) for part in parts]
        assert tasks[0] + tasks[1] + tasks[2] == expected
        assert sum(tasks, Digest()) == expected
    whole = batch_of([FULL, *ROWS, EMPTY])
    assert digest(whole.slice(1, len(ROWS))) == expected


@pytest.mark.fault(155)
@pytest.mark.usefixtures("each_implementation")
@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_column_types_do_not_count(text: pa.DataType) -> None:
    rows = [row for row in ROWS if row["__key"] != b"\xff"]
    kinds = KINDS | dict.fromkeys(("value", "__key", "__orderingKey"), text)
    if pa.types.is_large_string(text) or pa.types.is_large_binary(text):
        kinds["__topic"] = pa.large_string()
    assert digest(batch_of(rows).cast(pa.schema(kinds.items()))) == of(*rows)


@pytest.mark.fault(155)
@pytest.mark.usefixtures("each_implementation")
def test_how_messages_are_sent_does_not_count() -> None:
    text = [row for row in ROWS if row["__key"] != b"\xff"]
    plain = [
        EMPTY | {"value": b"a", "__key": b"k"},
        EMPTY | {"value": b"b", "__key": b"l"},
    ]
    for rows in (ROWS, text, plain, [plain[0], EMPTY]):
        assert of(*rows, keys_as_bytes=True) == of(*rows)


@pytest.mark.fault(155)
@pytest.mark.usefixtures("each_implementation")
def test_what_is_the_same_message_has_the_same_digest() -> None:
    rows = [EMPTY | {"value": value} for value in (b"a", None, b"")]
    names = ["value", "__topic"]
    without = digest(batch_of(rows).select(names))
    assert without == of(*rows)
    assert without == digest(batch_of(rows).select(["value"]), topic=TOPIC)
    full_name = [row | {"__topic": TOPIC} for row in rows]
    assert of(*full_name) == without
    empty = [row | {"__eventTime": 0, "__messageProperties": []} for row in rows]
    assert of(*empty) == without
    # Where others have some.
    for other in (FULL, EMPTY | {"__messageProperties": [("a", "b")]}):
        assert of(other, *empty, other) == of(other, other) + without


@pytest.mark.fault(155)
@pytest.mark.usefixtures("each_implementation")
def test_the_order_of_properties_does_not_count_and_their_number_does() -> None:
    pairs = [("a", "1"), ("b", "2"), ("c", "3")]
    base = of(FULL | {"__messageProperties": pairs})
    assert {of(FULL | {"__messageProperties": list(own)}) for own in permutations(pairs)} == {base}
    assert of(FULL | {"__messageProperties": [*pairs, pairs[0]]}) != base
    crossed = [("a", "2"), ("b", "1"), ("c", "3")]
    assert of(FULL | {"__messageProperties": crossed}) != base


@pytest.mark.fault(155)
@pytest.mark.usefixtures("each_implementation")
def test_times_count_in_milliseconds() -> None:
    row = FULL | {"__eventTime": 1_500}
    timed = KINDS | {"__eventTime": pa.timestamp("us", "UTC")}
    assert digest(batch_of([row | {"__eventTime": 1_500_999}], timed)) == of(row)
    assert digest(batch_of([row | {"__eventTime": 1_501_000}], timed)) != of(row)


@pytest.mark.fault(155)
@pytest.mark.usefixtures("each_implementation")
@pytest.mark.parametrize("separated", [True, False])
def test_typed_keys_count_as_they_are_encoded(separated: bool) -> None:
    pair = join_key_value(
        SchemaInfo(pb.Schema.Int32, "Int32"), SchemaInfo(BYTES, "v"), separated=separated
    )
    key = StructField("__key", IntegerType())

    def typed(*keys: int | None, order: int = 1) -> Digest:
        rows = [{"value": b"v%d" % place, "__key": own} for place, own in enumerate(keys)]
        batch = batch_of(rows[::order], {"value": pa.binary(), "__key": pa.int32()})
        return digest(batch, topic=TOPIC, schema=pair, key=key)

    assert typed(1, None, 2) == typed(1, None, 2, order=-1)
    assert len({typed(1, None, 2), typed(1, 0, 2), typed(2, None, 1), typed(1, 2, None)}) == 4
    if separated:
        values = batch_of([{"value": b"v0"}, {"value": b"v1"}], {"value": pa.binary()})
        assert typed(None, None) == digest(values, topic=TOPIC, schema=pair)
        plain = {"value": pa.binary(), "__key": pa.binary()}
        encoded = batch_of([{"value": b"v0", "__key": b"\0\0\0\1"}], plain)
        assert typed(1) == digest(encoded, topic=TOPIC)


# --- other rows have another ----------------------------------------------------------------------

CHANGES: dict[str, list[Any]] = {
    "value": [None, b"", b"valuf", b"value\0", b"\0value", b"valu"],
    "__topic": [
        "persistent://a/b/t-partition-0",
        "t",
        "persistent://a/c/t",
        "non-persistent://a/b/t",
    ],
    "__key": [None, b"", b"kez", b"\xff", b"ke"],
    "__orderingKey": [None, b"", b"ordes", b"\xff"],
    "__eventTime": [None, 1, 1_700_000_000_001],
    "__messageProperties": [
        None,
        [("name", "x")],
        [("name", "x"), ("other", "z")],
        [("name", "x"), ("othes", "y")],
        [("name", ""), ("other", "y")],
        [("name", "x"), ("other", "y"), ("", "")],
        [("namex", ""), ("other", "y")],
        [("name", "y"), ("other", "x")],
    ],
}


@pytest.mark.fault(155)
@pytest.mark.usefixtures("each_implementation")
def test_a_change_of_any_field_of_a_row_changes_it() -> None:
    changed = [FULL | {name: value} for name, values in CHANGES.items() for value in values]
    # Bytes that move to the next field.
    changed += [
        FULL | {"value": b"order", "__orderingKey": b"value"},
        FULL | {"value": b"key", "__key": b"value"},
        FULL | {"__key": b"keyo", "__orderingKey": b"rder"},
        FULL | {"__key": None, "__orderingKey": b"key"},
    ]
    # The same bytes in another field, alone.
    changed += [EMPTY | {name: b"x"} for name in ("value", "__key", "__orderingKey")]
    changed += [EMPTY | {"__messageProperties": [pair]} for pair in (("x", ""), ("", "x"))]
    alone = [of(row) for row in [FULL, *changed]]
    assert len(set(alone)) == len(alone)
    among = [of(EMPTY, row, EMPTY) for row in [FULL, *changed]]
    assert len(set(among)) == len(among)


@pytest.mark.fault(155)
@pytest.mark.usefixtures("each_implementation")
def test_fields_that_two_rows_exchange_change_it() -> None:
    first = copy.deepcopy(FULL)
    second = {
        "value": b"valve",
        "__topic": "persistent://a/b/u",
        "__key": b"kay",
        "__orderingKey": b"odder",
        "__eventTime": 1_700_000_000_007,
        "__messageProperties": [("name", "z"), ("other", "w")],
    }
    base = of(first, second)
    names = list(KINDS)
    for name, with_it in combinations(names, 2):
        rows = [EMPTY | {name: row[name], with_it: row[with_it]} for row in (first, second)]
        crossed = [rows[0] | {name: second[name]}, rows[1] | {name: first[name]}]
        assert of(*crossed) != of(*rows)
    # All exchanges but the one of whole rows, which is none.
    seen = {base}
    for chosen in range(1, 2 ** (len(names) - 1)):
        own = [name for bit, name in enumerate(names) if chosen >> bit & 1]
        seen.add(of(first | {n: second[n] for n in own}, second | {n: first[n] for n in own}))
    assert len(seen) == 2 ** (len(names) - 1)
    # A property, or its value, alone.
    pair = ("name", "z"), ("other", "y")
    other = ("name", "x"), ("other", "w")
    seen.add(of(first | {"__messageProperties": pair}, second | {"__messageProperties": other}))
    assert len(seen) == 2 ** (len(names) - 1) + 1


@pytest.mark.fault(155)
@pytest.mark.usefixtures("each_implementation")
def test_each_row_counts_as_often_as_it_is_there() -> None:
    seen = {of(*[FULL] * times) for times in range(70)}
    assert len(seen) == 70
    assert len({found.total for found in seen}) == 70
    assert of(FULL, FULL, EMPTY).total != of(FULL, EMPTY, EMPTY).total


FIELDS = st.fixed_dictionaries(
    {
        "value": st.none() | st.binary(max_size=4),
        "__topic": st.sampled_from(["t", "u"]),
        "__key": st.none() | st.binary(max_size=4),
        "__orderingKey": st.none() | st.binary(max_size=4),
        "__eventTime": st.none() | st.integers(0, 3),
        "__messageProperties": st.none() | st.dictionaries(
            st.text("ab", max_size=2), st.text("ab", max_size=2), max_size=2
        ).map(lambda found: list(found.items())),
    }
)  # fmt: skip


def canonical(row: Row) -> tuple[Any, ...]:
    """Return a row's message: two rows are the same if these are."""
    pairs = tuple(sorted(row["__messageProperties"] or ()))
    return (*[row[name] for name in list(KINDS)[:4]], row["__eventTime"] or 0, pairs)


@pytest.mark.fault(155)
@given(st.lists(FIELDS, min_size=1, max_size=4), st.lists(FIELDS, min_size=1, max_size=4))
def test_digests_are_equal_if_and_only_if_rows_are(some: list[Row], others: list[Row]) -> None:
    alike = sorted(map(repr, map(canonical, some))) == sorted(map(repr, map(canonical, others)))
    assert (of(*some) == of(*others)) == alike


@pytest.mark.fault(155)
@given(st.lists(FIELDS, min_size=1, max_size=6))
def test_both_implementations_have_the_same_digests(rows: list[Row]) -> None:
    native = pytest.importorskip("pulsar_spark._kernel")
    found = []
    with pytest.MonkeyPatch.context() as patched:
        for own in (None, native):
            patched.setattr(implementation, "native", own)
            found.append(of(*rows))
    assert found[0] == found[1]


# --- digests --------------------------------------------------------------------------------------


def test_a_digest_is_plain_data() -> None:
    found = Digest(3, 2**64 - 1)
    assert pickle.loads(pickle.dumps(found)) == found
    assert found + Digest(1, 2) == Digest(4, 1)


def test_rows_of_other_guarantees_have_none() -> None:
    batch = batch_of([EMPTY]).select(["value"])
    planned = WriteColumns((0,), (), StructType([StructField("value", BinaryType())]))
    converter = RowConverter(planned, TOPIC)
    (part,) = converter.split(batch)
    converter.messages(part, RowEncoder(planned, None))
    assert converter.digest is None
