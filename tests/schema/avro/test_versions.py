"""Values of several versions, read together."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema import column_decoder
from pulsar_spark.schema.avro import codec as avro_codec
from pulsar_spark.schema.codec import Decoded
from pulsar_spark.schema.column_decoder import MAX_VERSIONS, ColumnDecoder
from tests.schema.avro.random_values import Schemas, Values, encoded, info, rows
from tests.schema.avro.test_decoder import damaged
from tests.schema.avro.test_resolution import Evolution, of, record
from tests.schema.kernel import choose


def decoders(reader: Any, *writers: Any) -> list[Any]:
    names = avro_codec.arrow_schema(info(reader)).names
    return [avro_codec.decoder(info(tree), info(reader), names) for tree in writers]


def together(found: Sequence[Any], data: Sequence[bytes | None], versions: list[int]) -> Decoded:
    assert isinstance(found[0], ColumnDecoder)
    joint = found[0].together(found)
    assert joint is not None
    return joint.decode(pa.array(data, pa.binary()), pa.array(versions, pa.int32()))


ID, NAME = of("id", "long"), of("name", ["null", "string"], default=None)
CITY, SIZE = of("city", "string", default="Basel"), of("size", "int", default=7)


def test_missing_fields_are_null_or_their_default() -> None:
    latest = record(ID, NAME, CITY)
    found = decoders(latest, record(ID), record(ID, CITY), latest)
    data = [
        *encoded(record(ID), [{"id": 1}]),
        *encoded(record(ID, CITY), [{"id": 2, "city": "Bern"}]),
        *encoded(latest, [{"id": 3, "name": "x", "city": "Chur"}]),
    ]
    result = together(found, data, [0, 1, 2])
    assert [column.to_pylist() for column in result.columns] == [
        [1, 2, 3], [None, None, "x"], ["Basel", "Bern", "Chur"],
    ]  # fmt: skip


def test_fields_in_another_order_are_read_version_by_version() -> None:
    latest, swapped = record(ID, CITY), record(CITY, ID)
    data = [
        *encoded(latest, [{"id": 1, "city": "a"}]),
        *encoded(swapped, [{"id": 2, "city": "b"}]),
    ]
    result = together(decoders(latest, latest, swapped), data, [0, 1])
    assert [column.to_pylist() for column in result.columns] == [[1, 2], ["a", "b"]]


def test_an_undecodable_value_is_reported_as_by_the_decoder_of_its_version() -> None:
    latest, older = record(ID, NAME), record(ID)
    good = encoded(latest, [{"id": 1, "name": "x"}])[0]
    data = [good, b"\x02\x02", None, encoded(older, [{"id": 3}])[0], b"\x80"]
    result = together(decoders(latest, latest, older), data, [0, 1, 1, 1, 0])
    alone = decoders(latest, older)[0].decode(pa.array([b"\x02\x02"]))
    assert [bad.row for bad in result.bad] == [1, 4]
    assert result.bad[0].reason == alone.bad[0].reason
    assert result.columns[0].to_pylist() == [1, None, None, 3, None]


def test_too_many_versions_are_not_read_together() -> None:
    found = decoders(record(ID), *[record(ID)] * (MAX_VERSIONS + 1))
    assert found[0].together(found) is None
    assert found[0].together(found[1:]) is not None


def test_versions_that_were_read_together_are_no_work_the_next_time() -> None:
    found = decoders(record(ID, NAME), record(ID), record(ID, CITY), record(ID, NAME))
    assert found[0].together(found) is found[1].together(found)
    assert found[0].together(found[:2]) is not found[0].together(found)


def test_few_of_many_decoders_keep_memory_for_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, kernel=True)
    found = decoders(record(ID), *[record(ID)] * 200)
    for _ in range(2):
        for each in found:
            (column,) = each.decode(pa.array([b"\2"], pa.binary())).columns
            assert column.to_pylist() == [1]
    assert len(column_decoder._kernels) <= 32


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_random_versions_read_together_give_what_each_decoder_gives(
    seed: int, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    writer = Schemas(rng, logical=False).record()
    latest = Evolution(rng).of(writer)
    fields = latest["fields"]
    fewer = {**latest, "fields": [f for f in fields if "default" not in f or rng.random() < 0.5]}
    shuffled = {**latest, "fields": rng.sample(fields, len(fields))}
    trees = [writer, latest, fewer, shuffled]
    choose(monkeypatch, kernel=kernel)
    # Some are read in parts.
    monkeypatch.setattr(column_decoder, "_AT_ONCE", rng.choice((7, 120, 1000)))
    versions = [rng.randrange(len(trees)) for _ in range(120)]
    values = Values(rng)
    data: list[bytes | None] = [encoded(trees[v], [values.of(trees[v])])[0] for v in versions]
    for place in rng.sample(range(120), 12):
        data[place] = None if rng.random() < 0.3 else damaged(rng, data[place] or b"")
    found = decoders(latest, *trees)
    names = avro_codec.arrow_schema(info(latest)).names
    alone = [
        found[v].decode(pa.array([each], pa.binary()))
        for v, each in zip(versions, data, strict=True)
    ]
    result = together(found, data, versions)
    # As text, in which NaN equals NaN.
    given = [row for each in alone for row in rows(names, each.columns)]
    assert [*map(repr, rows(names, result.columns))] == [*map(repr, given)]
    expected = [(row, bad.field, bad.reason) for row, each in enumerate(alone) for bad in each.bad]
    assert [(bad.row, bad.field, bad.reason) for bad in result.bad] == expected
