"""Which of a producer's messages are encoded together, and which alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pulsar_spark.engine.codecs import compress
from pulsar_spark.engine.producers.inflight_window import PendingSends
from pulsar_spark.engine.producers.producer_session import Encoding
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.outgoing_messages import OutgoingMessages
from pulsar_spark.protocol.send_encoder import SendLimits, block_of, make_encoder


class NoCipher:
    """Leaves payloads as they are."""

    overhead = 0

    def announce(self, metadata: pb.MessageMetadata) -> None:
        """Add nothing."""

    def encrypt(self, metadata: pb.MessageMetadata, payload: Buffer) -> bytes:
        return bytes(payload)


def sends_of(payloads: Sequence[bytes], **changes: Any) -> list[PendingSends]:
    """Return the sends of unbatched messages."""
    limits = replace(SendLimits("p", 3, 100_000, topic="t", compress=compress), **changes)
    encoding = Encoding(limits, make_encoder(limits))
    messages, start = OutgoingMessages(list(payloads)), 0
    found: list[PendingSends] = []
    while start < len(messages):
        found += encoding.next(messages, 1, start, 10_000, start)
        start = sum(send.num_messages for send in found)
    return found


@pytest.mark.parametrize("chunk_size", [0, 1000])
@pytest.mark.parametrize("compression", [pb.NONE, pb.LZ4])
def test_messages_too_small_for_chunks_are_encoded_together(
    chunk_size: int, compression: int
) -> None:
    changes: dict[str, Any] = {"chunking": True, "chunk_size": chunk_size}
    found = sends_of([b"x" * 100] * 1500, compression=compression, **changes)
    assert [send.num_messages for send in found] == [1500]


def test_between_messages_in_chunks_the_small_ones_are_encoded_together() -> None:
    payloads = [os.urandom(5000) if n % 500 == 250 else b"x" * 100 for n in range(1500)]
    found = sends_of(payloads, chunking=True, chunk_size=1000)
    assert [send.num_messages for send in found if send.chunk is None] == [250, 499, 499, 249]
    assert [send.chunk for send in found if send.chunk is not None] == [0, 1, 2, 3, 4] * 3


def test_a_compressed_message_becomes_chunks_by_its_size_after_compression() -> None:
    changes: dict[str, Any] = {"compression": pb.LZ4, "chunking": True, "chunk_size": 1000}
    assert [send.chunk for send in sends_of([os.urandom(999)], **changes)] == [0, 1]
    assert [send.chunk for send in sends_of([bytes(5000)], **changes)] == [None]


def test_messages_of_a_block_are_measured_once_where_each_is_encoded_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[int] = []

    def counted(
        messages: OutgoingMessages, per_entry: int, start: int, most: int, large: int
    ) -> tuple[int, int]:
        measured.append(most)
        return block_of(messages, per_entry, start, most, large)

    monkeypatch.setattr("pulsar_spark.engine.producers.producer_session.block_of", counted)
    sends_of([b"x"] * 50, cipher=NoCipher)
    assert measured == [1] * 50
