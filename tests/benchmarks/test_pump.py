"""The raw pump sends as many messages as the others write, in the same layout."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice

import pytest

from benchmarks import pump
from benchmarks.workloads import Workload
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import reading, unpack

TOPIC = "persistent://public/default/pumped"


@pytest.mark.parametrize("compression", ["NONE", "LZ4"])
def test_first_messages_are_sent_again_and_again_until_there_are_enough(
    monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    workload = Workload("some", 95, 100, batch=10, compression=compression)
    monkeypatch.setattr(pump, "_BLOCK_BYTES", 40 * workload.size)

    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        measured = pump.run(broker.service_url, workload, [TOPIC])
        with reading(broker, TOPIC) as reader:
            entries = list(islice(reader, 10))

    values = [message.value for message in workload.made()]
    sent = [[message.payload for message in unpack(entry)] for entry in entries]
    assert list(chain.from_iterable(sent)) == values[:40] + values[:40] + values[:15]
    assert [len(each) for each in sent] == [10] * 9 + [5]
    assert measured.seconds > 0


def test_each_producer_sends_its_part() -> None:
    workload = Workload("some", 101, 100, producers=3)

    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        pump.run(broker.service_url, workload, [TOPIC])
        with reading(broker, TOPIC) as reader:
            entries = list(islice(reader, 101))

    senders = Counter(entry.metadata.producer_name for entry in entries)
    assert sorted(senders.values()) == [33, 34, 34]
