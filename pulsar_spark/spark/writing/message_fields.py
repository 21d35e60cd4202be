"""The metadata of a column of messages, encoded field by field with Arrow.

The same bytes as `protocol.outgoing_messages.encode_fields` gives for each message: fields of
MessageMetadata, in the order of their tags.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.protocol.outgoing_messages import BROKERS_OWN
from pulsar_spark.schema.arrow.arithmetic import ZERO
from pulsar_spark.schema.arrow.arrays import (
    binaries,
    booleans,
    integers,
    joined,
    offsets_of,
    strings,
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

# Fields of MessageMetadata, those that are flags with their value, and of KeyValue.
_PROPERTIES, _EVENT_TIME = tag(4, DELIMITED), tag(12, VARINT)
_IS_BASE64, _ORDERING_KEY = tag(17, VARINT) + varint(True), tag(18, DELIMITED)
_DELIVER_AT = tag(19, VARINT)
_NULL_VALUE, _NULL_KEY = tag(25, VARINT) + varint(True), tag(30, VARINT) + varint(True)
_NAME, _VALUE = tag(1, DELIMITED), tag(2, DELIMITED)
_INT64 = pa.int64()
_BROKERS_OWN = strings(sorted(BROKERS_OWN))
_FALSE = booleans([False])[0]


def encode_fields(
    count: int,
    *,
    properties: pa.MapArray | None = None,
    event_times: pa.Array | None = None,
    are_base64: pa.BooleanArray | None = None,
    ordering_keys: pa.Array | None = None,
    deliver_at: pa.Array | None = None,
    null_values: pa.BooleanArray | None = None,
    null_keys: pa.BooleanArray | None = None,
) -> pa.Array | None:
    """Return the fields of each of `count` messages, None if none has any.

    Columns that no message needs are None. Times are not negative, null and 0 mean none; ordering
    keys are bytes or null. Raises pa.ArrowInvalid for a name or value of a property that is not
    UTF-8, and for columns that are too large.
    """
    fields = (
        (properties, _properties),
        (event_times, partial(_times, field=_EVENT_TIME)),
        (are_base64, partial(_marks, mark=_IS_BASE64)),
        (ordering_keys, _ordering_keys),
        (deliver_at, partial(_times, field=_DELIVER_AT)),
        (null_values, partial(_marks, mark=_NULL_VALUE)),
        (null_keys, partial(_marks, mark=_NULL_KEY)),
    )
    parts = [encoded(column) for column, encoded in fields if column is not None]
    return joined(parts, count) if parts else None


def _ordering_keys(column: pa.Array) -> pa.Array:
    keys = delimited(column.drop_null().cast(pa.binary()), _ORDERING_KEY)
    return regrouped(keys, offsets_of(column.is_valid())) if column.null_count else keys


def _properties(column: pa.MapArray) -> pa.Array:
    if column.null_count:
        there = column.is_valid()
        return regrouped(_properties(column.drop_null()), offsets_of(there))
    offsets = column.offsets
    start, end = offsets[0].as_py(), offsets[len(column)].as_py()
    names = column.keys.slice(start, end - start).dictionary_encode()
    values = column.items.slice(start, end - start)
    for text in (names.dictionary, values):
        text.validate(full=True)
    places = pc.subtract(offsets, offsets[0])
    unwanted = pc.is_in(names.dictionary, _BROKERS_OWN.cast(names.dictionary.type))
    if unwanted.true_count:
        kept = pc.invert(unwanted).take(names.indices)
        names, values = names.filter(kept), values.filter(kept)
        places = offsets_of(kept).take(places)
    return regrouped(_pairs(names, values.cast(pa.binary())), places)


def _pairs(names: pa.DictionaryArray, values: pa.Array) -> pa.Array:
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
        heads.append(_PROPERTIES + varint(len(head) + size) + head)
    return joined([binaries(heads).take(kinds.indices), values], len(values))


def _marks(where: pa.BooleanArray, mark: bytes) -> pa.Array:
    return binaries([b"", mark]).take(where.cast(pa.int8()))


def _times(column: pa.Array, field: bytes) -> pa.Array:
    # Null and 0 mean no time.
    there = pc.fill_null(pc.not_equal(column, ZERO), _FALSE)
    if there.true_count == len(column):
        return behind(field, varints(column))
    times = behind(field, varints(column.filter(there)))
    return regrouped(times, offsets_of(there))
