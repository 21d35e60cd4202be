"""``schema`` shows a topic's schema, and the columns that Spark makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsar_spark.cli import main as cli
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import set_schema

FIELDS = [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}]
RECORD = {"type": "record", "name": "Order", "fields": FIELDS}
AVRO = SchemaInfo(pb.Schema.Avro, "Order", json.dumps(RECORD).encode(), {"by": "me"})
STRING = SchemaInfo(pb.Schema.String, "String")


def shown(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    status = cli.main(["schema", "--service-url", broker.service_url, *arguments])
    found = capsys.readouterr()
    return status, found.out + found.err


def told(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], topic: str) -> dict[str, Any]:
    status, text = shown(broker, capsys, topic, "--json")
    assert status == 0
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_records_definition_and_columns_are_told(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    set_schema(broker, "orders", AVRO)
    for name in ("orders", "orders-partition-1", "persistent://public/default/orders"):
        found = told(broker, capsys, name)
        assert found["topic"] == "persistent://public/default/orders"
        assert (found["type"], found["version"]) == ("AVRO", "0")
        assert found["definition"] == RECORD
        assert found["properties"] == {"by": "me"}
        assert found["columns"] == [
            {"name": "id", "type": "bigint"},
            {"name": "note", "type": "string"},
        ]
    status, text = shown(broker, capsys, "orders")
    assert status == 0
    assert text.startswith("persistent://public/default/orders: AVRO, version 0\n")
    assert "id      bigint" in text
    assert '"type": "record"' in text


def test_a_topic_without_a_schema_has_bytes(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(broker, capsys, "orders")
    assert (found["type"], found["definition"]) == (None, None)
    assert found["columns"] == [{"name": "value", "type": "binary"}]
    assert "has no schema: values are bytes" in shown(broker, capsys, "orders")[1]


def test_a_pair_has_two_definitions(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    set_schema(broker, "orders", join_key_value(STRING, AVRO, separated=True))
    found = told(broker, capsys, "orders")
    assert found["type"] == "KEY_VALUE"
    assert found["definition"] == {"key": None, "value": RECORD}


def test_a_missing_topic_is_an_error_that_names_what_is_near(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = shown(broker, capsys, "order")
    assert status == 1
    assert "Did you mean 'orders'?" in text
    assert not any(name.endswith("/order") for name in broker.topics())
