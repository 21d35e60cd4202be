"""The metadata of a column of messages, encoded field by field with Arrow.

For batches the same bytes as protobuf writes, up to the digits of the sequence id, which is not
known yet; else the fields of MessageMetadata from behind the publish time up to the schema version.
Only a null value's mark comes before what has lower numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.protocol.byte_column import sizes_of
from pulsar_spark.schema.arrow.arithmetic import ZERO
from pulsar_spark.schema.arrow.arrays import (
    binaries,
    booleans,
    constant,
    integers,
    joined,
    offsets_of,
)
from pulsar_spark.schema.arrow.varints import varint, varints
from pulsar_spark.schema.protobuf.wire import (
    DELIMITED,
    VARINT,
    behind,
    delimited,
    regrouped,
    tag,
)

# Fields of SingleMessageMetadata, of MessageMetadata, and of KeyValue.
_PROPERTIES, _PARTITION_KEY = tag(1, DELIMITED), tag(2, DELIMITED)
_PAYLOAD_SIZE, _EVENT_TIME, _SEQUENCE_ID = tag(3, VARINT), tag(5, VARINT), tag(8, VARINT)
_NULL_VALUE = tag(9, VARINT) + varint(True)
_ENTRY_PROPERTIES, _ENTRY_KEY = tag(4, DELIMITED), tag(6, DELIMITED)
_ENTRY_EVENT_TIME, _ENTRY_NULL_VALUE = tag(12, VARINT), tag(25, VARINT) + varint(True)
_NAME, _VALUE = tag(1, DELIMITED), tag(2, DELIMITED)
_INT64 = pa.int64()
_FALSE = booleans([False])[0]


def encode_fields(
    payloads: Sequence[bytes],
    keys: pa.Array | None,
    properties: pa.MapArray | None,
    event_times: pa.Array | None,
    nulls: pa.BooleanArray | None = None,
) -> pa.Array:
    """Return each message's metadata, up to the digits of its sequence id.

    `keys` are text, or bytes of text; a null is no key. `event_times` are not negative; `nulls`
    tells which messages have a null value, of which the payload is empty. Raises pa.ArrowInvalid
    for a name or value that is not UTF-8, and for columns that are too large.
    """
    parts: list[pa.Array | pa.Scalar] = []
    if properties is not None:
        parts.append(_properties(properties, _PROPERTIES))
    if keys is not None:
        parts.append(_keys(keys, _PARTITION_KEY))
    is_last = event_times is None and nulls is None
    parts.append(_sizes(payloads, _SEQUENCE_ID if is_last else b""))
    if event_times is not None:
        parts.append(_event_times(event_times, _EVENT_TIME))
    if nulls is not None:
        parts.append(_marks(nulls, _NULL_VALUE))
    if not is_last:
        parts.append(constant(_SEQUENCE_ID))
    return joined(parts, len(payloads))


def encode_unbatched_fields(
    count: int,
    keys: pa.Array | None,
    properties: pa.MapArray | None,
    event_times: pa.Array | None,
    nulls: pa.BooleanArray | None = None,
) -> pa.Array:
    """Return properties, key, event time and null value of each message outside of a batch.

    There are properties, event times, null values or messages without a key. Raises as
    `encode_fields`.
    """
    parts: list[pa.Array | pa.Scalar] = []
    if properties is not None:
        parts.append(_properties(properties, _ENTRY_PROPERTIES))
    if keys is not None:
        parts.append(_keys(keys, _ENTRY_KEY))
    if event_times is not None:
        parts.append(_event_times(event_times, _ENTRY_EVENT_TIME))
    if nulls is not None:
        parts.append(_marks(nulls, _ENTRY_NULL_VALUE))
    return joined(parts, count)


def _keys(column: pa.Array, field: bytes) -> pa.Array:
    there = column.is_valid() if column.null_count else None
    keys = delimited(column.drop_null().cast(pa.binary()), field)
    return keys if there is None else regrouped(keys, offsets_of(there))


def _properties(column: pa.MapArray, field: bytes) -> pa.Array:
    if column.null_count:
        there = column.is_valid()
        return regrouped(_properties(column.drop_null(), field), offsets_of(there))
    offsets = column.offsets
    start, end = offsets[0].as_py(), offsets[len(column)].as_py()
    names = column.keys.slice(start, end - start).dictionary_encode()
    values = column.items.slice(start, end - start)
    for text in (names.dictionary, values):
        text.validate(full=True)
    pairs = _pairs(names, values.cast(pa.binary()), field)
    counts = pc.subtract(offsets.slice(1), offsets.slice(0, len(column)))
    return regrouped(pairs, offsets_of(counts))


def _pairs(names: pa.DictionaryArray, values: pa.Array, field: bytes) -> pa.Array:
    """Return each property with everything that precedes its value, from its tag on.

    That depends on its name and its value's length: there are few combinations.
    """
    if not len(values):
        return values
    lengths = pc.binary_length(values).cast(_INT64)
    longest = pc.max(lengths).as_py() + 1
    kinds = pc.add(pc.multiply(names.indices.cast(_INT64), integers([longest], _INT64)[0]), lengths)
    kinds = kinds.dictionary_encode()
    known = names.dictionary.cast(pa.binary()).to_pylist()
    heads = []
    for kind in kinds.dictionary.to_pylist():
        name, size = known[kind // longest], kind % longest
        head = _NAME + varint(len(name)) + name + _VALUE + varint(size)
        heads.append(field + varint(len(head) + size) + head)
    return joined([binaries(heads).take(kinds.indices), values], len(values))


def _sizes(payloads: Sequence[bytes], tail: bytes) -> pa.Array:
    sizes = integers(sizes_of(payloads), pa.int32()).dictionary_encode()
    fields = [_PAYLOAD_SIZE + varint(size) + tail for size in sizes.dictionary.to_pylist()]
    return binaries(fields).take(sizes.indices)


def _marks(where: pa.BooleanArray, mark: bytes) -> pa.Array:
    return binaries([b"", mark]).take(where.cast(pa.int8()))


def _event_times(column: pa.Array, field: bytes) -> pa.Array:
    # Null and 0 mean no time.
    there = pc.fill_null(pc.not_equal(column, ZERO), _FALSE)
    if there.true_count == len(column):
        return behind(field, varints(column))
    times = behind(field, varints(column.filter(there)))
    return regrouped(times, offsets_of(there))
