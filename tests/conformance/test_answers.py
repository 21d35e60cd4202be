"""Every field of a broker's answer reaches the caller."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.errors import BrokerError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.events import CommandReceived, Event
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.scripted_broker import ScriptedBroker, Session
from tests.testing.wire_client import WireClient

T = pb.BaseCommand

STATS: dict[str, Any] = {
    "msgRateOut": 1.5,
    "msgThroughputOut": 2.5,
    "msgRateRedeliver": 3.5,
    "msgRateExpired": 4.5,
    "consumerName": "named",
    "availablePermits": 6,
    "unackedMessages": 7,
    "blockedConsumerOnUnackedMsgs": True,
    "address": "/1.2.3.4:5",
    "connectedSince": "2026-01-01T00:00:00Z",
    "type": "Shared",
    "msgBacklog": 8,
}


def test_statistics_of_a_consumer_are_those_that_the_broker_counted() -> None:
    def script(session: Session, event: Event) -> bool:
        if not isinstance(event, CommandReceived) or event.kind != T.CONSUMER_STATS:
            return False
        assert event.request_id is not None
        session.send(
            commands.build(pb.CommandConsumerStatsResponse, request_id=event.request_id, **STATS)
        )
        return True

    with (
        ScriptedBroker(script) as broker,
        PulsarClient(f"pulsar://{broker.address}") as client,
        client.subscribe("t", "s") as consumer,
    ):
        stats = consumer.get_broker_consumer_stats()
    assert (stats.msg_rate_out, stats.msg_throughput_out) == (1.5, 2.5)
    assert (stats.msg_rate_redeliver, stats.msg_rate_expired) == (3.5, 4.5)
    assert (stats.consumer_name, stats.type, stats.address) == ("named", "Shared", "/1.2.3.4:5")
    assert (stats.available_permits, stats.unacked_messages, stats.msg_backlog) == (6, 7, 8)
    assert stats.blocked_consumer_on_unacked_msgs
    assert stats.connected_since == "2026-01-01T00:00:00Z"


def test_a_schema_comes_with_its_version(wire: WireClient) -> None:
    schema = pb.Schema(name="s", schema_data=b"", type=pb.Schema.String)
    wire.produce("t", schema=schema)
    told = wire.request("GET_SCHEMA", topic="t").body
    assert told.schema.type == pb.Schema.String
    assert told.schema_version == bytes(8)


@pytest.mark.parametrize("kind", ["CONSUMER_STATS", "GET_SCHEMA", "GET_OR_CREATE_SCHEMA"])
def test_a_refusal_has_its_code_and_its_reason(
    broker: EmbeddedBroker, wire: WireClient, kind: str
) -> None:
    broker.faults.error(kind, "NotAllowedError", "not here")
    schema = pb.Schema(name="s", schema_data=b"", type=pb.Schema.String)
    fields: dict[str, dict[str, Any]] = {
        "CONSUMER_STATS": {"consumer_id": 0},
        "GET_SCHEMA": {"topic": "t"},
        "GET_OR_CREATE_SCHEMA": {"topic": "t", "schema": schema},
    }
    told = wire.request(kind, **fields[kind]).body
    assert (told.error_code, told.error_message) == (pb.NotAllowedError, "not here")


def test_why_an_acknowledgement_was_refused_is_raised(broker: EmbeddedBroker) -> None:
    with PulsarClient(broker.service_url) as client:
        client.create_producer("t").close()
        with client.subscribe("t", "s") as consumer, client.create_producer("t") as producer:
            producer.send(b"x")
            message = consumer.receive(60_000)
            broker.faults.error("ACK", "NotAllowedError", "not here")
            with pytest.raises(BrokerError, match="not here"), client.new_transaction() as txn:
                consumer.acknowledge(message, txn=txn)


def test_answers_of_a_coordinator_name_the_transaction(wire: WireClient) -> None:
    wire.produce("t")
    wire.subscribe("t", "s")
    wire.request("NEW_TXN", tc_id=0, txn_ttl_millis=60_000)
    txn = {"txnid_most_bits": 0, "txnid_least_bits": 1}
    subscription = pb.Subscription(topic="persistent://public/default/t", subscription="s")
    for kind, fields in (
        ("NEW_TXN", {"tc_id": 0, "txn_ttl_millis": 60_000}),
        ("ADD_PARTITION_TO_TXN", {**txn, "partitions": ["persistent://public/default/t"]}),
        ("ADD_SUBSCRIPTION_TO_TXN", {**txn, "subscription": [subscription]}),
        ("END_TXN", {**txn, "txn_action": pb.COMMIT}),
    ):
        told = wire.request(kind, **fields).body
        assert told.HasField("txnid_most_bits")
        assert (told.txnid_most_bits, told.txnid_least_bits) == (0, 1), kind


def test_a_topic_that_is_missing_is_a_failed_answer(wire: WireClient) -> None:
    told = wire.request(
        "PARTITIONED_METADATA", topic="missing", metadata_auto_creation_enabled=False
    ).body
    assert told.response == pb.CommandPartitionedTopicMetadataResponse.Failed


def test_a_receipt_for_an_acknowledgement_names_the_consumer(wire: WireClient) -> None:
    wire.produce("t")
    wire.publish()
    wire.subscribe("t", consumer_id=3)
    (message,) = wire.messages(1, 3)
    told = wire.request("ACK", consumer_id=3, ack_type=0, message_id=[message.body.message_id]).body
    assert told.consumer_id == 3


def test_a_producer_is_closed_by_its_id(broker: EmbeddedBroker, wire: WireClient) -> None:
    wire.produce("t", producer_id=0)
    wire.produce("t", producer_id=1, producer_name="other")
    wire.request("CLOSE_PRODUCER", producer_id=1)
    wire.publish(b"still open", producer_id=0)
    (left,) = broker.stats("t").producers
    assert left != "other"


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_how_a_transaction_ends_decides_whether_it_is_seen(
    broker: EmbeddedBroker, wire: WireClient, commit: bool
) -> None:
    with (
        PulsarClient(broker.service_url) as client,
        client.create_producer("t") as producer,
    ):
        txn = client.new_transaction()
        producer.send(b"inside", txn=txn)
        if commit:
            txn.commit()
        else:
            txn.abort()
        producer.send(b"behind")
    wire.subscribe("t")
    assert wire.payloads(1) == [b"inside" if commit else b"behind"]
