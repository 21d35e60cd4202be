"""Parts encoded as columns equal those that protobuf writes one by one."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.arrow.arrays import offsets_of
from pulsar_spark.schema.arrow.varints import varint
from pulsar_spark.schema.protobuf import wire


@given(st.lists(st.binary(max_size=300)))
def test_delimited_values(values: list[bytes]) -> None:
    found = wire.delimited(pa.array([b"x", *values], pa.binary()).slice(1), b"\x0a")
    assert found.to_pylist() == [b"\x0a" + varint(len(value)) + value for value in values]


@given(st.lists(st.lists(st.binary(max_size=5), max_size=4)))
def test_parts_are_regrouped_without_a_copy(groups: list[list[bytes]]) -> None:
    parts = pa.array([b"before", *(part for group in groups for part in group)], pa.binary()).slice(
        1
    )
    places = offsets_of(pa.array([len(group) for group in groups], pa.int32()))
    found = wire.regrouped(parts, places)
    found.validate(full=True)
    assert found.to_pylist() == [b"".join(group) for group in groups]
    assert not len(parts) or found.buffers()[2].address == parts.buffers()[2].address


def test_flags_are_places_of_one_part_or_none() -> None:
    flags = pa.array([False, True, True, False])
    found = wire.regrouped(pa.array([b"a", b"b"], pa.binary()), offsets_of(flags))
    assert found.to_pylist() == [b"", b"a", b"b", b""]


def test_tags() -> None:
    assert wire.tag(1, wire.VARINT) == b"\x08"
    assert wire.tag(16, wire.DELIMITED) == b"\x82\x01"
    assert wire.tag(2**29 - 1, wire.END_GROUP) == b"\xfc\xff\xff\xff\x0f"
