"""Entries split into runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pulsar_spark.engine.consumers.entries import ReceivedEntry
from pulsar_spark.errors import CorruptBatch
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.schema.arrow.arrays import strings
from pulsar_spark.schema.table.runs import PublishTimes, Run, Runs, split_entry
from tests.schema.table.entries import PARTITION, TOPIC, batch, message, single


def split(
    entry: ReceivedEntry, max_rows: int = 1000, max_bytes: int = 1 << 20
) -> list[Sequence[int]]:
    return [
        run.rows
        for run, _ in split_entry(entry, with_metadata=True, max_rows=max_rows, max_bytes=max_bytes)
    ]


def test_an_entry_is_one_run() -> None:
    assert split(single(b"x")) == [(0,)]
    assert split(batch([message(b"x")] * 3)) == [range(3)]


@pytest.mark.fault(62)
def test_only_the_wanted_messages_are_taken() -> None:
    assert split(batch([message(b"x")] * 5, wanted=range(2, 4))) == [range(2, 4)]
    assert split(batch([message(b"x")] * 5, wanted=range(3, 99))) == [range(3, 5)]
    assert split(batch([message(b"x")] * 5, wanted=range(5, 9))) == []


@pytest.mark.fault(92)
def test_a_large_batch_is_cut_by_rows_and_by_bytes() -> None:
    entry = batch([message(bytes(100))] * 10)
    assert split(entry, max_rows=4) == [range(4), range(4, 8), range(8, 10)]
    # Each message takes 106 bytes of the body.
    assert split(entry, max_bytes=330) == [range(3), range(3, 6), range(6, 9), range(9, 10)]
    assert split(entry, max_bytes=1) == [range(i, i + 1) for i in range(10)]


@pytest.mark.fault(92)
def test_what_each_row_has_besides_its_message_counts_too() -> None:
    parts = split_entry(
        batch([message(bytes(100))] * 10),
        with_metadata=True,
        max_rows=1000,
        max_bytes=600,
        row_size=94,
    )
    assert [(run.rows, size) for run, size in parts] == [
        (range(3), 600), (range(3, 6), 600), (range(6, 9), 600), (range(9, 10), 200)
    ]  # fmt: skip


def test_sizes_of_runs_add_up_to_the_body() -> None:
    entry = batch([message(bytes(size)) for size in range(50)])
    sizes = [size for _, size in split_entry(entry, with_metadata=False, max_rows=7, max_bytes=500)]
    assert sum(sizes) == len(entry.payload)


@pytest.mark.fault(60)
def test_what_compaction_removed_is_skipped_and_still_counts() -> None:
    messages = [message(b"a"), message(b"", compacted_out=True), message(b"c")]
    assert split(batch(messages)) == [[0, 2]]
    assert split(batch([message(b"", compacted_out=True)] * 2)) == []


@pytest.mark.fault(35)
def test_a_damaged_batch_is_an_error_with_topic_and_id() -> None:
    entry = batch([message(b"x")] * 3, num_messages_in_batch=5, entry_id=9)
    with pytest.raises(CorruptBatch) as caught:
        split(entry)
    assert caught.value.topic == TOPIC
    assert caught.value.message_id == f"7:9:{PARTITION}:-1"


def run_of(entry: ReceivedEntry) -> Run:
    ((run, _),) = split_entry(entry, with_metadata=True, max_rows=1000, max_bytes=1 << 20)
    return run


def test_ids_of_messages_have_partition_and_batch_index() -> None:
    assert run_of(single(b"x", entry_id=4)).message_id(0, 3) == MessageIdAdv(7, 4, 3)
    assert run_of(batch([message()] * 5)).message_id(2, 3) == MessageIdAdv(7, 0, 3, 2, 5)
    chunked = single(b"x", entry_id=4, first_chunk=MessageIdAdv(7, 2, 3))
    assert run_of(chunked).message_id(0, 3) == MessageIdAdv(
        7, 4, 3, first_chunk=MessageIdAdv(7, 2, 3)
    )


def test_a_row_of_several_runs_is_located() -> None:
    runs = Runs(TOPIC, 3, [run_of(single(b"x")), run_of(batch([message()] * 3, entry_id=1))])
    assert runs.count == 4
    assert runs.locate(0) == MessageIdAdv(7, 0, 3)
    assert runs.locate(3) == MessageIdAdv(7, 1, 3, 2, 3)
    with pytest.raises(IndexError):
        runs.locate(4)
    assert runs.spread(strings(["a", "b"])).to_pylist() == ["a", "b", "b", "b"]
    assert Runs(TOPIC, 3, [run_of(single(b"x"))]).spread(strings(["a"])).to_pylist() == ["a"]


@pytest.mark.parametrize(
    "low,high,taken",
    [(None, None, True), (5, None, True), (6, None, False), (None, 5, False), (None, 6, True)],
)
def test_publish_times_are_taken_from_a_start_up_to_an_end(
    low: int | None, high: int | None, taken: bool
) -> None:
    assert PublishTimes(low, high).takes(5) is taken
