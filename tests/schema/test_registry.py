"""Schemas of topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.errors import AuthorizationError, OperationTimeout, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.registry import (
    SchemaVersions,
    latest_schemas,
    older_schemas,
    version_number,
)
from pulsar_spark.testing import EmbeddedBroker
from tests.support.round_trips import Asked
from tests.support.schemas import register_schema

T, U = "persistent://public/default/t", "persistent://public/default/u"


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        running.create_topic(T)
        running.create_topic(U)
        yield running


@pytest.fixture
def context(broker: EmbeddedBroker) -> Iterator[ClientContext]:
    with ClientContext(ClientOptions(broker.service_url, operation_timeout=10.0)) as opened:
        yield opened


STRING = SchemaInfo(pb.Schema.String, "String")


def test_the_latest_schema_of_each_topic_is_returned(context: ClientContext) -> None:
    register_schema(context.lookup, T, STRING)
    found = latest_schemas(context.lookup, [T, U])
    assert found[U] is None
    schema = found[T]
    assert isinstance(schema, SchemaInfo)
    assert schema.type == pb.Schema.String


def test_a_topic_that_does_not_exist_has_no_schema(context: ClientContext) -> None:
    missing = "persistent://public/default/missing"
    assert latest_schemas(context.lookup, [missing]) == {missing: None}


def test_a_refusal_stands_in_the_place_of_the_schema(
    broker: EmbeddedBroker, context: ClientContext
) -> None:
    broker.faults.error("GET_SCHEMA", pb.AuthorizationError)
    (found,) = latest_schemas(context.lookup, [T]).values()
    assert isinstance(found, AuthorizationError)
    assert found.topic == T


RECORD = b'{"type":"record","name":"r","fields":[{"name":"%s","type":"int","default":0}]}'


def version(number: int) -> bytes:
    return number.to_bytes(8, "big")


@pytest.fixture
def versions(broker: EmbeddedBroker, context: ClientContext) -> SchemaVersions:
    for name in (b"a", b"b", b"c"):
        register_schema(context.lookup, T, SchemaInfo(pb.Schema.Avro, "r", RECORD % name))
    return SchemaVersions(context.lookup, f"{T}-partition-3")


def test_each_version_is_asked_for_once_of_the_whole_topic(
    broker: EmbeddedBroker, versions: SchemaVersions
) -> None:
    assert broker.faults.seen("GET_SCHEMA") == 0
    for _ in range(3):
        assert versions(version(2)).schema_data == RECORD % b"c"
        assert versions(version(0)).schema_data == RECORD % b"a"
    assert broker.faults.seen("GET_SCHEMA") == 2


def test_versions_that_are_expected_are_asked_for_at_once(
    broker: EmbeddedBroker, versions: SchemaVersions
) -> None:
    with Asked(broker, 0.05, but=["LOOKUP", "PARTITIONED_METADATA"]) as asked:
        versions.expect([version(2), version(0), version(1)])
    assert (asked.counts["GET_SCHEMA"], asked.in_sequence) == (3, 1)
    assert [versions(version(n)).schema_data for n in range(3)] == [
        RECORD % name for name in (b"a", b"b", b"c")
    ]
    assert asked.counts["GET_SCHEMA"] == 3


def test_what_is_expected_and_gone_is_an_error_for_who_needs_it(versions: SchemaVersions) -> None:
    versions.expect([version(7), version(1), version(8)])
    assert versions(version(1)).schema_data == RECORD % b"b"
    with pytest.raises(SchemaMismatch, match="version 7"):
        versions(version(7))


def test_a_process_asks_for_a_version_once_in_an_era_of_its_topic(
    broker: EmbeddedBroker, context: ClientContext, versions: SchemaVersions
) -> None:
    for era, requests in (("one", 1), ("one", 1), ("two", 2), ("two", 2), ("", 3), ("", 4)):
        again = SchemaVersions(context.lookup, T, era=era)
        assert again(version(1)).schema_data == RECORD % b"b"
        assert broker.faults.seen("GET_SCHEMA") == requests


def test_a_topic_that_is_made_again_has_its_own_versions_in_its_next_era(
    broker: EmbeddedBroker, context: ClientContext, versions: SchemaVersions
) -> None:
    assert SchemaVersions(context.lookup, T, era="one")(version(0)).schema_data == RECORD % b"a"
    broker.delete_topic(T)
    broker.create_topic(T)
    register_schema(context.lookup, T, SchemaInfo(pb.Schema.Avro, "r", RECORD % b"x"))
    assert SchemaVersions(context.lookup, T, era="two")(version(0)).schema_data == RECORD % b"x"


@pytest.mark.fault(64)
def test_a_version_that_is_gone_is_an_error(versions: SchemaVersions) -> None:
    with pytest.raises(SchemaMismatch, match="version 7") as caught:
        versions(version(7))
    assert caught.value.topic == T
    assert "valueFormat=raw" in caught.value.remedy


def test_trouble_that_can_pass_is_waited_for(
    broker: EmbeddedBroker, versions: SchemaVersions
) -> None:
    broker.faults.error("GET_SCHEMA", pb.ServiceNotReady, times=2)
    assert versions(version(1)).schema_data == RECORD % b"b"
    assert broker.faults.seen("GET_SCHEMA") == 3


def test_a_broker_that_does_not_answer_is_waited_for_only_so_long(
    broker: EmbeddedBroker, versions: SchemaVersions
) -> None:
    with (
        ClientContext(ClientOptions(broker.service_url, operation_timeout=0.5)) as impatient,
        broker.faults.drop("GET_SCHEMA", times=None),
        pytest.raises(OperationTimeout) as caught,
    ):
        SchemaVersions(impatient.lookup, T)(version(1))
    assert caught.value.topic == T


def test_a_version_is_known_by_its_number() -> None:
    assert version_number(version(12)) == "12"
    assert version_number(b"\x01\xff") == "01ff"


def test_older_versions_are_given_newest_first(
    context: ClientContext, versions: SchemaVersions
) -> None:
    found = [schema.schema_data for schema in older_schemas(context.lookup, T)]
    assert found == [RECORD % b"b", RECORD % b"a"]
    assert list(older_schemas(context.lookup, U)) == []
