"""AVRO topics both ways: random schemas and values, with fastavro as the judge."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from pulsar_spark.schema import avro_codec, avro_decoder
from tests.schema.avro_random import Schemas, Values, decoded, encoded, info, rows


@pytest.mark.parametrize("seed", range(40))
def test_random_values_are_read_and_written_as_fastavro_does(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    tree = Schemas(rng).record()
    values = Values(rng)
    # Both ways of decoding, and parts that end somewhere in between.
    count = 3200 if seed % 4 else 500
    monkeypatch.setattr(avro_decoder, "FEW", 1 if seed % 4 else 10_000)
    monkeypatch.setattr(avro_decoder, "MAX_ROWS", 1500 if seed % 2 else 16_384)
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
