"""Topics as SQL tables and views, and formats that a session has registered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import pulsar_spark
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.pages import fills_up_with_nulls
from tests.spark.topics import full, store, store_many

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

SECRET = "canary-7b1f"


@pytest.fixture
def sql(spark: SparkSession, own: EmbeddedBroker) -> Iterator[Callable[[str], list[Row]]]:
    """Run statements, in which URL is the broker's address; drop what they create."""

    def run(statement: str) -> list[Row]:
        return spark.sql(statement.replace("URL", f"'{own.service_url}'")).collect()

    before = tables(spark)
    yield run
    for name, is_view in tables(spark) - before:
        spark.sql(f"DROP {'VIEW' if is_view else 'TABLE'} {name}")


def tables(spark: SparkSession) -> set[tuple[str, bool]]:
    """Return the names of tables and views, and which are views."""
    # Spark's catalog.listTables needs generated code, which this session goes without.
    return {(row["tableName"], row["isTemporary"]) for row in spark.sql("SHOW TABLES").collect()}


def values(rows: list[Row]) -> list[str]:
    return sorted(bytes(row["value"]).decode() for row in rows)


def finish(frame: DataFrame, checkpoint: Path) -> list[Row]:
    """Return the rows of a stream, up to the current end."""
    found: list[Row] = []
    writer = frame.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(240), "the query does not end"
    finally:
        query.stop()
    return found


@pytest.mark.fault(125)
def test_tables_are_created_with_the_columns_of_their_topics(
    spark: SparkSession, own: EmbeddedBroker, sql: Callable[[str], list[Row]], tmp_path: Path
) -> None:
    sql("CREATE TABLE plain USING pulsar OPTIONS (service.url URL, topic 'orders')")
    sql(
        "CREATE TABLE located USING pulsar OPTIONS (service.url URL, topics 'orders,copy') "
        f"COMMENT 'notes' TBLPROPERTIES (team = 'a', topic = 'billing') LOCATION '{tmp_path}/t'"
    )
    for name in ("plain", "located"):
        assert spark.table(name).columns[:3] == ["value", "__key", "__topic"]


@pytest.mark.fault(125)
def test_options_that_are_repeated_at_use_work(
    spark: SparkSession, own: EmbeddedBroker, sql: Callable[[str], list[Row]], tmp_path: Path
) -> None:
    sql("CREATE TABLE orders (value BINARY) USING pulsar OPTIONS (service.url URL)")
    # Spark does not pass on the table's options.
    with pytest.raises(PySparkException, match=r"service\.url is required.*docs/sql\.md"):
        spark.table("orders").collect()
    frame = spark.sql("SELECT binary('a') AS value")
    with pytest.raises(PySparkException, match=r"service\.url is required.*docs/sql\.md"):
        frame.writeTo("orders").append()
    options = {"service.url": own.service_url, "topic": "orders", "startingOffsets": "earliest"}
    frame.writeTo("orders").options(**options).append()
    assert values(spark.read.options(**options).table("orders").collect()) == ["a"]
    stream = spark.readStream.options(**options).table("orders")
    assert values(finish(stream, tmp_path)) == ["a"]
    sql("INSERT INTO orders WITH (service.url = URL, topic = 'orders') VALUES (binary('b'))")
    found = sql("SELECT * FROM orders WITH (service.url = URL, topic = 'orders')")
    assert values(found) == ["a", "b"]


@pytest.mark.fault(125)
def test_a_table_with_columns_is_a_projection(
    spark: SparkSession, own: EmbeddedBroker, sql: Callable[[str], list[Row]]
) -> None:
    expected = store_many(own, "orders-partition-0", 10)
    sql(
        "CREATE TABLE orders (__topic STRING NOT NULL COMMENT 'its partition', value BINARY) "
        "USING pulsar OPTIONS (service.url URL, topic 'orders')"
    )
    found = spark.read.options(**{"service.url": own.service_url, "topic": "orders"})
    rows = found.table("orders").where("__topic LIKE '%orders%'").collect()
    assert rows[0].asDict().keys() == {"__topic", "value"}
    assert values(rows) == sorted(value.decode() for value in expected)


@pytest.mark.fault(125)
def test_a_view_has_its_options(
    spark: SparkSession, own: EmbeddedBroker, sql: Callable[[str], list[Row]]
) -> None:
    expected = sorted(value.decode() for value in store_many(own, "orders-partition-1", 10))
    view = "TEMPORARY VIEW orders USING pulsar OPTIONS (service.url URL, topic 'orders')"
    sql(f"CREATE {view}")
    assert values(sql("SELECT * FROM orders WHERE __key IS NULL")) == expected
    spark.sql("SELECT binary('new') AS value").write.format("pulsar").mode("append").option(
        "service.url", own.service_url
    ).save("orders")
    # Spark plans a view once; later rows are there after it was created again.
    sql(f"CREATE OR REPLACE {view}")
    assert values(spark.table("orders").collect()) == ["new", *expected]
    sql(
        "CREATE TEMPORARY VIEW named (value BINARY) USING pulsar "
        f"OPTIONS (service.url URL, path '{full('orders')}')"
    )
    assert values(sql("SELECT * FROM named")) == ["new", *expected]
    sql(
        "CREATE TEMPORARY VIEW typed (value TINYINT) USING pulsar "
        "OPTIONS (service.url URL, topic 'numbers', valueFormat 'json')"
    )
    own.create_topic("numbers")
    store(own, "numbers", [b'{"value": 5}'])
    assert [row["value"] for row in sql("SELECT * FROM typed")] == [5]
    sql("INSERT INTO named VALUES (binary('newer'))")
    again = spark.read.format("pulsar").option("service.url", own.service_url).load("orders")
    assert values(again.collect()) == ["new", "newer", *expected]


@pytest.mark.fault(125)
def test_rows_are_inserted_into_tables(
    spark: SparkSession, own: EmbeddedBroker, sql: Callable[[str], list[Row]]
) -> None:
    pulsar_spark.register(
        spark, name="orders", options={"service.url": own.service_url, "topic": "orders"}
    )
    sql("CREATE TABLE inferred USING orders")
    sql("CREATE TABLE given (value BINARY, __key STRING) USING orders")
    if fills_up_with_nulls():
        sql("INSERT INTO inferred (value, __key) VALUES (binary('a'), binary('k'))")
    sql("INSERT INTO given VALUES (binary('b'), 'k'), (binary('c'), NULL)")
    frame = spark.sql("SELECT binary('d') AS value, 'k' AS __key")
    frame.write.insertInto("given")
    frame.writeTo("given").append()
    frame.write.format("orders").mode("append").saveAsTable("given")
    sql("CREATE TABLE made USING orders AS SELECT binary('e') AS value")
    rows = sql("SELECT * FROM inferred")
    assert values(rows) == [*(["a"] if fills_up_with_nulls() else []), *"bcddde"]
    assert {row["__key"] and bytes(row["__key"]) for row in rows} == {b"k", None}
    with pytest.raises(PySparkException, match="mode append"):
        sql("INSERT OVERWRITE given VALUES (binary('b'), 'k')")


@pytest.mark.fault(125)
def test_tables_are_read_and_written_by_streams(
    spark: SparkSession, own: EmbeddedBroker, sql: Callable[[str], list[Row]], tmp_path: Path
) -> None:
    for topic in ("orders", "copy"):
        options = {"service.url": own.service_url, "topic": topic, "startingOffsets": "earliest"}
        pulsar_spark.register(spark, name=topic, options=options)
        sql(f"CREATE TABLE {topic} (value BINARY) USING {topic}")
    expected = sorted(value.decode() for value in store_many(own, "orders-partition-1", 10))
    writer = spark.readStream.table("orders").writeStream.trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "write")).toTable("copy")
    try:
        assert query.awaitTermination(240), "the query does not end"
    finally:
        query.stop()
    assert values(sql("SELECT * FROM copy")) == expected
    assert values(finish(spark.readStream.table("copy"), tmp_path / "read")) == expected


def test_a_stream_makes_the_table_that_it_writes_to(
    spark: SparkSession, own: EmbeddedBroker, sql: Callable[[str], list[Row]], tmp_path: Path
) -> None:
    options = {"service.url": own.service_url, "topic": "orders"}
    pulsar_spark.register(spark, name="orders", options=options)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    writer = source.selectExpr("binary(string(value)) AS value").writeStream.format("orders")
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    query = writer.toTable("numbers")
    try:
        assert query.awaitTermination(240), "the query does not end"
    finally:
        query.stop()
    assert values(spark.table("numbers").collect()) == list("01234")


def test_a_format_is_read_and_written_by_its_name(
    spark: SparkSession, own: EmbeddedBroker, tmp_path: Path
) -> None:
    options = {"service.url": own.service_url, "topic": "orders", "startingOffsets": "earliest"}
    pulsar_spark.register(spark, name="my-orders", options=options)
    spark.sql("SELECT binary('a') AS value").write.format("my-orders").mode("append").save()
    spark.sql("SELECT binary('b') AS value").write.format("my-orders").mode("append").save("copy")
    assert values(spark.read.format("my-orders").load().collect()) == ["a"]
    assert values(spark.read.format("my-orders").load("copy").collect()) == ["b"]
    both = spark.read.format("my-orders").option("topics", "orders,copy").load()
    assert values(both.collect()) == ["a", "b"]
    stream = spark.readStream.format("my-orders").load()
    assert values(finish(stream, tmp_path)) == ["a"]


@pytest.mark.fault(96)
def test_no_plan_error_or_log_shows_the_secrets_of_a_format(
    spark: SparkSession,
    own: EmbeddedBroker,
    sql: Callable[[str], list[Row]],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    options: dict[str, Any] = {
        "service.url": own.service_url,
        "topic": "orders",
        "pulsar.client.authPluginClassName": "token",
        "pulsar.client.authParams": f"token:{SECRET}",
    }
    shown: list[str] = []
    with caplog.at_level(logging.INFO):
        pulsar_spark.register(spark, name="orders", options=options)
        sql("CREATE TABLE orders USING orders")
        spark.table("orders").explain("extended")
        for statement in ("SHOW CREATE TABLE orders", "DESCRIBE EXTENDED orders"):
            shown.append(str(sql(statement)))
        for wrong in ("mode", "startingOffsets", "topics"):
            with pytest.raises(PySparkException) as caught:
                spark.read.option(wrong, "{").table("orders").collect()
            shown.append(str(caught.value))
    assert "orders" in capfd.readouterr().out
    shown += capfd.readouterr()
    assert SECRET not in "".join(shown) + caplog.text
