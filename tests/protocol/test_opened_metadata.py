"""Metadata with properties and event times: templates and protobuf agree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol import opened_metadata
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.opened_metadata import Opened, open_metadata, open_run
from pulsar_spark.protocol.templates import Templates

Metadata = pb.SingleMessageMetadata


@pytest.fixture(autouse=True)
def templates(monkeypatch: pytest.MonkeyPatch) -> Templates[Any, Any]:
    fresh: Templates[Any, Any] = Templates()
    monkeypatch.setattr(opened_metadata, "TEMPLATES", fresh)
    return fresh


def metadata(payload_size: int = 5, *pairs: tuple[str, str], **fields: object) -> bytes:
    properties = [pb.KeyValue(key=name, value=value) for name, value in pairs]
    made = Metadata(payload_size=payload_size, properties=properties, **fields)  # type: ignore[arg-type]
    return made.SerializeToString()


def message(data: bytes, payload_size: int = 5) -> bytes:
    return len(data).to_bytes(4, "big") + data + bytes(payload_size)


def read(body: bytes, most: int) -> list[Opened]:
    """Read messages as `unpack_batch` does."""
    found: list[Opened] = []
    at = 0
    while len(found) < most:
        run, edges = open_run(body, at, most - len(found))
        assert len(edges) == 2 * len(run)
        found += run
        if run:
            at = edges[-1]
            continue
        end = at + 4 + int.from_bytes(body[at : at + 4], "big")
        opened = open_metadata(body[at + 4 : end])
        assert opened is not None
        found.append(opened)
        at = end + opened[3]
    assert at == len(body)
    return found


def expected(data: bytes) -> Opened:
    parsed = Metadata.FromString(data)
    pairs = {_bytes(pair.key): _bytes(pair.value) for pair in parsed.properties}
    key = _bytes(parsed.partition_key) if parsed.HasField("partition_key") else None
    return tuple(pairs), tuple(pairs.values()), key, parsed.payload_size, parsed.event_time


def _bytes(text: str | bytes) -> bytes:
    # Protobuf returns bytes if a string is not UTF-8.
    return text.encode() if isinstance(text, str) else text


texts = st.sampled_from(["", "a", "b", "é", "name", "x" * 127, "x" * 128, "y" * 300])
numbers = st.sampled_from([0, 1, 127, 128, 300, 2**14, 2**35 + 5, 2**62])
any_metadata = st.builds(
    lambda size, pairs, fields: (metadata(size, *pairs, **fields), size),
    st.sampled_from([0, 1, 127, 128, 20_000]),
    st.lists(st.tuples(texts, texts), max_size=3),
    st.fixed_dictionaries(
        {},
        optional={
            "partition_key": texts,
            "event_time": numbers,
            "sequence_id": numbers,
            "partition_key_b64_encoded": st.just(False),
        },
    ),
)


@given(st.lists(any_metadata, min_size=1, max_size=4), st.data())
def test_messages_of_a_few_kinds_are_read_as_protobuf_reads_them(
    kinds: list[tuple[bytes, int]], data: st.DataObject
) -> None:
    messages = data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=30))
    body = b"".join(message(*each) for each in messages)
    assert read(body, len(messages)) == [expected(each) for each, _ in messages]


def test_what_is_like_a_message_before_is_read_by_its_template() -> None:
    pairs = ("number", "12"), ("source", "web")
    body = b"".join(
        message(metadata(5, *pairs, partition_key="k", event_time=10**12 + i, sequence_id=200 + i))
        for i in range(50)
    )
    assert open_run(body, 0, 50) == ([], [])
    first = Metadata.FromString(body[4 : 4 + int.from_bytes(body[:4], "big")])
    open_metadata(first.SerializeToString())
    run, edges = open_run(body, 0, 50)
    assert [opened[4] for opened in run] == [10**12 + i for i in range(50)]
    assert edges[-1] == len(body)
    assert len(open_run(body, 0, 7)[0]) == 7


def test_each_damage_of_a_byte_is_left_to_protobuf_or_read_as_it_does(
    templates: Templates[Any, Any],
) -> None:
    data = metadata(
        5, ("name", "one"), ("other", ""), partition_key="k", event_time=10**12, sequence_id=300
    )
    body = message(data)
    for at in range(4, len(data) + 4):
        for byte in {0, 1, 0x7F, 0x80, 0xFF, body[at] ^ 1, body[at] ^ 0x80}:
            templates.credit = 1000
            open_metadata(data)
            assert open_run(body, 0, 1)[0] == [expected(data)]
            damaged = body[:at] + bytes([byte]) + body[at + 1 :]
            run, _ = open_run(damaged, 0, 1)
            if run:
                assert run[0] == expected(damaged[4 : 4 + len(data)]), (at, byte)


@pytest.mark.parametrize(
    "properties",
    [
        b"\x0a\x01k",  # no value
        b"\x12\x01v\x0a\x01k",  # the value first
        b"\x0a\x01k\x12\x01v\x12\x01w",  # two values
        b"\x0a\x81\x00k\x12\x01v",  # a size that is not the shortest
    ],
)
def test_properties_of_another_shape_are_left_to_protobuf(properties: bytes) -> None:
    data = b"\x0a" + bytes([len(properties)]) + properties + b"\x18\x01"
    assert open_metadata(data) is None


@pytest.mark.parametrize("cut", range(1, 25))
def test_metadata_that_ends_early_is_left_to_protobuf(cut: int) -> None:
    data = metadata(5, ("name", "value"), partition_key="key", event_time=2**40)
    # Without the event time, its tag and six digits, it is whole.
    assert (open_metadata(data[: len(data) - cut]) is None) == (cut != 7)


def test_few_templates_are_made_where_no_two_messages_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[bytes] = []
    add = Templates.add

    def count(self: Templates[Any, Any], likeness: bytes, *args: Any) -> None:
        made.append(likeness)
        add(self, likeness, *args)

    monkeypatch.setattr(Templates, "add", count)
    for number in range(20_000):
        pairs = ("n", "x" * (number % 97)), ("m", "y" * (number % 89))
        open_metadata(metadata(number % 100, *pairs))
    # So many at first, and one for each 256 messages.
    assert 64 <= len(made) <= 64 + 20_000 // 256 + 2
