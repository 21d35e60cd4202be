"""Reading, writing and streams through Pulsar's proxy, plain and with TLS and tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_spark.client import AuthenticationToken, MessageId, PulsarClient
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.errors import AuthenticationError, AuthorizationError
from tests.integration.pages import examples
from tests.support.asking import broker_of
from tests.support.java_server import free_ports
from tests.support.real_broker import RealBroker
from tests.support.real_cluster import RealCluster
from tests.support.security import Security

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 2000


@pytest.fixture(params=["true", "false"], ids=["forwarded", "own role"])
def secured_proxy(
    real_cluster: RealCluster, cluster_security: Security, request: pytest.FixtureRequest
) -> RealBroker:
    """A proxy that requires TLS and a token, and forwards the token or only its role."""
    (port,) = free_ports(1)
    return real_cluster.start_proxy(
        {
            **cluster_security.certificate_settings,
            **cluster_security.token_settings,
            **cluster_security.own_login("proxy"),
            "servicePort": "",
            "servicePortTls": str(port),
            "forwardAuthorizationCredentials": request.param,
        }
    )


def read_write_and_stream(
    spark: SparkSession, topic: str, options: Mapping[str, str], folder: Path
) -> None:
    """Read, write and stream through a proxy, and compare the rows."""
    # Brokers can take half a minute to load a topic.
    options = {**options, "pulsar.client.operationTimeoutMs": "90000"}
    expected = Counter(map(str, range(ROWS)))
    frame = spark.range(ROWS).selectExpr("cast(id as string) as value")
    frame.write.format("pulsar").mode("append").options(**options).save(topic)
    read = spark.read.format("pulsar").options(**options).load(topic)
    rows = Counter(row[0] for row in read.select("value").collect())
    assert (expected - rows, rows - expected) == (Counter(), Counter()), "lost, doubled"
    seen: dict[int, list[str]] = {}

    def on_batch(batch: Any, number: int) -> None:
        seen[number] = [row[0] for row in batch.select("value").collect()]

    stream = spark.readStream.format("pulsar").options(**options).option("topic", topic)
    query = (
        stream.option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(on_batch)
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    assert Counter(value for values in seen.values() for value in values) == rows


@pytest.fixture
def plain_proxy(real_cluster: RealCluster, cluster_security: Security) -> RealBroker:
    """A proxy that does not authenticate its clients; only the proxy logs in to the brokers."""
    return real_cluster.start_proxy(
        {
            **cluster_security.token_settings,
            **cluster_security.own_login("proxy"),
            "anonymousUserRole": "admin",
        }
    )


@pytest.mark.fault(17)
def test_all_passes_a_plain_proxy(
    spark: SparkSession, real_cluster: RealCluster, plain_proxy: RealBroker, tmp_path: Path
) -> None:
    topic = real_cluster.create_topic(real_cluster.unique_topic(), partitions=4)
    partitions = [f"{topic}-partition-{number}" for number in range(4)]
    host = plain_proxy.service_url.removeprefix("pulsar://")
    with ConnectionPool(ClientOptions(plain_proxy.service_url, operation_timeout=90.0)) as pool:
        for name in partitions:
            found = broker_of(Lookup(pool), name)
            assert found.physical == host
            assert f"pulsar://{found.logical}" == real_cluster.owner(name).service_url
    read_write_and_stream(spark, topic, {"service.url": plain_proxy.service_url}, tmp_path)


@pytest.mark.fault(14, 17)
def test_a_producer_and_a_reader_follow_a_topic_behind_the_proxy(
    real_cluster: RealCluster, plain_proxy: RealBroker
) -> None:
    topic = real_cluster.create_topic(real_cluster.unique_topic())
    with PulsarClient(plain_proxy.service_url, operation_timeout_seconds=90) as client:
        producer = client.create_producer(topic, send_timeout_millis=90_000)
        reader = client.create_reader(topic, MessageId.earliest)
        for number in range(6):
            producer.send(b"%d" % number)
            assert reader.read_next(60_000).data() == b"%d" % number
            real_cluster.move(topic, real_cluster.other(real_cluster.owner(topic)))
        real_cluster.owner(topic).kill()
        producer.send(b"last")
        assert reader.read_next(60_000).data() == b"last"


@pytest.mark.fault(17, 45, 46)
def test_all_passes_a_proxy_with_tls_and_tokens(
    spark: SparkSession,
    real_cluster: RealCluster,
    cluster_security: Security,
    secured_proxy: RealBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = real_cluster.create_topic(real_cluster.unique_topic(), partitions=2)
    (tmp_path / "token").write_text(cluster_security.token("reader"))
    (tmp_path / "ca.pem").write_text(cluster_security.authority.pem)
    (example,) = examples("connecting.md", "Behind the Pulsar proxy")
    host = secured_proxy.service_url.removeprefix("pulsar+ssl://")
    here = example.replace("cluster.example.com:6651", host)
    here = here.replace("/etc/pulsar/", f"{tmp_path}/").replace('"orders"', f'"{topic}"')
    names: dict[str, Any] = {"spark": spark}
    exec(here, names)
    assert names["orders"].count() == 0
    read_write_and_stream(spark, topic, names["login"], tmp_path / "checkpoint")

    trusted: dict[str, Any] = {"tls_trust_certs_file_path": cluster_security.authority.file}
    url = secured_proxy.service_url
    wrong = AuthenticationToken("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJyZWFkZXIifQ.c2lnbmF0dXJl")
    with PulsarClient(url, wrong, **trusted) as client, pytest.raises(AuthenticationError):
        client.create_producer(topic)
    nobody = AuthenticationToken(cluster_security.token("nobody"))
    with PulsarClient(url, nobody, **trusted) as client, pytest.raises(AuthorizationError):
        client.create_producer(topic)
