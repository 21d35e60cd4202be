"""Errors that Spark's users see: they name the option, the topic, and the remedy."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.brokers import Embedded
from tests.integration.spark_io import load, official, save, send, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def broker(_embedded_broker: Embedded) -> Embedded:
    """Only the embedded broker: these errors do not come from the broker."""
    return _embedded_broker


@contextmanager
def error(*parts: str) -> Iterator[None]:
    """Expect an error whose text has all `parts`, in their order."""
    with pytest.raises(Exception) as caught:
        yield
    pattern = ".*".join(map(re.escape, parts))
    assert re.search(pattern, str(caught.value), re.DOTALL), str(caught.value)


@pytest.fixture(scope="module")
def topic(broker: Embedded) -> str:
    made = broker.create_topic(partitions=2)
    with official(broker) as client:
        send(client, made, [b"1", b"2"])
    return made


# --- options --------------------------------------------------------------------------------


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "options, parts",
    [
        ({"tpoic": "t"}, ("OptionError", "'tpoic' is not an option", "'topic'")),
        (
            {"startingOffset": "earliest"},
            ("'startingoffset' is not an option", "'startingOffsets'"),
        ),
        ({"compressionType": "LZ4"}, ("'pulsar.producer.compressionType'",)),
        ({"pulsar.client.operationTimeout": "1"}, ("'pulsar.client.operationTimeoutMs'",)),
        ({"topics": "a,b"}, ("topic and topics cannot be used together",)),
        ({"topicsPattern": "a.*"}, ("topic and topicsPattern cannot be used together",)),
        ({"includeMetadata": "yep"}, ("includeMetadata: 'yep'", "true or false")),
        ({"partitionsPerTopicPartition": "0"}, ("partitionsPerTopicPartition: '0'", "1")),
        ({"pollTimeout": "soon"}, ("pollTimeout: 'soon'", "30s")),
        ({"mode": "LAX"}, ("mode: 'LAX'", "FAILFAST")),
        ({"valueFormat": "avro"}, ("valueFormat=avro needs the option valueSchema", "auto")),
        ({"startingOffsets": "latest"}, ("startingOffsets cannot be 'latest'",)),
        ({"endingOffsets": "earliest"}, ("endingOffsets cannot be 'earliest'",)),
        ({"startingOffsets": "12:3"}, ("startingOffsets cannot be '12:3'", "JSON")),
        ({"startingOffsets": '{"t": '}, ("startingOffsets is not valid JSON",)),
        (
            {"startingOffsets": '{"other": "earliest"}'},
            ("names the topic 'persistent://public/default/other'", "does not include"),
        ),
        (
            {"startingTime": "-1h", "startingOffsets": "earliest"},
            ("startingOffsets and startingTime cannot be used together",),
        ),
        (
            {"pulsar.client.useKeyStoreTls": "true"},
            ("pulsar.client.useKeyStoreTls", "pulsar.client.tlsTrustCertsFilePath"),
        ),
        (
            {"pulsar.client.authPluginClassName": "magic"},
            ("authPluginClassName names an unknown", "token"),
        ),
        ({"topic": "a b://c"}, ("InvalidTopicName", "a b://c")),
        ({"topic": "non-persistent://public/default/n"}, ("stores nothing", "PulsarClient")),
    ],
)
def test_wrong_options_of_a_read_are_named(
    spark: SparkSession, broker: Embedded, topic: str, options: dict[str, str], parts: tuple[str]
) -> None:
    with error(*parts):
        load(spark, broker, topic, options).collect()


def test_a_read_needs_a_service_and_a_topic(spark: SparkSession, broker: Embedded) -> None:
    with error("service.url is required", "pulsar://host:6650"):
        spark.read.format("pulsar").load("t")
    with error("no topic is given", "Set one of topic, topics and topicsPattern"):
        load(spark, broker)
    for url in ("localhost:6650", "kafka://h:1", "pulsar://", "pulsar://h:port"):
        with error("OptionError", "service.url", "pulsar://"):
            spark.read.format("pulsar").option("service.url", url).load("t")


def test_options_of_scala_and_java_jobs_are_taken(
    spark: SparkSession, broker: Embedded, topic: str
) -> None:
    options = {
        "admin.url": "http://localhost:8080",
        "PULSAR.CLIENT.numIoThreads": 4,
        "pulsar.client.statsIntervalSeconds": 60,
        "pulsar.reader.readerName": "r",
        "pulsar.admin.readTimeoutMs": 5,
        "pulsar.client.useKeyStoreTls": False,
        "pollTimeoutMs": 60_000,
        "subscriptionprefix": "scala",
        "predefinedSubscription": "scala",
        "failOnDataLoss": True,
    }
    assert sorted(values(load(spark, broker, topic, options))) == [b"1", b"2"]


def test_a_schema_that_does_not_fit_is_named(
    spark: SparkSession, broker: Embedded, topic: str
) -> None:
    with error("a column 'valeu'", "'value'"):
        load(spark, broker, topic, schema="valeu binary").collect()
    with error("'value' is int, but this read returns binary", "Declare it binary"):
        load(spark, broker, topic, schema="value int").collect()
    with error(
        "'__publishTime' is bigint, but this read returns timestamp", "Declare it timestamp_ltz"
    ):
        load(spark, broker, topic, schema="value binary, __publishTime bigint").collect()


def test_remedies_hold_with_other_settings_of_spark(
    spark: SparkSession, broker: Embedded, topic: str
) -> None:
    settings = {"spark.sql.timestampType": "TIMESTAMP_NTZ", "spark.sql.caseSensitive": "true"}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        with error("'__publishTime' is timestamp_ntz", "Declare it timestamp_ltz"):
            load(spark, broker, topic, schema="__publishTime timestamp").collect()
        schema = "value binary, __publishTime timestamp_ltz"
        assert len(load(spark, broker, topic, schema=schema).collect()) == 2
        with error("'Id' and 'ID' differ only in case", "spark.sql.caseSensitive"):
            save(spark.sql("SELECT 1 Id, 2 ID"), broker, broker.create_topic())
    finally:
        for name in settings:
            spark.conf.unset(name)


def test_one_id_for_several_partitions_is_an_error(
    spark: SparkSession, broker: Embedded, topic: str
) -> None:
    with error("startingOffsets", "one message id", "2 partitions", "-partition-"):
        load(spark, broker, topic, {"startingOffsets": f'{{"{topic}": "1:2"}}'}).collect()


def test_topics_of_different_schemas_are_read_raw_if_that_is_allowed(
    spark: SparkSession, broker: Embedded, topic: str
) -> None:
    texts = broker.create_topic()
    with official(broker) as client:
        producer = client.create_producer(texts, schema=pulsar.schema.StringSchema())
        producer.send("text")
        producer.close()
    options: dict[str, object] = {"topics": f"{topic},{texts}"}
    with error("different schemas", texts, "allowDifferentTopicSchemas=true"):
        load(spark, broker, options=options)
    frame = load(spark, broker, options={**options, "allowDifferentTopicSchemas": True})
    assert sorted(values(frame)) == [b"1", b"2", b"text"]


# --- writing --------------------------------------------------------------------------------


def test_spark_itself_refuses_other_modes_than_append(
    spark: SparkSession, broker: Embedded, topic: str
) -> None:
    writer = spark.range(1).selectExpr("'x' value").write.format("pulsar")
    writer = writer.option("service.url", broker.service_url).option("topic", topic)
    with error("pulsar", "ErrorIfExists"):
        writer.save()
    with error("pulsar", "Ignore"):
        writer.mode("ignore").save()
    with error("supports only mode append", 'mode("append")', "INSERT INTO"):
        writer.mode("overwrite").save()


@pytest.mark.parametrize(
    "columns, options, parts",
    [
        ("'x' value; 1 __key", {}, ("__key is int, not string or binary", "Cast it")),
        ("'x' value; '1' __eventTime", {}, ("__eventTime is string, not timestamp or long",)),
        ("'x' value; map('a', 1) __messageProperties", {}, ("__messageProperties", "map<string")),
        ("'x' value; 1 __sequenceId", {}, ("__sequenceId is int, not long",)),
        (
            "'x' value; 'y' other",
            {"valueFormat": "raw"},
            ("one column of bytes", "value, other", "to write records"),
        ),
        ("1 a; INTERVAL 1 DAY b", {}, ("SchemaMismatch", "b")),
        ("1 a; INTERVAL '1' MONTH b", {}, ("InvalidRow", "the column b is interval month")),
        ("1 a; struct(array(parse_json('1')) c) b", {}, ("InvalidRow", "b.c[]", "to_json")),
        ("1 a; map() b", {}, ("SchemaMismatch", "void", "b{}", "AS ARRAY<STRING>")),
        ("'x' __key", {}, ("no column is left for the value",)),
        ("struct(1 a) value", {"valueFormat": "string"}, ("value is struct<a:int>", "string")),
        ("'x' value", {"valueFormat": "raw"}, ("valueFormat=raw writes bytes", "value is string")),
        ("'x' value", {"topics": "a,b"}, ("topics is only for reads", "one topic")),
        ("'x' value", {"deliveryGuarantee": "exactly-once"}, ("needs sinkId",)),
        ("'x' value", {"pulsar.producer.compressionType": "GZIP"}, ("compressionType: 'GZIP'",)),
        ("'x' value", {"pulsar.producer.chunkingEnabled": True}, ("batchingEnabled=false",)),
        ("'x' value; map('a', string(null)) __messageProperties", {}, ("row 0", "'a'", "null")),
        ("'x' value; -1L __eventTime", {}, ("row 0", "__eventTime", "1970")),
        ("'x' value; -1L __sequenceId", {}, ("row 0", "__sequenceId is negative")),
    ],
)
def test_what_cannot_be_written_is_named(
    spark: SparkSession,
    broker: Embedded,
    columns: str,
    options: dict[str, object],
    parts: tuple[str],
) -> None:
    topic = broker.create_topic()
    frame = spark.range(1).coalesce(1).selectExpr(*columns.split("; "))
    with error(*parts):
        save(frame, broker, topic, options)
    assert values(load(spark, broker, topic)) == []


def test_rows_must_name_topics_that_can_be(spark: SparkSession, broker: Embedded) -> None:
    frame = spark.range(2).coalesce(1)
    with error("no topic to write to", "option topic", "column __topic string"):
        save(frame.selectExpr("'x' value"), broker)
    topic = broker.create_topic()
    with error("row 1", "__topic is null", "option topic"):
        save(frame.selectExpr("'x' value", f"if(id = 0, '{topic}', null) __topic"), broker)
    with error("InvalidTopicName", "the column __topic", "no/such"):
        save(frame.selectExpr("'x' value", f"if(id = 0, '{topic}', 'no/such') __topic"), broker)
    # All rows of a record batch are checked before the first one is sent.
    assert values(load(spark, broker, topic)) == []


def test_values_that_do_not_fit_the_topics_schema_are_refused(
    spark: SparkSession, broker: Embedded
) -> None:
    topic = broker.create_topic()
    order = type("Order", (pulsar.schema.Record,), {"number": pulsar.schema.Integer()})
    with official(broker) as client:
        client.create_producer(topic, schema=pulsar.schema.JsonSchema(order)).close()
    with error("does not match the topic's schema", "value is not in", "valueFormat=json adds"):
        save(spark.range(1).selectExpr("'x' value"), broker, topic)
    texts = broker.create_topic()
    save(spark.range(1).selectExpr("'x' value"), broker, texts)
    with error("schema is STRING, but the column value is binary", "Cast it to string"):
        save(spark.range(1).selectExpr("binary('x') value"), broker, texts)


@pytest.mark.fault(56)
def test_a_terminated_topic_takes_no_more(spark: SparkSession, broker: Embedded) -> None:
    topic = broker.create_topic()
    broker.terminate(topic)
    with error("TopicTerminated", topic, "Write to another topic"):
        save(spark.range(1).selectExpr("'x' value"), broker, topic)


@pytest.mark.fault(89)
def test_a_write_fails_if_the_last_message_is_refused(
    spark: SparkSession, broker: Embedded
) -> None:
    topic = broker.create_topic()
    frame = spark.range(30).coalesce(1).selectExpr("string(id) value")
    options = {"pulsar.producer.batchingMaxMessages": 10}
    # Again and again, as it is sent in smaller batches.
    refusal: dict[str, Any] = {"topic": topic, "after": 2, "times": None}
    with (
        broker.own.faults.error("SEND", "NotAllowedError", "not this one", **refusal),
        error("not this one", topic),
    ):
        save(frame, broker, topic, options)
    # A task that does not wait gets no error.
    quick = {**options, "deliveryGuarantee": "none"}
    with broker.own.faults.error("SEND", "NotAllowedError", **refusal):
        save(frame, broker, topic, quick)


# --- brokers --------------------------------------------------------------------------------


def test_a_broker_that_is_gone_is_named_with_its_address(spark: SparkSession) -> None:
    with socket.socket() as taken:
        # Bound but not listening: nobody else gets the port, and nobody answers.
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        options = {"service.url": f"pulsar://{address}", "pulsar.client.operationTimeoutMs": "2000"}
        started = time.monotonic()
        with error(address):
            spark.read.format("pulsar").options(**options).load("t")
        writer = spark.range(1).selectExpr("'x' value").write.format("pulsar").mode("append")
        with error(address):
            writer.options(**options).save("t")
        assert time.monotonic() - started < 60


def test_a_refused_login_is_told_once(spark: SparkSession, broker: Embedded) -> None:
    options = {
        "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth."
        "AuthenticationToken",
        "pulsar.client.authParams": "token:canary-token",
    }
    rule = broker.own.faults.error(
        "CONNECT", "AuthenticationError", "token:canary-token is not known", times=None
    )
    with rule, pytest.raises(Exception, match=r"AuthenticationError.*authParams") as caught:
        load(spark, broker, "t", options)
    assert "canary" not in str(caught.value)
    assert rule.hits == 1
