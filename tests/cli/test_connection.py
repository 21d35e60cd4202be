"""Where commands connect without --service-url, and how soon they say that nobody is there."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_spark.cli import main as cli
from pulsar_spark.cli.arguments import given_options
from pulsar_spark.cli.connection import PROFILE_VARIABLE, URL_VARIABLE, Cluster, cluster_of
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import store
from tests.support.certificates import Authority

TOKEN = "canary-token"


def profile(folder: Path, **lines: str) -> str:
    """Write a profile as Pulsar ships it, with some lines changed."""
    shipped = {
        "webServiceUrl": "http://localhost:8080/",
        "brokerServiceUrl": "pulsar://localhost:6650/",
        "authPlugin": "",
        "authParams": "",
        "tlsAllowInsecureConnection": "false",
        "tlsEnableHostnameVerification": "false",
        "useKeyStoreTls": "false",
        "tlsTrustStoreType": "JKS",
        "webserviceTlsProvider": "",
    }
    text = "".join(f"{key}={value}\n" for key, value in {**shipped, **lines}.items())
    file = folder / "client.conf"
    file.write_text(f"# Configuration of pulsar-admin\n\n#brokerServiceUrl=pulsar://no:1\n{text}")
    return str(file)


def topics(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    status = cli.main(["topics", "--json", *arguments])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    assert shown.err == ""
    return [found["topic"] for found in json.loads(shown.out)]


def test_the_environment_names_the_cluster(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(URL_VARIABLE, broker.service_url)
    assert topics(capsys) == ["persistent://public/default/orders"]


@pytest.mark.parametrize("how", ["--profile", PROFILE_VARIABLE])
def test_a_profile_of_pulsar_admin_names_the_cluster_and_the_credentials(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedBroker(authenticate=lambda *given: given == ("token", b"canary-token")) as broker:
        broker.create_topic("orders")
        file = profile(
            tmp_path,
            brokerServiceUrl=broker.service_url + "/",
            authPlugin="org.apache.pulsar.client.impl.auth.AuthenticationToken",
            authParams=f"token:{TOKEN}",
        )
        arguments = ["--profile", file] if how == "--profile" else []
        if not arguments:
            monkeypatch.setenv(how, file)
        assert topics(capsys, *arguments) == ["persistent://public/default/orders"]


def test_credentials_of_a_profile_are_shown_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = profile(tmp_path, authPlugin="token", authParams=f"token:{TOKEN}")
    assert TOKEN not in repr(cluster_of(file, named=False))
    for address in ("pulsar://127.0.0.1:1", f"pulsar://me:{TOKEN}@h", f"{TOKEN}://h"):
        file = profile(
            tmp_path, brokerServiceUrl=address, authPlugin="token", authParams=f"token:{TOKEN}"
        )
        for command in ("topics", "doctor"):
            assert cli.main([command, "--profile", file]) in (1, 2)
            shown = capsys.readouterr()
            assert TOKEN not in shown.out + shown.err


def test_what_the_command_line_says_comes_first(
    broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(PROFILE_VARIABLE, profile(tmp_path, brokerServiceUrl="pulsar://127.0.0.1:1"))
    monkeypatch.setenv(URL_VARIABLE, broker.service_url)
    assert topics(capsys) == ["persistent://public/default/orders"]
    monkeypatch.setenv(URL_VARIABLE, "pulsar://127.0.0.1:1")
    for named in (
        ["--service-url", broker.service_url],
        ["--option", f"serviceUrl={broker.service_url}"],
    ):
        assert topics(capsys, *named) == ["persistent://public/default/orders"]


def test_credentials_of_the_environments_profile_do_not_go_to_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[tuple[str, bytes]] = []

    def take(method: str, data: bytes) -> bool:
        sent.append((method, data))
        return True

    file = profile(tmp_path, authPlugin="token", authParams=f"token:{TOKEN}")
    monkeypatch.setenv(PROFILE_VARIABLE, file)
    with EmbeddedBroker(authenticate=take) as broker:
        broker.create_topic("orders")
        topics(capsys, "--service-url", broker.service_url)
        assert {method for method, _ in sent} <= {"none", ""}
        # One that is named is meant for it.
        topics(capsys, "--service-url", broker.service_url, "--profile", file)
        assert sent[-1] == ("token", TOKEN.encode())


def recording(sent: list[str]) -> Callable[[str, bytes], bool]:
    """Return what accepts all who log in, and writes down by which method they do."""

    def take(method: str, _: bytes) -> bool:
        sent.append(method)
        return True

    return take


def test_a_profile_that_is_named_comes_before_the_environments_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    meant: list[str] = []
    other: list[str] = []
    with (
        EmbeddedBroker(authenticate=recording(meant)) as broker,
        EmbeddedBroker(authenticate=recording(other)) as elsewhere,
    ):
        broker.create_topic("orders")
        monkeypatch.setenv(URL_VARIABLE, elsewhere.service_url)
        login = {"authPlugin": "token", "authParams": f"token:{TOKEN}"}
        file = profile(tmp_path, brokerServiceUrl=broker.service_url, **login)
        assert topics(capsys, "--profile", file) == ["persistent://public/default/orders"]
        assert (set(meant), other) == ({"token"}, [])
        # One without an address belongs to whatever cluster is named.
        file = profile(tmp_path, brokerServiceUrl="", **login)
        elsewhere.create_topic("other")
        assert topics(capsys, "--profile", file) == ["persistent://public/default/other"]
        assert set(other) == {"token"}


@pytest.mark.parametrize("same", [True, False])
def test_the_environments_address_and_profile_go_together_only_if_they_name_one_cluster(
    same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[str] = []
    with EmbeddedBroker(authenticate=recording(sent)) as broker:
        broker.create_topic("orders")
        address = f"{broker.service_url}/" if same else "pulsar://127.0.0.1:1"
        file = profile(
            tmp_path, brokerServiceUrl=address, authPlugin="token", authParams=f"token:{TOKEN}"
        )
        monkeypatch.setenv(PROFILE_VARIABLE, file)
        monkeypatch.setenv(URL_VARIABLE, broker.service_url)
        assert cli.main(["topics"]) == 0
    assert ("token" in sent) == same
    shown = capsys.readouterr()
    assert "orders" in shown.out
    assert ("note: PULSAR_SERVICE_URL names another cluster" in shown.err) != same


def test_the_admin_rest_of_another_cluster_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROFILE_VARIABLE, profile(tmp_path))
    monkeypatch.setenv(URL_VARIABLE, "pulsar://elsewhere:6650")
    assert cluster_of(None, named=False).admin_url is None
    monkeypatch.setenv(URL_VARIABLE, "pulsar://localhost")
    assert cluster_of(None, named=False).admin_url == "http://localhost:8080/"


def test_a_profile_without_an_address_is_said_to_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = profile(tmp_path, brokerServiceUrl="")
    assert cli.main(["topics", "--profile", file]) == 2
    told = capsys.readouterr().err
    assert f"the profile {file} has no brokerServiceUrl" in told
    assert "webServiceUrl serves the admin REST only" in told


def test_other_credentials_replace_those_of_the_profile_as_a_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("other")
    with EmbeddedBroker(authenticate=lambda *given: given == ("token", b"other")) as broker:
        broker.create_topic("orders")
        file = profile(
            tmp_path,
            brokerServiceUrl=broker.service_url,
            authPlugin="basic",
            authParams='{"userId":"me","password":"canary"}',
        )
        topics(capsys, "--profile", file, "--token-file", str(tmp_path / "token"))


def test_host_names_are_verified_whatever_a_profile_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    with EmbeddedBroker(tls=authority.server("other.example")) as broker:
        file = profile(
            tmp_path,
            brokerServiceUrl=broker.service_url,
            tlsTrustCertsFilePath=str(authority.file),
        )
        assert cli.main(["topics", "--profile", file]) == 1
        assert "subject alternative names" in capsys.readouterr().err


def test_key_stores_of_a_profile_are_an_error_that_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["topics", "--profile", profile(tmp_path, useKeyStoreTls="true")]) == 2
    assert "PEM" in capsys.readouterr().err


def test_the_demo_has_a_broker_of_its_own_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(URL_VARIABLE, "pulsar://127.0.0.1:1")
    chosen = cli.parser().parse_args(["demo"])
    assert given_options(chosen, Cluster({})) == {"topic": "orders"}


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command,option",
    [
        ("topics", "topics=a"),
        ("topics", "startingOffsets=earliest"),
        ("schema orders", "valueFormat=json"),
        ("subscriptions --topic orders --subscription mine", "subscription=other"),
        ("sink --topic orders", "sinkId=mine"),
        ("bench --topic bench --write --create --messages 1", "deliveryGuarantee=none"),
        ("bench --topic bench --write --create --messages 1", "maxMessagesPerTrigger=1"),
    ],
)
def test_an_option_that_a_command_does_not_use_is_named(
    command: str, option: str, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    place = ["--service-url", broker.service_url, "--option", option]
    more = ["--option", "pulsar.client.connectionTimeoutMs=9000"]
    assert cli.main([*command.split(), *place, *more]) == 0
    (told,) = (record.getMessage() for record in caplog.records if "no effect" in record.message)
    assert told.endswith(f"ignored: {option.partition('=')[0]}")


# --- nobody is there ------------------------------------------------------------------------------


@pytest.mark.fault(1)
@pytest.mark.parametrize("scheme", ["pulsar", "http"])
@pytest.mark.parametrize(
    "command",
    [
        "topics",
        "peek --topic t",
        "subscriptions --topic t --subscription s",
        "sink --topic t",
        "bench --topic t",
    ],
)
def test_a_refused_connection_is_told_at_once(
    scheme: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # A bound port on which nobody listens.
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        before = time.monotonic()
        words = command.split()
        assert cli.main([*words, "--service-url", f"{scheme}://127.0.0.1:{port}"]) == 1
    # Retries would take 30 seconds.
    assert time.monotonic() - before < 10
    assert "refused" in capsys.readouterr().err


def test_one_host_that_refuses_is_no_reason_to_fail(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"pulsar://127.0.0.1:1,127.0.0.1:{broker.port}"
    assert topics(capsys, "--service-url", url) == ["persistent://public/default/orders"]


def test_a_broker_that_is_not_ready_is_asked_again(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    store(broker, "orders-partition-0", [b"a"])
    broker.faults.close("CONNECT", times=1)
    assert topics(capsys, "--service-url", broker.service_url)
