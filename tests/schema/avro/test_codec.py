"""AVRO topics both ways: random schemas and values, compared with fastavro."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from pulsar_spark.schema.avro import codec as avro_codec
from tests.schema.avro.random_values import Schemas, Values, decoded, encoded, info, rows
from tests.schema.kernel import choose


@pytest.mark.parametrize("seed", range(40))
def test_random_values_are_read_and_written_as_fastavro_does(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    tree = Schemas(rng).record()
    values = Values(rng)
    # Both decoding paths, and chunks that end in between.
    count = 3200 if seed % 4 else 500
    choose(monkeypatch, kernel=bool(seed % 4))
    data = encoded(tree, (values.of(tree) for _ in range(count)))
    wanted = decoded(tree, data)

    columns = avro_codec.arrow_schema(info(tree))
    found = avro_codec.decoder(info(tree), info(tree), columns.names).decode(pa.array(data))
    assert not found.bad
    assert rows(columns.names, found.columns) == wanted

    batch = pa.RecordBatch.from_arrays(list(found.columns), schema=columns)
    again = avro_codec.encoder(info(tree), columns).encode(batch)
    again.validate(full=True)
    assert decoded(tree, again.to_pylist()) == wanted


WITHOUT_PANDAS = """
import sys
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.avro import codec as avro_codec
from pulsar_spark.schema.arrow.arrays import binaries
import pyarrow as pa

definition = b'''{"type": "record", "name": "R", "fields": [
    {"name": "a", "type": ["null", "string"]},
    {"name": "b", "type": {"type": "array", "items": "long"}},
    {"name": "c", "type": {"type": "map", "values": "double"}},
    {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5}},
    {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"]}}]}'''
info = SchemaInfo(4, "", definition)
columns = avro_codec.arrow_schema(info)
value = bytes.fromhex("02 02 61 04 02 80 01 00 02 02 6b 0000000000000000 00 02 07 00")
for count in (1, 1000):
    found = avro_codec.decoder(info, info, columns.names).decode(binaries([value] * count))
    assert not found.bad, found.bad
    batch = pa.RecordBatch.from_arrays(list(found.columns), schema=columns)
    assert avro_codec.encoder(info, columns).encode(batch).to_pylist() == [value] * count
print("pandas" in sys.modules)
"""


def test_pandas_is_not_imported() -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.stdout, result.stderr) == ("False\n", "")
