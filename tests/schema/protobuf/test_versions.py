"""Values of several versions, read together."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.codec import Decoded
from pulsar_spark.schema.column_decoder import ColumnDecoder
from pulsar_spark.schema.protobuf import codec
from pulsar_spark.schema.protobuf.types import Type
from tests.schema.protobuf.cases import (
    RandomSchema,
    add,
    class_of,
    info_of,
    new_file,
    random_message,
)
from tests.schema.protobuf.test_both_ways import damaged

pytestmark = pytest.mark.usefixtures("way")


def together(
    reader: SchemaInfo, writers: Sequence[SchemaInfo], raw: pa.Array, versions: list[int]
) -> tuple[Decoded, list[Any]]:
    """Return the values of all versions, and the decoders of the versions."""
    names = codec.arrow_schema(reader).names
    decoders = [codec.decoder(writer, reader, names) for writer in writers]
    assert isinstance(decoders[0], ColumnDecoder)
    joint = decoders[0].together(decoders)
    assert joint is not None
    return joint.decode(raw, pa.array(versions, pa.int32())), decoders


def version(*names: str) -> Any:
    file = new_file()
    enum = file.enum_type.add(name="E")
    for number, name in enumerate(names):
        enum.value.add(name=name, number=number)
    message = file.message_type.add(name="M")
    add(message, "a", 1, Type.TYPE_ENUM, type_name=".t.E")
    add(message, "text", 2, Type.TYPE_STRING)
    return file


def test_each_value_has_the_names_of_its_version() -> None:
    infos = [info_of(version("A", "B")), info_of(version("A", "BETA", "C"))]
    values = [b"\x08\x01", b"\x08\x02", b"\x08\x02", None, b"\x12\x01\xff", b"\x08"]
    raw = pa.array(values, pa.binary())
    found, _ = together(infos[0], infos, raw, [1, 0, 1, 1, 0, 1])
    assert found.columns[0].to_pylist() == ["B", "2", "C", None, None, None]
    assert [(bad.row, bad.field) for bad in found.bad] == [(4, "text"), (5, "")]


@pytest.mark.parametrize("seed", range(12))
def test_random_values_read_together_are_what_each_decoder_gives(seed: int) -> None:
    rng = Random(seed)
    latest = RandomSchema(rng, ("proto2", "proto3", "editions")[seed % 3]).file()
    files = [latest]
    for _ in range(3):
        older = type(latest)()
        older.CopyFrom(latest)
        for message in older.message_type:
            kept = [field for field in message.field if rng.random() < 0.7]
            if not any(field.HasField("oneof_index") for field in message.field):
                del message.field[:]
                message.field.extend(kept)
        files.append(older)
    kinds = [class_of(file) for file in files]
    versions = [rng.randrange(len(files)) for _ in range(150)]
    values: list[bytes | None] = [
        random_message(rng, kinds[number]).SerializeToString() for number in versions
    ]
    for row in rng.sample(range(150), 15):
        values[row] = None if rng.random() < 0.3 else damaged(rng, values[row] or b"")
    raw = pa.array(values, pa.binary())
    found, decoders = together(info_of(latest), [info_of(file) for file in files], raw, versions)
    alone = [decoders[number].decode(raw.slice(row, 1)) for row, number in enumerate(versions)]
    for place, column in enumerate(found.columns):
        # As text, in which NaN equals NaN.
        expected = [each.columns[place][0].as_py() for each in alone]
        assert [*map(repr, column.to_pylist())] == [*map(repr, expected)]
    assert [(bad.row, bad.field, bad.reason) for bad in found.bad] == [
        (row, bad.field, bad.reason) for row, each in enumerate(alone) for bad in each.bad
    ]
