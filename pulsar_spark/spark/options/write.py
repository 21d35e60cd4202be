"""The options of a write, checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pulsar_spark.engine.encryption import EncryptionOptions
from pulsar_spark.engine.options import ClientOptions, ProducerOptions
from pulsar_spark.errors import OptionError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.spark.options.read import client_options, crypto_keys, single_topic
from pulsar_spark.spark.options.resolve import (
    ONLY_READ_FORMAT,
    SINK_OPTIONS,
    Values,
    resolve,
)
from pulsar_spark.spark.options.table import Scope
from pulsar_spark.spark.writing.exactly_once import SinkOptions, sink_options
from pulsar_spark.spark.writing.schemas import SchemaChoice


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write; plain data.

    `topic` is a full name, or None if rows name their topics. With `wait_for_receipts` False
    (deliveryGuarantee none) failed messages are counted, not raised. With `exactly_once` each task
    writes in a transaction.
    """

    client: ClientOptions
    producer: ProducerOptions
    topic: str | None
    schema: SchemaChoice
    keys_as_bytes: bool
    wait_for_receipts: bool
    exactly_once: SinkOptions | None = None


def parse_write_options(options: Mapping[str, str], scope: Scope = Scope.WRITE) -> WriteOptions:
    """Parse the options of a batch write or, with `Scope.STREAM_WRITE`, of a stream's.

    Raises OptionError or UnsupportedFeature that names the option.
    """
    values = resolve(options, scope)
    if values["valueFormat"] == ONLY_READ_FORMAT:
        raise OptionError(
            f"valueFormat={ONLY_READ_FORMAT} is only for reads",
            "With auto, the write uses the topic's schema, which may be a protobuf message.",
        )
    waits = values["deliveryGuarantee"] != "none"
    return WriteOptions(
        client=client_options(values),
        producer=replace(producer_options(values), stays_stored=waits),
        topic=single_topic(values),
        schema=SchemaChoice(
            values["valueFormat"],
            values["schema.name"],
            values["schema.namespace"],
        ),
        keys_as_bytes=values["keyEncoding"] == "bytes",
        wait_for_receipts=waits,
        exactly_once=_sink(values, options),
    )


def _sink(values: Values, options: Mapping[str, str]) -> SinkOptions | None:
    if values["deliveryGuarantee"] != "exactly-once":
        for key in SINK_OPTIONS:
            if key in values.given:
                raise OptionError(
                    f"{key} is only for exactly-once writing",
                    "Set deliveryGuarantee=exactly-once, or leave it out.",
                )
        return None
    if values["pulsar.producer.producerName"] is not None:
        # A broker with deduplication would drop rewritten messages as duplicates of aborted ones.
        raise OptionError(
            "pulsar.producer.producerName cannot be used with deliveryGuarantee=exactly-once",
            "Leave it out: rows are written once by transactions, not by their sequence ids.",
        )
    # Spark's own option, which the table does not have.
    checkpoint = next(
        (value for key, value in options.items() if key.lower() == "checkpointlocation"), None
    )
    topic = single_topic(values)
    sink = sink_options(
        values["sinkId"],
        checkpoint,
        values["sinkStateTopic"],
        topic,
        values["transactionTimeout"],
        run_id=values.by_key.get("sinkRunId"),
        first_stays=values["sinkRepeats"] == "first",
    )
    if topic is not None:
        sink.check(topic)
    return sink


def producer_options(values: Values) -> ProducerOptions:
    """Return the producers' options; raises OptionError for contradictions."""
    chunking = values["pulsar.producer.chunkingEnabled"]
    batching = values["pulsar.producer.batchingEnabled"]
    if chunking and batching:
        raise OptionError(
            "pulsar.producer.chunkingEnabled and batchingEnabled cannot be used together",
            "Set pulsar.producer.batchingEnabled=false to send large messages in chunks.",
        )
    return ProducerOptions(
        compression=pb.CompressionType.Value(values["pulsar.producer.compressionType"]),
        batching_enabled=batching,
        batching_max_messages=values["pulsar.producer.batchingMaxMessages"],
        batching_max_bytes=values["pulsar.producer.batchingMaxBytes"],
        batching_by_key=values["pulsar.producer.batcherBuilder"] == "KEY_BASED",
        send_timeout=values["pulsar.producer.sendTimeoutMs"],
        max_pending_messages=values["pulsar.producer.maxPendingMessages"],
        hashing_scheme=values["pulsar.producer.hashingScheme"],
        routing_mode=values["pulsar.producer.messageRoutingMode"],
        producer_name=values["pulsar.producer.producerName"],
        access_mode=pb.ProducerAccessMode.Value(values["pulsar.producer.accessMode"]),
        chunking_enabled=chunking,
        encryption=_encryption(values),
    )


def _encryption(values: Values) -> EncryptionOptions | None:
    names = values["pulsar.producer.encryptionKeys"]
    keys = crypto_keys(values, "pulsar.producer.cryptoPublicKeyPath")
    if names is None and keys is None:
        return None
    if names is None or keys is None:
        # Never send unencrypted what should be encrypted.
        raise OptionError(
            "pulsar.producer.encryptionKeys and cryptoPublicKeyPath are needed together",
            "encryptionKeys names the keys, cryptoPublicKeyPath has them.",
        )
    return EncryptionOptions(tuple(names), keys)
