"""``subscriptions`` shows existing ones, creates none, and drops none that is in use."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
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


@pytest.mark.parametrize("folder", sorted(FOLDER.glob("spark-*")), ids=lambda folder: folder.name)
def test_checkpoints_that_spark_wrote_are_understood(folder: Path) -> None:
    (offset,) = stream_offsets(str(folder))
    assert offset.subscription == SUBSCRIPTION
    assert set(offset.positions) == {f"{full(TOPIC)}-partition-{number}" for number in range(2)}


@pytest.mark.parametrize(
    "arguments,words",
    [
        ([], "--subscription"),
        (["--subscription", "mine"], "--topic"),
        (["--topic", "t", "--admin-url", "http://localhost", "--drop"], "--subscription"),
        (["--topic", "t", "--subscription", "mine", "--checkpoint", "/data"], "together"),
        (["--checkpoint", "/nowhere"], "checkpointLocation"),
        (["--checkpoint", "s3://bucket/folder"], "Copy"),
    ],
)
def test_wrong_usage_ends_with_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["subscriptions", "--service-url", "pulsar://localhost", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_checkpoint_of_something_else_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(tmp_path, '{"logOffset":3}\n' + "[" * 100_000)
    arguments = ["--service-url", "pulsar://localhost", "--checkpoint", folder]
    assert cli.main(["subscriptions", *arguments]) == 2
    assert "no offset of a Pulsar stream" in capsys.readouterr().err


def test_a_checkpoint_that_is_not_text_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(tmp_path, "")
    for log in (tmp_path / "offsets").iterdir():
        log.write_bytes(b"v1\n\xff\xfe")
    arguments = ["--service-url", "pulsar://localhost", "--checkpoint", folder]
    assert cli.main(["subscriptions", *arguments]) == 2
    assert "it is not text" in capsys.readouterr().err
