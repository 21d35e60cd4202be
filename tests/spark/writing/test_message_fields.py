"""Metadata that is encoded column by column."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.outgoing_batches import MessageFields
from pulsar_spark.spark.writing.message_fields import encode_fields, encode_unbatched_fields
from tests.protocol.batch_bodies import fields_of
from tests.protocol.fields import unbatched_fields

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.sampled_from(
    ["name", "x" * 127, "y" * 128, "\u00e9" * 9000]
)
ROW = st.tuples(
    st.binary(max_size=3) | st.sampled_from([127, 128, 20_000]).map(bytes),
    st.none() | TEXT,
    st.none() | st.lists(st.tuples(TEXT, TEXT), max_size=4),
    st.none() | st.integers(0, 2**63 - 1) | st.sampled_from([0, 127, 128, 1_800_000_000_000]),
)

REQUIRED = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString()


@pytest.mark.fault(95)
@given(
    st.lists(ROW, min_size=1, max_size=12),
    st.sampled_from([pa.string(), pa.binary(), pa.large_string()]),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_fields_are_the_very_bytes_of_the_careful_path(
    rows: list[tuple[bytes, str | None, list[tuple[str, str]] | None, int | None]],
    key_type: pa.DataType,
    skipped: int,
    keyed: bool,
    with_properties: bool,
    with_times: bool,
) -> None:
    text = pa.large_string() if pa.types.is_large_string(key_type) else pa.string()
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([key for _, key, _, _ in rows], pa.string()).cast(key_type),
            pa.array([found for _, _, found, _ in rows], pa.map_(text, text)),
            pa.array([time for _, _, _, time in rows], pa.int64()),
        ],
        ["key", "properties", "time"],
    ).slice(skipped)
    found = encode_fields(
        [payload for payload, *_ in rows[skipped:]],
        batch["key"] if keyed else None,
        batch["properties"] if with_properties else None,
        batch["time"] if with_times else None,
    )
    assert found.to_pylist() == [
        fields_of(
            MessageFields(
                payload,
                key if keyed else None,
                properties=(properties or ()) if with_properties else (),
                event_time=(time or 0) if with_times else 0,
            )
        )
        for payload, key, properties, time in rows[skipped:]
    ]
    if keyed or with_properties or with_times:
        assert encode_unbatched_fields(
            len(rows) - skipped,
            batch["key"] if keyed else None,
            batch["properties"] if with_properties else None,
            batch["time"] if with_times else None,
        ).to_pylist() == [
            unbatched_fields(
                (properties or ()) if with_properties else (),
                key if keyed else None,
                (time or 0) if with_times else 0,
            )
            for _, key, properties, time in rows[skipped:]
        ]


@pytest.mark.fault(95)
@given(st.lists(st.tuples(ROW, st.booleans()), min_size=1, max_size=12), st.booleans())
def test_null_values_are_marked_and_nothing_else_changes(
    found: list[tuple[tuple[bytes, str | None, list[tuple[str, str]] | None, int | None], bool]],
    has_more: bool,
) -> None:
    rows = [(b"" if is_null else row[0], *row[1:]) for row, is_null in found]
    nulls = pa.array([is_null for _, is_null in found])
    keys = pa.array([key for _, key, _, _ in rows], pa.string())
    kind = pa.map_(pa.string(), pa.string())
    properties = pa.array([pairs for *_, pairs, _ in rows], kind) if has_more else None
    times = pa.array([time for *_, time in rows], pa.int64()) if has_more else None
    batched = encode_fields([row[0] for row in rows], keys, properties, times, nulls)
    unbatched = encode_unbatched_fields(len(rows), keys, properties, times, nulls)
    for (payload, key, pairs, time), is_null, one, other in zip(
        rows, nulls.to_pylist(), batched.to_pylist(), unbatched.to_pylist(), strict=True
    ):
        of_batch = pb.SingleMessageMetadata(
            partition_key=key, payload_size=len(payload), sequence_id=7
        )
        of_entry = pb.MessageMetadata(partition_key=key)
        for expected in (of_batch, of_entry):
            if has_more:
                expected.properties.extend(
                    pb.KeyValue(key=name, value=value) for name, value in pairs or ()
                )
                if time:
                    expected.event_time = time
            if is_null:
                expected.null_value = True
        assert pb.SingleMessageMetadata.FromString(one + b"\x07") == of_batch
        read = pb.MessageMetadata()
        read.MergeFromString(REQUIRED + other)
        of_entry.MergeFromString(REQUIRED)
        assert read == of_entry
