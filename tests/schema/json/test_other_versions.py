"""Values of one version read as another: text and bytes, times, and unions of several types."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema import declared
from pulsar_spark.schema.codec import Decoded, Losses
from pulsar_spark.schema.declared import declared_json
from pulsar_spark.schema.json import codec as json_codec
from tests.schema.json.cases import info, logical, plain, record
from tests.schema.kernel import choose

DATE, TIME = logical("int", "date"), logical("int", "time-millis")
MILLIS, MICROS = (logical("long", f"timestamp-{unit}") for unit in ("millis", "micros"))
LOCAL = logical("long", "local-timestamp-millis")
DECIMAL = logical("bytes", "decimal", precision=10, scale=2)
UUID = logical("string", "uuid")
FIXED = {"type": "fixed", "name": "F", "size": 4}
ENUM = {"type": "enum", "name": "E", "symbols": ["AAAA", "BBBB"]}


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "items": kind}


def with_null(kind: Any) -> list[Any]:
    return ["null", *(kind if isinstance(kind, list) else [kind])]


def between(patch: pytest.MonkeyPatch, written: Any, wanted: Any, values: list[Any]) -> Decoded:
    """Read values of one version as another, in the kernel and in Python."""
    writer, reader = (info(record([("d", with_null(each))])) for each in (written, wanted))
    return read_both(patch, writer, reader, [json.dumps({"d": each}) for each in values])


def read_both(
    patch: pytest.MonkeyPatch, writer: SchemaInfo, reader: SchemaInfo, texts: list[str]
) -> Decoded:
    raw = pa.array([each.encode() for each in texts], pa.binary())
    found = []
    for kernel in (True, False):
        choose(patch, kernel=kernel)
        found.append(json_codec.decoder(writer, reader, ["d"]).decode(raw))
    assert [*found[0].bad] == [*found[1].bad]
    assert found[0].columns[0].equals(found[1].columns[0])
    return found[0]


@pytest.mark.fault(64)
@pytest.mark.parametrize(
    "written,wanted,values,expected",
    [
        ("string", "bytes", ["abcd", "é", "", None], [b"abcd", "é".encode(), b"", None]),
        ("string", FIXED, ["abcd"], [b"abcd"]),
        ("bytes", "string", ["aGVsbG8=", "w6k=", "", None], ["hello", "é", "", None]),
        (FIXED, "string", ["YWJjZA=="], ["abcd"]),
        ("bytes", FIXED, ["YWJjZA=="], [b"abcd"]),
        (UUID, "bytes", ["abcd"], [b"abcd"]),
        (array("string"), array("bytes"), [["abcd"]], [[b"abcd"]]),
        # Among several types, the kind of the value does not tell text from bytes.
        ("bytes", ["string", "bytes"], ["aGVsbG8="], [[None, b"hello"]]),
        ("string", ["bytes", "string"], ["abcd"], [[None, "abcd"]]),
        (["bytes", "int"], ["string", "bytes"], ["aGVsbG8="], [[None, b"hello"]]),
        ("string", ["int", "bytes"], ["abcd"], [[None, b"abcd"]]),
        ("bytes", ["int", "string"], ["aGVsbG8="], [[None, "hello"]]),
        (["int", "bytes"], "string", ["aGVsbG8="], ["hello"]),
    ],
)
def test_text_of_another_version_becomes_bytes_and_bytes_text(
    written: Any, wanted: Any, values: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = between(monkeypatch, written, wanted, values)
    assert not found.bad
    rows = found.columns[0].to_pylist()
    in_union = [[*each.values()] if isinstance(each, dict) else each for each in rows]
    assert in_union == expected


def test_versions_of_the_python_client_have_bytes_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    text, raw = (info(record([("d", each)]), indent=1) for each in ("string", "bytes"))
    for writer, reader in ((text, raw), (raw, text)):
        found = read_both(monkeypatch, writer, reader, ['{"d":"abcd"}'])
        assert found.columns[0].cast(pa.string()).to_pylist() == ["abcd"]


def test_columns_that_the_user_declares_say_which_texts_are_base64() -> None:
    for kind, expected in ((pa.binary(), b"i\xb7\x1d"), (pa.string(), "abcd")):
        for written in ("string", "bytes"):
            reader = declared_json(pa.schema([("d", kind)]))
            decoder = declared.decoder(info(record([("d", written)])), reader, ["d"])
            found = decoder.decode(pa.array([b'{"d":"abcd"}']))
            assert found.columns[0].to_pylist() == [expected]


@pytest.mark.fault(64)
@pytest.mark.parametrize(
    "written,wanted,value",
    [
        (DATE, MILLIS, 19000),
        (MILLIS, DATE, 19000),
        (DATE, TIME, 19000),
        (TIME, MICROS, 1000),
        (TIME, DATE, [1, 2, 3]),
        (MICROS, TIME, 1000),
        (LOCAL, DATE, 19000),
        ("bytes", DECIMAL, "1234"),
        (DECIMAL, "bytes", "1234"),
        ("bytes", "int", "1234"),
        ("int", "bytes", "1234"),
        ("bytes", ENUM, "AAAA"),
        (ENUM, "bytes", "AAAA"),
        (array(DATE), array(MILLIS), [19000]),
        (DATE, ["int", MICROS], "2024-02-29T00:00:00"),
    ],
)
def test_values_of_another_version_that_look_alike_but_mean_something_else_are_refused(
    written: Any, wanted: Any, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = between(monkeypatch, written, wanted, [value, None])
    assert found.columns[0].to_pylist() == [None, None]
    (bad,) = found.bad
    assert bad.row == 0
    if not isinstance(wanted, list):
        assert "it was written as " in bad.reason
        assert ", the query reads it as " in bad.reason


def test_bytes_that_are_no_text_are_refused_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    found = between(monkeypatch, "bytes", "string", ["/w==", "no base64", "YQ=="])
    assert found.columns[0].to_pylist() == [None, None, "a"]
    assert [each.reason for each in found.bad] == [
        "it is a string in base64 whose bytes are not UTF-8",
        "it is a string that is not base64",
    ]


@pytest.mark.fault(64)
@pytest.mark.parametrize(
    "written,wanted,place",
    [
        (MILLIS, [MICROS, "string"], 0),
        ([MILLIS, "string"], [MICROS, "string"], 0),
        ([MILLIS, "string"], ["string", MICROS], 1),
        ([MILLIS, "string"], MICROS, None),
        (LOCAL, [MICROS, "string"], 0),
        # A number without a unit has the reader's.
        ([MICROS, "string"], [MICROS, "string"], 0),
    ],
)
def test_times_among_several_types_have_the_unit_of_their_version(
    written: Any, wanted: Any, place: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_millis = "millis" in json.dumps(written)
    found = between(monkeypatch, written, wanted, [5])
    column = found.columns[0] if place is None else found.columns[0].field(place)
    assert plain(column) == [5000 if has_millis else 5]


def test_records_among_several_types_have_the_units_of_their_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def union(unit: str, *names: str) -> list[Any]:
        return [record([(f"at_{n.lower()}", logical("long", unit))], n) for n in names]

    written = union("timestamp-millis", "A", "B")
    wanted = union("timestamp-micros", "B", "A")
    found = between(monkeypatch, written, wanted, [{"at_a": 5}, {"at_b": 6}])
    (by_b, by_a) = (found.columns[0].field(place) for place in (0, 1))
    assert plain(by_a.field(0)) == [5000, None]
    assert plain(by_b.field(0)) == [None, 6000]
    one = between(monkeypatch, written, wanted[0], [{"at_b": 6}])
    assert plain(one.columns[0].field(0)) == [6000]


def test_topics_with_text_and_bytes_lose_nothing_where_they_are_read_as_bytes() -> None:
    text, raw = (info(record([("d", each)])) for each in ("string", "bytes"))
    assert json_codec.losses(text, raw, ["d"]) == Losses()
    assert json_codec.losses(raw, text, ["d"]) == Losses(partial=("d",))
