"""The data source in a Spark session, on the embedded broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import NOW, full, store, store_many
from tests.support.waiting import wait_until


@pytest.fixture
def load(spark: SparkSession, broker: EmbeddedBroker) -> Callable[..., DataFrame]:
    """Read topics: `load("t", **options)`."""

    def load(topic: str | None = None, schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("pulsar").option("service.url", broker.service_url)
        reader = reader.options(**options)
        return (reader if schema is None else reader.schema(schema)).load(topic)

    return load


@pytest.fixture
def save(broker: EmbeddedBroker) -> Callable[..., None]:
    """Write a DataFrame: `save(frame, "t", **options)`."""

    def save(frame: DataFrame, topic: str | None = None, **options: Any) -> None:
        writer = frame.write.format("pulsar").option("service.url", broker.service_url)
        writer.options(**options).mode("append").save(topic)

    return save


def values(frame: DataFrame) -> list[Any]:
    return [bytes(row["value"]) for row in frame.select("value").collect()]


def test_rows_are_written_and_read_without_registering_anything(
    spark: SparkSession,
    broker: EmbeddedBroker,
    load: Callable[..., DataFrame],
    save: Callable[..., None],
) -> None:
    broker.create_topic("t", 3)
    frame = spark.range(5000).select(
        F.col("id").cast("string").cast("binary").alias("value"),
        F.concat(F.lit("k"), F.col("id") % 11).alias("__key"),
        F.timestamp_millis(F.col("id") + NOW).alias("__eventTime"),
        F.create_map(F.lit("p"), F.col("id").cast("string")).alias("__messageProperties"),
    )
    save(frame, "t")
    found = load("t")
    assert found.rdd.getNumPartitions() == 3
    assert found.count() == 5000
    rows = found.withColumn("id", F.col("value").cast("string").cast("long"))
    wrong = rows.where(
        (F.col("__key").cast("string") != F.concat(F.lit("k"), F.col("id") % 11))
        | (F.unix_millis("__eventTime") != F.col("id") + NOW)
        | (F.col("__messageProperties")["p"] != F.col("id").cast("string"))
        | ~F.col("__topic").startswith(full("t-partition-"))
    )
    assert wrong.count() == 0
    assert rows.select(F.sum("id"), F.count_distinct("__messageId")).first() == (
        5000 * 4999 // 2,
        5000,
    )


def test_what_was_read_is_written_back_to_the_same_partitions(
    broker: EmbeddedBroker, load: Callable[..., DataFrame], save: Callable[..., None]
) -> None:
    broker.create_topic("t", 2)
    first = [store(broker, f"t-partition-{i}", [b"%d" % i, None]) for i in range(2)]
    save(load("t", includeMetadata="true"))
    rows = load("t", includeMetadata="true").orderBy("__partition", "__entryId", "__batchIndex")
    found = [(row["__partition"], row["value"] and bytes(row["value"])) for row in rows.collect()]
    assert found == [(0, b"0"), (0, None)] * 2 + [(1, b"1"), (1, None)] * 2
    assert first[0].ledger_id != first[1].ledger_id


def test_text_is_written_and_read_as_text(
    spark: SparkSession,
    broker: EmbeddedBroker,
    load: Callable[..., DataFrame],
    save: Callable[..., None],
) -> None:
    broker.create_topic("t")
    save(spark.createDataFrame([("grün",), (None,), ("",)], "value string").coalesce(1), "t")
    found = load("t")
    assert found.schema["value"].dataType.simpleString() == "string"
    assert [row["value"] for row in found.collect()] == ["grün", None, ""]


def test_sql_and_projections(
    spark: SparkSession, broker: EmbeddedBroker, load: Callable[..., DataFrame]
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 100)
    found = load("t", schema="__batchIndex int, __entryId bigint, __publishTime timestamp")
    assert found.columns == ["__batchIndex", "__entryId", "__publishTime"]
    found.createOrReplaceTempView("t")
    counted = spark.sql("select count(*), max(__entryId), max(__batchIndex) from t").first()
    assert counted == (100, 9, 9)


def test_one_topic_partition_is_read_by_several_tasks(
    broker: EmbeddedBroker, load: Callable[..., DataFrame]
) -> None:
    broker.create_topic("t")
    payloads = store_many(broker, "t", 1000)
    found = load("t", partitionsPerTopicPartition=4)
    assert found.rdd.getNumPartitions() == 4
    assert sorted(values(found)) == sorted(payloads)


@pytest.mark.fault(68)
def test_a_limit_gives_its_rows_and_leaves_nothing_behind(
    broker: EmbeddedBroker, load: Callable[..., DataFrame]
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 50_000, batch_size=1000)
    assert len(load("t").limit(10).collect()) == 10
    wait_until(lambda: not broker.subscriptions("t") and broker.clients == 0)


@pytest.mark.fault(99)
def test_wrong_options_are_told_when_the_source_is_loaded(load: Callable[..., DataFrame]) -> None:
    with pytest.raises(PySparkException, match="Did you mean 'startingOffsets'"):
        load("t", startingOffset="earliest")


def test_a_missing_topic_is_told_when_the_source_is_loaded(
    broker: EmbeddedBroker, load: Callable[..., DataFrame]
) -> None:
    with pytest.raises(PySparkException, match="TopicNotFound"):
        load("missing")
    assert broker.topics() == []


def test_what_cannot_be_written_is_told_before_anything_is_sent(
    spark: SparkSession, broker: EmbeddedBroker, save: Callable[..., None]
) -> None:
    broker.create_topic("t")
    frame = spark.range(10).select(F.col("id").cast("string").cast("binary").alias("value"))
    with pytest.raises(PySparkException, match="only mode append"):
        frame.write.format("pulsar").option("service.url", broker.service_url).mode(
            "overwrite"
        ).save("t")
    for wrong in (
        frame.withColumn("__key", F.lit(1)),
        frame.drop("value"),
        frame.withColumn("VALUE2", F.lit(1)).toDF("value", "VALUE"),
    ):
        with pytest.raises(PySparkException, match="InvalidRow"):
            save(wrong, "t")
    with pytest.raises(PySparkException, match="no topic"):
        save(frame)
    with pytest.raises(PySparkException, match="exactly-once"):
        save(frame, "t", deliveryGuarantee="exactly-once")
    assert broker.faults.seen("SEND") == 0


@pytest.mark.fault(77)
def test_a_null_topic_fails_the_write_and_names_the_row(
    spark: SparkSession, broker: EmbeddedBroker, save: Callable[..., None]
) -> None:
    broker.create_topic("t")
    frame = spark.createDataFrame([(b"a", "t"), (b"b", None)], "value binary, __topic string")
    with pytest.raises(PySparkException, match="row 1: __topic is null"):
        save(frame.coalesce(1))


@pytest.mark.fault(96)
def test_no_plan_and_no_error_shows_a_credential(
    broker: EmbeddedBroker,
    load: Callable[..., DataFrame],
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker.create_topic("t")
    secret = "canary-7b1f"
    options = {
        "pulsar.client.authPluginClassName": "token",
        "pulsar.client.authParams": f"token:{secret}",
    }
    load("t", **options).explain("extended")
    assert secret not in capsys.readouterr().out
    with pytest.raises(PySparkException) as caught:
        load("t", **options, mode="WRONG")
    assert secret not in str(caught.value)


def test_filters_leave_the_same_rows_where_spark_would_push_them_down(
    spark: SparkSession, broker: EmbeddedBroker, load: Callable[..., DataFrame]
) -> None:
    broker.create_topic("t", 2)
    for number in range(6):
        store(broker, f"t-partition-{number % 2}", [b"%d" % number], publish_time=NOW + number)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load("t")
        late = frame.where(f"__publishTime > timestamp_millis({NOW + 2})")
        assert sorted(values(late)) == [b"3", b"4", b"5"]
        assert values(frame.where(f"__topic = '{full('t-partition-1')}'")) == [b"1", b"3", b"5"]
        assert len(values(frame)) == 6
        assert len(values(late.union(frame))) == 9
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
