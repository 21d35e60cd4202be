"""The memory of a batch of very many messages while it becomes record batches."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest

from pulsar_spark.schema.table.runs import split_entry
from tests.schema.table.entries import batch, message, single

_SCRIPT = """
    import resource, sys

    import pyarrow as pa

    from pulsar_spark.engine.codecs import decompress
    from pulsar_spark.protocol import answers
    from pulsar_spark.protocol import pulsar_api_pb2 as pb
    from pulsar_spark.protocol.block_decoder import PythonBlockDecoder
    from pulsar_spark.protocol.blocks import FULL, BlockOptions
    from pulsar_spark.protocol.frames import encode_raw_payload_command
    from pulsar_spark.schema.table.record_batches import Projection, RecordBatchBuilder
    from tests.engine.topics import stored_entry
    from tests.schema.table.entries import TOPIC, batch, body, message

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
        entry.metadata.num_messages_in_batch = entry.stop_index = count
        schema = pa.schema(list(COLUMNS.items()))
        builder = RecordBatchBuilder(schema, Projection(tuple(COLUMNS)), TOPIC, 3)
        yield from (part.num_rows for part in builder.add(entry))
        yield from (part.num_rows for part in builder.flush())

    def blocks():
        columns = frozenset(
            ("value", "key", "message_id", "event_time", "properties", "sequence_id")
        )
        stored = stored_entry(one * count, num_messages_in_batch=count)
        delivery = answers.message(1, pb.MessageIdData(ledgerId=1, entryId=2))
        frame = b"".join(map(bytes, encode_raw_payload_command(delivery, stored)))
        decoder = PythonBlockDecoder(
            BlockOptions(TOPIC, 3, columns, None, 10_000, 4 * 2**20, 2**26), decompress
        )
        at, position, status = 0, (-1, -1, 0), FULL
        while status == FULL:
            at, status, _, position = decoder.decode(frame, at, len(frame), position)
            taken = decoder.take()
            for name in columns:
                getattr(taken, name)
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


@pytest.mark.fault(92)
def test_a_run_is_cut_by_keys_and_properties_too() -> None:
    large: dict[str, Any] = {"properties": [("k", "v" * 1000)], "partition_key": "k" * 1000}
    runs = split_entry(
        batch([message(b"", **large) for _ in range(10)]),
        with_metadata=True,
        max_rows=100,
        max_bytes=5000,
    )
    assert [(len(run.rows), size > 2000 * len(run.rows)) for run, size in runs] == [(2, True)] * 5
    ((_, size),) = split_entry(
        single(b"", **large), with_metadata=True, max_rows=100, max_bytes=5000
    )
    assert size > 2000
