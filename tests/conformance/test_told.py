"""Notifications: commands that clients and brokers send without a request."""

from __future__ import annotations

from pulsar_spark.client import (
    PulsarClient,
    StringSchema,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import unpack_batch
from pulsar_spark.protocol.topic_name import topics_hash
from pulsar_spark.testing import EmbeddedBroker
from tests import brief
from tests.testing.wire_client import WireClient


def test_a_client_says_who_it_is_and_what_it_is_able_to_do() -> None:
    with (
        EmbeddedBroker(listeners=("inner",)) as broker,
        PulsarClient(broker.service_url, listener_name="inner") as client,
    ):
        client.get_topic_partitions("t")
        client.create_producer("t").close()
    told = broker.faults.log("CONNECT")[-1].body
    assert told.client_version.lower().startswith("pulsar")
    assert (told.protocol_version, told.auth_method_name) == (21, "none")
    flags = told.feature_flags
    assert flags.supports_auth_refresh
    assert flags.supports_broker_entry_metadata
    assert flags.supports_partial_producer
    assert flags.supports_get_partitioned_metadata_without_auto_creation
    assert broker.faults.log("LOOKUP")[-1].body.advertised_listener_name == "inner"


def test_a_broker_says_who_it_is_and_what_it_takes(broker: EmbeddedBroker) -> None:
    client = WireClient(broker.port, handshake=False)
    try:
        client.send("CONNECT", client_version="test", protocol_version=21)
        told = client.expect("CONNECTED").body
    finally:
        client.close()
    assert told.server_version == "Pulsar Embedded"
    assert told.max_message_size == 5 * 1024 * 1024
    assert told.feature_flags.supports_topic_watchers
    assert told.feature_flags.supports_get_partitioned_metadata_without_auto_creation


def test_a_question_for_credentials_has_all_that_it_may(
    broker: EmbeddedBroker, wire: WireClient
) -> None:
    broker.faults.inject(brief.auth_challenge("3.0", "token"))
    told = wire.expect("AUTH_CHALLENGE").body
    assert (told.server_version, told.protocol_version) == ("3.0", 21)
    assert told.challenge.auth_method_name == "token"
    assert told.challenge.auth_data == b"PulsarAuthRefresh"


def test_credentials_are_renewed_with_all_that_they_need(broker: EmbeddedBroker) -> None:
    with PulsarClient(broker.service_url) as client, client.create_producer("t") as producer:
        broker.faults.inject(brief.auth_challenge("3.0", "none"))
        producer.send(b"behind the answer")
    told = broker.faults.log("AUTH_RESPONSE")[-1].body
    assert told.client_version.lower().startswith("pulsar")
    assert told.protocol_version == 21
    assert told.response.auth_method_name == "none"


def test_the_answer_to_a_watcher_names_it(wire: WireClient) -> None:
    told = wire.request(
        "WATCH_TOPIC_LIST", watcher_id=5, namespace="public/default", topics_pattern=".*"
    )
    assert (told.name, told.body.watcher_id) == ("WATCH_TOPIC_LIST_SUCCESS", 5)
    assert told.body.topics_hash == topics_hash([])


def test_a_lookup_repeats_what_the_redirect_said(broker: EmbeddedBroker) -> None:
    with EmbeddedBroker() as other, PulsarClient(broker.service_url) as client:
        broker.faults.redirect(other.service_url, authoritative=True)
        client.create_producer("t").close()
        assert other.faults.log("LOOKUP")[-1].body.authoritative


def test_a_producer_names_its_schema(broker: EmbeddedBroker) -> None:
    with PulsarClient(broker.service_url) as client:
        client.create_producer("t", schema=StringSchema()).close()
    schema = broker.faults.log("PRODUCER")[-1].body.schema
    assert (schema.name, schema.type) == ("String", pb.Schema.String)


def test_the_messages_of_a_batch_are_numbered_from_first_to_last(
    broker: EmbeddedBroker, wire: WireClient
) -> None:
    with (
        PulsarClient(broker.service_url) as client,
        client.create_producer(
            "t", batching_enabled=True, batching_max_publish_delay_ms=60_000, initial_sequence_id=6
        ) as producer,
    ):
        for number in range(3):
            producer.send_async(b"%d" % number, lambda result, id: None)
        producer.flush()
    sent = broker.faults.log("SEND")[-1].body
    assert (sent.sequence_id, sent.num_messages, sent.highest_sequence_id) == (7, 3, 9)
    wire.subscribe("t")
    entry = wire.messages(1)[0].entry
    assert (entry.metadata.sequence_id, entry.metadata.highest_sequence_id) == (7, 9)
    batch = unpack_batch(entry.payload, entry.metadata.num_messages_in_batch)
    assert [batch.metadata_of(index).sequence_id for index in range(3)] == [7, 8, 9]


def test_the_last_message_of_a_batch_is_told_by_its_index(wire: WireClient) -> None:
    wire.produce("t")
    wire.publish(batch=3)
    wire.subscribe("t")
    told = wire.request("GET_LAST_MESSAGE_ID", consumer_id=0).body.last_message_id
    assert told.batch_index == 2
