"""Events: what a connection tells its owner after receiving bytes.

An event contains the command's protobuf message itself, so its fields are defined only once, in
`proto/PulsarApi.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import Message

from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import Frame
from pulsar_spark.protocol.frames import MessageBlock, ReceiptBlock


@dataclass(frozen=True, slots=True)
class CommandReceived:
    """A command without payload arrived.

    `kind` is its BaseCommand type, `body` the command's own message, and `request_id` the request
    that it makes or answers, if any.
    """

    kind: int
    body: Message
    request_id: int | None

    @property
    def name(self) -> str:
        """The name of the command's type, such as ``LOOKUP_RESPONSE``."""
        return pb.BaseCommand.Type.Name(self.kind)


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """The peer violated the protocol. The connection is useless and must be closed."""

    error: PulsarError


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """The peer closed the connection; `clean` if it did so between two frames."""

    clean: bool


Event = CommandReceived | MessageBlock | ReceiptBlock | Frame | ConnectionFailed | EndOfStream
"""Brokers get SENDs as a Frame, clients MESSAGEs as a MessageBlock."""
