"""TLS and authentication with a real broker, and the texts of its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.client import (
    Authentication,
    AuthenticationBasic,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
    MessageId,
    PulsarClient,
)
from pulsar_spark.errors import (
    AuthenticationError,
    AuthorizationError,
    PulsarError,
    RemoteProtocolError,
    TlsError,
)
from tests.support.certificates import Authority
from tests.support.issuer import Issuer, say
from tests.support.java_server import free_ports
from tests.support.real_broker import OwnBroker
from tests.support.security import Security

pytestmark = [pytest.mark.slow, pytest.mark.real_broker, pytest.mark.timeout(600)]

START = Callable[[Mapping[str, str] | None], OwnBroker]

KEY = {"client_id": "me", "client_secret": "mine"}


class Cluster(Security):
    """A broker with TLS, where only `reader` has permissions, on public/default."""

    def __init__(self, start: START, folder: Path, **more: str) -> None:
        super().__init__(folder)
        port, web_port = free_ports(2)
        self.url = self.binary_url = f"pulsar+ssl://localhost:{port}"
        self.web_url = f"https://localhost:{web_port}"
        ports = {"brokerServicePortTls": str(port), "webServicePortTls": str(web_port)}
        self.broker = start({**self.broker_settings, **ports, **more})
        self.permit(self.broker, "reader")

    def client(self, login: Authentication | None, **options: Any) -> PulsarClient:
        options.setdefault("tls_trust_certs_file_path", self.authority.file)
        return PulsarClient(self.url, login, **options)

    def write_and_read(self, login: Authentication | None, **options: Any) -> None:
        topic = self.broker.unique_topic()
        with self.client(login, **options) as client:
            producer = client.create_producer(
                topic, batching_enabled=True, block_if_queue_full=True
            )
            for number in range(1000):
                producer.send_async(b"%d" % number * 50, None)
            producer.flush()
            reader = client.create_reader(topic, MessageId.earliest)
            found = [reader.read_next(60_000).data() for _ in range(1000)]
        assert found == [b"%d" % number * 50 for number in range(1000)]

    def refused(self, kind: type[PulsarError], login: Authentication | None, **options: Any) -> str:
        """Return the text of the error, which must come at once."""
        started = time.monotonic()
        with self.client(login, **options) as client, pytest.raises(kind) as caught:
            client.create_producer(self.broker.unique_topic())
        # Not after the operation timeout, which retries would take.
        assert time.monotonic() - started < 20
        return str(caught.value)


@pytest.mark.fault(45, 46, 51)
def test_every_way_to_log_in_works_and_is_refused_where_it_should_be(
    start_real_broker: START, tmp_path: Path
) -> None:
    cluster = Cluster(start_real_broker, tmp_path)
    for url in (cluster.binary_url, cluster.web_url):
        cluster.url = url
        _log_in_in_every_way(cluster)


def test_a_port_with_another_scheme_is_named_at_once(
    start_real_broker: START, tmp_path: Path
) -> None:
    cluster = Cluster(start_real_broker, tmp_path)
    login = AuthenticationToken(cluster.token())
    cluster.url = cluster.binary_url.replace("pulsar+ssl", "pulsar")
    assert "speaks TLS" in cluster.refused(RemoteProtocolError, login)
    # The broker's plain port wants credentials too; none are sent to it.
    cluster.url = cluster.broker.service_url.replace("pulsar://", "pulsar+ssl://")
    assert "Pulsar without it" in cluster.refused(TlsError, login)


def _log_in_in_every_way(cluster: Cluster) -> None:
    certificate, key = cluster.authority.client("reader")
    cluster.write_and_read(AuthenticationToken(cluster.token()))
    cluster.write_and_read(AuthenticationBasic("reader", "good"))
    cluster.write_and_read(AuthenticationTLS(certificate, key))
    with Issuer(None) as issuer:
        issuer.on_token = say(200, {"access_token": cluster.token(seconds=60), "expires_in": 60})
        params = {"issuer_url": issuer.url, "client_id": "me", "client_secret": "mine"}
        cluster.write_and_read(AuthenticationOauth2(json.dumps(params)))

    for login in (
        AuthenticationToken("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJyZWFkZXIifQ.c2lnbmF0dXJl"),
        AuthenticationToken(cluster.token(seconds=-60)),
        AuthenticationBasic("reader", "canary-password"),
    ):
        text = cluster.refused(AuthenticationError, login)
        assert "authParams" in text
        assert "canary" not in text
        assert "eyJ" not in text
    nobody = cluster.refused(AuthorizationError, AuthenticationToken(cluster.token("nobody")))
    assert "permission" in nobody

    assert "not trusted" in cluster.refused(TlsError, None, tls_trust_certs_file_path=None)


@pytest.mark.fault(52)
def test_a_broker_that_wants_certificates_says_so(start_real_broker: START, tmp_path: Path) -> None:
    cluster = Cluster(start_real_broker, tmp_path, tlsRequireTrustedClientCertOnConnect="true")
    token = AuthenticationToken(cluster.token())
    certificate, key = cluster.authority.client("reader")
    cluster.write_and_read(AuthenticationTLS(certificate, key))
    files = {"tls_certificate_file_path": certificate, "tls_private_key_file_path": key}
    cluster.write_and_read(token, **files)
    assert "tlsCertificateFilePath" in cluster.refused(TlsError, token)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other").client("reader")
    text = cluster.refused(TlsError, AuthenticationTLS(*other))
    assert "does not take our certificate" in text


@pytest.mark.fault(47, 48)
def test_a_stream_runs_through_the_rotation_of_its_token_until_nobody_renews_it(
    start_real_broker: START, tmp_path: Path
) -> None:
    cluster = Cluster(start_real_broker, tmp_path)
    file = tmp_path / "token"
    seconds = 6

    def write() -> None:
        # It must not be read half-written.
        (tmp_path / "new").write_text(cluster.token(seconds=seconds))
        os.replace(tmp_path / "new", file)

    write()
    stopped = threading.Event()

    def renew() -> None:
        while not stopped.wait(1):
            write()

    thread = threading.Thread(target=renew)
    thread.start()
    topic = cluster.broker.unique_topic()
    login = Authentication("token", f"file://{file}")
    try:
        with cluster.client(login) as client:
            producer = client.create_producer(topic)
            reader = client.create_reader(topic, MessageId.earliest)
            until = time.monotonic() + 2.5 * seconds
            count = 0
            while time.monotonic() < until:
                producer.send(b"%d" % count)
                assert reader.read_next(60_000).data() == b"%d" % count
                count += 1
                time.sleep(0.05)
            stopped.set()
            thread.join()
            with pytest.raises(AuthenticationError, match="expired"):
                reader.read_next(60_000)
    finally:
        stopped.set()
        thread.join()


@pytest.mark.fault(45, 52)
def test_executors_of_a_cluster_log_in_in_every_way(
    start_real_broker: START, tmp_path: Path
) -> None:
    """Tasks read files and variables on their own machine; PEM text needs no file there."""
    cluster = Cluster(start_real_broker, tmp_path)
    certificate, key = cluster.authority.client("reader")
    driver = tmp_path / "driver"
    driver.mkdir()
    # Spark copies the file to each executor's folder, so its bare name works there.
    (driver / "ca.pem").write_text(cluster.authority.pem)
    client = "pulsar.client."
    by_file = {f"{client}tlsTrustCertsFilePath": "ca.pem"}
    by_content = {f"{client}tlsTrustCertsFilePath": f"content:{cluster.authority.pem}"}

    def login(method: str, params: str) -> dict[str, str]:
        return {f"{client}authPluginClassName": method, f"{client}authParams": params}

    with Issuer(None) as issuer:
        issuer.on_token = say(
            200, {"access_token": cluster.token(seconds=3600), "expires_in": 3600}
        )
        oauth2 = {"issuerUrl": issuer.url, "privateKey": json.dumps(KEY)}
        ways = {
            "token": {**by_file, **login("token", f"token:{cluster.token()}")},
            "variable": {**by_file, **login("token", "env:PULSAR_TOKEN")},
            "mtls": {**by_content, **login("tls", f"tlsCertFile:{certificate},tlsKeyFile:{key}")},
            "mtls by content": {
                **by_content,
                f"{client}authPluginClassName": "tls",
                f"{client}tlsCertificateFilePath": f"content:{Path(certificate).read_text()}",
                f"{client}tlsKeyFilePath": f"content:{Path(key).read_text()}",
            },
            "basic": {**by_file, **login("basic", '{"userId": "reader", "password": "good"}')},
            "oauth2": {**by_content, **login("oauth2", json.dumps(oauth2))},
        }
        for options in ways.values():
            topic = cluster.broker.create_topic(cluster.broker.unique_topic(), partitions=2)
            options |= {"service.url": cluster.url, "topic": topic}
        told = {
            "files": [str(driver / "ca.pem")],
            "variables": {"PULSAR_TOKEN": cluster.token()},
            "ways": ways,
        }
        (tmp_path / "job.json").write_text(json.dumps(told))
        job = subprocess.run(
            [sys.executable, Path(__file__).with_name("secured_job.py"), tmp_path / "job.json"],
            cwd=driver,
            env={**os.environ, "PULSAR_TOKEN": cluster.token()},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert job.returncode == 0, job.stdout + job.stderr[job.stderr.find("Traceback") :][:5000]
    assert [line for line in job.stdout.splitlines() if line.startswith("---")] == [
        f"--- {name}" for name in ways
    ]
