"""Compares columns bit by bit: -0.0 is not 0.0, and NaNs with other bits differ."""

from __future__ import annotations

import pyarrow as pa


def assert_same_bits(one: pa.Array, other: pa.Array, where: str = "") -> None:
    """Fail unless two arrays have the same values; floats are compared by their bits."""
    assert one.type == other.type, where
    assert one.is_valid().to_pylist() == other.is_valid().to_pylist(), where
    kind = one.type
    if pa.types.is_struct(kind):
        # Flattening makes fields of null structs null, and drops the items of null lists.
        for field, mine, others in zip(kind, one.flatten(), other.flatten(), strict=True):
            assert_same_bits(mine, others, f"{where}.{field.name}")
    elif pa.types.is_list(kind):
        assert one.value_lengths().to_pylist() == other.value_lengths().to_pylist(), where
        assert_same_bits(one.flatten(), other.flatten(), f"{where}[]")
    elif pa.types.is_map(kind):
        pairs = pa.list_(pa.struct([kind.key_field, kind.item_field]))
        assert_same_bits(_retyped(one, pairs), _retyped(other, pairs), f"{where}{{}}")
    else:
        mine, others = one.drop_null(), other.drop_null()
        if pa.types.is_floating(kind):
            whole = pa.int32() if kind.bit_width == 32 else pa.int64()
            mine, others = mine.view(whole), others.view(whole)
        assert mine.equals(others), f"{where}: {mine.diff(others)}"


def _retyped(column: pa.Array, kind: pa.DataType) -> pa.Array:
    buffers = column.buffers()[:2]
    entries = pa.StructArray.from_arrays([column.keys, column.items], fields=list(kind.value_type))
    return pa.Array.from_buffers(
        kind, len(column), buffers, offset=column.offset, children=[entries]
    )
