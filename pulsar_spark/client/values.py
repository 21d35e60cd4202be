"""The values of received messages, each decoded with the schema version it was written with.

A batch has one version. All its values are decoded together when the first one is accessed,
because each call of a decoder has a fixed cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pulsar_spark.client.schema import AutoConsumeSchema, DefinedSchema, Schema, undecodable
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.errors import CorruptMessage, PulsarError, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import message_key
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import topic_of

if TYPE_CHECKING:
    from pulsar_spark.schema.python_values import PythonDecoder, PythonPairDecoder
    from pulsar_spark.schema.registry import SchemaVersions

    # What decodes values, the schema that they are read with, and the version's number.
    _Decoder = tuple[PythonDecoder | PythonPairDecoder, SchemaInfo, str]

_MAX_DECODERS = 100

Keys = Callable[[], Sequence[bytes | None]]
"""Returns the keys of messages, for schemas that separate them from payloads."""

AnyMetadata = pb.MessageMetadata | pb.SingleMessageMetadata


class _Received(Protocol):
    """What is asked of a message, see `message.Message`."""

    def data(self) -> bytes: ...
    def has_null_value(self) -> bool: ...
    def topic_name(self) -> str: ...
    def version_bytes(self) -> bytes: ...
    def fields(self) -> AnyMetadata: ...
    def message_id(self) -> object: ...


class MessageValues:
    """Decodes the message values of a consumer, a reader or a table view.

    Without a `lookup`, all messages are read with the schema itself. Thread-safe.
    """

    def __init__(self, schema: Schema, lookup: Lookup | None = None) -> None:
        self.schema = schema
        self._lookup = lookup
        self.decodes = isinstance(schema, DefinedSchema | AutoConsumeSchema)
        """Whether values are decoded as columns, so that decoding many together is faster."""
        self._versions: dict[str, SchemaVersions] = {}
        self._decoders: dict[tuple[str, bytes], _Decoder] = {}

    def of(self, message: _Received) -> Any:
        """Return a message's value; None for a null value, unless it is a pair with a key.

        Raises CorruptMessage that names the field, SchemaMismatch for a version that cannot be
        read with the schema, and the broker's error when asking it for a version.
        """
        if not self.decodes:
            return self.schema.decode(message.data())
        payload = None if message.has_null_value() else message.data()
        topic, version = message.topic_name(), message.version_bytes()
        try:
            found = self.decode(topic, version, [payload], lambda: [key_of(message.fields())])
            return checked(found[0])
        except PulsarError as error:
            raise error.with_context(topic=topic, message_id=message.message_id()) from None

    def written_with(self, message: _Received) -> SchemaInfo | None:
        """Return the schema that a message was written with, None for bytes.

        May ask a broker, and raises its error.
        """
        version = message.version_bytes()
        found = None
        if version and self.decodes:
            found = self._writer(topic_of(message.topic_name()), version)
        if found is None and not isinstance(self.schema, AutoConsumeSchema):
            found = self.schema.registered()
        return found

    def decode(
        self, topic: str, version: bytes, payloads: Sequence[bytes | None], keys: Keys
    ) -> list[Any]:
        """Decode messages of one topic and version; an invalid one gives its error instead."""
        from pulsar_spark.schema.arrow.arrays import binaries
        from pulsar_spark.schema.codec import Undecodable

        known = self._decoder(topic, version)
        if known is None:
            return list(payloads)
        decoder, reader, number = known
        found = decoder.decode(binaries(payloads), binaries(keys()) if decoder.separated else None)

        def made(value: Any, payload: bytes | None) -> Any:
            if isinstance(value, Undecodable):
                return undecodable(value, reader, number)
            try:
                return self.schema.made(value, payload)
            except CorruptMessage as error:
                return error

        return list(map(made, found, payloads))

    def _decoder(self, topic: str, version: bytes) -> _Decoder | None:
        """Return the decoder of a version of a topic, None if values are bytes."""
        owner = topic_of(topic)
        found = self._decoders.get((owner, version))
        if found is None:
            found = self._made(owner, version)
            if found is not None:
                if len(self._decoders) >= _MAX_DECODERS:
                    self._decoders.clear()
                self._decoders[owner, version] = found
        return found

    def _made(self, owner: str, version: bytes) -> _Decoder | None:
        from pulsar_spark.schema.codec import is_decoded
        from pulsar_spark.schema.python_values import decoder_between
        from pulsar_spark.schema.registry import version_number

        reader = self.schema.registered()
        assert reader is not None
        writer = self._writer(owner, version)
        number = version_number(version) if version else ""
        if isinstance(self.schema, AutoConsumeSchema):
            if writer is None or not is_decoded(writer):
                return None
            reader = writer
        try:
            return decoder_between(writer or reader, reader), reader, number
        except SchemaMismatch as error:
            raise SchemaMismatch(
                f"version {number} of the topic's schema: {error.what}" if number else error.what,
                "Take the bytes with data(), or read with the schema they were written with.",
                topic=owner,
            ) from None

    def _writer(self, owner: str, version: bytes) -> SchemaInfo | None:
        from pulsar_spark.schema.registry import SchemaVersions

        if not version or self._lookup is None:
            return None
        if owner not in self._versions:
            self._versions[owner] = SchemaVersions(self._lookup, owner)
        return self._versions[owner](version)


def key_of(fields: AnyMetadata) -> bytes | None:
    """Return the key of a message whose schema separates it, None for a null key."""
    try:
        return message_key(fields)
    except CorruptMessage:
        # It claims to be base64, and is taken as it is. Protobuf returns bytes unless it is UTF-8.
        key: str | bytes = fields.partition_key
        return key.encode() if isinstance(key, str) else key


def checked(value: Any) -> Any:
    """Return a value; raises it if it is an error."""
    if isinstance(value, PulsarError):
        raise value.with_context()
    return value
