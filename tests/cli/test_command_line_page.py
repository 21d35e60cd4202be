"""The commands of docs/command-line.md run against an embedded broker."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_spark.cli import main as cli
from pulsar_spark.engine.consumers.subscription import EARLIEST, SubscriptionSet
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.protocol.message_id import EARLIEST_POSITION
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.pages import DOCS, examples
from tests.spark.topics import full, store

COMMANDS = {
    "demo": "tests/cli/test_demo.py runs it",
    "broker": "tests/cli/test_broker.py runs it",
    "doctor": "",
    "topics": "",
    "schema": "",
    "peek": "",
    "send": "",
    "lag": "",
    "subscriptions": "",
    "sink": "",
    "bench": "",
}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        running.create_topic("orders", partitions=2)
        store(running, "orders-partition-0", [b"a book"])
        yield running


def blocks(section: str) -> list[str]:
    return [block for block in examples("command-line.md", section, "") if "pulsar_spark" in block]


def test_the_page_has_a_section_for_each_command() -> None:
    page = (DOCS / "command-line.md").read_text("utf-8")
    sections = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    assert sections == ["Where commands connect", "Completion in the shell", *COMMANDS]
    for command in COMMANDS:
        assert f"python -m pulsar_spark {command}" in page


@pytest.mark.parametrize("command", [name for name, elsewhere in COMMANDS.items() if not elsewhere])
def test_the_commands_of_the_page_work(
    command: str, broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ClientContext(ClientOptions(broker.service_url)) as context:
        subscription = SubscriptionSet(context, "my-query", 30.0)
        subscription.add(full("orders-partition-0"), EARLIEST)
        subscription.ends()
        subscription.close()
    offset = StreamOffset("my-query", {full("orders-partition-0"): EARLIEST_POSITION})
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(offset.to_json())}")
    assert blocks(command)
    for block in blocks(command):
        for line in block.replace("\\\n", " ").splitlines():
            here = line.replace("pulsar://localhost:6650", broker.service_url)
            words = shlex.split(here.replace("/data/checkpoint", str(tmp_path)))
            assert words[:3] == ["python", "-m", "pulsar_spark"]
            assert cli.main(words[3:]) == 0, line
            text = capsys.readouterr().out
            if "--json" in words:
                assert json.loads(f"[{text}]")
            else:
                assert text


def test_the_sample_of_the_doctor_has_all_steps_and_says_what_to_do(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = examples("connecting.md", "When it does not connect: the doctor", "")
    (sample,) = examples("connecting.md", "When it does not connect: the doctor", "text")
    broker.faults.error("PRODUCER", "AuthorizationError", "not allowed", times=None)
    line = command.replace("pulsar://localhost:6650", broker.service_url).replace("\\\n", " ")
    assert cli.main(shlex.split(line)[3:]) == 1
    shown = capsys.readouterr().out.splitlines()
    firsts = [text.split()[:2] for text in sample.splitlines() if text and text[0] != " "]
    found = [text.split()[:2] for text in shown if text and text[0] != " "]
    assert [words for words in firsts if words not in found] == []
    remedy = sample.partition("\nWhat to do:\n")[2]
    assert " ".join(remedy.split()) in {" ".join(row.split()) for row in shown}
