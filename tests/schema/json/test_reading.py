"""Each value decodes as with the `json` module, whatever its neighbours are."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema.codec import Decoded
from pulsar_spark.schema.json import codec as json_codec
from tests.schema.json.cases import (
    BREAKERS,
    Bad,
    broken,
    expected,
    info,
    logical,
    nullable,
    plain,
    random_record,
    random_text,
    record,
    same,
)


def decode(definition: Any, values: Sequence[bytes | None], *names: str) -> Decoded:
    schema = info(definition)
    columns = json_codec.arrow_schema(schema)
    wanted = names or columns.names
    found = json_codec.decoder(schema, schema, wanted).decode(pa.array(values, pa.binary()))
    for name, column in zip(wanted, found.columns, strict=True):
        column.validate(full=True)
        assert column.type == columns.field(name).type
        assert len(column) == len(values)
    rows = [item.row for item in found.bad]
    assert rows == sorted(set(rows))
    return found


def check(definition: dict[str, Any], values: Sequence[bytes | None], *names: str) -> int:
    """Compare with the json module; return how many values are bad."""
    found = decode(definition, values, *names)
    wanted = list(names) or [field["name"] for field in definition["fields"]]
    fields = [field for field in definition["fields"] if field["name"] in wanted]
    columns = [plain(column) for column in found.columns]
    bad = {item.row for item in found.bad}
    for row, value in enumerate(values):
        got = {name: column[row] for name, column in zip(wanted, columns, strict=True)}
        try:
            correct = expected({**definition, "fields": fields}, value)
            assert row not in bad, value
        except Bad:
            assert row in bad, value
            correct = None
        if correct is None:
            correct = dict.fromkeys(wanted)
        assert same(got, correct), value
    return len(bad)


pytestmark = pytest.mark.usefixtures("way")


@pytest.mark.parametrize("seed", range(80))
def test_random_records_in_which_some_are_broken(seed: int) -> None:
    rng = random.Random(seed)
    definition = random_record(rng)
    count, share = rng.choice([(40, 0.3), (150, 0.02), (200, 0.0)])
    values: list[bytes | None] = []
    for _ in range(count):
        text = random_text(rng, definition)
        values.append(broken(rng, text) if rng.random() < share else text.encode())
        if rng.random() < 0.02:
            values.append(None)
    check(definition, values)


@pytest.mark.parametrize("seed", range(20))
def test_only_the_fields_asked_for_are_decoded_and_looked_at(seed: int) -> None:
    rng = random.Random(seed)
    definition = random_record(rng)
    names = [field["name"] for field in definition["fields"]]
    rng.shuffle(names)
    values = [random_text(rng, definition).encode() for _ in range(30)]
    check(definition, values, *names[: rng.randint(1, len(names))])


TEXTS = record([("f0", nullable("string")), ("f1", nullable("long"))])
MAPS = record([("f0", nullable({"type": "map", "values": nullable("long")})), ("f1", "long")])
NUMBERS = record([("f0", nullable("double")), ("f1", nullable("long"))])
NESTED = record([("f0", nullable(record([("f0", nullable("int"))], "A"))), ("f1", "long")])


@pytest.mark.fault(44)
@pytest.mark.parametrize("definition", [TEXTS, MAPS, NUMBERS, NESTED])
@pytest.mark.parametrize("breaker", BREAKERS)
def test_a_broken_value_takes_no_other_with_it(definition: dict[str, Any], breaker: str) -> None:
    good = [b'{"f1":%d}' % i for i in range(40)]
    # Alone, among others, at both ends, and beside another one, so that rows would shift.
    check(definition, [breaker.encode()])
    check(definition, [*good[:20], breaker.encode(), *good[20:]])
    check(definition, [breaker.encode(), *good, breaker.encode()])
    for other in ("{}{}", "{}\n{}", "", " ", "{}null{}"):
        check(definition, [*good[:3], breaker.encode(), other.encode(), *good[3:]])


@pytest.mark.fault(44)
def test_no_pair_of_tricks_shifts_rows() -> None:
    good = [b'{"f1":%d}' % i for i in range(3)]
    pairs = [(a, b) for a in BREAKERS for b in BREAKERS if len(a) + len(b) < 30]
    for first, second in pairs:
        check(TEXTS, [good[0], first.encode(), good[1], second.encode(), good[2]])


@pytest.mark.fault(44)
def test_values_nested_deeply_are_bad_even_where_they_are_skipped() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    values = [b'{"f1":1}', b'{"f0":' + deep + b"}", b'{"x":' + deep + b',"f1":2}', b'{"f1":3}']
    found = decode(TEXTS, values)
    assert found.columns[1].to_pylist() == [1, None, None, 3]
    assert [(item.row, item.reason) for item in found.bad] == [
        (1, "it is nested too deeply"),
        (2, "it is nested too deeply"),
    ]


def test_of_a_name_that_is_there_twice_the_last_counts() -> None:
    values = [b'{"f1":1,"f1":2}', b'{"f1":3,"f1":null}', b'{"f0":{"a":1,"a":2},"f0":{"b":1}}']
    assert check(MAPS, values) == 0
    assert check(MAPS, [b'{"f0":{"a":1,"a":null}}', b'{"F1":1,"f1":2}']) == 0


def test_what_is_missing_or_null_or_more_than_asked_for() -> None:
    values = [b"{}", b'{"f1":null}', b'{"f0":null,"z":[{"f1":5}],"f1":7}', b"null", None]
    found = decode(MAPS, values)
    assert found.columns[1].to_pylist() == [None, None, 7, None, None]
    assert not found.bad


def test_line_ends_in_values_are_white_space() -> None:
    values = [b'{\n"f1"\n:\n%d\n}' % i if i % 2 else b'\r\n {"f1":\t%d}\n\n' % i for i in range(50)]
    assert decode(TEXTS, values).columns[1].to_pylist() == list(range(50))


def test_texts_that_look_like_json_are_only_texts() -> None:
    texts = ['}{"f1":1}', "}null", '"}\n{"', "\\", '\\"}{', "Infinity -NaN Inf", '{"a":[{}]}x']
    values = [json.dumps({"f0": text, "f1": i}).encode() for i, text in enumerate(texts * 20)]
    assert decode(TEXTS, values).columns[0].to_pylist() == texts * 20


def test_an_error_names_the_field_and_the_reason_but_not_the_value() -> None:
    place = record([("xs", {"type": "array", "items": "int"})], "P")
    definition = record([("a", {"type": "map", "values": place}), ("b", "boolean")])
    values = [b'{"a":{"k":{"xs":[1,"secret"]}}}', b'{"b":1}', b'{"b":true', b'{"b":"\xff"}', b"[]"]
    bad = decode(definition, values).bad
    assert [(item.field, item.reason) for item in bad[:2]] == [
        ("a{'k'}.xs[1]", "it is a string where the schema has an integer"),
        ("b", "it is a number where the schema has a boolean"),
    ]
    assert "not JSON" in bad[2].reason
    assert bad[3].reason == "byte 6 is not UTF-8"
    assert bad[4].reason == "it is JSON, but not an object"


@pytest.mark.fault(94)
def test_times_beyond_64_bits_are_bad_and_others_exact() -> None:
    definition = record([("at", logical("long", "timestamp-millis"))])
    times = [0, -1, 253_402_300_800_000, 2**63 // 1000, -(2**63) // 1000 - 1, 2**63 - 1, 2**64]
    found = decode(definition, [b'{"at":%d}' % time for time in times])
    assert plain(found.columns[0]) == [
        time * 1000 if -(2**63) <= time * 1000 < 2**63 else None for time in times
    ]
    assert [item.row for item in found.bad] == [4, 5, 6]


def test_whole_numbers_with_a_point_are_taken_beside_any_others() -> None:
    schema = info(NUMBERS)
    decoder = json_codec.decoder(schema, schema, ["f0", "f1"])
    values = [b'{"f0":1.5,"f1":%d.0}' % i for i in range(3000)]
    values[7], values[2500] = b"{", b'{"f1":"x"}'
    found = decoder.decode(pa.array(values, pa.binary()))
    assert [item.row for item in found.bad] == [7, 2500]
    numbers = found.columns[1].to_pylist()
    assert numbers == [None if i in (7, 2500) else i for i in range(3000)]


def test_no_fields_are_still_checked_for_being_json() -> None:
    schema = info(TEXTS)
    found = json_codec.decoder(schema, schema, []).decode(pa.array([b"{}", b"{", None]))
    assert not found.columns
    assert [item.row for item in found.bad] == [1]


def test_nothing_to_decode_is_columns_without_rows() -> None:
    assert [len(column) for column in decode(MAPS, []).columns] == [0, 0]
    assert decode(MAPS, [None, None]).columns[0].null_count == 2


def test_slices_are_read_from_where_they_begin() -> None:
    schema = info(TEXTS)
    raw = pa.array([b'{"f1":%d}' % i if i % 3 else None for i in range(50)], pa.binary())
    found = json_codec.decoder(schema, schema, ["f1"]).decode(raw.slice(7, 20)).columns[0]
    assert found.to_pylist() == [i if i % 3 else None for i in range(7, 27)]


@pytest.mark.fault(44)
@pytest.mark.parametrize("value", [b'{"f1":1.0}', b'{"f1":"1"}', b"{", b"\xff", b"{}{}"])
def test_batches_of_nothing_but_unusual_values_take_bounded_time(value: bytes) -> None:
    start = time.process_time()
    decode(MAPS, [value] * 5000)
    # About a tenth of a second.
    assert time.process_time() - start < 10


def test_durations_have_one_type_whichever_way_they_are_read() -> None:
    kind = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    given = [{"f0": {"months": 1, "days": 2, "milliseconds": 3}}, {"f0": {"days": 4}}, {}]
    values = [json.dumps(value).encode() for value in given]
    unusual = b'{"f0":{"months":1.0,"days":2,"milliseconds":3}}'
    assert not decode(record([("f0", kind)]), values).bad
    found = decode(record([("f0", kind)]), [*values * 400, *[unusual] * 3])
    assert not found.bad
    whole = {"months": 1, "days": 2, "milliseconds": 3}
    assert found.columns[0].to_pylist()[-6:] == [
        whole,
        {"months": None, "days": 4, "milliseconds": None},
        None,
        whole,
        whole,
        whole,
    ]


def test_as_java_reads_them_values_lose_their_fraction_and_what_follows_them() -> None:
    schema = info(record([("n", nullable("long")), ("b", nullable("boolean"))]))
    values = [b'{"n":-1.9,"b":1}', b'{"n":1e-3,"b":0} {"n":2}', b'{"n":1e30}', b'{"n":"1.5"', b"x"]
    raw = pa.array(values, pa.binary())
    strict = json_codec.decoder(schema, schema, ["n", "b"]).decode(raw)
    assert [item.row for item in strict.bad] == [0, 1, 2, 3, 4]
    found = json_codec.decoder(schema, schema, ["n", "b"], as_java=True).decode(raw)
    assert [column.to_pylist()[:2] for column in found.columns] == [[-1, 0], [True, False]]
    assert [item.row for item in found.bad] == [2, 3, 4]


def test_as_java_text_says_a_whole_number_or_none() -> None:
    schema = info(record([("n", nullable("long")), ("b", nullable("boolean"))]))
    texts = ['{"n":"7","b":"true"}', '{"n":"1.5"}', '{"n":"-1.5"}', '{"b":"1"}', '{"n":"","b":""}']
    raw = pa.array([text.encode() for text in texts], pa.binary())
    for as_java in (False, True):
        found = json_codec.decoder(schema, schema, ["n", "b"], as_java=as_java).decode(raw)
        assert [item.row for item in found.bad] == [1, 2, 3]
        assert [column[0].as_py() for column in found.columns] == [7, True]
        assert [column[4].as_py() for column in found.columns] == [None, None]


JAVA = {"__jsr310ConversionEnabled": "false", "__alwaysAllowNull": "true"}


@pytest.mark.parametrize(
    "kind,properties,as_java,factor",
    [
        # Java's Instant.
        ("timestamp-micros", JAVA, True, 1_000_000),
        ("timestamp-micros", JAVA, False, 1),
        ("timestamp-micros", {}, True, 1),
        # Java's Date, which is milliseconds, and a class that takes no whole number.
        ("timestamp-millis", JAVA, True, 1000),
        ("local-timestamp-micros", JAVA, True, 1),
    ],
)
@pytest.mark.usefixtures("way")
def test_a_whole_number_is_seconds_where_java_reads_it_as_an_instant(
    kind: str, properties: dict[str, str], as_java: bool, factor: int
) -> None:
    definition = record([("t", logical("long", kind))])
    schema = replace(info(definition), properties=properties)
    raw = pa.array([b'{"t":1700000000}', b'{"t":17e8}', b'{"t":-1}'], pa.binary())
    found = json_codec.decoder(schema, schema, ["t"], as_java=as_java).decode(raw)
    assert not found.bad
    wanted = [1_700_000_000 * factor, 1_700_000_000 * factor, -factor]
    assert plain(found.columns[0]) == wanted


_INF = float("inf")


@pytest.mark.parametrize(
    "kind, text, wanted",
    [
        *[
            (kind, word, None)
            for kind in ("int", "long", "float", "double", "boolean")
            for word in ('" "', '"null"', '"\\u0000"', '" null "')
        ],
        *[
            ("boolean", f'"{word}"', word.strip().lower() == "true")
            for word in ("True", "TRUE", "False", "FALSE", " true ")
        ],
        *[
            (kind, word, 5)
            for kind in ("int", "long", "double")
            for word in ('" 5"', '"+5"', '"5"')
        ],
        *[(kind, word, _INF) for kind in ("float", "double") for word in ('"INF"', '"+Infinity"')],
        *[(kind, '"-INF"', -_INF) for kind in ("float", "double")],
        ("double", '"1e2"', 100.0),
        *[(kind, word, 7) for kind in ("int", "long", "float") for word in ('"007"', '"+007"')],
        *[(kind, '".5"', 0.5) for kind in ("float", "double")],
        *[(kind, '"-1."', -1.0) for kind in ("float", "double")],
        *[("bytes", word, b"\1\2") for word in ('"AQI=\\n"', '" AQI="')],
        ("bytes", '"AQI="', b"\1\2"),
        ("bytes", "[1,255,-1]", b"\1\xff\xff"),
        *[("bytes", word, b"") for word in ("[]", '" "', '"\\u0000"')],
    ],
)
def test_text_is_read_as_java_reads_it(kind: str, text: str, wanted: Any) -> None:
    schema = info(record([("a", nullable(kind))]))
    # A value that the kernel takes is before it.
    raw = pa.array([b'{"a":null}', f'{{"a":{text}}}'.encode()], pa.binary())
    found = json_codec.decoder(schema, schema, ["a"], as_java=True).decode(raw)
    assert not found.bad
    assert found.columns[0].to_pylist() == [None, wanted]


@pytest.mark.parametrize(
    "kind, text",
    [
        *[(kind, word) for kind in ("int", "long") for word in ('"5.5"', '"INF"', '"+-5"')],
        ("boolean", '"tRue"'),
        ("boolean", '"1"'),
        ("double", '"+INF"'),
        ("double", '"+-5"'),
        *[("double", f'"{word}"') for word in ("+-Infinity", ".", "-", "1.e", "0x1", "1_0")],
        ("bytes", "[256]"),
        ("bytes", "[true]"),
    ],
)
def test_text_that_java_refuses_is_refused(kind: str, text: str) -> None:
    schema = info(record([("a", nullable(kind))]))
    raw = pa.array([f'{{"a":{text}}}'.encode()], pa.binary())
    found = json_codec.decoder(schema, schema, ["a"], as_java=True).decode(raw)
    assert [item.row for item in found.bad] == [0]


DATE, TIME = logical("int", "date"), logical("int", "time-millis")
LOCAL, INSTANT = (logical("long", f"{name}-micros") for name in ("local-timestamp", "timestamp"))
SECONDS = 1_709_201_472
"""2024-02-29T10:11:12"""


@pytest.mark.parametrize(
    "kind,text,wanted",
    [
        *[
            (kind, blank, None)
            for kind in (DATE, TIME, LOCAL, INSTANT)
            for blank in ('""', '" "', '"\\t"')
        ],
        *[(kind, "[]", None) for kind in (DATE, TIME, LOCAL)],
        *[
            (DATE, f'"{text}"', 19_782)
            for text in (
                *(" 2024-02-29 ", "2024-02-29T10:11", "2024-02-29T10:11:12Z"),
                "2024-02-29T10:11:12.123456789",
            )
        ],
        (TIME, '" 10:11:12"', 36_672 * 10**9),
        (TIME, '"2024-02-29T10:11:12"', 36_672 * 10**9),
        (LOCAL, '"2024-02-29T10:11:12Z"', SECONDS * 10**6),
        (LOCAL, '"2024-02-29T10:11:12.5 "', SECONDS * 10**6 + 500_000),
        (INSTANT, '" 2024-02-29T12:11:12+02:00"', SECONDS * 10**6),
        (INSTANT, '"2024-02-29T10:11:12Z"', SECONDS * 10**6),
        *[(INSTANT, f'"{text}"', SECONDS * 10**6) for text in (SECONDS, f" {SECONDS}.0 ")],
        (INSTANT, '"-007"', -7_000_000),
    ],
)
@pytest.mark.usefixtures("way")
def test_text_is_the_time_that_java_reads(kind: Any, text: str, wanted: Any) -> None:
    found = as_java(kind, text)
    assert not found.bad
    assert plain(found.columns[0]) == [wanted]


@pytest.mark.parametrize(
    "kind,text",
    [
        *[
            (DATE, f'"{text}"')
            for text in (
                *("null", "5", "2024-02-29 10:11", "2024-02-29T10:11+02:00", "2024-02-29T25:00"),
                *("2024-02-29Z", "2024-02-30T10:11"),
            )
        ],
        *[(TIME, f'"{text}"') for text in ("null", "2024-02-29T10:11Z", "2023-02-29T10:11")],
        *[(LOCAL, f'"{text}"') for text in ("5", "2024-02-29T10:11+02:00", "2024-02-29T10:11ZZ")],
        *[(INSTANT, f'"{text}"') for text in ("null", "+-5", "1e3", "INF", "2024-02-29")],
        (INSTANT, "[]"),
        *[(kind, "1.5") for kind in (DATE, TIME)],
    ],
)
@pytest.mark.usefixtures("way")
def test_text_that_is_no_time_to_java_is_refused(kind: Any, text: str) -> None:
    assert [item.row for item in as_java(kind, text).bad] == [0]


def as_java(kind: Any, text: str) -> Decoded:
    schema = replace(info(record([("t", nullable(kind))])), properties=JAVA)
    raw = pa.array([f'{{"t":{text}}}'.encode()], pa.binary())
    return json_codec.decoder(schema, schema, ["t"], as_java=True).decode(raw)


def test_keys_are_numbers_as_java_reads_them() -> None:
    pair = record([("key", "int"), ("value", "int")], "org.apache.avro.reflect.PairIntegerInteger")
    found = as_java({"type": "array", "items": pair}, '{"01":5,"+2":6}')
    assert found.columns[0].to_pylist() == [[{"key": 1, "value": 5}, {"key": 2, "value": 6}]]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("text", ["nullx", "null1", "null_", "nullnull", "\u00a0{}", "truefalse"])
def test_words_that_do_not_end_are_no_json_though_anything_may_follow(text: str) -> None:
    schema = info(record([("n", nullable("long"))]))
    for kind in (schema, info("boolean")):
        names = json_codec.arrow_schema(kind).names
        decoder = json_codec.decoder(kind, kind, names, as_java=True)
        assert decoder.decode(pa.array([text.encode()], pa.binary())).bad
        assert not decoder.decode(pa.array([b"null x", b"null", b"null,"], pa.binary())).bad


def test_a_byte_order_mark_is_no_part_of_the_value() -> None:
    assert decode(NUMBERS, [b'\xef\xbb\xbf{"f1":1}']).columns[1].to_pylist() == [1]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "é", "a b"])
def test_names_of_fields_are_found_however_they_are_escaped(name: str) -> None:
    definition = record([(name, "int"), ("f1", "long")])
    texts = [json.dumps({name: 1, "f1": 2}, ensure_ascii=ascii) for ascii in (True, False)]
    raw = f'{{"{name}":1}}'
    check(definition, [*(text.encode() for text in texts), raw.encode()])


@pytest.mark.fault(64)
@pytest.mark.parametrize(
    "written, read, times",
    [
        ("local-timestamp-millis", "timestamp-micros", 1000),
        ("timestamp-millis", "local-timestamp-micros", 1000),
        ("timestamp-micros", "local-timestamp-millis", 1),
        ("time-millis", "time-micros", 1_000_000),
    ],
)
def test_times_have_the_unit_of_the_version_they_were_written_with(
    written: str, read: str, times: int
) -> None:
    kinds = {"time-millis": "int"}
    writer, reader = (
        info(record([("t", logical(kinds.get(name, "long"), name))])) for name in (written, read)
    )
    raw = pa.array([b'{"t":81}'], pa.binary())
    (column,) = json_codec.decoder(writer, reader, ["t"]).decode(raw).columns
    assert column.cast(pa.int64()).to_pylist() == [81 * times]
