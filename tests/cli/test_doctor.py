"""The doctor names the step that fails and the remedy, and leaves nothing behind."""

from __future__ import annotations

import base64
import contextlib
import json
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.cli import main as cli
from pulsar_spark.cli.doctor import executors
from pulsar_spark.client import ProducerAccessMode, PulsarClient
from pulsar_spark.client.schema import StringSchema
from pulsar_spark.engine.transactions import COORDINATORS
from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.spark.writing import attempts
from pulsar_spark.spark.writing.sink_records import id_digest
from pulsar_spark.spark.writing.task_writer import transactions_of
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.rules import Seen
from tests import brief
from tests.integration.sink_job import Sink
from tests.support.certificates import Authority, days, only_old_versions, self_signed
from tests.support.issuer import Issuer, say
from tests.support.web_service import WebService, refuse

STEPS = [
    "resolve",
    "connect",
    "tls",
    "handshake",
    "authenticate",
    "lookup",
    "partitions",
    "read",
    "write",
    "schema",
    "retention",
    "transactions",
]
KEY = json.dumps({"client_id": "me", "client_secret": "canary-secret"})
# Don't wait half a minute for a silent broker.
PATIENCE = (
    "--option=pulsar.client.connectionTimeoutMs=2000",
    "--option=pulsar.client.operationTimeoutMs=2000",
)
EXACTLY_ONCE = ("--option=deliveryGuarantee=exactly-once", "--option=sinkId=s")


class Report:
    """The output of `doctor --json`."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text
        self.body: dict[str, Any] = json.loads(text)
        self.steps: dict[str, dict[str, Any]] = {step["name"]: step for step in self.body["steps"]}

    def failed(self) -> list[str]:
        return [name for name, step in self.steps.items() if step["status"] == "failed"]


Examine = Callable[..., Report]


@pytest.fixture
def examine(capsys: pytest.CaptureFixture[str]) -> Examine:
    def run(service_url: str, *arguments: str) -> Report:
        status = cli.main(["doctor", "--service-url", service_url, "--json", *arguments])
        return Report(status, capsys.readouterr().out)

    return run


def only(report: Report, name: str) -> str:
    """Return the detail and remedy of the only failed step."""
    assert report.failed() == [name], report.text
    assert report.status == 1
    assert report.body["ok"] is False
    step = report.steps[name]
    assert step["remedy"]
    return f"{step['detail']} {step['remedy']}"


@contextlib.contextmanager
def peer(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve connections as something that is no broker; yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        talk(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


# --- all is well ------------------------------------------------------------------------------


def test_all_steps_are_told_in_order(broker: EmbeddedBroker, examine: Examine) -> None:
    report = examine(broker.service_url, "--topic", "orders")
    assert report.status == 0
    assert report.body["ok"] is True
    assert list(report.steps) == STEPS
    for step in report.body["steps"]:
        assert set(step) == {"name", "status", "seconds", "detail", "remedy"}
        assert step["detail"]
        assert step["seconds"] >= 0
    skipped = [name for name, step in report.steps.items() if step["status"] == "skipped"]
    assert skipped == ["tls", "retention"]
    assert "--admin-url" in report.steps["retention"]["remedy"]
    assert "2 partitions" in report.steps["partitions"]["detail"]


def test_its_json_has_the_steps_and_whether_all_is_well(
    broker: EmbeddedBroker, examine: Examine
) -> None:
    for arguments in ([], ["--topic", "orders"], ["--topic", "missing"]):
        assert list(examine(broker.service_url, *arguments).body) == ["steps", "ok"]


def test_what_runs_here_is_told(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--service-url", broker.service_url]) == 0
    here = capsys.readouterr().out.splitlines()[0]
    for name in ("python", "pyspark", "java", "implementation", "codecs"):
        assert f"{name} " in here
    assert "ZSTD" in here


def test_it_reads_as_text_too(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--service-url", broker.service_url]) == 0
    text = capsys.readouterr().out
    assert "What to do" not in text
    assert "What to look after" not in text
    for name in STEPS:
        assert f"\n{name} " in text
    assert "What was not looked at:\n  lookup" in text
    assert "lookup, partitions, read, write, schema, transactions: Name a topic" in text
    assert "python" in text


def test_what_failed_and_what_only_needs_care_are_told_apart(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"pulsar://127.0.0.1:1,127.0.0.1:{broker.port}"
    assert cli.main(["doctor", "--service-url", url, "--topic", "nothing"]) == 1
    text = capsys.readouterr().out
    to_do, _, care = text.partition("What to do:")[2].partition("What to look after:")
    care, _, unseen = care.partition("What was not looked at:")
    assert to_do.startswith("\n  partitions: ")
    assert care.startswith("\n  connect: ")
    assert unseen.startswith("\n  retention: ")


def test_a_brokers_version_has_a_space_before_it(examine: Examine) -> None:
    with EmbeddedBroker() as broker:
        told = brief.connected("Pulsar Server4.0.8", max_message_size=5 << 20)
        broker.faults.call("CONNECT", lambda seen: broker.faults.inject(told, seen.connection))
        broker.faults.drop("CONNECTED", times=None)
        assert (
            "is Pulsar Server 4.0.8, " in examine(broker.service_url).steps["handshake"]["detail"]
        )


def test_nothing_is_left_behind(broker: EmbeddedBroker, examine: Examine) -> None:
    examine(broker.service_url, "--topic", "orders")
    assert broker.faults.seen("SEND") == 0
    assert broker.faults.seen("GET_OR_CREATE_SCHEMA") == 0
    for wanted in broker.faults.log("SUBSCRIBE"):
        assert not wanted.body.durable
        assert not wanted.body.force_topic_creation
    for wanted in broker.faults.log("PRODUCER"):
        assert not wanted.body.producer_name
        assert not wanted.body.HasField("schema")
    for number in range(2):
        assert broker.subscriptions(f"orders-partition-{number}") == {}
        assert broker.stats(f"orders-partition-{number}").producers == ()


def test_a_dead_host_is_told_though_another_one_serves(
    broker: EmbeddedBroker, examine: Examine
) -> None:
    report = examine(f"pulsar://127.0.0.1:1,127.0.0.1:{broker.port}", "--topic", "orders")
    assert report.status == 0
    step = report.steps["connect"]
    assert "refused" in step["detail"]
    assert "accepts" in step["detail"]
    assert step["remedy"]


# --- hosts ------------------------------------------------------------------------------------


@pytest.mark.fault(3)
def test_a_name_that_does_not_exist(examine: Examine) -> None:
    report = examine("pulsar://no-such-host.invalid:6650", "--topic", "orders", *PATIENCE)
    assert "no-such-host.invalid" in only(report, "resolve")
    assert {report.steps[name]["status"] for name in STEPS[1:]} == {"skipped"}
    assert "resolve" in report.steps["write"]["detail"]


@pytest.mark.fault(1)
def test_a_port_where_nobody_listens(examine: Examine) -> None:
    assert "refused" in only(examine("pulsar://127.0.0.1:1", "--topic", "orders"), "connect")


@pytest.mark.fault(2)
def test_a_firewall_that_swallows_connections(examine: Examine) -> None:
    # Linux does not answer connects once a listener's backlog is full.
    with socket.socket() as listener, contextlib.ExitStack() as fillers:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        url = f"pulsar://127.0.0.1:{listener.getsockname()[1]}"
        report = examine(url, "--option=pulsar.client.connectionTimeoutMs=500")
    assert "no answer within" in only(report, "connect")


@pytest.mark.fault(41)
@pytest.mark.parametrize(
    "answer,words", [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "6650"), (b"SSH-2.0-x\r\n", "SSH")]
)
def test_a_port_of_something_else(answer: bytes, words: str, examine: Examine) -> None:
    with peer(lambda connection: connection.sendall(answer)) as address:
        assert words in only(examine(f"pulsar://{address}", *PATIENCE), "handshake")


def test_a_peer_that_says_nothing(examine: Examine) -> None:
    def listen(connection: socket.socket) -> None:
        connection.recv(1)

    with peer(listen) as address:
        only(examine(f"pulsar://{address}", *PATIENCE), "handshake")


# --- TLS --------------------------------------------------------------------------------------


@pytest.mark.fault(51)
@pytest.mark.parametrize(
    "names,more,words",
    [
        (("other.example",), {}, "subject alternative names"),
        ((), {"not_after": days(-1)}, "expired"),
        ((), {"not_before": days(1)}, "not valid yet"),
    ],
)
def test_a_certificate_that_does_not_hold(
    names: tuple[str, ...], more: dict[str, Any], words: str, examine: Examine, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    with EmbeddedBroker(tls=authority.server(*names, **more)) as broker:
        trust = f"--option=pulsar.client.tlsTrustCertsFilePath={authority.file}"
        assert words in only(examine(broker.service_url, trust), "tls")


@pytest.mark.fault(51)
def test_a_certificate_of_an_authority_that_is_not_trusted(
    examine: Examine, tmp_path: Path
) -> None:
    with EmbeddedBroker(tls=Authority(tmp_path).server()) as broker:
        assert "tlsTrustCertsFilePath" in only(examine(broker.service_url), "tls")


@pytest.mark.fault(51)
def test_a_certificate_that_is_signed_by_itself(examine: Examine, tmp_path: Path) -> None:
    certificate, context = self_signed(tmp_path)
    with EmbeddedBroker(tls=context) as broker:
        assert "self-signed" in only(examine(broker.service_url), "tls")
        trust = f"--option=pulsar.client.tlsTrustCertsFilePath={certificate}"
        assert examine(broker.service_url, trust).status == 0


@pytest.mark.fault(52)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_a_broker_with_old_versions_of_tls_alone(examine: Examine, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with EmbeddedBroker(tls=only_old_versions(authority.server())) as broker:
        trust = f"--option=pulsar.client.tlsTrustCertsFilePath={authority.file}"
        assert "TLS handshake" in only(examine(broker.service_url, trust), "tls")


@pytest.mark.fault(52)
def test_a_client_certificate_that_is_missing(examine: Examine, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with EmbeddedBroker(tls=authority.server(client_authority=authority)) as broker:
        trust = f"--option=pulsar.client.tlsTrustCertsFilePath={authority.file}"
        assert "tlsCertificateFilePath" in only(examine(broker.service_url, trust), "tls")
        certificate, key = authority.client()
        shown = f"--option=pulsar.client.authParams=tlsCertFile:{certificate},tlsKeyFile:{key}"
        plugin = "--option=pulsar.client.authPluginClassName=tls"
        assert examine(broker.service_url, trust, plugin, shown).status == 0


def test_files_that_are_not_there(examine: Examine, tmp_path: Path) -> None:
    with EmbeddedBroker(tls=Authority(tmp_path).server()) as broker:
        trust = "--option=pulsar.client.tlsTrustCertsFilePath=/nowhere/ca.pem"
        assert "/nowhere/ca.pem" in only(examine(broker.service_url, trust), "tls")


@pytest.mark.fault(41)
def test_tls_on_the_plain_port_and_the_other_way(
    broker: EmbeddedBroker, examine: Examine, tmp_path: Path
) -> None:
    token = "--option=pulsar.client.authParams=token:canary"
    plugin = "--option=pulsar.client.authPluginClassName=token"
    report = examine(f"pulsar+ssl://127.0.0.1:{broker.port}", token, plugin, *PATIENCE)
    told = only(report, "tls")
    assert f"pulsar://127.0.0.1:{broker.port}" in told
    assert "6651" in told
    # What a port without TLS is asked has no credentials.
    assert {seen.body.auth_method_name for seen in broker.faults.log("CONNECT")} <= {"none", ""}
    with EmbeddedBroker(tls=Authority(tmp_path).server()) as secure:
        report = examine(f"pulsar://127.0.0.1:{secure.port}", *PATIENCE)
        assert "pulsar+ssl" in only(report, "handshake")


# --- logging in -------------------------------------------------------------------------------


@pytest.mark.fault(45, 96)
@pytest.mark.parametrize("token", ["canary-token", None])
def test_credentials_that_are_not_accepted(
    token: str | None, examine: Examine, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("canary-token")
    given = ["--token-file", str(tmp_path / "token")] if token else []
    with EmbeddedBroker(authenticate=lambda method, data: data == b"good") as broker:
        broker.create_topic("orders")
        report = examine(broker.service_url, "--topic", "orders", *given)
        assert "authParams" in only(report, "authenticate")
        assert report.steps["handshake"]["status"] == "ok"
        # After one refusal it does not try again.
        assert broker.faults.seen("CONNECT") == 1
    assert "canary" not in report.text


@pytest.mark.fault(45, 96)
def test_credentials_given_as_an_option_are_not_shown(
    examine: Examine, capsys: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedBroker(authenticate=lambda _, data: data == b"good") as broker:
        for params in ("token:canary-token", "canary-token"):
            plugin = "--option=pulsar.client.authPluginClassName=token"
            report = examine(
                broker.service_url, plugin, f"--option=pulsar.client.authParams={params}"
            )
            only(report, "authenticate")
            assert "canary" not in report.text
    command = ["doctor", "--service-url", "pulsar://user:canary@localhost"]
    assert cli.main([*command, "--option=pulsar.client.authParams=canary"]) == 2
    shown = capsys.readouterr()
    assert "canary" not in shown.out + shown.err


@pytest.mark.fault(50)
def test_an_issuer_that_gives_no_token(
    broker: EmbeddedBroker, examine: Examine, tmp_path: Path
) -> None:
    with Issuer(Authority(tmp_path)) as issuer:
        params = {"issuerUrl": issuer.url, "privateKey": KEY}
        report = examine(
            broker.service_url,
            "--option=pulsar.client.authPluginClassName=oauth2",
            f"--option=pulsar.client.authParams={json.dumps(params)}",
        )
    only(report, "authenticate")
    assert report.steps["handshake"]["status"] == "skipped"
    assert "canary" not in report.text


@pytest.mark.fault(49)
def test_a_broker_that_wants_another_way_to_log_in(examine: Examine) -> None:
    with EmbeddedBroker() as broker:
        challenge = brief.auth_challenge("b", "kerberos", b"")
        broker.faults.call("CONNECT", lambda _: broker.faults.inject(challenge))
        broker.faults.drop("CONNECTED", times=None)
        assert "kerberos" in only(examine(broker.service_url, *PATIENCE), "authenticate")


def test_a_token_file_that_is_missing(broker: EmbeddedBroker, examine: Examine) -> None:
    report = examine(broker.service_url, "--token-file", "/nowhere/token")
    assert "/nowhere/token" in only(report, "authenticate")
    assert broker.faults.seen("CONNECT") == 0


def test_a_token_that_is_accepted(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("good\n")
    wanted = ("token", b"good")
    with EmbeddedBroker(authenticate=lambda *given: given == wanted) as broker:
        report = examine(broker.service_url, "--token-file", str(tmp_path / "token"))
    assert report.status == 0
    assert "accepted the connection with the token" in report.steps["authenticate"]["detail"]


def web_token(**claims: object) -> str:
    """Return a JSON web token that nobody signed."""
    parts = ({"alg": "none"}, claims)
    coded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts)
    return ".".join([*(part.rstrip("=") for part in coded), "canary"])


def with_token(
    examine: Examine, token: str, *more: str, accepted: bool, lacks: str = "", topic: str = ""
) -> Report:
    """Examine a broker with a token that it accepts or not.

    `lacks` is a command that it refuses, if it is about `topic`.
    """
    with EmbeddedBroker(authenticate=lambda *_: accepted) as broker:
        broker.create_topic("orders")
        if lacks:
            broker.faults.error(lacks, "AuthorizationError", topic=topic or None, times=None)
        report = examine(
            broker.service_url,
            *more,
            "--topic=orders",
            "--option=pulsar.client.authPluginClassName=token",
            f"--option=pulsar.client.authParams=token:{token}",
        )
    assert token not in report.text
    assert "canary" not in report.text
    return report


@pytest.mark.fault(45)
@pytest.mark.parametrize(
    "token,told",
    [
        (web_token(sub="etl", exp=1_600_000_000), "role etl expired at 2020-09-13 12:26:40 UTC"),
        (web_token(exp=1_600_000_000), "The token expired at 2020-09-13"),
        (web_token(sub="etl", nbf=4_000_000_000), "role etl is not valid before 2096-10-02"),
        (web_token(sub="etl", exp=4_000_000_000), "holds until 2096-10-02 07:06:40 UTC"),
        (web_token(sub="etl"), "the token of role etl never expires"),
        (web_token(sub=7, exp="soon", nbf=-1), "the token never expires"),
        (web_token(sub="etl", exp=1e300), "the token of role etl never expires"),
        ("canary-token", "no JSON web token"),
        ("a.b.c", "no JSON web token"),
        (f"a.{'W1td'}.c", "no JSON web token"),
        (f"a.{base64.urlsafe_b64encode(b'[' * 40_000).decode()}.c", "no JSON web token"),
    ],
)
def test_a_token_that_is_refused_is_told_its_role_and_when_it_expires(
    token: str, told: str, examine: Examine
) -> None:
    text = only(with_token(examine, token, accepted=False), "authenticate")
    assert told in text
    assert "may have expired" not in text


def test_a_token_in_use_is_told_its_role_and_that_it_expires_within_a_day(
    examine: Examine,
) -> None:
    now = time.time()
    soon, later = now + 5 * 3600 + 60, now + 40 * 3600
    for claims, warned in (
        ({"exp": soon}, True),
        ({"exp": soon, "iat": now - 10 * 86_400}, True),
        # It never lasts longer: somebody renews it.
        ({"exp": soon, "iat": now - 3600}, False),
        ({"exp": later}, False),
        ({}, False),
    ):
        report = with_token(examine, web_token(sub="etl", **claims), accepted=True)
        step = report.steps["authenticate"]
        assert (report.status, step["status"]) == (0, "ok")
        assert "accepted the connection with the token of role etl" in step["detail"]
        assert ("It expires in 5.0 hours" in step["remedy"]) == warned, claims


@pytest.mark.fault(45)
def test_a_login_without_credentials_is_not_told_that_a_token_expired(examine: Examine) -> None:
    with EmbeddedBroker(authenticate=lambda *_: False) as broker:
        text = only(examine(broker.service_url, "--topic=orders"), "authenticate")
    assert "No credentials were given" in text
    assert "--token-file" in text
    assert "expired" not in text


@pytest.mark.fault(46)
def test_the_command_that_grants_a_permission_names_the_tokens_role(examine: Examine) -> None:
    report = with_token(examine, web_token(sub="etl job"), accepted=True, lacks="SUBSCRIBE")
    remedy = report.steps["read"]["remedy"]
    assert remedy.endswith("grant-permission public/default --role 'etl job' --actions consume")


@pytest.mark.fault(46)
@pytest.mark.parametrize("command", ["PARTITIONED_METADATA", "LOOKUP"])
def test_a_missing_permission_for_the_coordinators_is_a_failure_if_they_are_needed(
    command: str, examine: Examine
) -> None:
    token, topic = web_token(sub="etl"), str(COORDINATORS)
    granting = "grant-permission pulsar/system --role etl --actions produce,consume"
    report = with_token(examine, token, *EXACTLY_ONCE, accepted=True, lacks=command, topic=topic)
    assert granting in only(report, "transactions")
    report = with_token(examine, token, accepted=True, lacks=command, topic=topic)
    step = report.steps["transactions"]
    assert (report.status, step["status"]) == (0, "skipped")
    assert granting in step["remedy"]


@pytest.mark.fault(46)
@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize(
    "command,actions",
    [
        ("PARTITIONED_METADATA", "produce,consume"),
        ("LOOKUP", "produce,consume"),
        ("SUBSCRIBE", "consume"),
        ("PRODUCER", "produce"),
    ],
)
def test_a_missing_permission_for_the_records_of_a_sink(
    command: str, actions: str, is_there: bool, broker: EmbeddedBroker, examine: Examine
) -> None:
    records = "persistent://a/b/records"
    if is_there:
        broker.create_topic(records)
    broker.faults.error(command, "AuthorizationError", topic=records, times=None)
    before = broker.topics()
    where = f"--option=sinkStateTopic={records}"
    report = examine(broker.service_url, "--topic=orders", *EXACTLY_ONCE, where)
    assert broker.topics() == before
    if not is_there and command in ("SUBSCRIBE", "PRODUCER"):
        # Nobody can ask without creating the topic.
        assert report.status == 0
        return
    text = only(report, "transactions")
    assert "the sink's records" in text
    assert records in text
    assert f"grant-permission a/b --role ROLE --actions {actions} " in text


@pytest.mark.parametrize(
    "topic,told",
    [
        ("persistent://a/b/parts", "the topic of the sink's records has partitions"),
        ("non-persistent://a/b/records", "needs persistent topics"),
    ],
)
def test_a_topic_that_cannot_have_the_records_of_a_sink(
    topic: str, told: str, broker: EmbeddedBroker, examine: Examine
) -> None:
    broker.create_topic("persistent://a/b/parts", partitions=2)
    where = f"--option=sinkStateTopic={topic}"
    report = examine(broker.service_url, "--topic=orders", *EXACTLY_ONCE, where)
    assert told in only(report, "transactions")


def test_the_records_of_a_sink_at_work_are_examined_without_disturbing_it(
    broker: EmbeddedBroker, examine: Examine
) -> None:
    broker.create_topic("mine")
    sink = Sink(broker.service_url, "mine", "s")
    sink.run(0)
    with PulsarClient(broker.service_url) as client:
        (records,) = (name for name in broker.topics() if name.endswith(id_digest("s")))
        alone = ProducerAccessMode.ExclusiveWithFencing
        producer = client.create_producer(records, access_mode=alone)
        report = examine(broker.service_url, "--topic=mine", *EXACTLY_ONCE)
        assert report.status == 0
        assert broker.faults.seen("PRODUCER", records) > 0
        assert producer.is_connected()
    sink.run(1)


# --- topics -----------------------------------------------------------------------------------


def test_transactions_are_not_told_to_lack_a_topic_that_was_given(
    broker: EmbeddedBroker, examine: Examine
) -> None:
    broker.faults.error("LOOKUP", "AuthorizationError", times=None)
    step = examine(broker.service_url, "--topic", "orders").steps["transactions"]
    assert step["status"] == "skipped"
    assert "--topic" not in step["remedy"]


def test_a_topic_that_is_missing_and_stays_so(broker: EmbeddedBroker, examine: Examine) -> None:
    before = broker.topics()
    report = examine(broker.service_url, "--topic", "ordesr")
    assert "ordesr does not exist" in only(report, "partitions")
    assert broker.topics() == before


@pytest.mark.fault(46)
@pytest.mark.parametrize(
    "command,step,permission",
    [("SUBSCRIBE", "read", "consume"), ("PRODUCER", "write", "produce"), ("LOOKUP", "lookup", "")],
)
def test_a_permission_that_is_missing(
    command: str, step: str, permission: str, broker: EmbeddedBroker, examine: Examine
) -> None:
    broker.faults.error(command, "AuthorizationError", times=None)
    report = examine(broker.service_url, "--topic", "orders")
    granting = "pulsar-admin namespaces grant-permission public/default --role ROLE --actions"
    assert f"{granting} {permission or 'produce,consume'} (ROLE is" in only(report, step)
    if command != "LOOKUP":
        other = "write" if step == "read" else "read"
        assert report.steps[other]["status"] == "ok"


@pytest.mark.fault(16)
def test_redirects_without_end(broker: EmbeddedBroker, examine: Examine) -> None:
    broker.faults.redirect(broker.service_url, times=None)
    report = examine(broker.service_url, "--topic", "orders")
    assert "too many redirects" in only(report, "lookup")


def test_a_broker_whose_advertised_address_cannot_be_reached(
    broker: EmbeddedBroker, examine: Examine
) -> None:
    broker.faults.redirect("pulsar://127.0.0.1:1", times=None)
    report = examine(broker.service_url, "--topic", "orders", *PATIENCE)
    text = only(report, "lookup")
    assert "127.0.0.1:1" in text
    assert "listenerName" in text


@pytest.mark.fault(53)
def test_a_lookup_that_leads_out_of_tls(examine: Examine, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with EmbeddedBroker(tls=authority.server()) as broker:
        broker.create_topic("orders")
        broker.faults.redirect("pulsar://127.0.0.1:6650", times=None)
        trust = f"--option=pulsar.client.tlsTrustCertsFilePath={authority.file}"
        report = examine(broker.service_url, "--topic", "orders", trust)
    assert "TLS" in only(report, "lookup")


@pytest.mark.fault(18, 19)
@pytest.mark.parametrize("code", ["ServiceNotReady", "MetadataError", "TooManyRequests"])
def test_troubles_that_pass_are_no_failure(
    code: str, broker: EmbeddedBroker, examine: Examine
) -> None:
    broker.faults.error("LOOKUP", code, times=3)
    assert examine(broker.service_url, "--topic", "orders").status == 0


def test_transactions_that_are_off_are_no_failure_unless_they_are_needed(
    examine: Examine,
) -> None:
    with EmbeddedBroker(transactions=False) as broker:
        broker.create_topic("orders")
        report = examine(broker.service_url, "--topic", "orders")
        assert report.status == 0
        step = report.steps["transactions"]
        assert step["status"] == "skipped"
        assert "transactionCoordinatorEnabled=true" in step["remedy"]
        needed = ("--option", "deliveryGuarantee=exactly-once")
        report = examine(broker.service_url, "--topic", "orders", *needed)
        assert "transactionCoordinatorEnabled=true" in only(report, "transactions")


@pytest.mark.fault(84)
def test_an_open_transaction_is_shown_while_it_holds_reading_back(
    broker: EmbeddedBroker, examine: Examine
) -> None:
    with PulsarClient(broker.service_url) as client:
        txn = client.new_transaction()
        with client.create_producer("orders-partition-1") as producer:
            producer.send(b"inside", txn=txn)
        report = examine(broker.service_url, "--topic", "orders")
        step = report.steps["read"]
        assert (report.status, step["status"]) == (0, "ok")
        assert "orders-partition-1: open transaction holds the read position at" in step["detail"]
        assert "partition-0" not in step["detail"]
        assert "slow-transactions" in step["remedy"]
        txn.commit()
        step = examine(broker.service_url, "--topic", "orders").steps["read"]
        assert "open transaction" not in step["detail"] + step["remedy"]


def left_open(sink: Sink, batch: int = 1) -> TxnId:
    """Let a task of a sink write; its driver is killed before it can commit."""
    checked = sink.writer()
    checked.check()
    (txn,) = transactions_of([sink.write(batch, 0, checked)])
    return txn


def remedy_of(examine: Examine, broker: EmbeddedBroker, topic: str, *more: str) -> str:
    """Return what the doctor says of an open transaction; it changes nothing."""
    before = [(name, broker.stats(name).messages_in) for name in broker.topics()]
    still_open = broker.open_transactions()
    report = examine(broker.service_url, "--topic", topic, *more)
    assert report.status == 0
    assert "open transaction holds the read position" in report.steps["read"]["detail"]
    assert [(name, broker.stats(name).messages_in) for name in broker.topics()] == before
    assert broker.open_transactions() == still_open
    return str(report.steps["read"]["remedy"])


@pytest.mark.fault(180)
def test_the_sink_whose_killed_tasks_hold_a_topic_is_named(
    broker: EmbeddedBroker, examine: Examine, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.create_topic("mine")
    sink = Sink(broker.service_url, "mine", "my sink")
    sink.run(0)
    ended = left_open(sink)
    # A driver that starts aborts it; its announcement is still stored.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attempts, "this_process", lambda: "another")
        txn = left_open(sink)
    other = Sink(broker.service_url, "orders", "other")
    beside = left_open(other)
    remedy = remedy_of(examine, broker, "mine")
    assert "sink 'my sink'" in remedy
    assert "that are open, since 2" in remedy
    assert f"({txn.most_bits},{txn.least_bits})" in remedy
    for not_there in (ended, beside):
        assert f"({not_there.most_bits},{not_there.least_bits})" not in remedy
    assert "'other'" not in remedy
    assert "slow-transactions" in remedy
    # What it prints is what ends it.
    command = remedy.partition("python -m pulsar_spark ")[2].partition(" pulsar-admin")[0]
    arguments = shlex.split(command.replace("URL", broker.service_url))
    assert arguments[-2:] == ["--abort", "my sink"]
    assert cli.main(arguments) == 0
    capsys.readouterr()
    read = examine(broker.service_url, "--topic", "mine").steps["read"]
    assert "open transaction" not in read["detail"]


@pytest.mark.fault(180)
def test_a_decision_that_holds_a_topic_is_to_be_finished(
    broker: EmbeddedBroker, examine: Examine
) -> None:
    broker.create_topic("mine")
    sink = Sink(broker.service_url, "mine", "s")
    checked = sink.writer()
    checked.check()
    messages = [sink.write(0, task, checked) for task in range(2)]
    refused = broker.faults.error("END_TXN", pb.AuthorizationError, times=None)
    with refused, pytest.raises(PulsarError):
        sink.writer().commit(list(messages), 0)
    remedy = remedy_of(examine, broker, "mine")
    assert "of batch 0 that are open" in remedy
    assert "--finish s" in remedy
    assert "--abort" not in remedy


@pytest.mark.fault(180)
def test_a_sink_that_may_write_there_as_well_is_a_candidate(
    broker: EmbeddedBroker, examine: Examine
) -> None:
    """An attempt announces the first topic that it writes to, and its rows may name others."""
    broker.create_topic("mine")
    broker.create_topic("first")
    left_open(Sink(broker.service_url, "first", "s"))
    with PulsarClient(broker.service_url) as client:
        client.create_producer("mine").send(b"", txn=client.new_transaction())
        remedy = remedy_of(examine, broker, "mine")
    assert "sink 's'" in remedy
    assert "--abort s" in remedy


@pytest.mark.fault(180)
def test_without_an_announcement_it_says_what_else_it_can_be(
    broker: EmbeddedBroker, examine: Examine
) -> None:
    broker.create_topic("mine")
    with PulsarClient(broker.service_url) as client:
        client.create_producer("mine").send(b"", txn=client.new_transaction())
        remedy = remedy_of(examine, broker, "mine")
    assert "No exactly-once sink with records in public/default has announced" in remedy
    assert "another producer's" in remedy
    assert "sinkStateTopic" in remedy
    assert "slow-transactions -t 0s" in remedy


@pytest.mark.fault(180)
def test_a_sink_whose_records_are_elsewhere_is_found_by_its_option(
    broker: EmbeddedBroker, examine: Examine
) -> None:
    broker.create_topic("mine")
    sink = Sink(broker.service_url, "mine", "s")
    sink.options["sinkStateTopic"] = "a/b/records"
    left_open(sink)
    assert "No exactly-once sink" in remedy_of(examine, broker, "mine")
    named = remedy_of(examine, broker, "mine", "--option", "sinkStateTopic=a/b/records")
    assert "sink 's'" in named
    assert "sinkStateTopic=persistent://a/b/records --abort s" in named


@pytest.mark.fault(180)
@pytest.mark.parametrize(
    "command,told",
    [
        ("ADD_PARTITION_TO_TXN", "that may be open"),
        ("GET_TOPICS_OF_NAMESPACE", "Not looked at: the sinks of public/default"),
        ("GET_LAST_MESSAGE_ID", "Not looked at: persistent://public/default/__spark_sink-"),
    ],
)
def test_what_cannot_be_found_out_of_a_sink_is_said(
    command: str, told: str, broker: EmbeddedBroker, examine: Examine
) -> None:
    broker.create_topic("mine")
    left_open(Sink(broker.service_url, "mine", "s"))

    def of_a_sink(seen: Seen) -> bool:
        return command != "GET_LAST_MESSAGE_ID" or "__spark_sink" in (seen.topic or "")

    broker.faults.error(command, pb.AuthorizationError, times=None, when=of_a_sink)
    assert told in remedy_of(examine, broker, "mine")


@pytest.mark.fault(180)
def test_a_coordinator_that_does_not_answer_is_not_waited_for_long(
    broker: EmbeddedBroker, examine: Examine
) -> None:
    broker.create_topic("mine")
    left_open(Sink(broker.service_url, "mine", "s"))
    broker.faults.drop("ADD_PARTITION_TO_TXN", times=None)
    remedy = remedy_of(examine, broker, "mine", *PATIENCE)
    assert "that may be open" in remedy


@pytest.mark.fault(20)
@pytest.mark.parametrize("command,step", [("SUBSCRIBE", "read"), ("PRODUCER", "write")])
def test_a_topic_that_went_to_another_cluster(
    command: str, step: str, broker: EmbeddedBroker, examine: Examine
) -> None:
    """A broker sends this error instead of an answer."""

    def tell(seen: Seen) -> bool:
        consumer = isinstance(seen.body, pb.CommandSubscribe)
        kind = pb.CommandTopicMigrated
        told = commands.build(
            kind,
            resource_id=seen.body.consumer_id if consumer else seen.body.producer_id,
            resource_type=kind.Consumer if consumer else kind.Producer,
        )
        broker.faults.inject(told, seen.connection)
        return True

    broker.faults.drop(command, times=None, when=tell)
    report = examine(broker.service_url, "--topic", "orders")
    text = only(report, step)
    assert "migrated to another cluster" in text
    assert "service.url" in text
    # The error comes at once, not as a timeout.
    assert report.steps[step]["seconds"] < 8


@pytest.mark.fault(18)
@pytest.mark.parametrize(
    "command,step", [("LOOKUP", "lookup"), ("SUBSCRIBE", "read"), ("PRODUCER", "write")]
)
def test_troubles_that_do_not_pass(
    command: str, step: str, broker: EmbeddedBroker, examine: Examine
) -> None:
    broker.faults.error(command, "ServiceNotReady", "not loaded", times=None)
    patience = "--option=pulsar.client.operationTimeoutMs=1000"
    report = examine(broker.service_url, "--topic", "orders", patience)
    assert "not loaded" in only(report, step)


@pytest.mark.slow
@pytest.mark.fault(24)
@pytest.mark.parametrize(
    "command,step",
    [
        ("CONNECT", "handshake"),
        ("LOOKUP", "lookup"),
        ("SUBSCRIBE", "read"),
        ("GET_LAST_MESSAGE_ID", "read"),
        ("GET_SCHEMA", "schema"),
        ("END_TXN", "transactions"),
    ],
)
def test_a_question_that_is_never_answered(
    command: str, step: str, broker: EmbeddedBroker, examine: Examine
) -> None:
    broker.faults.drop(command, times=None)
    report = examine(broker.service_url, "--topic", "orders", *PATIENCE)
    assert step in report.failed()
    # The steps that do not depend on it still report.
    assert len(report.steps) == len(STEPS)
    if command not in ("SUBSCRIBE", "GET_LAST_MESSAGE_ID", "GET_SCHEMA"):
        assert report.failed() == [step]


def test_a_sample_of_many_partitions_is_looked_at(broker: EmbeddedBroker, examine: Examine) -> None:
    broker.create_topic("many", partitions=250)
    report = examine(broker.service_url, "--topic", "many")
    assert report.status == 0
    assert "250 partitions; 100 of them" in report.steps["partitions"]["detail"]
    assert broker.faults.seen("PRODUCER") == 100


@pytest.mark.fault(25)
def test_a_producer_that_is_never_let_in(broker: EmbeddedBroker, examine: Examine) -> None:
    broker.faults.drop("PRODUCER", times=None)
    only(examine(broker.service_url, "--topic", "orders", *PATIENCE), "write")


def test_writing_is_tried_with_the_schema_that_the_topic_has(
    broker: EmbeddedBroker, examine: Examine
) -> None:
    with PulsarClient(broker.service_url) as client:
        client.create_producer("orders", schema=StringSchema()).send("a book")
    broker.faults.forget()
    report = examine(broker.service_url, "--topic", "orders")
    assert report.status == 0
    assert "STRING" in report.steps["schema"]["detail"]
    producers = broker.faults.log("PRODUCER")
    assert [seen.body.schema.type for seen in producers] == [pb.Schema.String] * 2
    assert broker.faults.seen("GET_OR_CREATE_SCHEMA") == 0


# --- the admin REST ---------------------------------------------------------------------------


def test_how_long_messages_are_kept_is_asked_of_the_admin_rest(
    broker: EmbeddedBroker, examine: Examine, caplog: pytest.LogCaptureFixture
) -> None:
    with WebService() as admin:
        limits = {"retentionTimeInMinutes": 180, "retentionSizeInMB": -1}
        found = {"retention_policies": limits, "message_ttl_in_seconds": 60}
        admin.answers = [say(200, found), say(200, {})]
        given = ("--topic", "orders", "--admin-url", admin.url)
        step = examine(broker.service_url, *given).steps["retention"]
        assert step["status"] == "ok"
        assert "keeps what was acknowledged for 180 minutes, whatever its size" in step["detail"]
        assert "what was not acknowledged is kept for 60 s" in step["detail"]
        assert "message TTL" in step["remedy"]
        step = examine(
            broker.service_url, "--topic", "orders", "--option", f"admin.url={admin.url}"
        ).steps["retention"]
        assert "defaults" in step["detail"]
        assert {asked.path for asked in admin.asked} == {"/admin/v2/namespaces/public/default"}
    assert not caplog.records


@pytest.mark.parametrize(
    "minutes,size,told",
    [
        (-1, -1, "keeps what was acknowledged for ever, whatever its size"),
        (60, 100, "keeps what was acknowledged for 60 minutes, up to 100 MB"),
        (0, 0, "does not keep what was acknowledged"),
    ],
)
def test_retention_without_a_limit_is_told_in_words(
    minutes: int, size: int, told: str, broker: EmbeddedBroker, examine: Examine
) -> None:
    limits = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size}
    with WebService() as admin:
        admin.answers = [say(200, {"retention_policies": limits})]
        report = examine(broker.service_url, "--topic", "orders", "--admin-url", admin.url)
    assert report.steps["retention"]["detail"] == f"public/default {told}"


@pytest.mark.parametrize("answer", [[], None, "policies", 7], ids=repr)
def test_an_admin_rest_that_tells_something_else(
    answer: object, broker: EmbeddedBroker, examine: Examine
) -> None:
    with WebService() as admin:
        admin.answers = [say(200, answer)]
        report = examine(broker.service_url, "--topic", "orders", "--admin-url", admin.url)
    assert "/admin/v2/namespaces/public/default" in only(report, "retention")


def test_a_role_that_may_not_ask_for_policies(broker: EmbeddedBroker, examine: Examine) -> None:
    with WebService() as admin:
        admin.answers = [refuse(403, "not for you")]
        given = ("--topic", "orders", "--admin-url", admin.url)
        assert "administrator" in only(examine(broker.service_url, *given), "retention")


# --- executors --------------------------------------------------------------------------------


def test_executors_are_shown_one_by_one(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"name": "connect", "status": "failed", "detail": "no route", "remedy": "Open it."}
    here = {"python": "3.12.1", "pulsar_spark": "0.1.0", "implementation": "python"}
    reports = [
        {"host": "one", "executor": 7, "ok": True, "steps": [], "environment": here},
        {"host": "two", "executor": 8, "ok": False, "steps": [wrong], "environment": {}},
    ]
    asked: list[Any] = []

    def answer(*given: Any) -> Any:
        asked.append(given)
        return reports

    monkeypatch.setattr(executors, "examine_executors", answer)
    arguments = ["--executors", "--master", "spark://host:7077", "--tasks", "4"]
    assert cli.main(["doctor", "--service-url", broker.service_url, *arguments]) == 1
    assert asked == [({"service.url": broker.service_url}, None, "spark://host:7077", 4)]
    lines = capsys.readouterr().out.splitlines()
    assert "one (7)   ok      3.12.1  0.1.0         python          no step failed" in lines
    assert "two (8)   failed  -       -             -               connect: no route" in lines
    assert "  connect on two: Open it." in lines


def test_a_job_that_cannot_be_run_is_told(
    broker: EmbeddedBroker, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(_: str | None) -> Any:
        raise RuntimeError("no such master, password=canary\n  at java")

    monkeypatch.setattr(executors, "_session", session)
    report = examine(broker.service_url, "--executors", "--master", "spark://nowhere:1")
    assert report.status == 1
    assert report.failed() == []
    (executor,) = report.body["executors"]
    assert "no such master" in executor["steps"][0]["detail"]
    assert "canary" not in report.text


def test_a_package_that_an_executor_lacks_is_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take = executors.task({}, None)
    monkeypatch.setitem(sys.modules, "pulsar_spark.cli.doctor.executors", None)
    (batch,) = take(iter(()))
    (row,) = batch.to_pylist()
    (step,) = json.loads(row["report"])["steps"]
    assert "cannot be imported" in step["detail"]
    assert "--py-files" in step["remedy"]


def test_a_package_that_this_one_needs_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def report(*_: Any) -> None:
        raise ModuleNotFoundError("no lz4", name="lz4")

    take = executors.task({}, None)
    monkeypatch.setattr(executors, "report", report)
    (batch,) = take(iter(()))
    (row,) = batch.to_pylist()
    (step,) = json.loads(row["report"])["steps"]
    assert step["detail"].startswith("pulsar-spark needs the package lz4")
    assert step["remedy"].endswith("pip install lz4")


# --- other ways to the brokers ----------------------------------------------------------------


def test_a_web_service_is_examined_up_to_the_brokers_that_it_names(
    broker: EmbeddedBroker, examine: Examine
) -> None:
    with WebService(broker.service_url, partitions=2) as web:
        report = examine(web.url, "--topic", "orders")
        assert report.status == 0, report.text
        assert "lookups by REST" in report.steps["handshake"]["detail"]
        statuses = {name: step["status"] for name, step in report.steps.items()}
        assert statuses["read"] == statuses["write"] == "ok"
        web.answers = [refuse(401, "Need to authenticate")]
        assert "authParams" in only(examine(web.url, "--topic", "orders"), "authenticate")
        web.answers = [refuse(404, "HTTP 404 Not Found")]
        assert "no web service of Pulsar" in only(examine(web.url), "handshake")
    report = examine(f"http://127.0.0.1:{broker.port}", *PATIENCE)
    assert "8080" in only(report, "handshake")


def test_a_proxy_that_goes_by_sni_is_examined_instead_of_names_that_only_it_knows(
    examine: Examine, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    tls = authority.server("broker.example", "127.0.0.1")
    with EmbeddedBroker(tls=tls) as broker:
        broker.create_topic("orders")
        report = examine(
            "pulsar+ssl://broker.example:6651",
            "--topic=orders",
            f"--option=pulsar.client.tlsTrustCertsFilePath={authority.file}",
            f"--option=pulsar.client.proxyServiceUrl=pulsar+ssl://127.0.0.1:{broker.port}",
            "--option=pulsar.client.proxyProtocol=SNI",
        )
        assert report.status == 0, report.text
