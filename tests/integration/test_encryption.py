"""Each client decrypts what others encrypt: ours, the official Python one, and Java's."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from pulsar_spark.client import (
    ConsumerCryptoFailureAction,
    CryptoKeyReader,
    MessageId,
    PulsarClient,
)
from pulsar_spark.errors import CryptoError, EncryptedMessage, OptionError, PulsarError
from tests.integration.brokers import Broker, as_real
from tests.integration.conftest import TUNED_MESSAGE_SIZE
from tests.integration.java_peer import JavaContent, JavaPeer
from tests.integration.spark_io import load, save, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

pytestmark = pytest.mark.timeout(600)

CONSUME = ConsumerCryptoFailureAction.CONSUME
DISCARD = ConsumerCryptoFailureAction.DISCARD


class KeyPair(NamedTuple):
    """PEM files of a key pair; the private one in the form that Java's client reads."""

    public: Path
    private: Path

    @classmethod
    def make(cls, folder: Path, name: str, key: Any) -> KeyPair:
        found = cls(folder / f"{name}.public.pem", folder / f"{name}.private.pem")
        found.public.write_bytes(
            key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
        found.private.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        )
        return found

    def reader(self, module: Any) -> Any:
        return module.CryptoKeyReader(str(self.public), str(self.private))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KeyPair]:
    """Key pairs: `ours` and `others` (RSA), `curve` (elliptic curve)."""
    keys = {
        "ours": rsa.generate_private_key(65537, 2048),
        "others": rsa.generate_private_key(65537, 2048),
        "curve": ec.generate_private_key(ec.SECP256R1()),
    }
    folder = tmp_path_factory.mktemp("keys")
    return {name: KeyPair.make(folder, name, key) for name, key in keys.items()}


@pytest.fixture(params=["pulsar", "pulsar_spark.client"])
def modules(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """The client package that writes, and the other one, which reads."""
    names = ["pulsar", "pulsar_spark.client"]
    reader = names[1 - names.index(request.param)]
    return importlib.import_module(request.param), importlib.import_module(reader)


def connect(module: Any, broker: Broker) -> Any:
    kind = getattr(module, "Client", None) or module.PulsarClient
    return kind(broker.service_url)


def write(
    module: Any, broker: Broker, topic: str, keys: Any, payloads: list[bytes], **options: Any
) -> None:
    client = connect(module, broker)
    producer = client.create_producer(
        topic,
        encryption_key="k",
        crypto_key_reader=keys,
        block_if_queue_full=True,
        # What is to be a batch is one, however slowly it is filled.
        batching_max_publish_delay_ms=60_000,
        **options,
    )
    for number, payload in enumerate(payloads):
        producer.send_async(payload, None, partition_key=f"key-{number}")
    producer.flush()
    client.close()


def read(module: Any, broker: Broker, topic: str, count: int, **options: Any) -> list[Any]:
    client = connect(module, broker)
    reader = client.create_reader(topic, module.MessageId.earliest, **options)
    found = [reader.read_next(timeout_millis=60_000) for _ in range(count)]
    assert not reader.has_message_available()
    client.close()
    return found


@pytest.mark.parametrize("batching", [True, False], ids=["batched", "single"])
@pytest.mark.parametrize("codec", ["NONE", "LZ4"])
def test_each_client_decrypts_what_the_other_encrypted(
    modules: tuple[Any, Any],
    broker: Broker,
    pairs: dict[str, KeyPair],
    batching: bool,
    codec: str,
) -> None:
    writer, reader = modules
    topic = broker.create_topic()
    payloads = [b"", b"secret", b"text that repeats " * 5000]
    kind = getattr(writer.CompressionType, codec)
    keys = pairs["ours"].reader(writer)
    write(writer, broker, topic, keys, payloads, batching_enabled=batching, compression_type=kind)
    own = pairs["ours"].reader(reader)
    found = read(reader, broker, topic, 3, crypto_key_reader=own)
    assert [message.data() for message in found] == payloads
    assert [message.partition_key() for message in found] == ["key-0", "key-1", "key-2"]
    context = found[0].encryption_context()
    assert not context.is_decryption_failed()
    (key,) = context.keys()
    assert (key.key, len(key.value)) == ("k", 256)


def test_messages_in_chunks_are_encrypted_chunk_by_chunk(
    modules: tuple[Any, Any], tuned_broker: Broker, pairs: dict[str, KeyPair]
) -> None:
    writer, reader = modules
    topic = tuned_broker.create_topic()
    payloads = [b"small", bytes(range(256)) * (TUNED_MESSAGE_SIZE // 64), b"last"]
    keys = pairs["ours"].reader(writer)
    write(writer, tuned_broker, topic, keys, payloads, chunking_enabled=True)
    own = pairs["ours"].reader(reader)
    found = read(reader, tuned_broker, topic, 3, crypto_key_reader=own)
    assert [message.data() for message in found] == payloads


@pytest.mark.fault(40)
@pytest.mark.parametrize("batching", [True, False], ids=["batched", "single"])
def test_what_cannot_be_decrypted_is_left_out_given_as_it_is_or_an_error(
    broker: Broker, pairs: dict[str, KeyPair], batching: bool
) -> None:
    topic = broker.create_topic()
    with PulsarClient(broker.service_url) as client:
        client.create_producer(topic).send(b"plain")
        keys = pairs["others"].reader(pulsar)
        write(pulsar, broker, topic, keys, [b"one", b"two"], batching_enabled=batching)
        client.create_producer(topic).send(b"last")

        def seen(module: Any, count: int, action: Any) -> list[tuple[bytes, str, Any]]:
            own = pairs["ours"].reader(module)
            choice = module.ConsumerCryptoFailureAction(int(action))
            options = {"crypto_key_reader": own, "crypto_failure_action": choice}
            found = []
            for message in read(module, broker, topic, count, **options):
                context = message.encryption_context()
                failed = context is not None and context.is_decryption_failed()
                found.append((message.data(), str(message.message_id()), failed))
            return found

        count = 3 if batching else 4
        consumed = seen(pulsar, count, CONSUME)
        assert [failed for *_, failed in consumed] == [False, *[True] * (count - 2), False]
        ours = importlib.import_module("pulsar_spark.client")
        assert seen(ours, count, CONSUME) == consumed
        assert [data for data, *_ in seen(ours, 2, DISCARD)] == [b"plain", b"last"]

        reader = client.create_reader(
            topic, MessageId.earliest, crypto_key_reader=pairs["ours"].reader(ours)
        )
        assert reader.read_next(timeout_millis=60_000).data() == b"plain"
        with pytest.raises(EncryptedMessage, match="for another key"):
            reader.read_next(timeout_millis=60_000)


def test_a_producer_never_sends_in_clear_what_was_to_be_encrypted(
    broker: Broker, pairs: dict[str, KeyPair]
) -> None:
    topic = broker.create_topic()
    keys = CryptoKeyReader(public_key_path=str(pairs["ours"].public))
    with PulsarClient(broker.service_url) as client:
        for options in ({"encryption_key": "k"}, {"crypto_key_reader": keys}):
            with pytest.raises(OptionError, match="needed together"):
                client.create_producer(topic, **options)
        with pytest.raises(CryptoError, match="cannot be read"):
            client.create_producer(
                topic, encryption_key="k", crypto_key_reader=CryptoKeyReader("/nowhere.pem")
            )
        assert not broker.producers(topic)


def test_a_namespace_that_asks_for_encryption_takes_encrypted_messages_alone(
    broker: Broker, client: PulsarClient, pairs: dict[str, KeyPair]
) -> None:
    real = as_real(broker)
    namespace = broker.create_namespace()
    real.own.admin("POST", f"namespaces/{namespace}/encryptionRequired", True)
    topic = broker.create_topic(broker.unique_topic(namespace=namespace))
    keys = CryptoKeyReader(str(pairs["ours"].public), str(pairs["ours"].private))
    producer = client.create_producer(topic, encryption_key="k", crypto_key_reader=keys)
    producer.send(b"secret")
    producer.close()
    reader = client.create_reader(topic, MessageId.earliest, crypto_key_reader=keys)
    assert reader.read_next(timeout_millis=60_000).data() == b"secret"
    with (
        PulsarClient(broker.service_url, operation_timeout_seconds=4) as impatient,
        pytest.raises(PulsarError, match=r"(?i)encryption is required"),
    ):
        impatient.create_producer(topic)


# --- Java -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def java(request: pytest.FixtureRequest) -> Iterator[JavaPeer]:
    peer = JavaPeer(request.getfixturevalue("_distribution"))
    yield peer
    peer.close()


@pytest.mark.slow
@pytest.mark.real_broker
@pytest.mark.parametrize("pair", ["ours", "curve"])
@pytest.mark.parametrize("batching", [True, False], ids=["batched", "single"])
def test_java_and_we_decrypt_what_the_other_encrypted(
    java: JavaPeer, broker: Broker, pairs: dict[str, KeyPair], pair: str, batching: bool
) -> None:
    as_real(broker)
    keys = pairs[pair]
    payloads = [b"one", b"", b"three" * 1000]
    ours = importlib.import_module("pulsar_spark.client")

    theirs = broker.create_topic()
    contents = [JavaContent(payload) for payload in payloads]
    public = keys.public.read_text()
    java.write(broker, theirs, contents, batching=batching, codec="ZSTD", public_key=public)
    found = read(ours, broker, theirs, 3, crypto_key_reader=keys.reader(ours))
    assert [message.data() for message in found] == payloads

    mine = broker.create_topic()
    write(ours, broker, mine, keys.reader(ours), payloads, batching_enabled=batching)
    read_by_java = java.read(broker, mine, 3, private_key=keys.private.read_text())
    assert [message.content.value for message in read_by_java] == payloads


# --- Spark ------------------------------------------------------------------------------------


def test_spark_encrypts_and_decrypts(
    spark: SparkSession, broker: Broker, pairs: dict[str, KeyPair]
) -> None:
    topic = broker.create_topic()
    columns = ("cast(id as string) value", "map('number', cast(id as string)) __messageProperties")
    frame = spark.range(1000).selectExpr(*columns).coalesce(1)
    public = {name: str(pair.public) for name, pair in pairs.items()}
    producing = {
        "pulsar.producer.encryptionKeys": "ours, curve",
        "pulsar.producer.cryptoPublicKeyPath": json.dumps(public),
        "pulsar.producer.compressionType": "ZSTD",
        "valueFormat": "string",
    }
    save(frame, broker, topic, producing)
    expected = [b"%d" % number for number in range(1000)]
    for reading in (
        {"pulsar.reader.cryptoPrivateKeyPath": str(pairs["ours"].private)},
        {"pulsar.reader.cryptoPrivateKeyPath": pairs["ours"].private.read_text()},
        {"pulsar.reader.cryptoPrivateKeyPath": json.dumps({"curve": str(pairs["curve"].private)})},
    ):
        read_frame = load(spark, broker, topic, {**reading, "valueFormat": "raw"})
        assert values(read_frame) == expected
    own = pairs["ours"].reader(pulsar)
    found = read(pulsar, broker, topic, 1000, crypto_key_reader=own)
    assert [message.data() for message in found] == expected
    assert [message.properties()["number"].encode() for message in found] == expected


@pytest.mark.fault(40, 96)
def test_spark_fails_leaves_out_or_shows_what_it_cannot_decrypt(
    spark: SparkSession, broker: Broker, pairs: dict[str, KeyPair]
) -> None:
    topic = broker.create_topic()
    with PulsarClient(broker.service_url) as client:
        client.create_producer(topic).send(b"plain")
    keys = pairs["others"].reader(pulsar)
    write(pulsar, broker, topic, keys, [b"one", b"two"], batching_enabled=True)

    def found(**options: str) -> list[Any]:
        chosen = {f"pulsar.reader.{name}": value for name, value in options.items()}
        return values(load(spark, broker, topic, chosen))

    private = pairs["ours"].private.read_text()
    with pytest.raises(Exception, match=r"EncryptedMessage.*for another key") as caught:
        found(cryptoPrivateKeyPath=private)
    assert private.splitlines()[1] not in str(caught.value)
    with pytest.raises(Exception, match=r"EncryptedMessage.*cryptoPrivateKeyPath"):
        found()
    assert found(cryptoPrivateKeyPath=private, cryptoFailureAction="DISCARD") == [b"plain"]
    plain, stored = found(cryptoFailureAction="CONSUME")
    assert plain == b"plain"
    assert len(stored) > len(b"onetwo") + 16
