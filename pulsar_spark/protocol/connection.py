"""The protocol of one connection, without a socket.

The owner moves the bytes: it passes what it reads to `receive_data`, writes what `data_to_send`
returns, and calls `events_received`. Both ends use this class, which answers PING itself. Not
thread-safe: the owner holds one mutex around every call.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import Message

from pulsar_spark.errors import PulsarError, RemoteProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.events import (
    CommandReceived,
    ConnectionFailed,
    EndOfStream,
    Event,
)
from pulsar_spark.protocol.frame_parts import BODY_FIELDS, Frame
from pulsar_spark.protocol.frames import (
    DEFAULT_MAX_MESSAGE_SIZE,
    FrameDecoder,
    MessageBlock,
    ReceiptBlock,
    encode_command,
    encode_raw_payload_command,
)
from pulsar_spark.protocol.states import Conversation, Role, State
from pulsar_spark.protocol.validation import ANSWERS, check_body

MAX_MESSAGE_SIZE_LIMIT = 256 * 1024 * 1024
"""The largest message size in bytes that a broker may announce."""

_T = pb.BaseCommand
_PONG = encode_command(pb.BaseCommand(type=_T.PONG, pong=pb.CommandPong()))

_WITH_REQUEST_ID = frozenset(
    number
    for number, name in BODY_FIELDS.items()
    if "request_id" in getattr(_T(), name).DESCRIPTOR.fields_by_name
)


class Connection:
    """One end of a connection: bytes in, events out; commands in, bytes out.

    `max_message_size` (bytes) limits what this side accepts; a client adopts the broker's value
    from CONNECTED.
    """

    def __init__(self, role: Role, max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE) -> None:
        self.role = role
        self.conversation = Conversation(role)
        self._decoder = FrameDecoder(max_message_size)
        self._events: list[Event] = []
        self._outgoing: list[Buffer] = []
        self._failed = False

    @property
    def state(self) -> State:
        """The state of the connection."""
        return self.conversation.connection

    @property
    def max_message_size(self) -> int:
        """The limit for metadata and payload of a message, in bytes."""
        return self._decoder.max_message_size

    def receive_data(self, data: Buffer) -> None:
        """Process bytes from the peer, which may be changed afterwards.

        Never raises because of them: a violation becomes a ConnectionFailed event, and what follows
        is ignored.
        """
        if self._failed:
            return
        self._decoder.receive_data(data)
        try:
            while (found := self._decoder.next_block_or_frame()) is not None:
                if isinstance(found, MessageBlock):
                    self._receive_block(_T.MESSAGE, found.consumer_id, found)
                elif isinstance(found, ReceiptBlock):
                    self._receive_block(_T.SEND_RECEIPT, found.producer_id, found)
                else:
                    self._receive_frame(found)
        except RemoteProtocolError as error:
            self._fail(error)

    def receive_eof(self) -> None:
        """The peer sends no more."""
        if not self._failed:
            self._failed = True
            self._events.append(EndOfStream(clean=self._decoder.buffered == 0))

    def events_received(self) -> list[Event]:
        """Return the events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def data_to_send(self) -> list[Buffer]:
        """Return the buffers to write since the last call, in order."""
        data, self._outgoing = self._outgoing, []
        return data

    def send(self, command: pb.BaseCommand) -> bool:
        """Queue a command without payload.

        Returns False, and queues nothing, if the producer or consumer is gone and the command has
        become pointless. Raises LocalProtocolError if it is illegal now.
        """
        if not self.conversation.apply(self.role, command):
            return False
        self._outgoing.append(encode_command(command))
        return True

    def forget_request(self, request_id: int) -> None:
        """Stop waiting for a request's answer; a late one is harmless."""
        self.conversation.forget_request(request_id)

    def send_frames(self, producer_id: int, frames: Iterable[Buffer]) -> bool:
        """Queue complete SEND frames of one producer; returns and raises as `send`."""
        if not self.conversation.apply_block(self.role, _T.SEND, producer_id):
            return False
        self._outgoing += frames
        return True

    def send_raw_payload(
        self, command: pb.BaseCommand, data: Buffer, broker_entry_metadata: bytes | None = None
    ) -> bool:
        """Queue a MESSAGE whose checksum, metadata and payload are `data`; as `send`."""
        if not self.conversation.apply(self.role, command):
            return False
        self._outgoing += encode_raw_payload_command(
            command, data, broker_entry_metadata=broker_entry_metadata
        )
        return True

    def _receive_block(self, kind: int, owner: int, block: MessageBlock | ReceiptBlock) -> None:
        if self.conversation.apply_block(self.role.peer, kind, owner):
            self._events.append(block)

    def _receive_frame(self, frame: Frame) -> None:
        command = frame.command
        kind = command.type
        if kind not in ANSWERS:
            check_body(kind, getattr(command, BODY_FIELDS[kind]))
        if not self.conversation.apply(self.role.peer, command):
            return
        if kind == _T.SEND:
            self._events.append(frame)
        elif kind == _T.PING:
            self._outgoing.append(_PONG)
        elif kind != _T.PONG:
            if kind == _T.CONNECTED:
                self._adopt_limit(command.connected)
            body: Message = getattr(command, BODY_FIELDS[kind])
            request_id = body.request_id if kind in _WITH_REQUEST_ID else None  # type: ignore[attr-defined]
            self._events.append(CommandReceived(kind, body, request_id))

    def _adopt_limit(self, connected: pb.CommandConnected) -> None:
        if not connected.HasField("max_message_size"):
            return
        size = connected.max_message_size
        if size <= 0:
            raise RemoteProtocolError(f"the broker announces a maximum message size of {size}")
        self._decoder.max_message_size = min(size, MAX_MESSAGE_SIZE_LIMIT)

    def _fail(self, error: PulsarError) -> None:
        self._failed = True
        self._events.append(ConnectionFailed(error))
