"""``send`` writes messages, encoded by the topic's schema, and creates no topic by itself."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_spark.cli import main as cli
from pulsar_spark.client import PulsarClient
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value
from pulsar_spark.testing import EmbeddedBroker
from tests.cli.test_schema import AVRO, STRING
from tests.spark.topics import set_schema


def send(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    status = cli.main(["send", "--service-url", broker.service_url, *arguments])
    found = capsys.readouterr()
    return status, found.out + found.err


def rows(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], topic: str
) -> list[dict[str, Any]]:
    place = ["--service-url", broker.service_url, "--topic", topic]
    assert cli.main(["peek", *place, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def typed(monkeypatch: pytest.MonkeyPatch, data: bytes, *, terminal: bool = False) -> None:
    stdin = SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: terminal)
    monkeypatch.setattr(sys, "stdin", stdin)


def test_messages_of_the_command_line_are_sent_with_key_and_properties(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.create_topic("notes")
    more = ("--key", "k", "--property", "a=1", "--property", "b=x=y")
    status, text = send(broker, capsys, "notes", "--message", "one", "--message", "zwö", *more)
    assert status == 0
    assert text.startswith("2 messages sent\n")
    found = rows(broker, capsys, "notes")
    assert [row["value"] for row in found] == ["one", "zwö"]
    assert {row["__key"] for row in found} == {"k"}
    assert found[0]["__messageProperties"] == {"a": "1", "b": "x=y"}
    # What it says was sent last is the last message.
    assert (
        found[-1]["__messageId"].rpartition(":")[0].startswith(text.split()[-1].rsplit(":", 2)[0])
    )


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_of_the_standard_input_are_messages(
    terminal: bool,
    broker: EmbeddedBroker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.create_topic("notes")
    typed(monkeypatch, b"a\r\n\n\xff\xfe\nlast", terminal=terminal)
    status, text = send(broker, capsys, "notes")
    assert status == 0
    assert "4 messages sent" in text
    assert ("Ctrl-D" in text) == terminal
    assert [row["value"] for row in rows(broker, capsys, "notes")] == ["a", "", "//4=", "last"]


def test_a_message_of_a_topic_with_a_schema_is_json(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    set_schema(broker, "orders", AVRO)
    told = ("--message", '{"id": 7, "note": "x"}', "--message", '{"id": 8, "note": null}')
    status, text = send(broker, capsys, "orders", *told, "--json")
    assert status == 0
    assert json.loads(text)["messages"] == 2
    found = sorted(rows(broker, capsys, "orders"), key=lambda row: int(row["id"]))
    assert [(row["id"], row["note"]) for row in found] == [(7, "x"), (8, None)]
    assert broker.faults.log("PRODUCER")[-1].body.schema.type == pb.Schema.Avro


@pytest.mark.parametrize(
    "schema,text,value",
    [
        (STRING, '"quoted"', '"quoted"'),
        (SchemaInfo(pb.Schema.Int32, "INT32"), "7", 7),
        (SchemaInfo(pb.Schema.Bool, "Boolean"), "true", True),
    ],
)
def test_a_primitive_is_encoded_as_such(
    schema: SchemaInfo,
    text: str,
    value: object,
    broker: EmbeddedBroker,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker.create_topic("one")
    set_schema(broker, "one", schema)
    assert send(broker, capsys, "one", "--message", text)[0] == 0
    assert [row["value"] for row in rows(broker, capsys, "one")] == [value]


@pytest.mark.parametrize(
    "message,status,words",
    [
        ("no json", 2, "is not JSON"),
        ('{"id": "seven", "note": null}', 1, "id"),
        ('{"note": null}', 1, "id"),
        ('{"id": 1, "note": null, "more": 2}', 1, "more"),
    ],
)
def test_what_does_not_fit_the_schema_is_an_error_that_names_the_field(
    message: str,
    status: int,
    words: str,
    broker: EmbeddedBroker,
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_schema(broker, "orders", AVRO)
    found, text = send(broker, capsys, "orders", "--message", message)
    assert (found, "Traceback" in text) == (status, False)
    assert words in text
    assert broker.faults.seen("SEND") == 0


def test_pairs_are_left_to_others(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    set_schema(broker, "orders", join_key_value(STRING, AVRO, separated=False))
    status, text = send(broker, capsys, "orders", "--message", "{}")
    assert (status, "KEY_VALUE" in text) == (2, True)


def test_a_missing_topic_is_created_only_if_that_is_said(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = send(broker, capsys, "order", "--message", "a")
    assert status == 1
    assert "Did you mean 'orders'?" in text
    assert "--create" in text
    assert not any(name.endswith("/order") for name in broker.topics())
    assert send(broker, capsys, "order", "--message", "a", "--create")[0] == 0
    assert [row["value"] for row in rows(broker, capsys, "order")] == ["a"]


def test_a_message_that_the_broker_does_not_store_is_a_failure(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.faults.error("PRODUCER", "AuthorizationError", times=None)
    status, text = send(broker, capsys, "orders", "--message", "a")
    assert (status, "produce" in text) == (1, True)


def test_options_of_producers_are_taken(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.create_topic("notes")
    name = ("--option", "pulsar.producer.producerName=by-hand")
    assert send(broker, capsys, "notes", "--message", "a", *name)[0] == 0
    with PulsarClient(broker.service_url) as client:
        reader = client.create_reader("notes", client_start())
        assert reader.read_next(5000).producer_name() == "by-hand"


@pytest.mark.parametrize(
    "option",
    [
        "deliveryGuarantee=none",
        "sinkId=a",
        "sinkRepeats=first",
        "valueFormat=json",
        "keyEncoding=bytes",
        "startingOffsets=earliest",
        "admin.url=http://localhost:8080",
    ],
)
def test_an_option_without_an_effect_is_said_to_have_none(
    option: str,
    broker: EmbeddedBroker,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker.create_topic("notes")
    assert send(broker, capsys, "notes", "--message", "a", "--option", option)[0] == 0
    assert f"no effect here and are ignored: {option.partition('=')[0]}" in caplog.text


def test_exactly_once_is_left_to_spark(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    guarantee = ("--option", "deliveryGuarantee=exactly-once")
    status, text = send(broker, capsys, "orders", "--message", "a", *guarantee)
    assert (status, "send does not write exactly-once" in text) == (2, True)
    assert broker.faults.seen("SEND") == 0


def client_start() -> Any:
    from pulsar_spark.client import MessageId

    return MessageId.earliest
