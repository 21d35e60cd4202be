"""The metadata of a column of messages, encoded field by field with Arrow.

For batches the same bytes as `protocol.single_metadata.encode_metadata` writes, up to the digits of
the sequence id, which is not known yet; else the fields of MessageMetadata from behind the publish
time up to the schema version.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

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
from pulsar_spark.schema.protobuf.wire import DELIMITED, VARINT, behind, delimited, regrouped
from pulsar_spark.schema.protobuf.wire import tag as tag_of

# Fields of SingleMessageMetadata, of MessageMetadata, and of KeyValue.
_PROPERTIES, _PARTITION_KEY = tag_of(1, DELIMITED), tag_of(2, DELIMITED)
_PAYLOAD_SIZE, _EVENT_TIME, _SEQUENCE_ID = tag_of(3, VARINT), tag_of(5, VARINT), tag_of(8, VARINT)
_ENTRY_PROPERTIES, _ENTRY_KEY = tag_of(4, DELIMITED), tag_of(6, DELIMITED)
_ENTRY_EVENT_TIME = tag_of(12, VARINT)
_NAME, _VALUE = tag_of(1, DELIMITED), tag_of(2, DELIMITED)
_INT64 = pa.int64()
_FALSE = booleans([False])[0]


def encode_fields(
    payloads: Sequence[bytes],
    keys: pa.Array | None,
    properties: pa.MapArray | None,
    event_times: pa.Array | None,
) -> list[bytes]:
    """Return each message's metadata, up to the digits of its sequence id.

    `keys` are text, or bytes of text, without nulls; `event_times` are not negative. Raises
    pa.ArrowInvalid for a name or value that is not UTF-8, and for columns that are too large.
    """
    parts: list[pa.Array | pa.Scalar] = []
    if properties is not None:
        parts.append(_properties(properties, _PROPERTIES))
    if keys is not None:
        parts.append(delimited(keys.cast(pa.binary()), _PARTITION_KEY))
    parts.append(_sizes(payloads, b"" if event_times is not None else _SEQUENCE_ID))
    if event_times is not None:
        parts += (_event_times(event_times, _EVENT_TIME), constant(_SEQUENCE_ID))
    return joined(parts, len(payloads)).to_pylist()  # type: ignore[no-any-return]


def encode_unbatched_fields(
    count: int,
    keys: pa.Array | None,
    properties: pa.MapArray | None,
    event_times: pa.Array | None,
) -> list[bytes]:
    """Return properties, key and event time of each message outside of a batch.

    There are properties or event times. Raises as `encode_fields`.
    """
    parts: list[pa.Array | pa.Scalar] = []
    if properties is not None:
        parts.append(_properties(properties, _ENTRY_PROPERTIES))
    if keys is not None:
        parts.append(delimited(keys.cast(pa.binary()), _ENTRY_KEY))
    if event_times is not None:
        parts.append(_event_times(event_times, _ENTRY_EVENT_TIME))
    return joined(parts, count).to_pylist()  # type: ignore[no-any-return]


def _properties(column: pa.MapArray, tag: bytes) -> pa.Array:
    if column.null_count:
        there = column.is_valid()
        return regrouped(_properties(column.drop_null(), tag), offsets_of(there))
    offsets = column.offsets
    start, end = offsets[0].as_py(), offsets[len(column)].as_py()
    names = column.keys.slice(start, end - start).dictionary_encode()
    values = column.items.slice(start, end - start)
    for text in (names.dictionary, values):
        text.validate(full=True)
    pairs = _pairs(names, values.cast(pa.binary()), tag)
    counts = pc.subtract(offsets.slice(1), offsets.slice(0, len(column)))
    return regrouped(pairs, offsets_of(counts))


def _pairs(names: pa.DictionaryArray, values: pa.Array, tag: bytes) -> pa.Array:
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
        heads.append(tag + varint(len(head) + size) + head)
    return joined([binaries(heads).take(kinds.indices), values], len(values))


def _sizes(payloads: Sequence[bytes], tail: bytes) -> pa.Array:
    sizes = integers(list(map(len, payloads)), pa.int32()).dictionary_encode()
    fields = [_PAYLOAD_SIZE + varint(size) + tail for size in sizes.dictionary.to_pylist()]
    return binaries(fields).take(sizes.indices)


def _event_times(column: pa.Array, tag: bytes) -> pa.Array:
    # Null and 0 mean no time.
    there = pc.fill_null(pc.not_equal(column, ZERO), _FALSE)
    if there.true_count == len(column):
        return behind(tag, varints(column))
    times = behind(tag, varints(column.filter(there)))
    return regrouped(times, offsets_of(there))
