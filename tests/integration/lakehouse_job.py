"""The examples of docs/lakehouse.md, in a Spark of their own: it has their jars from its start.

``python -m tests.integration.lakehouse_job FOLDER`` prints "done" if they did what the page says.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pulsar_spark.testing import EmbeddedBroker
from tests.integration.test_guides import Names, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDERS = ["a book", "a lamp", "a map", "a pen"]
ICEBERG = "lake.shop.orders"


def main(folder: Path) -> None:
    with EmbeddedBroker() as own:
        names = run("lakehouse.md", None, own, folder)
        check_repeats(names, folder)
        check_a_lost_checkpoint(names, own)
        check_appends(names, folder)
        assert own.internal_errors == ()


def tables(names: Names, folder: Path) -> tuple[DataFrame, DataFrame]:
    spark = names["spark"]
    return spark.read.format("delta").load(f"{folder}/delta/orders"), spark.table(ICEBERG)


def items(frame: DataFrame) -> list[str]:
    return sorted(row["item"] for row in frame.select("item").collect())


def check_repeats(names: Names, folder: Path) -> None:
    """Both leave a micro-batch out whose commit Spark has not noted."""
    assert [items(table) for table in tables(names, folder)] == [ORDERS, ORDERS]
    for name in ("delta", "iceberg"):
        commits = folder / "checkpoints" / f"orders-to-{name}" / "commits"
        assert (commits / "1").exists()
        for kept in commits.iterdir():
            if kept.name.strip(".").split(".")[0] != "0":
                kept.unlink()
        names[f"to_{name}"]()
        assert (commits / "1").exists(), "the micro-batch was not repeated"
    again = [items(table.where("n < 5")) for table in tables(names, folder)]
    assert again == [ORDERS, ORDERS]


def check_a_lost_checkpoint(names: Names, own: EmbeddedBroker) -> None:
    """A table that has only a part of the topic gets the rest."""
    spark = names["spark"]
    part = spark.table(ICEBERG).where("n < 3")
    part.write.format("iceberg").saveAsTable("lake.shop.part")
    read = spark.read.format("pulsar").option("service.url", own.service_url).load("lake-orders")
    rest = names["not_there_yet"](read.where("n < 5"), "lake.shop.part")
    assert items(rest) == ["a lamp", "a pen"]


def check_appends(names: Names, folder: Path) -> None:
    spark = names["spark"]
    for _ in range(2):
        writer = spark.range(3).write.format("delta").mode("append")
        writer.options(txnAppId="orders", txnVersion=7).save(f"{folder}/delta/appended")
    assert spark.read.format("delta").load(f"{folder}/delta/appended").count() == 3


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    print("done")
