"""Schemas are registered by producers or on their own, and served by version."""

from __future__ import annotations

import json

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient

A = {"name": "a", "type": "int"}
B = {"name": "b", "type": ["null", "int"], "default": None}


def avro(*fields: object) -> pb.Schema:
    data = json.dumps({"type": "record", "name": "R", "fields": fields}).encode()
    properties = [pb.KeyValue(key="__alwaysAllowNull", value="true")]
    return pb.Schema(name="given", type=pb.Schema.Avro, schema_data=data, properties=properties)


def test_a_producers_schema_gets_a_version(client: WireClient) -> None:
    assert client.produce("t", 0).body.schema_version == b""
    assert client.produce("t", 1, schema=avro(A)).body.schema_version == bytes(8)
    assert client.produce("t", 2, schema=avro(A, B)).body.schema_version == bytes(7) + b"\x01"
    assert client.produce("t", 3, schema=avro(A)).body.schema_version == bytes(8)
    # A producer without a schema is accepted, too.
    assert client.produce("t", 4).body.schema_version == b""


def test_a_schema_that_does_not_fit_is_refused(client: WireClient) -> None:
    client.produce("t", 0, schema=avro(A))
    string = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
    refused = client.produce("t", 1, schema=string).body
    assert refused.error == pb.IncompatibleSchema
    assert "exists schema type AVRO, new schema type STRING" in refused.message


def test_schemas_are_served_by_version(broker: EmbeddedBroker, client: WireClient) -> None:
    name = broker.create_topic("p", partitions=2)
    client.produce(f"{name}-partition-0", 0, schema=avro(A))
    client.produce(f"{name}-partition-1", 1, schema=avro(A, B))
    latest = client.request("GET_SCHEMA", topic="p").body
    assert latest.schema_version == bytes(7) + b"\x01"
    assert latest.schema.name == "public/default/p"
    assert latest.schema.schema_data == avro(A, B).schema_data
    assert latest.schema.properties == avro(A).properties
    first = client.request("GET_SCHEMA", topic=f"{name}-partition-1", schema_version=bytes(8)).body
    assert first.schema.schema_data == avro(A).schema_data
    empty = client.request("GET_SCHEMA", topic="p", schema_version=b"").body
    assert empty.schema_version == latest.schema_version


def test_missing_schemas_are_told(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.create_topic("t")
    for fields in ({"topic": "t"}, {"topic": "missing"}):
        body = client.request("GET_SCHEMA", **fields).body
        assert body.error_code == pb.TopicNotFound
        assert "no-schema" in body.error_message
    client.produce("t", schema=avro(A))
    body = client.request("GET_SCHEMA", topic="t", schema_version=bytes(7) + b"\x09").body
    assert body.error_code == pb.TopicNotFound


def test_schemas_are_registered_on_their_own(broker: EmbeddedBroker, client: WireClient) -> None:
    missing = client.request("GET_OR_CREATE_SCHEMA", topic="t", schema=avro(A)).body
    assert missing.error_code == pb.TopicNotFound
    broker.create_topic("t")
    made = client.request("GET_OR_CREATE_SCHEMA", topic="t", schema=avro(A)).body
    assert made.schema_version == bytes(8)
    again = client.request("GET_OR_CREATE_SCHEMA", topic="t", schema=avro(A)).body
    assert again.schema_version == bytes(8)
    string = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
    refused = client.request("GET_OR_CREATE_SCHEMA", topic="t", schema=string).body
    assert refused.error_code == pb.IncompatibleSchema
