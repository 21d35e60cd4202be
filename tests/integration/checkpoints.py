"""Kept checkpoints, recorded by each version that changed their content.

``python -m tests.integration.checkpoints tests/data/checkpoints/NAME`` records one, with the
version of Spark that it runs with. Its query has read and committed its first micro-batch and was
stopped in its second one, whose end is inside an entry.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import full, store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = Path(__file__).resolve().parent.parent / "data" / "checkpoints"
TOPIC = "kept"
SUBSCRIPTION = "kept-query"
CAP = "6"

ENTRIES = [
    [[b"%d-%d-%d" % (partition, entry, message) for message in range(4)] for entry in range(5)]
    for partition in range(2)
]
"""For each partition its entries, each of four messages."""

# Entries per partition when the checkpoint was made.
_THEN = 3


class Planned(Exception):
    """The second micro-batch is planned: stop the query here."""


def fill(broker: EmbeddedBroker, entries: slice) -> None:
    """Store entries of each partition, with their ids in the kept checkpoints."""
    for number, stored in enumerate(ENTRIES):
        for entry, payloads in list(enumerate(stored))[entries]:
            found = store(broker, f"{full(TOPIC)}-partition-{number}", payloads)
            place = (found.ledger_id, found.entry_id)
            assert place == (number + 1, entry), "the embedded broker gives ids in another way"


def stream(spark: SparkSession, broker: EmbeddedBroker) -> DataFrame:
    """Return the stream of the query whose checkpoints these are."""
    options = {
        "service.url": broker.service_url,
        "topic": TOPIC,
        "subscription": SUBSCRIPTION,
        "startingOffsets": "earliest",
        "maxMessagesPerTrigger": CAP,
    }
    return spark.readStream.format("pulsar").options(**options).load()


@contextmanager
def broker_then() -> Iterator[EmbeddedBroker]:
    """Run a broker with the topic as it was when the checkpoint was made.

    It stamps an index on entries, so micro-batches end exactly at the cap, also inside entries.
    """
    with EmbeddedBroker(expose_entry_metadata=True) as broker:
        broker.create_topic(TOPIC, partitions=len(ENTRIES))
        fill(broker, slice(_THEN))
        yield broker


def fill_further(broker: EmbeddedBroker) -> None:
    """Store the later entries."""
    fill(broker, slice(_THEN, None))


def record(folder: Path) -> None:
    """Run the query up to its second micro-batch and keep the checkpoint."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    with broker_then() as broker, tempfile.TemporaryDirectory() as temporary:
        checkpoint = Path(temporary) / "checkpoint"

        def stop_in_the_second(frame: DataFrame, batch_id: int) -> None:
            frame.collect()
            if batch_id:
                raise Planned

        writer: Any = stream(spark.getOrCreate(), broker).writeStream
        query = writer.foreachBatch(stop_in_the_second)
        query = query.option("checkpointLocation", str(checkpoint)).start()
        try:
            query.awaitTermination(240)
        except Exception as error:
            if "Planned" not in str(error):
                raise
        kept = shutil.ignore_patterns(".*", "sources", "state")
        shutil.copytree(checkpoint, folder, ignore=kept, dirs_exist_ok=True)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
