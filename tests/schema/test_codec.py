"""The codec of each schema."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import (
    BYTES,
    PRIMITIVE_NAMES,
    SchemaInfo,
    join_key_value,
)
from pulsar_spark.schema.codec import Mismatch, codec_of, is_decoded, is_record, typed_columns

STRING = SchemaInfo(pb.Schema.String, "String")
INT32 = SchemaInfo(pb.Schema.Int32, "INT32")
OTHER = SchemaInfo(pb.Schema.External, "x")


@pytest.mark.parametrize("kind", [BYTES, *PRIMITIVE_NAMES])
def test_primitives_are_one_column(kind: int) -> None:
    info = SchemaInfo(kind)
    assert is_decoded(info)
    assert not is_record(info)
    assert typed_columns(info).fields.names == ["value"]
    assert typed_columns(info).key is None


@pytest.mark.parametrize("kind", [99, pb.Schema.External, pb.Schema.AutoConsume])
def test_other_schemas_have_no_codec(kind: int) -> None:
    assert not is_decoded(SchemaInfo(kind))
    with pytest.raises(SchemaMismatch, match="raw"):
        codec_of(SchemaInfo(kind))


def test_key_and_value_have_types_of_their_own() -> None:
    for separated in (True, False):
        found = typed_columns(join_key_value(STRING, INT32, separated=separated))
        assert found.fields == pa.schema([("value", pa.int32())])
        assert found.key == pa.string()


def test_both_of_key_and_value_must_be_decoded() -> None:
    assert not is_decoded(join_key_value(STRING, OTHER, separated=True))
    assert not is_decoded(join_key_value(OTHER, STRING, separated=True))


@pytest.mark.fault(44)
def test_a_damaged_pair_is_an_error() -> None:
    with pytest.raises(SchemaMismatch, match="KEY_VALUE"):
        is_decoded(SchemaInfo(pb.Schema.KeyValue, "KeyValue", b"\0"))
    nested = join_key_value(STRING, join_key_value(INT32, INT32, separated=False), separated=False)
    assert not is_decoded(nested)


@pytest.mark.parametrize(
    "steps,field",
    [
        ([], ""),
        (["a"], "a"),
        (["lines", "address"], "address.lines"),
        (["[3]", "lines", "address", ""], "address.lines[3]"),
        (["x", "{'key'}", "m"], "m{'key'}.x"),
        (["[]"], "[]"),
    ],
)
def test_a_mismatch_tells_its_path_from_the_outside_in(steps: list[str], field: str) -> None:
    mismatch = Mismatch("it is odd", steps[0] if steps else "", row=3)
    for step in steps[1:]:
        mismatch = mismatch.within(step)
    assert (mismatch.field, mismatch.row) == (field, 3)
    assert str(mismatch.within("", row=7)) == f"row 7: {field}: it is odd"
