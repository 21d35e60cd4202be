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
        (SchemaInfo(pb.Schema.Double, "Double"), "1.5", 1.5),
        (SchemaInfo(pb.Schema.LocalDate, "LocalDate"), '"2026-11-20"', "2026-11-20"),
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


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


TYPED = {
    "amount": logical("bytes", "decimal", precision=20, scale=2),
    "price": ["null", logical("bytes", "decimal", precision=20, scale=2)],
    "day": logical("int", "date"),
    "clock": logical("int", "time-millis"),
    "at": logical("long", "timestamp-millis"),
    "local": logical("long", "local-timestamp-micros"),
    "raw": "bytes",
    "either": ["null", "string", "bytes", "double"],
    "days": {"type": "array", "items": logical("int", "date")},
    "by_name": {"type": "map", "values": logical("bytes", "decimal", precision=4, scale=1)},
    "inner": {
        "type": "record",
        "name": "Inner",
        "fields": [{"name": "id", "type": logical("string", "uuid")}],
    },
    "ratio": "double",
}
UUID = "6f1c4a3e-8b5d-4c55-9b0e-0d6c5a1f2b3c"


def typed_schema(kind: int) -> SchemaInfo:
    fields = [{"name": name, "type": found} for name, found in TYPED.items()]
    record = {"type": "record", "name": "Typed", "fields": fields}
    return SchemaInfo(kind, "Typed", json.dumps(record).encode())


@pytest.mark.parametrize("kind", [pb.Schema.Avro, pb.Schema.Json])
@pytest.mark.parametrize("as_text", [True, False])
def test_values_of_types_that_json_lacks_are_text_or_numbers(
    kind: int, as_text: bool, broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.create_topic("typed")
    set_schema(broker, "typed", typed_schema(kind))
    # More digits than a float has.
    amount = "123456789012345678.25"
    value = {
        "day": "2026-11-20" if as_text else 20777,
        "clock": "10:20:30.5" if as_text else 37_230_500,
        "at": "2026-11-20T10:00:00+01:00" if as_text else 1_795_165_200_000,
        "local": "2026-11-20 10:00:00.123456" if as_text else 1_795_168_800_123_456,
        "raw": "/wD+",
        "either": "Test" if as_text else 1.5,
        "days": ["1970-01-02"],
        "by_name": {"a": "1.5"},
        "inner": {"id": UUID},
        "ratio": 0.5,
    }
    quoted = json.dumps(amount) if as_text else amount
    text = f'{{"amount": {quoted}, "price": {quoted}, {json.dumps(value)[1:]}'
    status, told = send(broker, capsys, "typed", "--message", text)
    assert status == 0, told
    (row,) = rows(broker, capsys, "typed")
    assert {name: row[name] for name in ("amount", "price", "day", "at", "raw")} == {
        "amount": amount,
        "price": amount,
        "day": "2026-11-20",
        "at": "2026-11-20T09:00:00.000Z",
        "raw": "/wD+",
    }
    assert row["local"].startswith("2026-11-20T10:00:00.123456")
    assert "Test" in str(row["either"]) if as_text else "1.5" in str(row["either"])
    assert row["days"] == ["1970-01-02"]
    assert row["by_name"] == {"a": "1.5"}
    assert row["inner"] == {"id": UUID}
    assert row["ratio"] == 0.5


@pytest.mark.parametrize(
    "name,value",
    [
        ("amount", "1.234"),
        ("amount", "much"),
        ("amount", "NaN"),
        ("day", "20.11.2026"),
        ("clock", "25:00"),
        ("at", "yesterday"),
        ("local", "2026-11-20T10:00:00Z"),
        ("raw", "no base64"),
        ("ratio", "0.5"),
    ],
)
def test_text_that_a_type_does_not_take_is_an_error_that_names_the_field(
    name: str, value: str, broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.create_topic("typed")
    fields = [{"name": name, "type": TYPED[name]}]
    record = {"type": "record", "name": "Typed", "fields": fields}
    set_schema(broker, "typed", SchemaInfo(pb.Schema.Avro, "T", json.dumps(record).encode()))
    status, told = send(broker, capsys, "typed", "--message", json.dumps({name: value}))
    assert (status, f"the field {name}:" in told) == (1, True)


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
    assert "Reading" not in text
    assert not any(name.endswith("/order") for name in broker.topics())
    assert send(broker, capsys, "order", "--message", "a", "--create")[0] == 0
    assert [row["value"] for row in rows(broker, capsys, "order")] == ["a"]


@pytest.mark.parametrize("create", [(), ("--create",)])
def test_a_partition_that_a_topic_does_not_have_is_not_created(
    create: tuple[str, ...], broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    before = broker.topics()
    status, text = send(broker, capsys, "orders-partition-7", "--message", "a", *create)
    assert status == 1
    assert "persistent://public/default/orders has 2 partitions" in text
    assert "The last one is orders-partition-1." in text
    assert "--create" not in text
    assert broker.topics() == before


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
