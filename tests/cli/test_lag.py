"""``lag`` tells from a checkpoint how far its query is behind, once or again and again."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.cli import lag
from pulsar_spark.cli import main as cli
from pulsar_spark.errors import AuthorizationError, ConnectError
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import full, store
from tests.support.waiting import wait_until

ZERO, ONE = full("orders-partition-0"), full("orders-partition-1")


class Checkpoint:
    """A checkpoint as Spark writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("offsets", "commits"):
            (folder / name).mkdir()

    def plan(self, batch: int, positions: dict[str, str], **more: object) -> None:
        body = {"positions": positions, "subscription": "mine", "version": 1, **more}
        (self.folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(body)}")

    def commit(self, batch: int) -> None:
        (self.folder / "commits" / str(batch)).write_text("v1\n{}")
        (self.folder / "commits" / f".{batch}.crc").write_bytes(b"\xff")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


def positions(broker: EmbeddedBroker, entry: int, batch: int = 0) -> dict[str, str]:
    """Return the positions of both partitions before an entry."""
    ledgers = [broker.stats(name).ledgers[0] for name in (ZERO, ONE)]
    return {
        name: f"{ledger}:{entry}:{batch}" for name, ledger in zip((ZERO, ONE), ledgers, strict=True)
    }


def look(
    broker: EmbeddedBroker,
    checkpoint: Checkpoint,
    capsys: pytest.CaptureFixture[str],
    *arguments: str,
) -> dict[str, dict[str, Any]]:
    place = ["--service-url", broker.service_url, "--checkpoint", str(checkpoint.folder)]
    assert cli.main(["lag", *place, "--json", *arguments]) == 0
    return {row["partition"]: row for row in json.loads(capsys.readouterr().out)}


def test_the_lag_is_what_follows_the_last_micro_batch_that_was_committed(
    broker: EmbeddedBroker, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(4):
        store(broker, "orders-partition-0", [b"abc"] * 3)
    store(broker, "orders-partition-1", [b"abc"] * 3)
    checkpoint.plan(0, positions(broker, 1))
    checkpoint.commit(0)
    # Planned, and not yet done.
    checkpoint.plan(1, positions(broker, 4))
    found = look(broker, checkpoint, capsys)
    assert list(found) == [ZERO, ONE]
    assert found[ZERO]["messages"] == 9
    assert found[ZERO]["bytes"] > 27
    assert found[ZERO]["seconds"] >= 0
    assert not found[ZERO]["messages_estimated"]
    assert (found[ONE]["messages"], found[ONE]["bytes"], found[ONE]["seconds"]) == (0, 0, 0)
    checkpoint.commit(1)
    assert {row["messages"] for row in look(broker, checkpoint, capsys).values()} == {0}


def test_before_the_first_commit_everything_since_the_querys_start_is_left(
    broker: EmbeddedBroker, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    store(broker, "orders-partition-0", [b"a", b"b"])
    starts = dict.fromkeys((ZERO, ONE), "-1:-1:0")
    checkpoint.plan(0, positions(broker, 1), starts=starts)
    assert look(broker, checkpoint, capsys)[ZERO]["messages"] == 2


def test_one_topic_partition_can_be_named_and_one_that_is_gone_is_unknown(
    broker: EmbeddedBroker, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = full("deleted")
    checkpoint.plan(0, {**positions(broker, 0), gone: "7:0:0"})
    checkpoint.commit(0)
    found = look(broker, checkpoint, capsys)
    assert found[gone]["messages"] is None
    assert found[ZERO]["messages"] == 0
    assert list(look(broker, checkpoint, capsys, "--topic", "orders")) == [ZERO, ONE]
    assert list(look(broker, checkpoint, capsys, "--topic", "orders-partition-1")) == [ONE]


@pytest.mark.parametrize("command", ["lag", "subscriptions"])
def test_a_topic_that_the_checkpoint_does_not_have_is_wrong_usage(
    command: str,
    broker: EmbeddedBroker,
    checkpoint: Checkpoint,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint.plan(0, positions(broker, 0))
    checkpoint.commit(0)
    place = ["--service-url", broker.service_url, "--checkpoint", str(checkpoint.folder)]
    assert cli.main([command, *place, "--topic", "order"]) == 2
    shown = capsys.readouterr()
    assert f"no position of {full('order')}" in shown.err
    assert f"It has those of {full('orders')}." in shown.err
    assert shown.out == ""


def test_an_interval_without_watching_is_wrong_usage(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--service-url", "pulsar://localhost", "--checkpoint", str(checkpoint.folder)]
    assert cli.main(["lag", *place, "--interval", "1"]) == 2
    assert "--interval is for --watch" in capsys.readouterr().err


def test_nothing_is_left_behind(
    broker: EmbeddedBroker, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    store(broker, "orders-partition-0", [b"a"] * 3)
    checkpoint.plan(0, positions(broker, 0))
    checkpoint.commit(0)
    look(broker, checkpoint, capsys)
    wait_until(lambda: not (broker.subscriptions(ZERO) or broker.subscriptions(ONE)))


def test_it_is_watched_with_its_rate_until_ctrl_c(
    broker: EmbeddedBroker,
    checkpoint: Checkpoint,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store(broker, "orders-partition-0", [b"a"] * 4)
    checkpoint.plan(0, positions(broker, 0))
    checkpoint.commit(0)
    looks = 0

    def wait(seconds: float) -> None:
        nonlocal looks
        assert seconds == 1
        looks += 1
        if looks == 2:
            checkpoint.plan(1, positions(broker, 1))
            checkpoint.commit(1)
        if looks == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(lag, "wait", wait)
    place = ["--service-url", broker.service_url, "--checkpoint", str(checkpoint.folder)]
    assert cli.main(["lag", *place, "--watch", "--interval", "1"]) == 130
    tables = [text.splitlines() for text in capsys.readouterr().out.split("\n\n")]
    assert [table[0].split() for table in tables] == [
        ["partition", "messages", "bytes", "seconds", "rate"]
    ] * 3
    # The longest comes first, and the total last.
    assert [table[1].split()[0] for table in tables[:2]] == [ZERO] * 2
    assert {table[-1].split()[0] for table in tables} == {"total"}
    assert [table[-1].split()[1] for table in tables] == ["4", "4", "0"]
    assert [table[-1].split()[-1] for table in tables[:2]] == ["-", "0.000"]
    assert tables[2][-1].split()[-1].startswith("-")
    looks = 2
    assert cli.main(["lag", *place, "--watch", "--interval", "1", "--json"]) == 130
    (line,) = capsys.readouterr().out.splitlines()
    assert [row["messages"] for row in json.loads(line)["partitions"]] == [0, 0]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_broker_that_does_not_answer_is_asked_again(
    as_json: bool,
    broker: EmbeddedBroker,
    checkpoint: Checkpoint,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint.plan(0, positions(broker, 0))
    checkpoint.commit(0)
    look, looks = lag._Looker.look, 0

    def answer(looker: lag._Looker) -> list[dict[str, Any]]:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise ConnectError("nobody answers")
        if looks == 4:
            raise AuthorizationError("not any more")
        return look(looker)

    monkeypatch.setattr(lag._Looker, "look", answer)
    monkeypatch.setattr(lag, "wait", lambda _: None)
    place = ["--service-url", broker.service_url, "--checkpoint", str(checkpoint.folder)]
    assert cli.main(["lag", *place, "--watch", *(["--json"] if as_json else [])]) == 1
    shown = capsys.readouterr()
    assert "not any more" in shown.err
    if as_json:
        lines = [json.loads(line) for line in shown.out.splitlines()]
        assert [line.get("error") for line in lines] == [None, "nobody answers", None]
        assert [len(line["partitions"]) for line in lines] == [2, 0, 2]
    else:
        _, second, third = shown.out.split("\n\n")
        assert "no answer: nobody answers" in second
        assert ZERO in third


def test_a_terminal_shows_one_table_that_changes(
    broker: EmbeddedBroker, checkpoint: Checkpoint
) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
    checkpoint.plan(0, positions(broker, 0))
    checkpoint.commit(0)
    ours, theirs = pty.openpty()
    place = ["--service-url", broker.service_url, "--checkpoint", str(checkpoint.folder)]
    process = subprocess.Popen(
        [sys.executable, "-m", "pulsar_spark", "lag", *place, "--watch", "--interval", "1"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    shown = b""
    try:
        # A line is taken back before the next table is written in its place.
        while b"total" not in shown or b"\x1b[1A\x1b[2K" not in shown:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 4096):
                shown += piece
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"Traceback" not in shown
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")


def test_a_rate_is_over_the_last_minute() -> None:
    now = [0.0]
    rates = lag._Rates(lambda: now[0])

    def after(seconds: float, messages: int | None) -> float | None:
        now[0] += seconds
        row = {"partition": "t", "messages": messages}
        rates.add([row])
        return row["rate"]  # type: ignore[return-value]

    assert after(0, 100) is None
    assert after(10, 200) == 10.0
    assert after(50, 200) == round(100 / 60, 1)
    # What was before the last minute no more counts.
    assert after(50, 200) == 0.0
    assert after(10, None) is None
    assert after(10, 5) is None


def test_estimates_are_marked_in_the_table(
    broker: EmbeddedBroker, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    for size in range(1, 60):
        store(broker, "orders-partition-0", [b"a"] * size)
    checkpoint.plan(0, positions(broker, 0))
    checkpoint.commit(0)
    place = ["--service-url", broker.service_url, "--checkpoint", str(checkpoint.folder)]
    assert cli.main(["lag", *place]) == 0
    first, total = capsys.readouterr().out.splitlines()[1::2]
    assert first.split()[2].startswith("~")
    assert total.split()[2].startswith("~")


@pytest.mark.parametrize(
    "folder,told",
    [
        ("/nowhere", "/nowhere"),
        ("s3://bucket/folder", "folders offsets and commits to this machine."),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_wrong_usage(
    folder: str, told: str, broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--service-url", broker.service_url, "--checkpoint", folder]
    assert cli.main(["lag", *place]) == 2
    assert told in capsys.readouterr().err


def test_what_the_numbers_do_not_say_is_noted(
    broker: EmbeddedBroker, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint.plan(0, {**positions(broker, 0), full("deleted"): "7:0:0", full("other"): "7:0:0"})
    (checkpoint.folder / "commits").rmdir()
    place = ["--service-url", broker.service_url, "--checkpoint", str(checkpoint.folder)]
    assert cli.main(["lag", *place]) == 0
    told = capsys.readouterr().err
    assert "no folder commits: the lag counts from its last micro-batch, done or not" in told
    assert "2 topic partitions do not exist on this cluster" in told
    (checkpoint.folder / "commits").mkdir()
    assert cli.main(["lag", *place, "--topic", "orders"]) == 0
    assert capsys.readouterr().err == ""
