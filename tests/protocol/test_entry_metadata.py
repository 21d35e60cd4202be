"""Metadata of entries behind the publish time: templates, field by field, and protobuf agree."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol import entry_metadata
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.entry_metadata import (
    METADATA,
    PLAIN_REST,
    RESTS,
    Metadata,
    Rest,
    RestColumns,
    Rests,
    read_rests,
)
from pulsar_spark.protocol.opened_metadata import UnusualMetadata
from pulsar_spark.protocol.templates import Templates
from pulsar_spark.protocol.varints import UnusualNumber

REQUIRED: dict[str, Any] = {"producer_name": "", "sequence_id": 0, "publish_time": 0}
BEFORE = pb.MessageMetadata(**REQUIRED).SerializeToString()


@pytest.fixture(autouse=True)
def templates(monkeypatch: pytest.MonkeyPatch) -> Templates[Any, Any]:
    fresh: Templates[Any, Any] = Templates()
    monkeypatch.setattr(entry_metadata, "TEMPLATES", fresh)
    RESTS.clear()
    return fresh


def rest(*pairs: tuple[str, str], **fields: Any) -> bytes:
    """Return metadata without what precedes the properties."""
    found = pb.MessageMetadata(**REQUIRED, **fields)
    found.properties.extend(pb.KeyValue(key=name, value=value) for name, value in pairs)
    data = found.SerializeToString()
    assert data.startswith(BEFORE)
    return data[len(BEFORE) :]


def expected(data: bytes) -> Rest:
    """Return what protobuf reads."""
    found = pb.MessageMetadata.FromString(BEFORE + data)
    pairs = {_bytes(pair.key): _bytes(pair.value) for pair in found.properties}
    key = _bytes(found.partition_key) if found.HasField("partition_key") else None
    origin = _bytes(found.replicated_from) if found.HasField("replicated_from") else None
    ordering_key = found.ordering_key if found.HasField("ordering_key") else None
    messages = found.num_messages_in_batch if found.HasField("num_messages_in_batch") else 0
    shared = Metadata(
        False,
        found.compression,
        found.uncompressed_size,
        messages,
        int(found.partition_key_b64_encoded),
        ordering_key,
        int(found.null_value),
        found.schema_version,
        origin,
    )
    return shared, tuple(pairs), tuple(pairs.values()), key, found.event_time


def as_expected(found: Rest) -> Rest:
    return found[0]._replace(is_rare=False), *found[1:]


def _bytes(text: str | bytes) -> bytes:
    # Protobuf returns bytes if a string is not UTF-8.
    return text.encode() if isinstance(text, str) else text


texts = st.sampled_from(["", "a", "b", "é", "name", "x" * 127, "x" * 128, "y" * 300])
any_rest = st.builds(
    lambda pairs, fields: rest(*pairs, **fields),
    st.lists(st.tuples(texts, texts), max_size=3),
    st.fixed_dictionaries(
        {},
        optional={
            "partition_key": texts,
            "partition_key_b64_encoded": st.booleans(),
            "event_time": st.sampled_from([0, 1, 127, 128, 300, 2**14, 2**40 + 5, 2**62]),
            "replicated_from": texts,
            "replicate_to": st.lists(texts, max_size=2),
            "compression": st.sampled_from([pb.NONE, pb.LZ4]),
            "uncompressed_size": st.sampled_from([0, 5, 2**31 - 1]),
            "num_messages_in_batch": st.sampled_from([1, 300]),
            "schema_version": st.sampled_from([b"", bytes(8), bytes(200)]),
            "ordering_key": st.sampled_from([b"", b"o", b"\xff" * 70]),
            "null_value": st.booleans(),
        },
    ),
)


@given(st.lists(any_rest, min_size=1, max_size=4), st.data())
def test_metadata_of_a_few_kinds_is_read_as_protobuf_reads_it(
    kinds: list[bytes], data: st.DataObject
) -> None:
    for each in data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=20)):
        assert as_expected(RESTS[each]) == expected(each)


def test_what_belongs_to_one_message_is_read_by_a_template(
    templates: Templates[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def message(number: int) -> bytes:
        pairs = ("number", f"{number:05}"), ("source", "web")
        fields = {"partition_key": f"k{number:03}", "event_time": 10**12 + number}
        return rest(*pairs, **fields, schema_version=bytes(8))

    RESTS[message(0)]
    assert len(templates) == 1
    monkeypatch.delattr(Rests, "_read")
    for number in range(300):
        assert as_expected(RESTS[message(number)]) == expected(message(number))
    assert not RESTS


def test_what_messages_share_is_read_once() -> None:
    shared = rest(schema_version=bytes(8))
    assert RESTS[shared] is RESTS[shared]
    assert RESTS[shared] is not PLAIN_REST
    assert RESTS[b""] is PLAIN_REST


def test_little_is_kept_of_what_differs_each_time() -> None:
    for number in range(5000):
        RESTS[rest(uncompressed_size=number)]
    assert len(RESTS) <= 1024
    RESTS.clear()
    RESTS[rest(ordering_key=b"o" * 100)]
    assert not RESTS


def test_shared_fields_are_kept_if_they_are_short() -> None:
    METADATA.clear()
    for size in (1, 100):
        RESTS[rest(event_time=5, ordering_key=b"o" * size)]
    assert len(METADATA) == 1


def test_each_damage_of_a_byte_is_left_to_protobuf_or_read_as_it_does(
    templates: Templates[Any, Any],
) -> None:
    pairs = ("name", "one"), ("other", "")
    data = rest(*pairs, partition_key="k", event_time=10**12, schema_version=b"12")
    read = 0
    for at in range(len(data)):
        for byte in {0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 1, data[at] ^ 0x80}:
            templates.credit = 1000
            assert as_expected(RESTS[data]) == expected(data)
            damaged = data[:at] + bytes([byte]) + data[at + 1 :]
            try:
                found = RESTS[damaged]
            except (UnusualMetadata, UnusualNumber, IndexError):
                continue
            assert as_expected(found) == expected(damaged), (at, byte)
            read += 1
    # Texts, digits of the event time and bytes of the schema version may be any.
    assert read > 100


def as_rows(columns: RestColumns) -> list[Rest]:
    metadata, names, values, keys, times = columns
    texts = iter(values)
    own = [tuple(islice(texts, len(each))) for each in names]
    assert list(texts) == []
    return list(zip(metadata, names, own, keys, times, strict=True))


def traced(number: int, **fields: Any) -> bytes:
    """Return metadata whose sizes are like those of others with this number of digits."""
    pairs = ("number", str(number)), ("source", "web")
    return rest(*pairs, partition_key=f"k{number}", event_time=10**9 + number, **fields)


def repeated(number: int) -> bytes:
    """Return metadata of the same size, with a name that is repeated."""
    pairs = ("source", str(number)), ("source", "web")
    return rest(*pairs, partition_key=f"k{number}", event_time=10**9 + number)


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.sampled_from([traced, repeated]),
                st.sampled_from([0, 5, 95, 990]),
                st.integers(1, 60),
            ),
            st.tuples(any_rest.map(lambda data: lambda _: data), st.just(0), st.integers(1, 40)),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_many_are_read_as_one_by_one(runs: list[tuple[Any, int, int]]) -> None:
    data = [make(first + number) for make, first, count in runs for number in range(count)]
    assert as_rows(read_rests(data)) == [RESTS[each] for each in data]


def test_many_of_one_size_are_read_by_one_template(monkeypatch: pytest.MonkeyPatch) -> None:
    data = [traced(number, schema_version=b"1") for number in range(1000, 3000)]
    RESTS[data[0]]
    monkeypatch.delattr(Rests, "_read")
    assert [as_expected(found) for found in as_rows(read_rests(data))] == list(map(expected, data))


def test_one_of_many_that_is_damaged_is_read_as_by_itself() -> None:
    data = [traced(number) for number in range(100, 140)]
    for at in range(len(data[0])):
        for byte in {0, 1, 0x7F, 0x80, 0xFF, data[20][at] ^ 1}:
            damaged = data[20][:at] + bytes([byte]) + data[20][at + 1 :]
            try:
                found = RESTS[damaged]
            except (UnusualMetadata, UnusualNumber, IndexError):
                with pytest.raises((UnusualMetadata, UnusualNumber, IndexError)):
                    read_rests([*data[:20], damaged, *data[21:]])
                continue
            many = as_rows(read_rests([*data[:20], damaged, *data[21:]]))
            assert many[20] == found, (at, byte)
            assert many[:20] + many[21:] == [RESTS[each] for each in data[:20] + data[21:]]


@pytest.mark.parametrize(
    "data",
    [
        rest(num_messages_in_batch=0),
        rest(num_chunks_from_msg=2),
        rest(marker_type=10),
        rest(uncompressed_size=2**31),
        rest(event_time=5) + rest(partition_key="k"),
        rest(partition_key="k") * 2,
        rest(partition_key="key")[:-1],
        rest(event_time=2**62)[:-1],
        b"\x22",
    ],
    ids=range(9),
)
def test_other_fields_and_orders_are_left_to_the_careful_path(data: bytes) -> None:
    with pytest.raises((UnusualMetadata, UnusualNumber, IndexError)):
        RESTS[data]
