"""The examples of docs/rotation.md: tokens and certificates are replaced while a stream runs."""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_spark.testing import EmbeddedBroker
from tests import brief
from tests.integration.pages import DOCS, here
from tests.spark.topics import store_many
from tests.support.certificates import Authority
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SECONDS = 120


def code_of_the_page() -> list[str]:
    text = (DOCS / "rotation.md").read_text("utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def names_of_the_page(spark: SparkSession, broker: EmbeddedBroker, folder: Path) -> dict[str, Any]:
    """Return what the page's examples define, for this broker."""
    names: dict[str, Any] = {"spark": spark, "__name__": "rotation"}
    for example in code_of_the_page():
        local = here(example, broker.service_url, folder).replace("/etc/pulsar/", f"{folder}/")
        exec(local.replace("cluster.example.com:6651", f"localhost:{broker.port}"), names)
    return names


def read_so_far(spark: SparkSession, folder: Path) -> list[str]:
    return sorted(
        bytes(row["value"]).decode()
        for row in spark.read.schema("value binary").parquet(f"{folder}/orders").collect()
    )


def test_a_stream_goes_on_with_a_new_token_and_a_late_one_ends_it_without_loss(
    spark: SparkSession, tmp_path: Path
) -> None:
    valid = {b"first"}
    authority = Authority(tmp_path)
    (tmp_path / "token").write_text("first")
    with EmbeddedBroker(
        tls=authority.server(), authenticate=lambda _, data: data in valid
    ) as broker:
        broker.create_topic("orders")
        stored: list[bytes] = []

        def challenge() -> None:
            broker.faults.inject(brief.auth_challenge("b", "token"))

        def arrives(query: Any) -> None:
            stored.extend(store_many(broker, "orders", 5))
            query.processAllAvailable()
            assert read_so_far(spark, tmp_path) == sorted(value.decode() for value in stored)

        names = names_of_the_page(spark, broker, tmp_path)
        arrives(names["query"])
        connects = broker.faults.seen("CONNECT")
        names["replace"](tmp_path / "token", "second")
        valid.clear()
        valid.add(b"second")
        challenge()
        wait_until(lambda: broker.faults.seen("AUTH_RESPONSE") > 0, "nobody answers")
        arrives(names["query"])
        assert connects >= 1

        valid.clear()
        challenge()
        with pytest.raises(Exception, match="AuthenticationError"):
            names["query"].awaitTermination(SECONDS)

        names["time"] = _Clock(lambda: _renew(names, tmp_path, valid))
        thread = threading.Thread(target=names["run"], args=(names["login"],))
        thread.start()
        try:
            wait_until(lambda: b"third" in valid, "the loop does not meet the late token")
            wait_until(lambda: len(spark.streams.active) == 1, "no query was started again")
            arrives(spark.streams.active[0])
        finally:
            for query in spark.streams.active:
                query.stop()
            thread.join(SECONDS)
        assert not thread.is_alive()


def _renew(names: dict[str, Any], folder: Path, valid: set[bytes]) -> None:
    names["replace"](folder / "token", "third")
    valid.add(b"third")


class _Clock:
    """Stands for the module `time`: the token is renewed in the first pause."""

    def __init__(self, in_pause: Callable[[], None]) -> None:
        self.sleep = lambda _: in_pause()


def test_renewed_certificates_are_used_by_new_connections(
    spark: SparkSession, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    authorities = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        authorities.append(Authority(tmp_path / name))
    now = [authority.server(client_authority=authorities[0])]
    front = authority.server()
    front.verify_mode = ssl.CERT_REQUIRED
    front.load_verify_locations(cadata=authorities[0].pem + authorities[1].pem)

    def choose(peer: Any, _: str, __: ssl.SSLContext) -> None:
        peer.context = now[0]

    front.sni_callback = choose

    def issue(authority: Authority) -> None:
        for path, name in zip(authority.client(), ("client.pem", "client.key"), strict=True):
            names["replace"](tmp_path / name, Path(path).read_text())

    with EmbeddedBroker(tls=front, authenticate=lambda method, _: method == "tls") as broker:
        broker.create_topic("orders")
        stored = store_many(broker, "orders", 5)
        names: dict[str, Any] = {"spark": spark}
        for example in code_of_the_page():
            if "query = follow" in example:
                example = example.replace("query = follow(login)", "")
            local = here(example, broker.service_url, tmp_path)
            local = local.replace("/etc/pulsar/", f"{tmp_path}/")
            exec(local.replace("cluster.example.com:6651", f"localhost:{broker.port}"), names)
        issue(authorities[0])
        query = names["follow"](names["mutual"])
        try:
            query.processAllAvailable()
            issue(authorities[1])
            now[0] = authority.server(client_authority=authorities[1])
            broker.faults.disconnect()
            stored += store_many(broker, "orders", 5)
            query.processAllAvailable()
        finally:
            query.stop()
    assert read_so_far(spark, tmp_path) == sorted(value.decode() for value in stored)
