"""Fields that are encoded column by column."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol import outgoing_messages
from pulsar_spark.protocol.outgoing_messages import MessageFields
from pulsar_spark.spark.writing.message_fields import encode_fields

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.sampled_from(
    ["name", "x" * 127, "y" * 128, "\u00e9" * 9000]
)
# A broker's own is not sent.
NAMES = TEXT | st.sampled_from(sorted(outgoing_messages.BROKERS_OWN))
TIMES = st.integers(0, 2**63 - 1) | st.sampled_from([0, 127, 128, 1_800_000_000_000])
MESSAGE = st.builds(
    MessageFields,
    payload=st.none() | st.just(b""),
    key=st.none() | st.just("k"),
    key_is_base64=st.booleans(),
    ordering_key=st.none() | st.binary(max_size=200),
    properties=st.lists(st.tuples(NAMES, TEXT), max_size=4),
    event_time=TIMES,
    null_key=st.booleans(),
    deliver_at=TIMES,
)


@pytest.mark.fault(95)
@given(
    st.lists(MESSAGE, min_size=1, max_size=12),
    st.sampled_from([pa.string(), pa.large_string()]),
    st.integers(0, 3),
    st.sets(st.integers(0, 6)),
)
def test_columns_of_fields_have_the_very_bytes_of_each_message(
    messages: list[MessageFields], text: pa.DataType, skipped: int, left_out: set[int]
) -> None:
    for message in messages:
        message.key_is_base64 = message.key_is_base64 and message.key is not None
    columns = {
        "properties": pa.array([m.properties or None for m in messages], pa.map_(text, text)),
        "event_times": pa.array([m.event_time or None for m in messages], pa.int64()),
        "are_base64": pa.array([m.key_is_base64 for m in messages]),
        "ordering_keys": pa.array([m.ordering_key for m in messages], pa.binary()),
        "deliver_at": pa.array([m.deliver_at for m in messages], pa.int64()),
        "null_values": pa.array([m.payload is None for m in messages]),
        "null_keys": pa.array([m.null_key for m in messages]),
    }
    names = [name for place, name in enumerate(columns) if place not in left_out]
    messages = messages[skipped:]
    found = encode_fields(len(messages), **{name: columns[name].slice(skipped) for name in names})
    usual = MessageFields(b"")
    kept = {
        "properties": "properties", "event_times": "event_time", "are_base64": "key_is_base64",
        "ordering_keys": "ordering_key", "deliver_at": "deliver_at", "null_values": "payload",
        "null_keys": "null_key",
    }  # fmt: skip
    for column, name in kept.items():
        if column not in names:
            for message in messages:
                setattr(message, name, getattr(usual, name))
    expected = [outgoing_messages.encode_fields(message)[1] for message in messages]
    assert (found is None) is (not names)
    assert found is None or found.to_pylist() == expected
