"""``subscriptions`` shows existing ones, creates none, and drops none that is in use."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_spark.cli import main as cli
from pulsar_spark.cli.checkpoint import stream_offsets
from pulsar_spark.engine.consumers import consumer_session
from pulsar_spark.engine.consumers.subscription import EARLIEST, SubscriptionSet
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from pulsar_spark.testing import EmbeddedBroker, TopicPolicies
from tests.integration.checkpoints import FOLDER, SUBSCRIPTION, TOPIC
from tests.spark.topics import full, store
from tests.support.issuer import say
from tests.support.web_service import WebService, refuse

Run = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def held(broker: EmbeddedBroker) -> Iterator[SubscriptionSet]:
    """The subscription `mine` on both partitions, in use until closed."""
    with ClientContext(ClientOptions(broker.service_url)) as context:
        subscriptions = SubscriptionSet(context, "mine", 30.0)
        for number in range(2):
            subscriptions.add(full(f"orders-partition-{number}"), EARLIEST)
        subscriptions.ends()
        store(broker, "orders-partition-0", [b"a", b"b"])
        store(broker, "orders-partition-0", [b"c"])
        yield subscriptions
        subscriptions.close()


@pytest.fixture
def run(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        status = cli.main(
            ["subscriptions", "--service-url", broker.service_url, "--json", *arguments]
        )
        return status, json.loads(capsys.readouterr().out)

    return command


def states(rows: list[dict[str, Any]]) -> list[str]:
    return [row["state"] for row in rows]


def names(broker: EmbeddedBroker) -> list[set[str]]:
    return [set(broker.subscriptions(f"orders-partition-{number}")) for number in range(2)]


def checkpoint(folder: Path, body: str) -> str:
    (folder / "offsets").mkdir()
    (folder / "offsets" / "7").write_text("v1\n{}\n{}")
    (folder / "offsets" / "10").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{body}')
    (folder / "offsets" / ".10.crc").write_bytes(b"\xff")
    return str(folder)


def test_one_of_a_full_topic_is_shown_and_dropped(
    broker: EmbeddedBroker,
    run: Run,
    held: SubscriptionSet,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_session, "_TURN_SECONDS", 0.1)
    held.close()
    broker.set_policies("orders", TopicPolicies(max_subscriptions=1))
    arguments = ("--topic", "orders", "--subscription", "mine")
    status, rows = run(*arguments)
    assert (status, states(rows)) == (0, ["idle"] * 2)
    # That another one is missing cannot be told.
    other = ["subscriptions", "--service-url", broker.service_url, *arguments[:3], "other"]
    assert cli.main(other) == 1
    assert "maxSubscriptionsPerTopic" in capsys.readouterr().err
    status, rows = run(*arguments, "--drop")
    assert (status, states(rows)) == (0, ["dropped"] * 2)
    assert names(broker) == [set(), set()]


def test_the_backlog_is_told_in_entries(run: Run, held: SubscriptionSet) -> None:
    held.close()
    status, rows = run("--topic", "orders", "--subscription", "mine")
    assert status == 0
    assert rows == [
        {
            "subscription": "mine",
            "topic": full(f"orders-partition-{number}"),
            "backlog": backlog,
            "state": "idle",
        }
        for number, backlog in enumerate((2, 0))
    ]


def test_one_that_does_not_exist_is_not_created(run: Run, broker: EmbeddedBroker) -> None:
    status, rows = run("--topic", "orders", "--subscription", "none")
    assert (status, states(rows)) == (0, ["does not exist"] * 2)
    status, rows = run("--topic", "orders", "--subscription", "none", "--drop")
    assert (status, states(rows)) == (1, ["does not exist"] * 2)
    assert names(broker) == [set(), set()]


def test_one_in_use_is_told_and_not_dropped(
    run: Run, held: SubscriptionSet, broker: EmbeddedBroker
) -> None:
    for arguments in ([], ["--drop"]):
        status, rows = run("--topic", "orders", "--subscription", "mine", *arguments)
        assert status == len(arguments)
        assert states(rows) == ["in use"] * 2
    assert names(broker) == [{"mine"}, {"mine"}]
    assert all(not isinstance(end, Exception) for end in held.ends().values())


def test_an_idle_one_is_dropped_and_no_other(
    run: Run, held: SubscriptionSet, broker: EmbeddedBroker
) -> None:
    held.close()
    assert run("--topic", "orders-partition-0", "--subscription", "mine", "--drop")[0] == 0
    assert names(broker) == [set(), {"mine"}]
    status, rows = run("--topic", "orders", "--subscription", "mine", "--drop")
    assert (status, states(rows)) == (0, ["does not exist", "dropped"])
    assert names(broker) == [set(), set()]


def test_a_drop_whose_answer_is_lost_creates_nothing(
    run: Run, held: SubscriptionSet, broker: EmbeddedBroker
) -> None:
    held.close()
    broker.faults.close("UNSUBSCRIBE", answer=True)
    status, _ = run("--topic", "orders", "--subscription", "mine", "--drop")
    assert status == 0
    assert names(broker) == [set(), set()]


@pytest.mark.parametrize("source", ["", "0:"])
def test_a_checkpoint_names_them(
    source: str, run: Run, held: SubscriptionSet, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    first = broker.stats("orders-partition-0").ledgers[0]
    offset = StreamOffset(
        "mine",
        {
            full("orders-partition-0"): Position(first, 1),
            full("orders-partition-1"): Position(-1, -1),
        },
    )
    folder = checkpoint(tmp_path, f"{source}{json.dumps(offset.to_json())}\n-")
    # While the query runs, its lag counts from its checkpoint on.
    status, rows = run("--checkpoint", folder)
    assert (status, states(rows)) == (0, ["in use"] * 2)
    assert [row["backlog"] for row in rows] == [1, 0]
    held.close()
    _, rows = run("--checkpoint", f"file://{folder}", "--topic", "orders-partition-0")
    assert [(row["backlog"], row["state"]) for row in rows] == [(2, "idle")]
    status, rows = run("--checkpoint", folder, "--drop")
    assert (status, states(rows)) == (0, ["dropped"] * 2)


def test_the_admin_rest_tells_of_all_of_them(run: Run, held: SubscriptionSet) -> None:
    told = {"mine": {"msgBacklog": 7, "consumers": [{}]}, "a/b": {"msgBacklog": 0, "consumers": []}}
    with WebService() as admin:
        admin.answers = [say(200, {"subscriptions": told}), refuse(404, "Topic not found")]
        status, rows = run("--topic", "orders", "--admin-url", admin.url)
        assert status == 0
        assert [(row["subscription"], row["backlog"], row["state"]) for row in rows] == [
            ("mine", 7, "in use"),
            ("a/b", 0, "idle"),
        ]
        admin.answers = [say(200, {"subscriptions": told})] * 2
        status, rows = run(
            "--topic", "orders", "--admin-url", admin.url, "--subscription", "mine", "--drop"
        )
        assert (status, states(rows)) == (1, ["in use"] * 2)
        assert {asked.path for asked in admin.asked} == {
            f"/admin/v2/persistent/public/default/orders-partition-{number}/stats"
            for number in range(2)
        }


@pytest.mark.parametrize(
    "answer",
    [
        [],
        "stats",
        {},
        {"subscriptions": []},
        {"subscriptions": {"mine": None}},
        {"subscriptions": {"mine": {}}},
        {"subscriptions": {"mine": {"msgBacklog": "many", "consumers": []}}},
    ],
    ids=repr,
)
def test_an_admin_rest_that_tells_something_else_is_an_error(
    answer: object,
    held: SubscriptionSet,
    broker: EmbeddedBroker,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = ["--service-url", broker.service_url, "--topic", "orders-partition-0"]
    with WebService() as admin:
        admin.answers = [say(200, answer)]
        assert cli.main(["subscriptions", *place, "--admin-url", admin.url]) == 1
    assert "is not one of Pulsar's web service" in capsys.readouterr().err


def test_a_server_that_is_not_pulsars_has_no_subscriptions_to_list(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--service-url", broker.service_url, "--topic", "orders-partition-0"]
    with WebService() as admin:
        admin.answers = [say(404, b"<html>Not Found</html>")]
        assert cli.main(["subscriptions", *place, "--admin-url", admin.url]) == 1
    told = capsys.readouterr().err
    assert f"{admin.host} answers HTTP, but is not Pulsar's web service" in told
    assert "Check --admin-url and its port" in told


def test_an_admin_rest_that_refuses_is_named_as_it_was_given(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--service-url", broker.service_url, "--topic", "orders-partition-0"]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert cli.main(["subscriptions", *place, "--admin-url", url]) == 1
    told = capsys.readouterr().err
    assert "Check --admin-url" in told
    assert "service.url" not in told


def test_a_namespace_without_topics_is_noted(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--service-url", broker.service_url, "--namespace", "no/where"]
    with WebService() as admin:
        assert cli.main(["subscriptions", *place, "--admin-url", admin.url, "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == []
    assert "the namespace no/where has no topics, or does not exist" in shown.err


@pytest.mark.parametrize("folder", sorted(FOLDER.glob("spark-*")), ids=lambda folder: folder.name)
def test_checkpoints_that_spark_wrote_are_understood(folder: Path) -> None:
    (offset,) = stream_offsets(str(folder))
    assert offset.subscription == SUBSCRIPTION
    assert set(offset.positions) == {f"{full(TOPIC)}-partition-{number}" for number in range(2)}


def test_a_checkpoint_of_something_else_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(tmp_path, '{"logOffset":3}\n7\n-\n' + "[" * 100_000)
    arguments = ["--service-url", "pulsar://localhost", "--checkpoint", folder]
    assert cli.main(["subscriptions", *arguments]) == 2
    assert "offsets/10 holds no offset of a Pulsar stream: it is" in capsys.readouterr().err
    for log in (tmp_path / "offsets").iterdir():
        log.unlink()
    assert cli.main(["subscriptions", *arguments]) == 2
    assert "offsets has no offset of a Pulsar stream" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["lag"], ["subscriptions"], ["subscriptions", "--drop"]])
@pytest.mark.parametrize("line", ['0:{"positions":{', '{"a":' * 100_000], ids=["cut", "deep"])
def test_a_checkpoint_with_a_damaged_line_gives_no_part_of_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], line: str
) -> None:
    whole = json.dumps(StreamOffset("mine", {full("orders"): Position(1, 0)}).to_json())
    folder = checkpoint(tmp_path, f"{whole}\n{line}")
    arguments = ["--service-url", "pulsar://localhost", "--checkpoint", folder]
    assert cli.main([*command, *arguments]) == 2
    assert f"{folder}/offsets/10, line 4, is damaged" in capsys.readouterr().err


def test_a_checkpoint_that_is_not_text_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(tmp_path, "")
    for log in (tmp_path / "offsets").iterdir():
        log.write_bytes(b"v1\n\xff\xfe")
    arguments = ["--service-url", "pulsar://localhost", "--checkpoint", folder]
    assert cli.main(["subscriptions", *arguments]) == 2
    assert "it is not text" in capsys.readouterr().err


# --- those of other connectors --------------------------------------------------------------------


UUID = "0f3a1b2c-1111-2222-3333-444455556666"
LEFT = [f"spark-pulsar-batch-{UUID}-orders", f"spark-pulsar-{UUID}-orders"]
PATTERN = "spark-pulsar-(batch-)?[0-9a-f-]{36}-.*"


@pytest.fixture
def left(broker: EmbeddedBroker) -> Iterator[WebService]:
    """The admin REST of a broker with subscriptions that the Scala connector left."""
    broker.create_topic("other")
    with ClientContext(ClientOptions(broker.service_url)) as context:
        for name in [*LEFT, "mine"]:
            subscriptions = SubscriptionSet(context, name, 30.0)
            for topic in ("orders-partition-0", "orders-partition-1", "other"):
                subscriptions.add(full(topic), EARLIEST)
            subscriptions.ends()
            subscriptions.close()
    with WebService() as admin:
        idle = {name: {"msgBacklog": 3, "consumers": []} for name in [*LEFT, "mine"]}
        admin.answers = [say(200, {"subscriptions": idle})] * 20
        yield admin


def asking(monkeypatch: pytest.MonkeyPatch, answer: str, *, terminal: bool = True) -> list[str]:
    """Let a person answer; return the questions that are asked."""
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return answer

    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: terminal))
    return asked


def test_those_that_match_are_dropped_after_a_question(
    left: WebService,
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = ["--service-url", broker.service_url, "--topic", "orders", "--admin-url", left.url]
    command = ["subscriptions", *place, "--drop-matching", PATTERN]
    asked = asking(monkeypatch, "n")
    assert cli.main(command) == 1
    shown = capsys.readouterr()
    assert all(name in shown.out for name in LEFT)
    assert "mine" not in shown.out
    assert "nothing was dropped" in shown.err
    assert asked == ["Drop 4 of these, and the messages that only they retain? [y/N] "]
    assert names(broker) == [{*LEFT, "mine"}] * 2
    asking(monkeypatch, "y")
    assert cli.main(command) == 0
    assert "dropped" in capsys.readouterr().out
    assert names(broker) == [{"mine"}] * 2
    assert set(broker.subscriptions("other")) == {*LEFT, "mine"}


def test_those_of_a_whole_namespace_are_dropped(
    left: WebService, broker: EmbeddedBroker, run: Run
) -> None:
    place = ("--namespace", "public/default", "--admin-url", left.url)
    status, rows = run(*place, "--drop-matching", PATTERN, "--yes")
    assert (status, states(rows)) == (0, ["dropped"] * 6)
    assert [*names(broker), set(broker.subscriptions("other"))] == [{"mine"}] * 3


def test_a_name_has_to_match_as_a_whole(
    left: WebService, broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--service-url", broker.service_url, "--topic", "other", "--admin-url", left.url]
    assert cli.main(["subscriptions", *place, "--drop-matching", "min", "--yes"]) == 0
    assert "none of 3 subscriptions matches" in capsys.readouterr().err
    assert "mine" in broker.subscriptions("other")


def test_without_a_terminal_nothing_is_dropped_unless_that_is_said(
    left: WebService,
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asking(monkeypatch, "y", terminal=False)
    place = ["--service-url", broker.service_url, "--topic", "orders", "--admin-url", left.url]
    assert cli.main(["subscriptions", *place, "--drop-matching", PATTERN]) == 2
    assert "--yes" in capsys.readouterr().err
    assert names(broker) == [{*LEFT, "mine"}] * 2


@pytest.mark.parametrize(
    "arguments,told",
    [
        ("--topic orders --drop-matching x", "--admin-url"),
        ("--topic orders --drop-matching ( --admin-url http://h:1", "regular expression"),
        ("--topic orders --drop-matching x --subscription y", "--subscription"),
        ("--topic orders --drop-matching x --admin-url http://h:1 --json", "--yes"),
        ("--topic orders --subscription y --yes", "--drop-matching"),
        ("--namespace nothing --subscription y", "TENANT/NAMESPACE"),
        ("--namespace a/b --subscription y --topic orders", "--topic"),
    ],
)
def test_what_does_not_go_together_is_wrong_usage(
    arguments: str, told: str, broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["subscriptions", "--service-url", broker.service_url, *arguments.split()]
    assert cli.main(command) == 2
    assert told in capsys.readouterr().err


def test_the_admin_rest_of_a_profile_lists_subscriptions_that_nobody_names(
    left: WebService, broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "client.conf"
    profile.write_text(f"brokerServiceUrl={broker.service_url}\nwebServiceUrl={left.url}\n")
    arguments = ["--profile", str(profile), "--topic", "other", "--json"]
    assert cli.main(["subscriptions", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["subscription"] for row in found} == {*LEFT, "mine"}
    asked = len(left.asked)
    # A named one is asked about at the broker.
    assert cli.main(["subscriptions", *arguments, "--subscription", "mine"]) == 0
    assert len(left.asked) == asked
