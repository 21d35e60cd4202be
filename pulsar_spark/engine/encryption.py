"""End-to-end encryption of payloads.

A producer encrypts payloads, after compression, with its own data key (AES-256-GCM, a new nonce for
each). Each message carries that data key, encrypted for each of the named public keys; any one of
the private keys decrypts it. RSA keys use OAEP with SHA-1, as in all Pulsar clients; elliptic curve
keys use ECIES, as in the Java client.

Needs the package cryptography, which is imported when the first key is used.
"""

from __future__ import annotations

import hmac
import os
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pulsar_spark.engine.deadline import is_interrupt
from pulsar_spark.engine.pem import read_pem
from pulsar_spark.errors import (
    CryptoError,
    EncryptedMessage,
    MissingDependency,
    OptionError,
    PulsarError,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer

_KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
# As often as in the Java and C++ clients.
_ROTATION_SECONDS = 4 * 3600.0
# Nonces are random: stay far below the number at which two might be equal.
_MAX_MESSAGES_OF_A_KEY = 2**30
_MAX_CACHED_KEYS = 1000
_MAX_PARSED_KEYS = 16
# A missing key may appear later, but many messages may need it: ask only this often.
_ASK_AGAIN_SECONDS = 10.0

_PUBLIC = re.compile(r"-----BEGIN ((?:RSA )?PUBLIC KEY|CERTIFICATE)-----.*?-----END \1-----", re.S)
_PRIVATE = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----", re.S)


@dataclass(frozen=True, slots=True)
class EncryptionKeyInfo:
    """A key as PEM, with metadata that the producer's key reader passes to the consumers'."""

    key: bytes = field(repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)


class KeyReader:
    """Finds keys by name. If a method raises, there is no such key."""

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the key to encrypt data keys with; its metadata goes with each message."""
        raise NotImplementedError

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the key to decrypt data keys with; `metadata` came with the message."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class EncryptionOptions:
    """The public keys that encrypt a producer's data keys: their names and their reader.

    Raises OptionError without a name.
    """

    names: tuple[str, ...]
    keys: KeyReader

    def __post_init__(self) -> None:
        if not self.names or not all(self.names):
            raise OptionError(
                "encryption is asked for, and no key is named", "Name the keys to encrypt with."
            )


@dataclass(frozen=True, slots=True)
class PemKeys(KeyReader):
    """Keys as PEM text or paths, by name; the name "" stands for all others. Plain data.

    `option` names them in errors. Files are read for each new data key, so that a replaced key is
    found.
    """

    option: str
    keys: tuple[tuple[str, str], ...] = field(repr=False)

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the key of that name; raises CryptoError."""
        return EncryptionKeyInfo(self._load(key_name))

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the key of that name; raises CryptoError."""
        return EncryptionKeyInfo(self._load(key_name))

    def check_private(self) -> None:
        """Raise CryptoError unless all are usable private keys."""
        for name, value in self.keys:
            _private_key(_read_key(value, self.option), name or self.option)

    def _load(self, name: str) -> bytes:
        keys = dict(self.keys)
        value = keys.get(name, keys.get(""))
        if value is None:
            raise CryptoError(
                f"{self.option} has no key named {name!r}",
                'Give it as JSON: {"name": "/path/to/key.pem"}.',
            )
        return _read_key(value, self.option)


def _read_key(value: str, option: str) -> bytes:
    remedy = "It has to be on every machine that reads or writes messages."
    return read_pem(value, option, CryptoError, remedy)


# --- data keys ----------------------------------------------------------------------------------


class DataKey:
    """A key that encrypts payloads, and how its readers get it."""

    overhead = _TAG_BYTES
    """How many bytes encryption adds to a payload."""

    def __init__(self, options: EncryptionOptions) -> None:
        data_key = os.urandom(_KEY_BYTES)
        self._cipher = _aes(data_key)
        self._wrapped = [_wrapped(name, options.keys, data_key) for name in options.names]

    def announce(self, metadata: pb.MessageMetadata) -> None:
        """Add to a message's metadata what readers need, with room for the nonce."""
        metadata.encryption_keys.extend(self._wrapped)
        metadata.encryption_param = bytes(_NONCE_BYTES)

    def encrypt(self, metadata: pb.MessageMetadata, payload: Buffer) -> bytes:
        """Encrypt a payload, and set the nonce in its metadata."""
        nonce = os.urandom(_NONCE_BYTES)
        metadata.encryption_param = nonce
        encrypted: bytes = self._cipher.encrypt(nonce, payload, None)
        return encrypted


class Encryptor:
    """The data keys of a producer, replaced every four hours. For one thread.

    Raises CryptoError for missing or unusable keys, and MissingDependency.
    """

    def __init__(self, options: EncryptionOptions) -> None:
        self._options = options
        self._renew()

    def data_key(self) -> DataKey:
        """Return the key for the next message; raises CryptoError if a new one cannot be made."""
        self._messages += 1
        is_old = time.monotonic() - self._since > _ROTATION_SECONDS
        if is_old or self._messages > _MAX_MESSAGES_OF_A_KEY:
            self._renew()
        return self._data_key

    def _renew(self) -> None:
        self._data_key = DataKey(self._options)
        self._since = time.monotonic()
        self._messages = 0


class Decryptor:
    """Decrypts a reader's messages with the keys that it has.

    `action` says what happens to other messages: ``FAIL``, ``DISCARD`` or ``CONSUME``. Raises
    CryptoError for unusable keys, whatever the action, and MissingDependency.
    """

    def __init__(self, keys: KeyReader | None = None, action: str = "FAIL") -> None:
        self.action = action
        self._keys = keys
        if isinstance(keys, PemKeys):
            keys.check_private()
        # Encrypted data key → cipher, or why there is none, and how long that holds.
        self._ciphers: OrderedDict[tuple[str, bytes], tuple[Any, float]] = OrderedDict()

    def decrypt(self, metadata: pb.MessageMetadata, payload: Buffer) -> bytes:
        """Return the payload of a message that has encryption keys; raises EncryptedMessage."""
        if self._keys is None:
            raise EncryptedMessage(
                "the message is encrypted and no key was given",
                "Set pulsar.reader.cryptoPrivateKeyPath.",
            )
        if len(metadata.encryption_param) != _NONCE_BYTES:
            raise EncryptedMessage(
                f"the encryption_param of a message has {len(metadata.encryption_param)} bytes, "
                f"not {_NONCE_BYTES}"
            )
        reasons = []
        for wrapped in metadata.encryption_keys:
            cipher = self._cipher(wrapped)
            if isinstance(cipher, str):
                reasons.append(f"{wrapped.key!r}: {cipher}")
                continue
            from cryptography.exceptions import InvalidTag

            try:
                body: bytes = cipher.decrypt(metadata.encryption_param, payload, None)
                return body
            except InvalidTag:
                reasons.append(f"{wrapped.key!r}: the payload was changed")
        raise EncryptedMessage(
            f"the message cannot be decrypted ({'; '.join(reasons)})",
            "Give the private key of one of these names.",
        )

    def _cipher(self, wrapped: pb.EncryptionKeys) -> Any:
        """Return a data key's cipher, or why there is none."""
        place = (wrapped.key, wrapped.value)
        cipher, until = self._ciphers.get(place, (None, 0.0))
        if time.monotonic() < until:
            self._ciphers.move_to_end(place)
            return cipher
        until = float("inf")
        try:
            cipher = self._open(wrapped)
        except MissingDependency:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            # SystemExit, too. The text of a user's error may hold anything.
            raised = f"its reader of keys raised {type(error).__name__}"
            cipher = error.what if isinstance(error, PulsarError) else raised
            until = time.monotonic() + _ASK_AGAIN_SECONDS
        self._ciphers[place] = cipher, until
        if len(self._ciphers) > _MAX_CACHED_KEYS:
            self._ciphers.popitem(last=False)
        return cipher

    def _open(self, wrapped: pb.EncryptionKeys) -> Any:
        assert self._keys is not None
        metadata = {pair.key: pair.value for pair in wrapped.metadata}
        info = self._keys.get_private_key(wrapped.key, metadata)
        key = _private_key(info.key, wrapped.key)
        try:
            data_key = _unwrap(key, wrapped.value)
        except ValueError:
            raise CryptoError("it was encrypted for another key") from None
        if len(data_key) not in (16, 24, 32):
            raise CryptoError(f"its data key has {len(data_key)} bytes")
        return _aes(data_key)


def _wrapped(name: str, keys: KeyReader, data_key: bytes) -> pb.EncryptionKeys:
    try:
        info = keys.get_public_key(name, {})
    except PulsarError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise CryptoError(
            f"the reader of keys has no public key {name!r}: it raised {type(error).__name__}"
        ) from None
    wrapped = pb.EncryptionKeys(key=name, value=_wrap(_public_key(info.key, name), data_key))
    for label, value in info.metadata.items():
        wrapped.metadata.add(key=label, value=value)
    return wrapped


# --- keys of users ------------------------------------------------------------------------------


def _import() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise MissingDependency(
            "end-to-end encryption needs the package cryptography",
            "Install pulsar-spark[crypto] on every machine.",
        ) from None


def _aes(key: bytes) -> Any:
    _import()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _public_key(pem: bytes, name: str) -> Any:
    _import()
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    found = _PUBLIC.search(pem.decode("ascii", "ignore"))
    if found is None:
        raise CryptoError(
            f"the public key {name!r} is not PEM",
            "It begins with -----BEGIN PUBLIC KEY-----. Of a private key it is made by: openssl "
            "pkey -in private.pem -pubout -out public.pem",
        )
    block = found[0].encode()
    try:
        if found[1] == "CERTIFICATE":
            key: Any = x509.load_pem_x509_certificate(block).public_key()
        else:
            key = serialization.load_pem_public_key(block)
    except Exception:
        raise CryptoError(f"the public key {name!r} cannot be read") from None
    return _checked(key, name)


@lru_cache(_MAX_PARSED_KEYS)
def _loaded(pem: bytes) -> Any:
    """Parse a private key: for RSA, that takes 50 times as long as to decrypt a data key."""
    from cryptography.hazmat.primitives import serialization

    return serialization.load_pem_private_key(pem, None)


def _private_key(pem: bytes, name: str) -> Any:
    _import()
    found = _PRIVATE.search(pem.decode("ascii", "ignore"))
    if found is None:
        raise CryptoError(
            f"the private key {name!r} is not PEM", "It begins with -----BEGIN PRIVATE KEY-----."
        )
    try:
        key = _loaded(found[0].encode())
    except TypeError:
        raise CryptoError(
            f"the private key {name!r} is encrypted with a password",
            "Decrypt it: openssl pkey -in encrypted.pem -out private.pem; and guard the file.",
        ) from None
    except Exception:
        # The text of the reason may hold parts of the key.
        raise CryptoError(f"the private key {name!r} cannot be read") from None
    return _checked(key, name)


def _checked(key: Any, name: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    kinds = (
        rsa.RSAPublicKey,
        rsa.RSAPrivateKey,
        ec.EllipticCurvePublicKey,
        ec.EllipticCurvePrivateKey,
    )
    if not isinstance(key, kinds):
        raise CryptoError(f"the key {name!r} is neither of RSA nor on an elliptic curve")
    return key


def _oaep() -> Any:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    # All clients use SHA-1 here; within OAEP it is safe.
    sha1 = hashes.SHA1()
    return padding.OAEP(padding.MGF1(sha1), sha1, None)


def _wrap(public_key: Any, data_key: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    if isinstance(public_key, rsa.RSAPublicKey):
        try:
            return bytes(public_key.encrypt(data_key, _oaep()))
        except ValueError:
            raise CryptoError(f"a key of {public_key.key_size} bits is too short") from None
    own = ec.generate_private_key(public_key.curve)
    point = own.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return _ecies(point, own.exchange(ec.ECDH(), public_key), data_key)


def _unwrap(private_key: Any, wrapped: bytes) -> bytes:
    """Decrypt a data key; raises ValueError if it was not encrypted for this key."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if isinstance(private_key, rsa.RSAPrivateKey):
        return bytes(private_key.decrypt(wrapped, _oaep()))
    size = 1 + 2 * ((private_key.curve.key_size + 7) // 8)
    point, body = wrapped[:size], wrapped[size:-_ECIES_TAG]
    other = ec.EllipticCurvePublicKey.from_encoded_point(private_key.curve, point)
    secret = private_key.exchange(ec.ECDH(), other)
    data_key = _ecies(point, secret, body)[size:-_ECIES_TAG]
    if not hmac.compare_digest(_ecies(point, secret, data_key), wrapped):
        raise ValueError("the tag of ECIES is another")
    return data_key


_ECIES_TAG = 20
_ECIES_MAC_KEY = 16


def _ecies(point: bytes, secret: bytes, body: bytes) -> bytes:
    """Encrypt with ECIES as Bouncy Castle's defaults do: IEEE 1363a, DHAES mode.

    KDF2, which is X9.63's, with SHA-1 of the point and the shared secret gives an HMAC key, then a
    key stream. The body is XORed with the stream; the HMAC covers the result and the length 0 of an
    empty encoding parameter.
    """
    from cryptography.hazmat.primitives.hashes import SHA1
    from cryptography.hazmat.primitives.kdf.x963kdf import X963KDF

    stream = X963KDF(SHA1(), _ECIES_MAC_KEY + len(body), None).derive(point + secret)
    mac_key, pad = stream[:_ECIES_MAC_KEY], stream[_ECIES_MAC_KEY:]
    encrypted = bytes(one ^ other for one, other in zip(body, pad, strict=False))
    return point + encrypted + hmac.digest(mac_key, encrypted + bytes(8), "sha1")
