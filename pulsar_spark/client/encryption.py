"""Keys of end-to-end encryption and a message's encryption context, as in the official client.

The official client reads keys from files only. Here a class of the user can get them from
anywhere, with the methods of Java's CryptoKeyReader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulsar_spark.client.enums import CompressionType
from pulsar_spark.engine.encryption import (
    EncryptionKeyInfo,
    EncryptionOptions,
    KeyReader,
    PemKeys,
)
from pulsar_spark.engine.options import check_text
from pulsar_spark.errors import OptionError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.validation import as_text


class CryptoKeyReader(KeyReader):
    """The keys in two PEM files, or PEM texts: one to encrypt with, one to decrypt with.

    A producer needs the public key, a reader or consumer the private key. Subclasses may define
    `get_public_key` and `get_private_key` to get keys from elsewhere, one for each name.
    """

    def __init__(
        self, public_key_path: str | None = None, private_key_path: str | None = None
    ) -> None:
        self._public = _pem("public_key_path", public_key_path)
        self._private = _pem("private_key_path", private_key_path)

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the key that encrypts data keys; its metadata is sent with each message."""
        return self._public.get_public_key(key_name, metadata)

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the key that decrypts data keys; `metadata` came with the message."""
        return self._private.get_private_key(key_name, metadata)


def _pem(option: str, path: str | None) -> PemKeys:
    if path is not None and not isinstance(path, str):
        raise OptionError(f"{option} of CryptoKeyReader must be text")
    return PemKeys(f"{option} of CryptoKeyReader", () if path is None else (("", path),))


def key_reader(given: object) -> KeyReader | None:
    """Return a user's key reader; raises OptionError for any other type."""
    if given is None or isinstance(given, KeyReader):
        return given
    raise OptionError("crypto_key_reader is not a CryptoKeyReader of this package")


def encryption_options(
    names: str | Sequence[str] | None, given: object
) -> EncryptionOptions | None:
    """Return the producer's encryption options; raises OptionError if one of the two is missing."""
    keys = key_reader(given)
    several = (names,) if isinstance(names, str) else tuple(names or ())
    for name in several:
        check_text("encryption_key", name)
    if not names and keys is None:
        return None
    if not names or keys is None:
        raise OptionError(
            "encryption_key and crypto_key_reader are needed together",
            "Otherwise messages would be sent unencrypted.",
        )
    return EncryptionOptions(several, keys)


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """A message's data key, encrypted for one public key, with that key's name."""

    key: str
    value: bytes
    metadata: Mapping[str, str]


class EncryptionContext:
    """How a message was encrypted: everything needed to decrypt it yourself."""

    __slots__ = ("_failed", "_metadata")

    def __init__(self, metadata: pb.MessageMetadata, *, failed: bool) -> None:
        self._metadata = metadata
        self._failed = failed

    def keys(self) -> list[EncryptionKey]:
        """The data key, encrypted for each of the names."""
        return [
            EncryptionKey(
                as_text(found.key),
                found.value,
                {as_text(pair.key): as_text(pair.value) for pair in found.metadata},
            )
            for found in self._metadata.encryption_keys
        ]

    def param(self) -> bytes:
        """The nonce."""
        return self._metadata.encryption_param

    def algorithm(self) -> str:
        """The encryption algorithm, if the producer named one."""
        return as_text(self._metadata.encryption_algo)

    def compression_type(self) -> CompressionType:
        """How the payload was compressed before encryption."""
        return CompressionType(self._metadata.compression)

    def uncompressed_message_size(self) -> int:
        """Bytes of the payload before compression, 0 if it was not compressed."""
        return self._metadata.uncompressed_size

    def batch_size(self) -> int:
        """How many messages the payload holds, -1 if it is not a batch."""
        if not self._metadata.HasField("num_messages_in_batch"):
            return -1
        return self._metadata.num_messages_in_batch

    def is_decryption_failed(self) -> bool:
        """Whether the payload is still encrypted."""
        return self._failed
