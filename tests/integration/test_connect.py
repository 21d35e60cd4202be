"""Everything from a remote Spark Connect client: the server and the workers do the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import pulsar_spark
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import store_many

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

SECRET = "canary-7b1f"


@pytest.fixture(scope="module")
def remote(connect_url: str) -> Iterator[SparkSession]:
    """A session of a remote client."""
    # Needs the extra `connect`.
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    session: Any = RemoteSession.builder.remote(connect_url).create()
    yield session
    session.stop()


@pytest.fixture
def read(remote: SparkSession, own: EmbeddedBroker) -> Callable[..., DataFrame]:
    """Read a topic: `read("orders", **options)`."""

    def read(topic: str, **options: Any) -> DataFrame:
        reader = remote.read.format("pulsar").option("service.url", own.service_url)
        return reader.options(**options).load(topic)

    return read


def save(own: EmbeddedBroker, frame: DataFrame, topic: str, **options: Any) -> None:
    writer = frame.write.format("pulsar").option("service.url", own.service_url)
    writer.options(**options).mode("append").save(topic)


def values(rows: list[Row]) -> list[str]:
    return sorted(bytes(row["value"]).decode() for row in rows)


def finish(writer: Any, checkpoint: Path) -> Any:
    """Return a stream's writer that writes the current messages and then stops."""
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def test_typed_rows_are_written_and_read(
    remote: SparkSession, own: EmbeddedBroker, read: Callable[..., DataFrame]
) -> None:
    frame = remote.range(20).selectExpr(
        "id", "'item ' || id AS item", "struct(id * 2 AS twice) AS inner", "'k' AS __key"
    )
    save(own, frame, "orders")
    found = read("orders")
    types = {field.name: field.dataType.simpleString() for field in found.schema.fields[:3]}
    assert types == {"id": "bigint", "item": "string", "inner": "struct<twice:bigint>"}
    rows = found.where("id >= 15").orderBy("id").select("item", "inner.twice").collect()
    assert [tuple(row) for row in rows] == [(f"item {id}", 2 * id) for id in range(15, 20)]
    projection = remote.read.format("pulsar").schema("inner struct<twice:bigint>, id bigint")
    some = projection.option("service.url", own.service_url).load("orders")
    assert [tuple(row) for row in some.where("id = 3").collect()] == [((6,), 3)]
    # A mismatched DataFrame fails before anything is sent.
    with pytest.raises(PySparkException, match="item"):
        save(own, remote.sql("SELECT 1 AS id, 2 AS item"), "orders")
    save(own, remote.sql("SELECT 'text' AS value"), "copy", valueFormat="json")
    assert read("copy").collect()[0]["value"] == "text"


def test_topics_are_tables_and_views_of_sql(
    remote: SparkSession, own: EmbeddedBroker, tmp_path: Path
) -> None:
    expected = sorted(value.decode() for value in store_many(own, "orders-partition-0", 10))
    given = f"OPTIONS (service.url '{own.service_url}', topic 'orders')"
    remote.sql(f"CREATE TEMPORARY VIEW remote_view USING pulsar {given}")
    assert values(remote.table("remote_view").collect()) == expected
    pulsar_spark.register(
        remote, name="remote_orders", options={"service.url": own.service_url, "topic": "orders"}
    )
    remote.sql(f"CREATE TABLE remote_plain USING pulsar {given}")
    columns = "(value BINARY, __key BINARY)"
    remote.sql(f"CREATE TABLE remote_table {columns} USING remote_orders LOCATION '{tmp_path}'")
    try:
        remote.sql("INSERT INTO remote_table SELECT binary('new'), NULL")
        assert values(remote.sql("SELECT * FROM remote_table").collect()) == ["new", *expected]
        with pytest.raises(PySparkException, match=r"service\.url is required"):
            remote.table("remote_plain").collect()
    finally:
        for name in ("remote_plain", "remote_table"):
            remote.sql(f"DROP TABLE IF EXISTS {name}")


def test_streams_are_read_and_written(
    remote: SparkSession,
    own: EmbeddedBroker,
    read: Callable[..., DataFrame],
    tmp_path: Path,
) -> None:
    expected = sorted(value.decode() for value in store_many(own, "orders-partition-1", 10))
    for topic in ("orders", "copy"):
        options = {"service.url": own.service_url, "topic": topic, "startingOffsets": "earliest"}
        pulsar_spark.register(remote, name=f"remote_{topic}", options=options)
    remote.sql("CREATE TABLE remote_copy (value BINARY) USING remote_copy")
    try:
        stream = remote.readStream.format("remote_orders").schema("value binary").load()
        _write(stream.writeStream, "remote_copy", tmp_path / "first")
        assert values(read("copy").collect()) == expected
        _write(remote.readStream.table("remote_copy").writeStream, "remote_copy", tmp_path / "next")
        assert values(read("copy").collect()) == sorted(2 * expected)
    finally:
        remote.sql("DROP TABLE remote_copy")


def test_rows_are_written_exactly_once(
    remote: SparkSession, own: EmbeddedBroker, read: Callable[..., DataFrame], tmp_path: Path
) -> None:
    expected = sorted(value.decode() for value in store_many(own, "orders-partition-1", 10))
    options = {"service.url": own.service_url, "topic": "orders", "startingOffsets": "earliest"}
    stream = remote.readStream.format("pulsar").options(**options).load().select("value")
    once = {"service.url": own.service_url, "topic": "copy", "deliveryGuarantee": "exactly-once"}
    for name in ("stream", "job"):
        own.create_topic(f"records-of-{name}")
    writer = stream.writeStream.format("pulsar").options(**once)
    query = finish(writer.option("sinkStateTopic", "records-of-stream"), tmp_path).start()
    try:
        assert query.awaitTermination(240), "the query does not end"
    finally:
        query.stop()
    frame = remote.sql("SELECT CAST('job' AS BINARY) AS value")
    job = {"sinkId": "job", "sinkStateTopic": "records-of-job"}
    save(own, frame, "copy", deliveryGuarantee="exactly-once", **job)
    assert values(read("copy").collect()) == sorted([*expected, "job"])
    assert len(own.faults.log("NEW_TXN")) >= 2
    assert own.open_transactions() == {}


def _write(writer: Any, table: str, checkpoint: Path) -> None:
    """Let a stream write the current messages to a table."""
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.toTable(table)
    try:
        assert query.awaitTermination(240), "the query does not end"
    finally:
        query.stop()


@pytest.mark.fault(96, 99)
def test_errors_reach_the_client_without_the_secrets_of_a_format(
    remote: SparkSession, own: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {
        "service.url": own.service_url,
        "topic": "orders",
        "pulsar.client.authPluginClassName": "token",
        "pulsar.client.authParams": f"token:{SECRET}",
    }
    pulsar_spark.register(remote, name="remote_orders", options=options)
    remote.read.format("remote_orders").load().explain("extended")
    assert SECRET not in capsys.readouterr().out
    with pytest.raises(PySparkException, match="mode") as caught:
        remote.read.format("remote_orders").option("mode", "WRONG").load().collect()
    assert SECRET not in str(caught.value)
    with pytest.raises(PySparkException, match="Did you mean 'startingOffsets'"):
        remote.read.format("pulsar").options(**options, startingOffset="x").load().collect()


def test_an_error_is_above_the_jvms_frames_which_a_setting_leaves_out(
    remote: SparkSession, read: Callable[..., DataFrame]
) -> None:
    def shown() -> list[str]:
        with pytest.raises(PySparkException) as caught:
            read("orders", maxOffsetsPerTrigger=10_000).collect()
        return str(caught.value).splitlines()

    ours = "pulsar_spark.errors.OptionError: 'maxoffsetspertrigger' is not an option."
    lines = shown()
    frames = lines.index("JVM stacktrace:")
    assert [line for line in lines[:frames] if line.startswith(ours)], lines
    remote.conf.set("spark.sql.connect.serverStacktrace.enabled", "false")
    try:
        lines = shown()
    finally:
        remote.conf.unset("spark.sql.connect.serverStacktrace.enabled")
    assert [line for line in lines if line.startswith(ours)], lines
    assert "JVM stacktrace:" not in lines
    assert not [line for line in lines if line.startswith("\tat ")]
