"""The metadata of a stored entry reaches its consumer."""

from __future__ import annotations

from pulsar_spark.client import (
    ConsumerCryptoFailureAction,
    InitialPosition,
    PulsarClient,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import stored_entry

RECEIVE_MS = 60_000


def test_who_cannot_decrypt_a_message_is_told_how_it_was_encrypted(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("t")
    key = pb.EncryptionKeys(
        key="rsa", value=b"wrapped", metadata=[pb.KeyValue(key="version", value="2")]
    )
    entry = stored_entry(
        b"secret",
        encryption_keys=[key],
        encryption_algo="AES/GCM",
        encryption_param=b"nonce",
        compression=pb.ZSTD,
        uncompressed_size=9,
        num_messages_in_batch=3,
    )
    broker.append(topic, entry)
    with client.subscribe(
        topic,
        "s",
        initial_position=InitialPosition.Earliest,
        crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
    ) as consumer:
        context = consumer.receive(RECEIVE_MS).encryption_context()
    assert context is not None
    (found,) = context.keys()
    assert (found.key, found.value, found.metadata) == ("rsa", b"wrapped", {"version": "2"})
    assert (context.algorithm(), context.param()) == ("AES/GCM", b"nonce")
    assert context.compression_type().name == "ZSTD"
    assert (context.uncompressed_message_size(), context.batch_size()) == (9, 3)
    assert context.is_decryption_failed()


def test_a_note_of_the_broker_is_no_message(broker: EmbeddedBroker, client: PulsarClient) -> None:
    topic = broker.create_topic("t")
    broker.append(topic, stored_entry(b"", marker_type=10))
    broker.append(topic, stored_entry(b"after"))
    with client.subscribe(topic, "s", initial_position=InitialPosition.Earliest) as consumer:
        assert consumer.receive(RECEIVE_MS).data() == b"after"


def test_what_compaction_took_out_of_a_batch_is_no_message(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("t")
    body = b""
    for value, out in ((b"gone", True), (b"kept", False)):
        single = pb.SingleMessageMetadata(payload_size=len(value), compacted_out=out)
        encoded = single.SerializeToString()
        body += len(encoded).to_bytes(4, "big") + encoded + value
    broker.append(topic, stored_entry(body, num_messages_in_batch=2))
    with client.subscribe(topic, "s", initial_position=InitialPosition.Earliest) as consumer:
        assert consumer.receive(RECEIVE_MS).data() == b"kept"
