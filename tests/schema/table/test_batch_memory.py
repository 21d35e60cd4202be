"""The memory of a batch of very many messages while it becomes record batches."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.engine.codecs import decompress
from pulsar_spark.protocol import batches
from pulsar_spark.protocol.block_decoder import PythonBlockDecoder
from pulsar_spark.protocol.blocks import DONE, FULL
from pulsar_spark.schema.table import names
from pulsar_spark.schema.table.record_batches import Projection, RecordBatchBuilder
from tests.protocol import block_streams as stream
from tests.schema.table.entries import (
    TOPIC,
    batch,
    batches_of,
    body,
    columns_of,
    message,
    single,
)

_SCRIPT = """
    import resource, sys

    import pyarrow as pa

    from pulsar_spark.engine.codecs import decompress
    from pulsar_spark.protocol import pulsar_api_pb2 as pb
    from pulsar_spark.protocol.block_decoder import PythonBlockDecoder
    from pulsar_spark.protocol.blocks import FULL, BlockOptions
    from pulsar_spark.protocol.frames import encode_raw_payload_command
    from pulsar_spark.schema.table.record_batches import Projection, RecordBatchBuilder
    from tests import brief
    from tests.engine.topics import stored_entry
    from tests.schema.table.entries import TOPIC, batch, body, columns_of, message

    COLUMNS = {
        "value": pa.binary(),
        "__key": pa.binary(),
        "__messageId": pa.binary(),
        "__eventTime": pa.timestamp("us", tz="UTC"),
        "__messageProperties": pa.map_(pa.string(), pa.string()),
        "__sequenceId": pa.int64(),
    }
    one = body([message(b"", **eval(sys.argv[2]))])
    count = 2 * 2**20 // len(one)

    def entries():
        entry = batch([message(b"")])
        entry.payload = one * count
        entry.metadata.num_messages_in_batch, entry.wanted = count, range(count)
        schema = pa.schema(list(COLUMNS.items()))
        builder = RecordBatchBuilder(schema, Projection(tuple(COLUMNS)), TOPIC, 3)
        options = builder.block_options(None, 2**26)
        for found in columns_of(options, entry):
            yield from (part.num_rows for part in builder.build(found))

    def blocks():
        columns = frozenset(
            ("value", "key", "message_id", "event_time", "properties", "sequence_id")
        )
        stored = stored_entry(one * count, num_messages_in_batch=count)
        delivery = brief.message(1, pb.MessageIdData(ledgerId=1, entryId=2))
        frame = b"".join(map(bytes, encode_raw_payload_command(delivery, stored)))
        decoder = PythonBlockDecoder(
            BlockOptions(TOPIC, 3, columns, None, 10_000, 4 * 2**20, 2**26), decompress
        )
        at, position, status = 0, (-1, -1, 0), FULL
        while status == FULL:
            at, status, _, position = decoder.decode(frame, at, len(frame), position)
            taken = decoder.take()
            for name in columns:
                taken.columns[name]
            yield taken.rows

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sum({"entries": entries, "blocks": blocks}[sys.argv[1]]()) == count
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.fault(92)
@pytest.mark.parametrize("path", ["entries", "blocks"])
@pytest.mark.parametrize(
    "fields",
    [{"properties": [("", "")]}, {"partition_key": "k", "event_time": 1}],
    ids=["properties", "keys"],
)
@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux counts it")
def test_a_batch_of_very_many_messages_is_held_in_parts(path: str, fields: dict[str, Any]) -> None:
    """Objects for all messages at once would take a hundred times the batch's size."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_SCRIPT), path, repr(fields)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 60


# Messages of few bytes, and a last one that is different from the others.
_TINY = {
    "event times": ([message(b"", event_time=1)], message(b"", event_time=1, sequence_id=1)),
    "many kinds": (
        [message(b"", event_time=1), message(b"", ordering_key=b"")],
        message(b"", ordering_key=b""),
    ),
    "null values": ([message(None, event_time=1)], message(None)),
    "keys": ([message(b"", partition_key="k1")], message(b"v", partition_key="k1")),
    "keys alike": ([message(b"", partition_key="k1")], message(b"", partition_key="k1")),
    "keys of bytes": (
        [message(b"", partition_key="a2s=", partition_key_b64_encoded=True)],
        message(b""),
    ),
}


@pytest.mark.fault(92)
@pytest.mark.parametrize("kind", _TINY)
@pytest.mark.parametrize("path", ["entries", "blocks"])
def test_objects_for_messages_need_no_more_than_a_small_multiple_of_their_bytes(
    monkeypatch: pytest.MonkeyPatch, path: str, kind: str
) -> None:
    """A few bytes on the wire can be millions of messages: here some thousands stand for them."""
    monkeypatch.setattr(batches, "_MOST_KEPT", 1000)
    messages, last = _TINY[kind]
    many = body(messages)
    count = len(messages) * (_TINY_BYTES // len(many))
    data = many * (count // len(messages)) + body([last])
    count += 1
    decode = {"entries": _rows_of_entry, "blocks": _rows_of_block}[path]
    # What threads of earlier tests allocate meanwhile only adds to it: take the least.
    peak = min(_peak_of(lambda: decode(data, count), count) for _ in range(3))
    assert peak < 4 * len(data) + _FIXED


def _peak_of(decode: Callable[[], Iterator[int]], count: int) -> int:
    """Return the most memory in use while so many rows are decoded."""
    tracemalloc.start()
    rows = sum(decode())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == count
    return peak


_TINY_BYTES = 100_000
# Of the rows of a record batch, and of messages that are looked at together.
_FIXED = 1024 * 1024
_MOST_ROWS = 200


def _rows_of_entry(data: bytes, count: int) -> Iterator[int]:
    entry = batch([message(b"")], num_messages_in_batch=count, wanted=range(count))
    entry.payload = data
    kinds = {names.KEY: pa.binary(), names.EVENT_TIME: pa.timestamp("us", tz="UTC")}
    target = RecordBatchBuilder(
        pa.schema(list(kinds.items())), Projection(tuple(kinds)), TOPIC, 3, max_rows=_MOST_ROWS
    )
    for found in columns_of(target.block_options(None, 1 << 30), entry):
        yield from (part.num_rows for part in target.build(found))


def _rows_of_block(data: bytes, count: int) -> Iterator[int]:
    frame = stream.entry(0, data, num_messages_in_batch=count)
    options = stream.options({"key", "event_time"}, max_rows=_MOST_ROWS, max_payload=1 << 30)
    decoder = PythonBlockDecoder(options, decompress)
    at, position, status = 0, (-1, -1, 0), FULL
    while status == FULL:
        at, status, _, position = decoder.decode(frame, at, len(frame), position)
        taken = decoder.take()
        assert taken is not None
        yield taken.rows
    assert status == DONE


@pytest.mark.fault(92)
def test_record_batches_are_bounded_by_keys_and_properties_too() -> None:
    large: dict[str, Any] = {"properties": [("k", "v" * 1000)], "partition_key": "k" * 1000}
    kinds = {names.KEY: pa.binary()}
    target = RecordBatchBuilder(
        pa.schema(kinds), Projection(tuple(kinds)), TOPIC, 3, max_bytes=5000
    )
    ten = [message(b"", **large) for _ in range(10)]
    assert [part.num_rows for part in batches_of(target, batch(ten))] == [2] * 5
    alone = [single(b"", entry_id=number, **large) for number in range(4)]
    assert [part.num_rows for part in batches_of(target, *alone)] == [2, 2]
