"""Metadata of entries behind the publish time: templates, field by field, and protobuf agree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol.entry_metadata import METADATA, PLAIN_REST, RESTS, Rests
from pulsar_spark.protocol.opened_metadata import UnusualMetadata
from pulsar_spark.protocol.templates import Templates
from pulsar_spark.protocol.varints import UnusualNumber
from tests.protocol.rests import any_rest, as_expected, expected, rest

pytestmark = pytest.mark.usefixtures("templates")


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
