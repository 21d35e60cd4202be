"""Spark writes exactly once, whatever is killed meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.brokers import Broker
from tests.integration.test_spark_stream_sink import Job, numbers, official_values
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Connect = Callable[..., Any]

ONCE = {"deliveryGuarantee": "exactly-once"}


def test_each_micro_batch_is_there_once(
    spark: SparkSession, broker: Broker, official_client: Connect, tmp_path: Path
) -> None:
    topic = broker.create_topic(partitions=2)
    job = Job(spark, tmp_path, broker.service_url, topic=topic, **ONCE)
    for _ in range(3):
        job.run()
    client = official_client(broker.service_url)
    assert official_values(client, *broker.partitions_of(topic, 2)) == numbers(0, 3)
    job.forget(2)
    job.run()
    found = official_values(client, *broker.partitions_of(topic, 2))
    assert found == numbers(0, 4)


def test_a_batch_write_leaves_all_rows_or_none(
    spark: SparkSession, broker: Broker, official_client: Connect
) -> None:
    topic = broker.create_topic()

    def write(rows: str) -> None:
        frame = spark.range(0, 100, 1, 4).selectExpr(f"{rows} AS value")
        options = {"service.url": broker.service_url, "topic": topic, "sinkId": topic, **ONCE}
        frame.write.format("pulsar").options(**options).mode("append").save()

    write("string(id)")
    with pytest.raises(Exception, match="no such row"):
        # Tasks that Spark kills because another one failed leave transactions to the next write.
        write("IF(id = 99, raise_error('no such row'), string(id + 1000))")
    write("string(id + 100)")
    client = official_client(broker.service_url)
    wanted = Counter(b"%d" % number for number in range(200))
    wait_until(lambda: len(official_values(client, topic)) == len(wanted), "some are missing")
    assert official_values(client, topic) == wanted
