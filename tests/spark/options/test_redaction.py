"""Secrets under keys that Spark shows are warned about; a place of a secret is none."""

from __future__ import annotations

import json
import logging
import re
import zipfile
from pathlib import Path

import pyspark
import pytest

from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.spark.formats import named_format
from pulsar_spark.spark.options import redaction
from pulsar_spark.spark.options.redaction import HIDDEN, warn_of_shown_secrets
from pulsar_spark.spark.options.table import OPTIONS

CANARY = "canary8b1f"
PEM = f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n"
BARE = "MIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSk" * 3
PARAMS = "pulsar.client.authParams"
KEY = "pulsar.client.tlsKeyFilePath"
CRYPTO = "pulsar.reader.cryptoPrivateKeyPath"

pytestmark = pytest.mark.fault(145)


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_warned", set())


def warnings(caplog: pytest.LogCaptureFixture, **options: str) -> list[str]:
    caplog.clear()
    warn_of_shown_secrets(options)
    found = [record.getMessage() for record in caplog.records if record.name == redaction.__name__]
    assert CANARY not in str(found)
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return found


def test_every_secret_option_has_a_name_that_spark_hides() -> None:
    for option in OPTIONS:
        hidden = [name for name in (option.key, *option.aliases) if HIDDEN.search(name)]
        assert bool(hidden) == option.secret, option.key


def test_what_spark_hides_is_what_its_own_default_says() -> None:
    """Checked with the constants of Spark's own class, in PySpark's jar."""
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar")
    with zipfile.ZipFile(jar) as archive:
        constants = archive.read("org/apache/spark/internal/config/package$.class")
    found = re.search(rb"\(\?i\)(secret\|password\|[ -~]*)", constants)
    assert found
    words = found[1].decode().split("|")
    # Spark 4.3 has one more; a name has to be hidden by all versions.
    assert set(HIDDEN.pattern.split("|")) <= set(words)


@pytest.mark.parametrize(
    "name,value",
    [
        (KEY, f"content:{PEM}"),
        (KEY, PEM),
        (KEY.lower(), BARE),
        (CRYPTO, PEM),
        (CRYPTO, json.dumps({"a": "/keys/a.pem", "b": PEM})),
        (PARAMS, CANARY),
        (PARAMS, f"eyJ{CANARY}.eyJ9.x"),
        (PARAMS, f"tlsCertFile:/c.pem,tlsKeyFile:content:{PEM}"),
        (PARAMS, json.dumps({"tlsCertFile": "/c.pem", "tlsKeyFile": PEM})),
        (PARAMS, json.dumps({"issuerUrl": "https://i", "privateKey": f"data:;base64,{CANARY}"})),
        (PARAMS, json.dumps({"apiKey": CANARY})),
        (PARAMS, f"{{broken {CANARY}"),
    ],
)
def test_a_secret_that_spark_shows_is_warned_about_once(
    caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    (text,) = warnings(caplog, **{name: value})
    option = next(option for option in OPTIONS if option.key.lower() == name.lower())
    assert option.key in text
    (alias,) = option.aliases
    assert f"use {alias}, or a file" in text
    assert warnings(caplog, **{name: value}) == []
    # Another option has a warning of its own.
    other = KEY if name != KEY else CRYPTO
    assert (other in str(warnings(caplog, **{name: value, other: PEM}))) == (
        name.lower() != other.lower()
    )


@pytest.mark.parametrize(
    "name,value",
    [
        *((option.aliases[0], CANARY) for option in OPTIONS if option.secret),
        (KEY, "/etc/pulsar/client.key"),
        (KEY, "client.key"),
        (CRYPTO, "/etc/pulsar/orders.pem"),
        (CRYPTO, json.dumps({"a": "/keys/a.pem", "b": "b.pem"})),
        (CRYPTO, ""),
        (PARAMS, ""),
        (PARAMS, f"token:{CANARY}"),
        (PARAMS, "file:///etc/pulsar/key"),
        (PARAMS, "env:PULSAR_LOGIN"),
        (PARAMS, "vault://pulsar"),
        (PARAMS, "tlsCertFile:/c.pem,tlsKeyFile:/c.key"),
        (PARAMS, json.dumps({"tlsCertFile": "/c.pem", "tlsKeyFile": "/c.key"})),
        (PARAMS, json.dumps({"userId": "me", "password": CANARY})),
        (PARAMS, json.dumps({"issuerUrl": "https://i", "privateKey": "file:///k", "scope": "s"})),
        (PARAMS, json.dumps({"issuerUrl": "i", "clientId": "me", "clientSecret": CANARY})),
        ("service.url", "pulsar://h1:6650,h2:6650"),
        ("checkpointLocation", "abfss://container@account.dfs.core.windows.net/c"),
        ("topic", "persistent://public/default/a@b"),
        ("pulsar.client.tlsTrustCertsFilePath", "-----BEGIN CERTIFICATE-----"),
        ("pulsar.producer.cryptoPublicKeyPath", "-----BEGIN PUBLIC KEY-----"),
    ],
)
def test_what_spark_hides_and_places_of_secrets_are_not_warned_about(
    caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    assert warnings(caplog, **{name: value}) == []


@pytest.mark.parametrize(
    "name,value,told",
    [
        ("pulsar.client.tlsCertificateFilePath", f"content:{PEM}", "leave the private key out"),
        ("pulsar.producer.cryptoPublicKeyPath", PEM, "leave the private key out"),
        ("pulsar.admin.authParams", CANARY, "it has no effect"),
        ("pulsar.admin.tlsKeyFilePath", PEM, "it has no effect"),
        ("admin.url", f"http://me:{CANARY}@host:8080", "out of the URL"),
        ("serviceUrl", f"pulsar://me:{CANARY}@host", "out of the URL"),
        ("pulsar.client.proxyServiceUrl", f"pulsar+ssl://{CANARY}@host", "out of the URL"),
        ("checkpointLocation", f"s3a://K:{CANARY}/x@bucket/c", "out of the URL"),
    ],
)
def test_a_secret_that_does_not_belong_there_is_warned_about(
    caplog: pytest.LogCaptureFixture, name: str, value: str, told: str
) -> None:
    (text,) = warnings(caplog, **{name: value})
    assert told in text


def test_the_data_source_warns_of_what_spark_was_given(caplog: pytest.LogCaptureFixture) -> None:
    given = {"service.url": "pulsar://h", "topic": "t", CRYPTO: PEM}
    table = {"provider": "pulsar", "owner": "me", **{f"option.{k}": v for k, v in given.items()}}
    for options in (given, {name.lower(): value for name, value in table.items()}):
        redaction._warned.clear()
        caplog.clear()
        assert PulsarDataSource(dict(options))._all_options()
        assert CRYPTO in caplog.text
        assert CANARY not in caplog.text
    caplog.clear()
    redaction._warned.clear()
    # Spark does not see those of a format.
    assert named_format("orders", given)({})._all_options()
    assert caplog.text == ""


def test_an_alias_is_the_option(caplog: pytest.LogCaptureFixture) -> None:
    from pulsar_spark.spark.options.read import parse_read_options

    base = {"service.url": "pulsar+ssl://h", "topic": "t"}
    plain = {KEY: PEM, "pulsar.client.tlsCertificateFilePath": "/c.pem", CRYPTO: "/k.pem"}
    plain |= {"pulsar.client.authPluginClassName": "token", PARAMS: "token:x"}
    secret = {option.key: option.aliases[0] for option in OPTIONS if option.secret}
    hidden = {secret.get(name, name): value for name, value in plain.items()}
    assert parse_read_options({**base, **hidden}) == parse_read_options({**base, **plain})
    assert CANARY not in repr(parse_read_options({**base, **hidden}))
