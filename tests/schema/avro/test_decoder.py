"""Decoding AVRO values: the same in columns and one by one, for any bytes."""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema.arrow.varints import zigzag
from pulsar_spark.schema.avro import codec as avro_codec
from pulsar_spark.schema.codec import Decoded
from pulsar_spark.schema.column_decoder import MAX_EMPTY_ITEMS, ColumnDecoder
from tests.schema.avro.random_values import Schemas, Values, encoded, info, rows
from tests.schema.avro.test_resolution import Evolution
from tests.schema.bits import assert_same_bits
from tests.schema.damage import damage
from tests.schema.kernel import choose

ROWS = 300


def record(*kinds: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]
    return {"type": "record", "name": "R", "fields": fields}


def decode(tree: Any, data: Iterable[bytes | None], *fields: str) -> Decoded:
    columns = avro_codec.arrow_schema(info(tree))
    decoder = avro_codec.decoder(info(tree), info(tree), fields or columns.names)
    return decoder.decode(pa.array(list(data), pa.binary()))


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
POINT = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "long"}]}
FIXED = {"type": "fixed", "name": "F", "size": 3}


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    "kind,data,field,reason",
    [
        ("long", b"", "f1", "ends within a number"),
        ("long", b"\x80", "f1", "ends within a number"),
        ("long", b"\xff" * 9 + b"\x02", "f1", "more than 64 bits"),
        ("long", b"\x80" * 10 + b"\0", "f1", "more than 10 bytes"),
        ("long", b"\x02\x02\x02", "", "1 bytes follow the value"),
        ("int", zigzag(2**31), "f1", "an int of 32 bits"),
        ("int", zigzag(-(2**31) - 1), "f1", "an int of 32 bits"),
        ("boolean", b"\x02", "f1", "the byte 2 is not a boolean"),
        ("boolean", b"", "f1", "1 bytes are announced, 0 are left"),
        ("double", b"\0" * 7, "f1", "8 bytes are announced, 7 are left"),
        ("float", b"\0" * 3, "f1", "4 bytes are announced, 3 are left"),
        ("string", zigzag(5) + b"four", "f1", "5 bytes are announced, 4 are left"),
        ("string", zigzag(-1), "f1", "-1 bytes are announced"),
        ("string", zigzag(2**62), "f1", "bytes are announced, 0 are left"),
        ("string", zigzag(1) + b"\xff", "f1", "not UTF-8"),
        ("bytes", zigzag(3), "f1", "3 bytes are announced"),
        (FIXED, b"ab", "f1", "3 bytes are announced, 2 are left"),
        (ENUM, zigzag(2), "f1", "an enum of 2 symbols has the number 2"),
        (ENUM, zigzag(-1), "f1", "an enum of 2 symbols has the number -1"),
        (["null", "int"], zigzag(2), "f1", "a union of 2 types has the number 2"),
        (["null", "int"], zigzag(-1), "f1", "a union of 2 types has the number -1"),
        (["null", "int"], b"", "f1", "ends within a number"),
        (["null", POINT], zigzag(1) + b"\x80", "f1.x", "ends within a number"),
        (array("int"), zigzag(2) + b"\x02", "f1", "2 items are announced, 1 bytes are left"),
        (array("int"), zigzag(1) + b"\x02", "f1", "ends within a number"),
        (array("int"), zigzag(2) + b"\x02\x80", "f1[]", "ends within a number"),
        (array("int"), zigzag(2**60), "f1", "items are announced, 0 bytes are left"),
        (array("null"), zigzag(2**60), "f1", "items that take no bytes"),
        (array("null"), zigzag(MAX_EMPTY_ITEMS + 1) + b"\0", "f1", "items that take no bytes"),
        (array(POINT), zigzag(1) + b"\x80", "f1[].x", "ends within a number"),
        ({"type": "map", "values": "int"}, zigzag(1) + b"\2\xff\2\0", "f1{}", "not UTF-8"),
        (DECIMAL, zigzag(8) + (10**18).to_bytes(8, "big"), "f1", r"does not fit decimal\(18,2\)"),
        (MILLIS, zigzag(2**60), "f1", "beyond what 64 bits hold"),
    ],
)
def test_a_value_that_does_not_decode_is_null_and_harms_no_other(
    way: str, kind: Any, data: bytes, field: str, reason: str
) -> None:
    rng = Random(1)
    tree = record("string", kind, "int")
    good = encoded(tree, (Values(rng).of(tree) for _ in range(ROWS)))
    wanted = rows(["f0", "f1", "f2"], decode(tree, good).columns)
    wrong = zigzag(3) + b"bad" + data
    mixed: list[bytes | None] = list(good)
    places = (0, ROWS // 2, ROWS - 1)
    for place in places:
        mixed[place] = wrong
        wanted[place] = {"f0": None, "f1": None, "f2": None}
    found = decode(tree, mixed)
    assert rows(["f0", "f1", "f2"], found.columns) == wanted
    assert [item.row for item in found.bad] == list(places)
    for item in found.bad:
        assert item.field == field
        assert re.search(reason, item.reason), item.reason


def test_null_is_null_and_not_undecodable(way: str) -> None:
    tree = record("int", array("string"))
    data: list[bytes | None] = [zigzag(number) + zigzag(0) for number in range(ROWS)]
    data[7] = data[ROWS - 1] = None
    found = decode(tree, data)
    assert not found.bad
    assert found.columns[0].to_pylist() == [None if n in (7, ROWS - 1) else n for n in range(ROWS)]
    assert found.columns[1].null_count == 2
    assert decode(tree, [None] * ROWS).columns[0].null_count == ROWS


def test_nothing_gives_empty_columns(way: str) -> None:
    found = decode(record("int", array("string")), [])
    assert [len(column) for column in found.columns] == [0, 0]
    assert found.columns[1].type == pa.list_(pa.field("element", pa.string(), False))


def test_slices_are_decoded_alone(way: str) -> None:
    tree = record("string")
    data = pa.array([zigzag(1) + bytes([65 + n % 26]) for n in range(1000)], pa.binary())
    decoder = avro_codec.decoder(info(tree), info(tree), ["f0"])
    found = decoder.decode(data.slice(100, 500)).columns[0]
    assert found.to_pylist() == [chr(65 + n % 26) for n in range(100, 600)]


def test_fields_come_in_the_order_they_are_asked_for_and_others_are_skipped(way: str) -> None:
    tree = record(
        "string", array({"type": "map", "values": ENUM}), ["null", "double"], "int", FIXED
    )
    rng = Random(2)
    values = [Values(rng).of(tree) for _ in range(ROWS)]
    found = decode(tree, encoded(tree, values), "f3", "f0")
    assert found.columns[0].to_pylist() == [value["f3"] for value in values]
    assert found.columns[1].to_pylist() == [value["f0"] for value in values]
    assert decode(tree, encoded(tree, values), "f4").columns[0].to_pylist() == [
        value["f4"] for value in values
    ]


def test_what_is_wrong_in_a_field_that_is_skipped_matters_only_if_nothing_can_follow(
    way: str,
) -> None:
    tree = record("string", "int")
    data = [zigzag(1) + b"\xff" + zigzag(number) for number in range(ROWS)]
    found = decode(tree, data, "f1")
    assert not found.bad
    assert found.columns[0].to_pylist() == list(range(ROWS))
    assert len(decode(tree, data).bad) == ROWS


def test_lists_in_several_blocks_and_with_sizes_are_read(way: str) -> None:
    tree = record(array("int"), {"type": "map", "values": "int"})
    lists = zigzag(2) + b"\x02\x04" + zigzag(-1) + zigzag(1) + b"\x06" + b"\0"
    maps = zigzag(1) + b"\x02a\x02" + zigzag(-1) + zigzag(3) + b"\x02b\x04" + b"\0"
    plain = zigzag(1) + b"\x02\0" + b"\0"
    found = decode(tree, [plain, lists + maps] * ROWS)
    assert found.columns[0].to_pylist() == [[1], [1, 2, 3]] * ROWS
    assert found.columns[1].to_pylist() == [[], [("a", 1), ("b", 2)]] * ROWS


def test_of_a_repeated_key_the_last_value_counts(way: str) -> None:
    tree = record({"type": "map", "values": "int"})
    single = zigzag(2) + b"\x02a\x02" + b"\x02b\x04" + b"\0"
    double = zigzag(2) + b"\x02a\x02" + b"\x02a\x04" + b"\0"
    found = decode(tree, [single, double] * ROWS)
    assert found.columns[0].to_pylist() == [[("a", 1), ("b", 2)], [("a", 2)]] * ROWS


def test_what_is_no_record_becomes_one_column(way: str) -> None:
    found = decode("long", [zigzag(number) for number in range(ROWS)])
    assert found.columns[0].to_pylist() == list(range(ROWS))


def test_records_that_can_be_null_as_a_whole(way: str) -> None:
    data = [zigzag(1) + zigzag(4), zigzag(0)] * ROWS
    columns = avro_codec.decoder(info(["null", record("int")]), info(record("int")), ["f0"])
    assert columns.decode(pa.array(data)).columns[0].to_pylist() == [4, None] * ROWS


def test_no_number_in_nanoseconds_is_rounded_towards_1970(way: str) -> None:
    tree = record({"type": "long", "logicalType": "timestamp-nanos"})
    found = decode(tree, [zigzag(-1), zigzag(-1000), zigzag(1999)] * ROWS).columns[0]
    assert found.view(pa.int64()).to_pylist()[:3] == [-1, -1, 1]


@pytest.mark.fault(94)
def test_times_beyond_what_people_write_are_kept_and_those_beyond_64_bits_are_undecodable(
    way: str,
) -> None:
    year_10_000 = 253_402_300_800_000
    longest = (2**63 - 1) // 1000
    given = [0, -1, year_10_000, -longest, longest, longest + 1, -(2**63), 2**63 - 1] * 50
    found = decode(record(MILLIS), [zigzag(number) for number in given])
    kept = [n * 1000 if -longest <= n <= longest else None for n in given]
    assert found.columns[0].view(pa.int64()).to_pylist() == kept
    assert [item.row for item in found.bad] == [i for i, n in enumerate(kept) if n is None]


@pytest.mark.fault(44)
@pytest.mark.parametrize("seed", range(24))
def test_both_ways_agree_on_any_bytes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)
    tree = Schemas(rng).record()
    values = Values(rng)
    data = [damaged(rng, item) for item in encoded(tree, (values.of(tree) for _ in range(400)))]
    names = avro_codec.arrow_schema(info(tree)).names
    choose(monkeypatch, kernel=True)
    first = decode(tree, data)
    choose(monkeypatch, kernel=False)
    second = decode(tree, data)
    assert first.bad == second.bad
    for one, other in zip(first.columns, second.columns, strict=True):
        one.validate(full=True)
        assert_same_bits(one, other)
    assert len(names) == len(first.columns)


@pytest.mark.slow
@pytest.mark.fault(44)
@pytest.mark.parametrize("part", range(10))
def test_both_ways_agree_on_a_million_values_of_other_versions(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 1000
    for seed in range(100 * part, 100 * (part + 1)):
        rng = Random(seed)
        written = Schemas(rng, logical=seed % 2 > 0).record()
        read = written if seed % 2 else Evolution(rng).of(written)
        names = avro_codec.arrow_schema(info(read)).names
        values = Values(rng)
        data = encoded(written, (values.of(written) for _ in range(count)))
        raw = pa.array([damaged(rng, item) for item in data], pa.binary())
        found = []
        for kernel in (True, False):
            choose(monkeypatch, kernel=kernel)
            found.append(avro_codec.decoder(info(written), info(read), names).decode(raw))
        first, second = found
        assert first.bad == second.bad, seed
        for one, other in zip(first.columns, second.columns, strict=True):
            one.validate(full=True)
            assert_same_bits(one, other, f"seed {seed}: ")


@pytest.mark.parametrize("seed", range(40))
def test_the_kernel_takes_whatever_is_well_formed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    tree = Schemas(rng).record()
    values = Values(rng)
    choose(monkeypatch, kernel=True)
    monkeypatch.delattr(ColumnDecoder, "_reads")
    assert not decode(tree, encoded(tree, (values.of(tree) for _ in range(50)))).bad


def damaged(rng: Random, data: bytes) -> bytes:
    return damage(rng, data, rng.choice((0, 0, 0, 0, 1, 1, 2)))


@pytest.mark.fault(44)
def test_values_with_few_but_long_lists_take_bounded_time() -> None:
    tree = record(array("int"))
    short, long = zigzag(3) + b"\x02\x04\x06\0", zigzag(50_000) + b"\x02" * 50_000 + b"\0"
    data = [short] * 5000
    data[::1000] = [long] * 5
    started = time.process_time()
    found = decode(tree, data).columns[0]
    assert time.process_time() - started < 5
    assert found[0].as_py() == [1] * 50_000
    assert found[1].as_py() == [1, 2, 3]


@pytest.mark.fault(44)
def test_counts_of_items_without_bytes_are_bounded_for_each_value() -> None:
    tree = record(array(array("null")))
    inner = zigzag(MAX_EMPTY_ITEMS // 2) + b"\0"
    fits, beyond = (zigzag(n) + inner * n + b"\0" for n in (2, 3))
    found = decode(tree, [fits, beyond])
    assert found.columns[0][0].as_py() == [[None] * (MAX_EMPTY_ITEMS // 2)] * 2
    assert [(item.row, item.field) for item in found.bad] == [(1, "f0[]")]


def test_values_larger_than_a_window_are_decoded() -> None:
    tree = record("bytes", "int")
    size = 3 * 1024 * 1024
    data = [zigzag(size) + bytes(size) + zigzag(number) for number in range(4)]
    found = decode(tree, data)
    assert found.columns[1].to_pylist() == [0, 1, 2, 3]


def test_unions_of_more_than_64_types(way: str) -> None:
    members = [{"type": "fixed", "name": f"F{n}", "size": n % 3} for n in range(70)]
    data = [zigzag(n) + b"ab"[: n % 3] for n in range(70)] * 5
    found = decode(record(members), data)
    assert not found.bad
    for n, value in enumerate(found.columns[0].to_pylist()):
        filled = {name: item for name, item in value.items() if item is not None}
        assert filled == {f"member{n % 70}": b"ab"[: n % 70 % 3]}


def test_a_decoder_can_be_pickled() -> None:
    tree = record("int", ENUM, ["null", POINT])
    decoder = pickle.loads(pickle.dumps(avro_codec.decoder(info(tree), info(tree), ["f1", "f0"])))
    found = decoder.decode(pa.array([zigzag(3) + zigzag(1) + zigzag(0)]))
    assert [column.to_pylist() for column in found.columns] == [["B"], [3]]


def test_a_decoder_that_has_decoded_can_be_pickled_too(way: str) -> None:
    tree = record("long")
    raw = pa.array([zigzag(5), b""])
    decoder = avro_codec.decoder(info(tree), info(tree), ["f0"])
    decoder.decode(raw)
    assert pickle.loads(pickle.dumps(decoder)).decode(raw).columns[0].to_pylist() == [5, None]


def test_threads_can_share_a_decoder(way: str) -> None:
    tree = record("long", array("string"))
    data = [zigzag(number) + b"\x02\x02a\0" for number in range(5000)]
    decoder = avro_codec.decoder(info(tree), info(tree), ["f0"])
    raw = pa.array(data, pa.binary())

    def decoded(start: int) -> list[int]:
        found = [decoder.decode(raw.slice(start, 1000)).columns[0] for _ in range(20)]
        return [column[0].as_py() for column in found]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(decoded, range(0, 4000, 100))) == [
            [n] * 20 for n in range(0, 4000, 100)
        ]
