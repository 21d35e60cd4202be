"""The examples of docs/connecting.md, each run against a broker that requires just its settings.

Without Spark's JVM: the data source is called as Spark calls it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest

from pulsar_spark.engine.context import shared_connections
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.spark.options.table import OPTIONS
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.pages import DOCS, examples
from tests.spark.topics import store
from tests.support.certificates import Authority
from tests.support.issuer import Issuer
from tests.support.web_service import WebService

TOKEN = ("token", b"my-token")
WAYS = {
    "A token, as managed clusters give it": [(TOKEN, False)],
    "A token in a file that is renewed": [(TOKEN, False)],
    "A token in the environment": [(TOKEN, False)],
    "Certificates of your company's own authority": [(TOKEN, False)] * 2,
    "The brokers' web service as the address": [(TOKEN, False)],
    "Behind an SNI proxy": [(TOKEN, False)],
    "A client certificate (mTLS)": [(("tls", b""), True), (TOKEN, True)],
    "OAuth2": [(("token", b"token-1"), False)],
    "User name and password": [(("basic", b"me:my-password"), False)],
    "Behind the Pulsar proxy": [(TOKEN, False)],
    "An authentication class of your own": [(TOKEN, False)],
    "Options of a Java or Scala job": [(TOKEN, False)],
}
CASES = [
    pytest.param(section, number, wanted, certificate, id=f"{section} {number}")
    for section, ways in WAYS.items()
    for number, (wanted, certificate) in enumerate(ways)
]


class Session:
    """The part of a session that the examples use; `load` returns the values read."""

    def __init__(self) -> None:
        self.read = self
        self.sparkContext = self
        self._options: dict[str, str] = {}

    def addPyFile(self, path: str) -> None:
        assert Path(path).exists()

    def format(self, name: str) -> Session:
        assert name == "pulsar"
        return self

    def options(self, **options: str) -> Session:
        self._options = options
        return self

    def load(self, topic: str) -> list[Any]:
        source = PulsarDataSource({**self._options, "path": topic})
        reader = source.reader(source.schema())
        return [
            value
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for value in batch.column(0).to_pylist()  # type: ignore[union-attr]
        ]


def test_every_example_of_the_page_is_run() -> None:
    page = (DOCS / "connecting.md").read_text("utf-8")
    sections = re.findall(r"^## (.*)$", page, re.MULTILINE)
    found = {name: len(examples("connecting.md", name)) for name in sections}
    assert {name: count for name, count in found.items() if count} == {
        name: len(ways) for name, ways in WAYS.items()
    }


@pytest.mark.fault(45, 52)
@pytest.mark.parametrize("section,number,wanted,certificate", CASES)
def test_an_example_connects(
    section: str,
    number: int,
    wanted: tuple[str, bytes],
    certificate: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority = Authority(tmp_path)
    authority.client("client")
    (tmp_path / "token").write_text("my-token\n")
    monkeypatch.setenv("PULSAR_TOKEN", "my-token")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # The system's trust store.
    monkeypatch.setenv("SSL_CERT_FILE", authority.file)
    server = authority.server(client_authority=authority if certificate else None)
    key = {"client_id": "me", "client_secret": "mine"}
    (tmp_path / "key.json").write_text(json.dumps(key))
    with (
        Issuer(authority) as issuer,
        EmbeddedBroker(
            tls=server, authenticate=lambda method, data: (method, data) == wanted
        ) as broker,
    ):
        broker.create_topic("orders")
        store(broker, "orders", [b"a book"])
        example = examples("connecting.md", section)[number]
        here = example.replace("cluster.example.com:6651", f"localhost:{broker.port}")
        here = here.replace("https://auth.example.com", issuer.url)
        names: dict[str, Any] = {"spark": Session()}
        with WebService(secure=broker.service_url, tls=authority.server()) as web:
            here = here.replace("https://cluster.example.com:8443", web.url)
            here = here.replace("proxy.example.com:4443", f"127.0.0.1:{broker.port}")
            exec(here.replace("/etc/pulsar/", f"{tmp_path}/"), names)
        assert names["orders"] == [b"a book"]
        assert {asked.headers["Authorization"] for asked in web.asked} <= {"Bearer my-token"}
        assert bool(web.asked) == ("https://cluster" in example)
        shared_connections().close_unused()
        assert broker.internal_errors == ()


def commands(section: str) -> list[str]:
    blocks = examples("connecting.md", section, "")
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def test_a_key_store_of_java_becomes_a_certificate_by_the_commands_of_the_page(
    tmp_path: Path,
) -> None:
    keytool, openssl = shutil.which("keytool"), shutil.which("openssl")
    if keytool is None or openssl is None:
        pytest.skip("keytool (of Java) or openssl is not installed")
    authority = Authority(tmp_path)
    certificate, key = authority.client("client")

    def run(command: str) -> None:
        subprocess.run(
            shlex.split(command), cwd=tmp_path, check=True, capture_output=True, timeout=60
        )

    run(f"openssl pkcs12 -export -in {certificate} -inkey {key} -out made.p12 -passout pass:secret")
    run(
        "keytool -importkeystore -noprompt -srckeystore made.p12 -srcstorepass secret "
        "-destkeystore client.jks -deststoretype JKS -deststorepass secret"
    )
    first, second = commands("Options of a Java or Scala job")
    # Prompted input.
    run(f"{first} -srcstorepass secret -deststorepass secret")
    run(f"{second} -passin pass:secret")
    server = authority.server(client_authority=authority)
    with EmbeddedBroker(tls=server, authenticate=lambda method, _: method == "tls") as broker:
        broker.create_topic("orders")
        store(broker, "orders", [b"a book"])
        pem = tmp_path / "client.pem"
        login = {
            "service.url": broker.service_url,
            "pulsar.client.tlsTrustCertsFilePath": authority.file,
            "pulsar.client.tlsCertificateFilePath": str(pem),
            "pulsar.client.tlsKeyFilePath": str(pem),
            "pulsar.client.authPluginClassName": "tls",
        }
        assert Session().format("pulsar").options(**login).load("orders") == [b"a book"]
        shared_connections().close_unused()


def test_the_settings_for_kubernetes_are_those_that_spark_has() -> None:
    """Checked with the constants of Spark's own class, in PySpark's jar."""
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as archive:
        constants = archive.read("org/apache/spark/deploy/k8s/Config$.class")
    settings = commands("A token in a file that is renewed")
    settings += commands("A token in the environment")
    assert len(settings) == 4
    for setting in settings:
        found = re.fullmatch(
            r"--conf (spark\.kubernetes\.(?:driver|executor)\.(\w+)\.)([\w-]+)=(\S+)",
            setting,
        )
        assert found is not None, setting
        prefix, kind, name, value = found.groups()
        assert prefix.encode() in constants
        # A secret and the path of its files; or a variable, a secret and its key.
        assert (name, value) == {
            "secrets": ("pulsar-token", "/etc/pulsar"),
            "secretKeyRef": ("PULSAR_TOKEN", "pulsar:token"),
        }[kind]


def test_every_block_of_the_page_is_run_or_compared() -> None:
    page = (DOCS / "connecting.md").read_text("utf-8")
    sections = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert {name for name in sections if commands(name)} == {
        "A token in a file that is renewed",
        "A token in the environment",
        "Options of a Java or Scala job",
        # tests/cli/test_command_line_page.py runs it.
        "When it does not connect: the doctor",
        # Compared below, and used by tests/integration/secrets_job.py.
        "Keeping secrets out of Spark's UI and event log",
    }


def test_the_redaction_that_the_page_gives_covers_all_secret_options() -> None:
    page = re.sub(r"\\\n\s*", "", (DOCS / "connecting.md").read_text("utf-8"))
    given = re.findall(
        r"^spark\.(?:sql\.)?redaction\.(?:options\.)?regex=(.*)$", page, re.MULTILINE
    )
    assert len(given) == 2
    for regex in given:
        assert all(re.search(regex, option.key) for option in OPTIONS if option.secret)
