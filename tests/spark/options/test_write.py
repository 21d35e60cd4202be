"""Options of a write, checked against each other."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark import cloudpickle

from pulsar_spark.errors import OptionError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.spark.options.write import WriteOptions, parse_write_options
from pulsar_spark.spark.writing.schemas import SchemaChoice

URL = {"service.url": "pulsar://localhost:6650"}


def parse(options: dict[str, str] | None = None) -> WriteOptions:
    return parse_write_options({**URL, **(options or {})})


def test_the_defaults_are_those_of_the_interface() -> None:
    options = parse()
    assert options.topic is None
    assert options.schema.value_format == "auto"
    assert options.keys_as_bytes is False
    assert options.wait_for_receipts is True
    producer = options.producer
    assert producer.compression == pb.NONE
    assert producer.batching_enabled is True
    assert producer.batching_max_messages == 1000
    assert producer.batching_max_bytes == 128 * 1024
    assert producer.hashing_scheme == "JavaStringHash"
    assert producer.routing_mode == "RoundRobinPartition"
    assert producer.send_timeout == 30.0
    assert producer.producer_name is None
    assert producer.access_mode == pb.Shared


def test_options_reach_the_producer() -> None:
    options = parse(
        {
            "topic": "non-persistent://a/b/t",
            "pulsar.producer.compressiontype": "zstd",
            "pulsar.producer.batchingenabled": "false",
            "pulsar.producer.chunkingenabled": "true",
            "pulsar.producer.hashingscheme": "murmur3_32hash",
            "pulsar.producer.messageroutingmode": "SinglePartition",
            "pulsar.producer.producername": "me",
            "pulsar.producer.sendtimeoutms": "5s",
            "pulsar.producer.maxpendingmessages": "10",
            "pulsar.producer.accessmode": "Exclusive",
            "keyencoding": "bytes",
            "deliveryguarantee": "none",
            "valueformat": "raw",
        }
    )
    assert options.topic == "non-persistent://a/b/t"
    assert options.keys_as_bytes is True
    assert options.wait_for_receipts is False
    assert options.schema.value_format == "raw"
    producer = options.producer
    assert producer.compression == pb.ZSTD
    assert producer.batching_enabled is False
    assert producer.chunking_enabled is True
    assert producer.hashing_scheme == "Murmur3_32Hash"
    assert producer.routing_mode == "SinglePartition"
    assert producer.producer_name == "me"
    assert producer.send_timeout == 5.0
    assert producer.max_pending_messages == 10
    assert producer.access_mode == pb.Exclusive


def test_a_send_timeout_of_0_is_none() -> None:
    assert parse({"pulsar.producer.sendTimeoutMs": "0"}).producer.send_timeout == 0


def test_the_path_names_the_topic_too() -> None:
    assert parse({"path": "t"}).topic == "persistent://public/default/t"


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "given,told",
    [
        ({"topic": "t", "path": "u"}, "different topics"),
        (
            {"topic": "a,b"},
            "comma. Write to one topic with the option topic, or name topics in the",
        ),
        ({"path": "a,b"}, "or name topics in the column __topic."),
        ({"mode": "append"}, 'mode=append is not an option of the writer. Write .mode("append")'),
        ({"mode": " Overwrite"}, "mode=Overwrite is not an option of the writer"),
        ({"mode": "nonsense"}, "mode: 'nonsense' is not a valid value"),
        ({"topicsPattern": "a"}, "topicsPattern"),
        ({"pulsar.producer.chunkingEnabled": "true"}, "batchingEnabled"),
        ({"pulsar.producer.compressionType": "gzip"}, "compressionType"),
        ({"keyEncoding": "base64"}, "keyEncoding"),
        ({"schema.name": "a-b"}, "schema.name"),
        ({"schema.name": "com.example.Order"}, "schema.name"),
        ({"schema.namespace": "com..example"}, "schema.namespace"),
        ({"deliveryGuarantee": "at-most-once"}, "deliveryGuarantee"),
        ({"pulsar.producer.sendTimeoutMs": "-1"}, "sendTimeoutMs"),
        ({"transactionTimeout": "0"}, "a value from 1000 to"),
        ({"transactionTimeout": "9999999h"}, "transactionTimeout: '9999999h' is not a valid value"),
        ({"pulsar.client.memoryLimitBytes": "8589934592g"}, "pulsar.client.memoryLimitBytes"),
        ({"pulsar.producer.batchingMaxBytes": "8589934592g"}, "pulsar.producer.batchingMaxBytes"),
        ({"pulsar.client.operationTimeoutMs": "36501d"}, "pulsar.client.operationTimeoutMs"),
        ({"transactionTimeout": "5ms"}, "transactionTimeout"),
        ({"transactionTimeout": "5m"}, "transactionTimeout is only for exactly-once writing"),
        ({"transactionTimeout": "1"}, "transactionTimeout"),
    ],
)
def test_contradictions_and_wrong_values_are_errors(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(given)
    assert told in str(caught.value)


def test_what_schemas_are_called_is_an_option() -> None:
    given = {"valueFormat": "avro", "schema.name": "Order", "schema.namespace": "com.example"}
    assert parse(given).schema == SchemaChoice("avro", "Order", "com.example")
    assert parse({}).schema == SchemaChoice()


def test_options_of_reading_pass_so_that_both_can_share_theirs() -> None:
    assert parse({"startingOffsets": "earliest", "failOnDataLoss": "false"}).topic is None


@pytest.mark.fault(98)
@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_the_options_are_plain_data(pickler: Any) -> None:
    options = parse({"topic": "t"})
    assert pickler.loads(pickler.dumps(options)) == options
