"""Run by test_spark_secrets.py in a process of its own: uses credentials in many ways, most wrong.

Arguments: a folder for Spark's files, and one for a private key. The other secrets come as JSON on
standard input. It prints errors as users see them, and everything that DataFrames can show, and
stores the pages of Spark's UI.
"""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from pulsar_spark.testing import EmbeddedBroker
from tests.support.certificates import Authority
from tests.support.issuer import Issuer, say
from tests.support.web_service import WebService, refuse

CLIENT = "pulsar.client."
PLUGIN = f"{CLIENT}authPluginClassName"
PARAMS = f"{CLIENT}authParams"
PAGE = Path(__file__).parents[2] / "docs" / "connecting.md"
TOLD = {"token": "token", "JSON web token": "jwt", "basic": "password", "oauth2": "access"}
"""Way to log in → the secret that a broker is told."""
QUICK = {f"{CLIENT}operationTimeoutMs": "1000"}


def session(folder: Path, token: str) -> SparkSession:
    """Return a session that logs much, stores its event log, and redacts as the page says."""
    page = re.sub(r"\\\n\s*", "", PAGE.read_text("utf-8"))
    redaction = re.findall(r"^(spark\.\S*redaction\S*)=(.*)$", page, re.M)
    assert len(redaction) == 2
    builder = SparkSession.builder.master("local[2]")
    for key, value in redaction:
        builder = builder.config(key, value)
    return (
        builder.config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file://{folder}")
        .config("spark.log.level", "INFO")
        # As the page shows for a token in the environment.
        .config("spark.executorEnv.PULSAR_TOKEN", token)
        .getOrCreate()
    )


def attempt(name: str, work: Callable[[], object]) -> None:
    """Print the result or error of a piece of work."""
    try:
        print(f"--- {name}: {work()!r}")
    except Exception as error:
        print(f"--- {name} failed: {error!r}\n{error}")
        traceback.print_exc(file=sys.stdout)


class Jobs:
    """Reads and writes with additional options besides broker and topic."""

    def __init__(self, spark: SparkSession, url: str, **options: str) -> None:
        self.spark = spark
        self.options = {"service.url": url, "topic": "t", **options}

    def read(self) -> Any:
        """Read the topic, and show everything that the DataFrame can show."""
        frame = self.spark.read.format("pulsar").options(**self.options).load()
        frame.explain(extended=True)
        frame.explain(mode="formatted")
        frame.show()
        print(frame, frame.schema.json(), frame._jdf.queryExecution().toString())
        return frame.collect()

    def write(self) -> None:
        """Write a row."""
        frame = self.spark.range(1).selectExpr("string(id) value")
        frame.write.format("pulsar").mode("append").options(**self.options).save()

    def view(self) -> Any:
        """Read the topic through an SQL view, and show that."""
        options = ", ".join(
            f"`{key}` {json.dumps(value)}" for key, value in self.options.items() if value
        )
        self.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING pulsar OPTIONS ({options})")
        self.spark.sql("DESCRIBE EXTENDED v").show(100, truncate=False)
        self.spark.sql("EXPLAIN EXTENDED SELECT * FROM v").show(truncate=False)
        return self.spark.table("v").count()

    def stream(self, checkpoint: Path) -> Any:
        """Copy the topic to memory, and show everything that such a query can show."""
        options = {**self.options, "startingOffsets": "earliest"}
        query = (
            self.spark.readStream.format("pulsar")
            .options(**options)
            .load()
            .writeStream.format("pulsar")
            .options(**{**self.options, "topic": "copy"})
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(240)
        finally:
            query.explain(extended=True)
            print(query.status, query.recentProgress, query.exception())
        return "done"


def main(folder: Path, own: Path, secrets: dict[str, str]) -> None:
    """Run everything that a credential can be part of."""
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
    # It logs every call to the JVM.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    events = folder / "events"
    events.mkdir()
    spark = session(events, secrets["token"])
    with EmbeddedBroker() as broker, EmbeddedBroker() as strict, Issuer(None) as issuer:
        issuer.on_token = say(200, {"access_token": secrets["access"], "expires_in": 3600})
        for name, options in ways_to_log_in(secrets, issuer.url).items():
            good, refused = (Jobs(spark, at.service_url, **options) for at in (broker, strict))
            attempt(f"{name}: write", good.write)
            attempt(f"{name}: read", good.read)
            # A broker can echo what it received.
            echo = f"{secrets[TOLD[name]]} and token:{secrets[TOLD[name]]}"
            with strict.faults.error("CONNECT", "AuthenticationError", echo, times=None):
                attempt(f"{name}: read refused", refused.read)
                attempt(f"{name}: write refused", refused.write)
        echo = f"{secrets['token']} and token:{secrets['token']}"
        strict.faults.error("CONNECT", "AuthenticationError", echo, times=None)
        login = ways_to_log_in(secrets, issuer.url)["token"]
        url = broker.service_url
        attempt("view", Jobs(spark, url, **login).view)
        attempt("stream", lambda: Jobs(spark, url, **login).stream(folder / "good"))
        attempt(
            "stream refused",
            lambda: Jobs(spark, strict.service_url, **login).stream(folder / "refused"),
        )
        with broker.faults.error("SEND", "NotAllowedError", echo, times=None):
            attempt("send refused", Jobs(spark, url, **login).write)
        with broker.faults.error("SUBSCRIBE", "AuthorizationError", echo, times=None):
            attempt("subscribe refused", Jobs(spark, url, **login, includeMetadata="true").read)
        echo = secrets["oauth2"]
        issuer.on_token = say(401, {"error": "invalid_client", "error_description": echo})
        oauth2 = ways_to_log_in(secrets, issuer.url)["oauth2"]
        attempt("issuer refused", Jobs(spark, url, **oauth2, includeMetadata="true").read)
        by_web(spark, url, login, f"{secrets['token']} and more")
        certificates = Authority(own)
        key = by_certificate(spark, certificates)
        private = {"pulsar.reader.cryptoPrivateKeyPath": key}
        attempt("decryption: read", Jobs(spark, url, **private).read)
        wrong_options(spark, url, {**secrets, "key": key})
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            gone = f"pulsar://127.0.0.1:{taken.getsockname()[1]}"
            attempt("nobody there", Jobs(spark, gone, **login, **QUICK).read)
    store_pages(spark, folder / "pages")
    spark.stop()
    print("--- the end")


def ways_to_log_in(secrets: dict[str, str], issuer: str) -> dict[str, dict[str, str]]:
    """Return correct options."""
    key = {"type": "client_credentials", "client_id": "me", "client_secret": secrets["oauth2"]}
    basic = json.dumps({"userId": "u", "password": secrets["password"]})
    oauth2 = json.dumps({"issuerUrl": issuer, "privateKey": json.dumps(key)})
    return {
        "token": {PLUGIN: "token", PARAMS: f"token:{secrets['token']}"},
        "JSON web token": {PLUGIN: "token", PARAMS: f"token:{secrets['jwt']}"},
        "basic": {PLUGIN: "basic", PARAMS: basic},
        "oauth2": {PLUGIN: "oauth2", PARAMS: oauth2},
    }


def wrong_options(spark: SparkSession, url: str, secrets: dict[str, str]) -> None:
    """Put secrets where they do not belong."""
    token, password = secrets["token"], secrets["password"]
    basic = json.dumps({"userId": "u", "password": password})
    secure = url.replace("pulsar:", "pulsar+ssl:")
    bare = "".join(line for line in secrets["key"].splitlines() if "-----" not in line)
    certificate = f"{CLIENT}tlsCertificateFilePath"
    key = f"{CLIENT}tlsKeyFilePath"
    wrong = {
        "not JSON": {PLUGIN: "basic", PARAMS: basic[:-1]},
        "no plugin": {PARAMS: f"token:{token}"},
        "unknown plugin": {PLUGIN: "magic", PARAMS: f"token:{token}"},
        "empty": {PLUGIN: "token", PARAMS: "token:"},
        "misspelt": {PLUGIN: "token", f"{CLIENT}authParam": f"token:{token}"},
        "twice": {PLUGIN: "token", PARAMS: f"token:{token}", "tokn": token},
        "oauth2 without an issuer": {PLUGIN: "oauth2", PARAMS: json.dumps({"privateKey": token})},
        "no certificate": {key: secrets["key"]},
        "key as certificate": {
            "service.url": secure,
            certificate: secrets["key"],
            key: secrets["key"],
        },
        "key without its lines": {"service.url": secure, certificate: bare, key: bare},
        "key by its first line": {
            "service.url": secure,
            certificate: f"content:{bare}",
            key: f"content:{bare}",
        },
        "user in the URL": {"service.url": url.replace("//", f"//user:{secrets['url']}@")},
        "user in a web URL": {"service.url": f"https://user:{secrets['url']}@127.0.0.1:8443"},
        "user in the proxy": {
            "service.url": secure,
            f"{CLIENT}proxyServiceUrl": f"pulsar+ssl://user:{secrets['url']}@127.0.0.1:1",
            f"{CLIENT}proxyProtocol": "SNI",
        },
    }
    for name, options in wrong.items():
        attempt(f"{name}: read", Jobs(spark, url, **options).read)
    attempt("misspelt: write", Jobs(spark, url, **wrong["misspelt"]).write)


def by_web(spark: SparkSession, broker: str, login: dict[str, str], echo: str) -> None:
    """Log in to a web service that echoes what it received."""
    with WebService(broker, partitions=0) as web:
        web.schema = {"version": 0, "type": "STRING", "data": ""}
        attempt("web: read", Jobs(spark, web.url, **login, includeMetadata="true").read)
        web.answers, web.again = [refuse(403, echo)], True
        attempt("web: read refused", Jobs(spark, web.url, **login).read)


def by_certificate(spark: SparkSession, authority: Authority) -> str:
    """Use a client certificate whose key is given as content, and return the key."""
    certificate, key = (Path(file).read_text() for file in authority.client())
    files = {
        f"{CLIENT}tlsTrustCertsFilePath": authority.pem,
        f"{CLIENT}tlsCertificateFilePath": f"content:{certificate}",
        f"{CLIENT}tlsKeyFilePath": f"content:{key}",
    }
    with EmbeddedBroker(tls=authority.server(client_authority=authority)) as broker:
        attempt("certificate: write", Jobs(spark, broker.service_url, **files).write)
        attempt("certificate: read", Jobs(spark, broker.service_url, **files).read)
        other = Path(authority.client("other")[0]).read_text()
        wrong = {**files, f"{CLIENT}tlsCertificateFilePath": f"content:{other}"}
        attempt("certificate: read refused", Jobs(spark, broker.service_url, **wrong).read)
    return key


def store_pages(spark: SparkSession, folder: Path) -> None:
    """Store the pages and the REST answers of Spark's UI."""
    folder.mkdir()
    address = urlsplit(str(spark.sparkContext.uiWebUrl))
    application = f"/api/v1/applications/{spark.sparkContext.applicationId}"
    first = ["/jobs/", "/stages/", "/environment/", "/executors/", "/SQL/", "/StreamingQuery/"]
    first += [f"{application}/{part}" for part in ("jobs", "stages", "environment", "executors")]
    first.append(f"{application}/sql?details=true&planDescription=true&length=10000")
    seen: set[str] = set()
    waiting = first
    while waiting and len(seen) < 400:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            page = answer.read().decode("utf-8", "replace")
        finally:
            connection.close()
        (folder / f"{len(seen)}").write_text(f"{path}\n{answer.status}\n{page}")
        links = re.findall(r'href="(/(?:SQL|jobs|stages|StreamingQuery)/[^"#]*)"', page)
        waiting += [link.replace("&amp;", "&") for link in links if "sort" not in link]
    print(f"--- pages: {len(seen)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.load(sys.stdin))
