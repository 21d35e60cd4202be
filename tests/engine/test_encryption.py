from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)

from pulsar_spark.engine import encryption
from pulsar_spark.engine.encryption import (
    Decryptor,
    EncryptionKeyInfo,
    EncryptionOptions,
    Encryptor,
    KeyReader,
    PemKeys,
)
from pulsar_spark.errors import CryptoError, EncryptedMessage, MissingDependency
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from tests.protocol import golden
from tests.protocol.test_batches_golden import messages, plain_payload

# A data key (bytes 0 to 31) that Bouncy Castle 1.78 encrypted with ECIES, and its private key.
BOUNCY_CASTLE = bytes.fromhex(
    "04d808195b511b71c41c8888eaff7a8dbc649c9838d2cc4f71e231ea8f1180cd4fec99fe4d65b8f77bbba7881c95c0"
    "4a5b95d0ec58241eacda358a305986143f58108648e4b89a61d7a7083dfef0a9c62f1db8ed131ff27f08180fe63f48"
    "7c8cda1943688c746a07377060d137ba9189047e3d259d"
)
BOUNCY_CASTLE_KEY = """-----BEGIN EC PARAMETERS-----
BggqhkjOPQMBBw==
-----END EC PARAMETERS-----
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEINDjaBIUas3q34uaWoB1COIbM2tHlJ/XZPCia7kwGrDaoAoGCCqGSM49
AwEHoUQDQgAEFCG1AeZhFuWtvjE5XJkKQigmLPX9jsW52vb6lJ0nIvkZFrlugzJb
1zHehQFxSwFpN637yJ7AFi1h/iOBqoWwFQ==
-----END EC PRIVATE KEY-----
"""
DATA_KEY = bytes(range(32))


def private_pem(key: Any, password: bytes | None = None) -> str:
    protection = NoEncryption() if password is None else BestAvailableEncryption(password)
    return str(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection), "ascii")


def public_pem(key: Any) -> str:
    found = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return str(found, "ascii")


RSA = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)
CURVES = {"P-256": ec.SECP256R1(), "P-521": ec.SECP521R1(), "secp256k1": ec.SECP256K1()}


def pem_keys(keys: Mapping[str, str]) -> PemKeys:
    return PemKeys("the.option", tuple(keys.items()))


def encryptor(keys: Mapping[str, Any]) -> Encryptor:
    public = pem_keys({name: public_pem(key) for name, key in keys.items()})
    return Encryptor(EncryptionOptions(tuple(keys), public))


def decryptor(keys: Mapping[str, Any]) -> Decryptor:
    return Decryptor(pem_keys({name: private_pem(key) for name, key in keys.items()}))


def encrypted(source: Encryptor, payload: bytes) -> tuple[pb.MessageMetadata, bytes]:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    data_key = source.data_key()
    data_key.announce(metadata)
    return metadata, data_key.encrypt(metadata, payload)


@pytest.mark.parametrize("name", [name for name in golden.names() if "encrypted" in name])
def test_what_the_official_clients_encrypted_is_decrypted(name: str) -> None:
    der = bytes.fromhex((golden.FOLDER / "keys" / "golden-a.private.der.hex").read_text())
    reader = Decryptor(pem_keys({"golden-a": private_pem(load_der_private_key(der, None))}))
    found = 0
    for _, parts, expected in messages(name):
        if parts.metadata.encryption_keys:
            parts.payload = memoryview(reader.decrypt(parts.metadata, parts.payload))
            golden.check_payload(plain_payload(parts), expected["plain_payload"])
            found += 1
    assert found


def test_a_data_key_that_java_encrypted_for_an_elliptic_curve_is_opened() -> None:
    key = encryption._private_key(BOUNCY_CASTLE_KEY.encode(), "k")
    assert encryption._unwrap(key, BOUNCY_CASTLE) == DATA_KEY


@pytest.mark.parametrize("curve", CURVES)
def test_keys_on_elliptic_curves_encrypt_data_keys(curve: str) -> None:
    key = ec.generate_private_key(CURVES[curve])
    metadata, body = encrypted(encryptor({"k": key}), b"secret")
    assert decryptor({"k": key}).decrypt(metadata, body) == b"secret"
    for place in range(0, len(metadata.encryption_keys[0].value), 7):
        changed = bytearray(metadata.encryption_keys[0].value)
        changed[place] ^= 1
        metadata.encryption_keys[0].value = bytes(changed)
        with pytest.raises(EncryptedMessage, match="encrypted for another key"):
            decryptor({"k": key}).decrypt(metadata, body)


def test_any_one_of_the_named_keys_decrypts() -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    metadata, body = encrypted(encryptor({"a": RSA, "b": OTHER, "c": curve}), b"secret")
    for keys in ({"a": RSA}, {"b": OTHER}, {"c": curve}, {"a": OTHER, "b": OTHER}, {"": OTHER}):
        assert decryptor(keys).decrypt(metadata, body) == b"secret"


@pytest.mark.fault(40)
def test_a_message_for_others_is_an_error_that_names_their_keys() -> None:
    metadata, body = encrypted(encryptor({"finance": RSA}), b"secret")
    for keys, reason in (
        ({"finance": OTHER}, "encrypted for another key"),
        ({"sales": RSA}, "no key named 'finance'"),
    ):
        with pytest.raises(EncryptedMessage, match=reason) as caught:
            decryptor(keys).decrypt(metadata, body)
        assert "finance" in str(caught.value)


def test_a_private_key_is_parsed_once_however_many_data_keys_and_tasks_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = rsa.generate_private_key(65537, 2048)
    load, loaded = serialization.load_pem_private_key, []

    def counted(*args: Any) -> Any:
        loaded.append(args)
        return load(*args)

    monkeypatch.setattr(serialization, "load_pem_private_key", counted)
    for _ in range(2):
        reader = decryptor({"": key})
        for _ in range(3):
            assert reader.decrypt(*encrypted(encryptor({"k": key}), b"secret")) == b"secret"
    assert len(loaded) == 1


@pytest.mark.fault(40)
def test_a_changed_payload_is_an_error() -> None:
    metadata, body = encrypted(encryptor({"k": RSA}), b"secret")
    for place in (0, len(body) - 1):
        changed = bytearray(body)
        changed[place] ^= 1
        with pytest.raises(EncryptedMessage, match="was changed"):
            decryptor({"k": RSA}).decrypt(metadata, bytes(changed))
    with pytest.raises(EncryptedMessage, match="was changed"):
        decryptor({"k": RSA}).decrypt(metadata, b"")


@pytest.mark.parametrize("length", [0, 11, 129])
def test_a_nonce_of_another_length_is_an_error(length: int) -> None:
    metadata, body = encrypted(encryptor({"k": RSA}), b"secret")
    metadata.encryption_param = bytes(length)
    with pytest.raises(EncryptedMessage, match="encryption_param"):
        decryptor({"k": RSA}).decrypt(metadata, body)


def test_a_data_key_serves_four_hours_and_no_nonce_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("pulsar_spark.engine.encryption.time.monotonic", lambda: now)
    source = encryptor({"k": RSA})
    sent = [encrypted(source, b"x") for _ in range(3)]
    now += 4 * 3600 - 1
    sent.append(encrypted(source, b"x"))
    now += 2
    sent += [encrypted(source, b"x") for _ in range(2)]
    data_keys = [metadata.encryption_keys[0].value for metadata, _ in sent]
    assert [data_keys.index(key) for key in data_keys] == [0, 0, 0, 0, 4, 4]
    assert len({metadata.encryption_param for metadata, _ in sent}) == len(sent)
    reader = decryptor({"k": RSA})
    assert [reader.decrypt(*message) for message in sent] == [b"x"] * len(sent)


def test_a_key_that_was_missing_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    now = 1000.0
    monkeypatch.setattr("pulsar_spark.engine.encryption.time.monotonic", lambda: now)
    path = tmp_path / "key.pem"
    path.write_text(private_pem(OTHER))
    reader = Decryptor(pem_keys({"": str(path)}))
    message = encrypted(encryptor({"k": RSA}), b"secret")
    with pytest.raises(EncryptedMessage):
        reader.decrypt(*message)
    path.write_text(private_pem(RSA))
    now += 11
    assert reader.decrypt(*message) == b"secret"


def test_keys_that_are_replaced_in_their_file_are_found(tmp_path: Any) -> None:
    path = tmp_path / "key.pem"
    path.write_text(private_pem(RSA))
    reader = Decryptor(pem_keys({"": str(path)}))
    assert reader.decrypt(*encrypted(encryptor({"k": RSA}), b"old")) == b"old"
    path.write_text(private_pem(OTHER))
    assert reader.decrypt(*encrypted(encryptor({"k": OTHER}), b"new")) == b"new"


def test_metadata_of_a_key_goes_to_the_reader_of_keys() -> None:
    asked: list[tuple[str, Mapping[str, str]]] = []

    class Vault(KeyReader):
        def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
            return EncryptionKeyInfo(public_pem(RSA).encode(), {"version": "7"})

        def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
            asked.append((key_name, metadata))
            return EncryptionKeyInfo(private_pem(RSA).encode())

    metadata, body = encrypted(Encryptor(EncryptionOptions(("k",), Vault())), b"secret")
    reader = Decryptor(Vault())
    assert [reader.decrypt(metadata, body) for _ in range(3)] == [b"secret"] * 3
    assert asked == [("k", {"version": "7"})]


def test_a_reader_of_keys_that_fails_has_none_and_its_words_are_not_repeated() -> None:
    class Broken(KeyReader):
        def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
            raise RuntimeError("hunter2")

        def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
            raise RuntimeError("hunter2")

    with pytest.raises(CryptoError, match="RuntimeError") as sending:
        Encryptor(EncryptionOptions(("k",), Broken()))
    with pytest.raises(EncryptedMessage, match="RuntimeError") as reading:
        Decryptor(Broken()).decrypt(*encrypted(encryptor({"k": RSA}), b"secret"))
    assert "hunter2" not in f"{sending.value} {reading.value}"


@pytest.mark.parametrize(
    "pem, reason",
    [
        ("/nowhere/key.pem", "the.option cannot be read"),
        ("content:-----BEGIN NOTHING-----", "is not PEM"),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", "cannot be read"),
        (private_pem(RSA, b"pw"), "with a password"),
        (private_pem(ed25519.Ed25519PrivateKey.generate()), "neither of RSA nor on an elliptic"),
        (public_pem(RSA), "the private key 'the.option' is not PEM"),
    ],
    # Each process makes its own keys, but test ids must be the same in all of them.
    ids=lambda value: value[:20],
)
def test_a_private_key_that_cannot_be_used_is_an_error_before_any_message(
    pem: str, reason: str
) -> None:
    with pytest.raises(CryptoError, match=reason) as caught:
        Decryptor(pem_keys({"": pem}), "DISCARD")
    assert not set(pem.splitlines()[1:-1]) & set(str(caught.value).splitlines())


@pytest.mark.parametrize(
    "pem, reason",
    [
        ("/nowhere/key.pem", "the.option cannot be read"),
        (private_pem(RSA), "the public key 'k' is not PEM"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "cannot be read"),
    ],
    ids=lambda value: value[:20],
)
def test_a_public_key_that_cannot_be_used_is_an_error(pem: str, reason: str) -> None:
    with pytest.raises(CryptoError, match=reason):
        Encryptor(EncryptionOptions(("k",), pem_keys({"": pem})))


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata, body = encrypted(encryptor({"k": RSA}), b"secret")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    keys = pem_keys({"": private_pem(RSA)})
    for use in (
        lambda: encryptor({"k": RSA}),
        lambda: Decryptor(keys),
    ):
        with pytest.raises(MissingDependency, match=r"pulsar-spark\[crypto\]"):
            use()
    # Nobody needs it without keys.
    with pytest.raises(EncryptedMessage, match="no key was given"):
        Decryptor().decrypt(metadata, body)


@pytest.mark.fault(96)
def test_keys_are_in_no_repr_and_can_be_pickled() -> None:
    keys = pem_keys({"k": private_pem(RSA)})
    assert (
        "PRIVATE"
        not in f"{keys!r} {EncryptionKeyInfo(b'PRIVATE')!r} {EncryptionOptions(('k',), keys)!r}"
    )
    assert pickle.loads(pickle.dumps(keys)) == keys
