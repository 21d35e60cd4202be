"""Spark reads, writes and streams whose tasks connect with TLS and log in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pulsar_spark.testing import EmbeddedBroker
from tests.support.certificates import Authority
from tests.support.real_broker import RealBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "canary-2c1a"
CLIENT = "pulsar.client."


class Secured:
    """A broker that requires a certificate and a token, and the options for it."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        certificate, key = self.authority.client()
        token = folder / "token"
        token.write_text(SECRET)
        self.broker = EmbeddedBroker(
            tls=self.authority.server(client_authority=self.authority),
            authenticate=lambda method, data: (method, data) == ("token", SECRET.encode()),
        )
        self.files = {
            f"{CLIENT}tlsTrustCertsFilePath": self.authority.file,
            f"{CLIENT}tlsCertificateFilePath": certificate,
            f"{CLIENT}tlsKeyFilePath": key,
            f"{CLIENT}authPluginClassName": "token",
            f"{CLIENT}authParams": f"file://{token}",
        }

    @property
    def by_files(self) -> dict[str, str]:
        return {"service.url": self.broker.service_url, **self.files}

    @property
    def by_content(self) -> dict[str, str]:
        """The same without files on the task's machine."""
        contents = {
            name: f"content:{Path(value).read_text()}"
            for name, value in self.files.items()
            if "tls" in name
        }
        return {**self.by_files, **contents, f"{CLIENT}authParams": f"token:{SECRET}"}


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path)
    with made.broker:
        yield made
        assert made.broker.internal_errors == ()


@pytest.mark.fault(52)
def test_batches_and_streams_pass_by_tls(
    spark: SparkSession, secured: Secured, tmp_path: Path
) -> None:
    secured.broker.create_topic("t", 3)
    for options in (secured.by_files, secured.by_content):
        frame = spark.range(500).selectExpr("string(id) value")
        frame.write.format("pulsar").mode("append").options(**options).save("t")
    stream = spark.readStream.format("pulsar").options(
        **secured.by_files, topic="t", startingOffsets="earliest"
    )
    query = (
        stream.load()
        .writeStream.format("memory")
        .queryName("by_tls")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    assert query.awaitTermination(240)
    batch = spark.read.format("pulsar").options(**secured.by_content).load("t")
    for found in (batch, spark.table("by_tls")):
        texts = sorted(int(row["value"]) for row in found.select("value").collect())
        assert texts == sorted([*range(500), *range(500)])


@pytest.mark.fault(51, 52, 96)
def test_what_is_wrong_reaches_the_user_without_a_secret(
    spark: SparkSession, secured: Secured, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secured.broker.create_topic("t")
    other = Authority(tmp_path_factory.mktemp("other"))
    key = Path(secured.files[f"{CLIENT}tlsKeyFilePath"]).read_text().splitlines()[1]
    wrong = {
        "is not trusted": {f"{CLIENT}tlsTrustCertsFilePath": other.pem},
        "gone.pem of pulsar.client.tlsTrustCertsFilePath": {
            f"{CLIENT}tlsTrustCertsFilePath": "/gone.pem"
        },
        "authParams": {f"{CLIENT}authParams": f"token:{SECRET}-wrong"},
        "no key": {f"{CLIENT}tlsKeyFilePath": ""},
    }
    for text, changes in wrong.items():
        options = {
            name: value for name, value in {**secured.by_content, **changes}.items() if value
        }
        with pytest.raises(Exception, match=text) as caught:
            spark.read.format("pulsar").options(**options).load("t").collect()
        assert SECRET not in str(caught.value)
        assert key not in str(caught.value)


@pytest.mark.slow
def test_lookups_of_batches_and_streams_can_go_by_rest(
    spark: SparkSession, real_broker: RealBroker, tmp_path: Path
) -> None:
    web = {"service.url": real_broker.admin_url}
    topic = real_broker.create_topic(real_broker.unique_topic("web"), 2)
    rows = spark.range(200).selectExpr("int(id) number", "string(id) text")
    rows.write.format("pulsar").mode("append").options(**web).save(topic)
    pattern = topic.rpartition("/")[2] + ".*"
    batch = spark.read.format("pulsar").options(**web, topicsPattern=pattern).load()
    stream = spark.readStream.format("pulsar").options(**web, startingOffsets="earliest")
    query = (
        stream.load(topic)
        .writeStream.format("memory")
        .queryName("by_rest")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    assert query.awaitTermination(240)
    for found in (batch, spark.table("by_rest")):
        texts = [row["text"] for row in found.select("number", "text").orderBy("number").collect()]
        assert texts == [str(number) for number in range(200)]
