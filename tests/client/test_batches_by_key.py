"""Batches by key: each key's messages share an entry, however many keys a batch has."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from functools import partial
from types import FrameType
from typing import Any

import pytest

from pulsar_spark.client import (
    BatchingType,
    InitialPosition,
    Message,
    MessageId,
    PulsarClient,
    PulsarProducer,
    Result,
)
from pulsar_spark.engine.connections.transport import Transport
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.testing import EmbeddedBroker
from tests.support.waiting import wait_until

RECEIVE_MS = 60_000
HOUR_MS = 3_600_000
FIELDS: list[dict[str, Any] | None] = [None, {"p": "v"}]
KINDS = ["plain", "properties", "own ids"]


def producer_by_key(client: PulsarClient, topic: str, **options: Any) -> PulsarProducer:
    chosen: dict[str, Any] = {
        "batching_enabled": True,
        "batching_type": BatchingType.KeyBased,
        "batching_max_messages": 10_000,
        "batching_max_allowed_size_in_bytes": 2 << 20,
        "batching_max_publish_delay_ms": HOUR_MS,
        "max_pending_messages": 20_000,
        "block_if_queue_full": True,
    }
    producer = client.create_producer(topic, **{**chosen, **options})
    producer.send(b"first")
    return producer


def read(client: PulsarClient, topic: str, count: int) -> list[Message]:
    """Return the messages behind the first one."""
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    return [consumer.receive(RECEIVE_MS) for _ in range(count + 1)][1:]


@pytest.mark.fault(194)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("due", [False, True], ids=["flushed", "due"])
@pytest.mark.parametrize("per_key", [1, 2])
def test_batches_of_many_keys_are_written_together(
    client: PulsarClient,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    due: bool,
    per_key: int,
) -> None:
    producer = producer_by_key(client, "t")
    for number in range(2000):
        producer.send_async(
            b"x",
            None,
            {"p": "v"} if kind == "properties" else None,
            f"key-{number // per_key}",
            sequence_id=number + 1000 if kind == "own ids" else None,
        )
    writes = 0
    send_some = Transport.send_some

    def counting(transport: Transport, buffers: list[Buffer]) -> list[Buffer]:
        nonlocal writes
        writes += 1
        return send_some(transport, buffers)

    monkeypatch.setattr(Transport, "send_some", counting)
    if due:
        producer._writer._batcher(0).trigger_flush()
        assert not producer._writer._batcher(0).count
    producer.flush()
    assert writes < 100
    found = read(client, "t", 2000)
    assert len({each.message_id().entry_id() for each in found}) == 2000 // per_key


@pytest.mark.fault(194)
@pytest.mark.parametrize("properties", FIELDS, ids=["plain", "properties"])
def test_the_work_for_a_batch_that_is_due_grows_as_its_keys(
    client: PulsarClient, properties: dict[str, Any] | None
) -> None:
    calls = {500: 0, 4000: 0}
    for count in calls:
        producer = producer_by_key(client, f"t-{count}")
        batcher = producer._writer._batcher(0)
        for number in range(count):
            producer.send_async(b"x", None, properties, f"key-{number}")

        def note(frame: FrameType, event: str, argument: object, count: int = count) -> None:
            calls[count] += 1

        # Timers call it, on the thread that does all that has a time.
        sys.setprofile(note)
        try:
            batcher.trigger_flush()
        finally:
            sys.setprofile(None)
        assert not batcher.count
        producer.flush()
    assert calls[4000] < 12 * calls[500]


@pytest.mark.fault(194, 107)
@pytest.mark.parametrize("due", [False, True], ids=["flushed", "due"])
@pytest.mark.parametrize("room", [1, 7, 20_000])
@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_each_callback_gets_the_id_of_its_message_and_keys_keep_their_order(
    broker: EmbeddedBroker, client: PulsarClient, kind: str, room: int, due: bool
) -> None:
    delay = 1 if due else HOUR_MS
    producer = producer_by_key(
        client, "t", max_pending_messages=room, batching_max_publish_delay_ms=delay
    )
    chosen = random.Random(7)
    keys = [chosen.choice(["a", "b", "c", "ü", *map(str, range(40))]) for _ in range(300)]
    keys[50:60] = ["one"] * 10
    ids: dict[int, MessageId] = {}

    def note(number: int, result: Result, message_id: MessageId) -> None:
        assert result is Result.Ok
        assert number not in ids
        ids[number] = message_id

    for number, key in enumerate(keys):
        has_properties = kind == "properties" or (kind == "mixed" and number > 100)
        producer.send_async(
            b"%d" % number,
            partial(note, number),
            {"p": "v"} if has_properties else None,
            key,
            sequence_id=1000 + number if kind == "own ids" else None,
        )
    if not due:
        producer.flush()
    wait_until(lambda: len(ids) == 300, "all callbacks")
    found = read(client, "t", 300)
    by_key: dict[str, list[int]] = defaultdict(list)
    for each in found:
        number = int(each.data())
        assert each.partition_key() == keys[number]
        assert ids[number] == each.message_id()
        by_key[keys[number]].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    entries = defaultdict(set)
    for each in found:
        entries[each.message_id().entry_id()].add(each.partition_key())
    assert all(len(shared) == 1 for shared in entries.values())
    assert not producer._writer._context.budget.used


@pytest.mark.fault(194)
@pytest.mark.parametrize("properties", FIELDS, ids=["plain", "properties"])
@pytest.mark.parametrize("due", [False, True], ids=["flushed", "due"])
def test_one_message_that_is_too_large_fails_alone_among_many_keys(
    client: PulsarClient, properties: dict[str, Any] | None, due: bool
) -> None:
    producer = producer_by_key(
        client, "t", batching_max_allowed_size_in_bytes=100 << 20, batching_max_messages=100
    )
    told: dict[int, Result] = {}

    def note(number: int, result: Result, message_id: MessageId) -> None:
        told[number] = result

    for number in range(30):
        producer.send_async(
            bytes(6 << 20) if number == 17 else b"%d" % number,
            partial(note, number),
            properties,
            f"key-{number % 4}",
        )
    if due:
        producer._writer._batcher(0).trigger_flush()
    producer.flush()
    assert told == {n: Result.MessageTooBig if n == 17 else Result.Ok for n in range(30)}
    found = [int(each.data()) for each in read(client, "t", 29)]
    assert sorted(found) == [number for number in range(30) if number != 17]
    for key in range(4):
        own = [number for number in found if number % 4 == key]
        assert own == sorted(own)
