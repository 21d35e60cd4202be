"""Run by test_effectively_once.py in a process of its own: a job that is killed while it writes.

Arguments: the service URL, the topic, the number of rows, and after how many rows of each task it
becomes slow.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    import pyarrow as pa


def main(url: str, topic: str, count: int, quick: int) -> None:
    """Write the rows, the last ones slowly enough to be killed in between."""

    def slowed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            for start in range(0, batch.num_rows, 500):
                rows += 500
                if rows > quick:
                    time.sleep(3)
                yield batch.slice(start, 500)

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        # Spark passes rows to the writer in batches of this size.
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        .getOrCreate()
    )
    frame = session.range(0, count, 1, 2)
    rows = frame.selectExpr("cast(id as string) value", "id __sequenceId")
    writer = rows.mapInArrow(slowed, rows.schema).write.format("pulsar").mode("append")
    writer.option("service.url", url).option("topic", topic).option("valueFormat", "string").option(
        "pulsar.producer.producerName", "job"
    ).save()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
