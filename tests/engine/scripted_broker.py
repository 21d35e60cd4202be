"""A broker whose answers the test decides: one function gets each event of each session."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.connection import Connection
from pulsar_spark.protocol.events import CommandReceived, ConnectionFailed, EndOfStream, Event
from pulsar_spark.protocol.frames import encode_command, encode_payload_command
from pulsar_spark.protocol.states import Role
from tests import brief

T = pb.BaseCommand


class Session:
    """One connection, seen from the broker. `number` counts from 0, `memo` is the script's."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.socket = sock
        self.core = Connection(Role.BROKER)
        self.memo: dict[str, Any] = {}
        self.received: list[Event] = []
        self.dropped = False
        self._lock = threading.Lock()

    def send(self, command: pb.BaseCommand) -> None:
        """Send a command that the protocol allows now."""
        with self._lock:
            self.core.send(command)
            self._write()

    def send_unchecked(self, command: pb.BaseCommand) -> None:
        """Send any command, allowed or not."""
        self.send_bytes(encode_command(command))

    def send_bytes(self, data: bytes) -> None:
        """Send any bytes."""
        with self._lock:
            self.socket.sendall(data)

    def send_entry(self, consumer_id: int, entry: Entry) -> None:
        """Deliver an entry to a consumer."""
        command = brief.message(
            consumer_id, pb.MessageIdData(ledgerId=entry.ledger_id, entryId=entry.entry_id)
        )
        with self._lock:
            for part in encode_payload_command(command, entry.metadata, entry.payload):
                self.socket.sendall(part)

    def drop(self) -> None:
        """End the connection; the client still gets all that was sent to it.

        What it sends from now on is read and ignored: a socket that is closed with bytes unread
        resets the connection, and the client's system then discards what it had received.
        """
        self.dropped = True
        self._shut_down(socket.SHUT_WR)

    def abandon(self) -> None:
        """End the connection without waiting for the client to close it too."""
        self.drop()
        self._shut_down(socket.SHUT_RD)

    def _shut_down(self, how: int) -> None:
        try:
            self.socket.shutdown(how)
        except OSError:
            return

    def reply(self, data: bytes) -> list[Event]:
        """Return the client's next events; PINGs are answered at once."""
        with self._lock:
            self.core.receive_data(data)
            self._write()
            return self.core.events_received()

    def _write(self) -> None:
        data: list[Buffer] = self.core.data_to_send()
        for part in data:
            self.socket.sendall(part)


class Entry:
    """An entry of a topic: a batch of `count` messages, or a plain message if that is None."""

    def __init__(
        self,
        ledger_id: int,
        entry_id: int,
        payloads: list[bytes],
        *,
        batched: bool = True,
        publish_time: int = 1,
        **metadata: Any,
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        fields = pb.MessageMetadata(
            producer_name="p", sequence_id=entry_id, publish_time=publish_time, **metadata
        )
        if batched:
            fields.num_messages_in_batch = len(payloads)
            self.payload = _batch(payloads)
        else:
            self.payload = payloads[0]
        self.metadata = fields.SerializeToString()
        self.count = len(payloads)


def _batch(payloads: list[bytes]) -> bytes:
    body = b""
    for payload in payloads:
        metadata = pb.SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        body += len(metadata).to_bytes(4, "big") + metadata + payload
    return body


Script = Callable[[Session, Event], bool]
"""Handles an event and returns true, or returns false to leave it to `answer`."""


class ScriptedBroker:
    """Listens on a free port. `script` decides first; other requests get the usual answers."""

    def __init__(self, script: Script | None = None, port: int = 0) -> None:
        self.script = script
        self.sessions: list[Session] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = int(self._listener.getsockname()[1])
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> ScriptedBroker:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def broker(self) -> BrokerAddress:
        return BrokerAddress(self.address, self.address)

    def options(self, **changes: Any) -> ClientOptions:
        """Return options for a client of this broker, with short waits."""
        values: dict[str, Any] = {"operation_timeout": 5.0, "connection_timeout": 5.0}
        return ClientOptions(f"pulsar://{self.address}", **{**values, **changes})

    def close(self) -> None:
        """Drop all sessions and end all threads."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for session in self.sessions:
            session.abandon()
        for thread in self._threads:
            thread.join(5)

    def commands(self, kind: int) -> list[Any]:
        """Return the bodies of all commands of a type that all sessions received."""
        return [
            event.body
            for session in self.sessions
            for event in session.received
            if isinstance(event, CommandReceived) and event.kind == kind
        ]

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = Session(len(self.sessions), sock)
            self.sessions.append(session)
            self._start(self._serve, session)

    def _serve(self, session: Session) -> None:
        with session.socket:
            try:
                while data := session.socket.recv(1024 * 1024):
                    for event in () if session.dropped else session.reply(data):
                        if not session.dropped:
                            self._handle(session, event)
            except OSError:
                return

    def _handle(self, session: Session, event: Event) -> None:
        session.received.append(event)
        if isinstance(event, ConnectionFailed | EndOfStream):
            session.drop()
        elif self.script is None or not self.script(session, event):
            self.answer(session, event)

    def answer(self, session: Session, event: Event) -> None:
        """Answer like a broker that serves every topic and stores nothing."""
        if not isinstance(event, CommandReceived):
            return
        kind, body = event.kind, event.body
        request_id = event.request_id if event.request_id is not None else 0
        url = f"pulsar://{self.address}"
        if kind == T.CONNECT:
            flags = pb.FeatureFlags(supports_get_partitioned_metadata_without_auto_creation=True)
            session.send(brief.connected("scripted", feature_flags=flags))
        elif kind == T.LOOKUP:
            connect = pb.CommandLookupTopicResponse.Connect
            session.send(brief.lookup_response(request_id, connect, brokerServiceUrl=url))
        elif kind == T.PARTITIONED_METADATA:
            session.send(brief.partitions_response(request_id, partitions=0))
        elif kind == T.GET_LAST_MESSAGE_ID:
            nothing = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
            session.send(brief.last_id_response(request_id, nothing))
        elif kind in (T.SUBSCRIBE, T.CLOSE_CONSUMER, T.CLOSE_PRODUCER, T.SEEK):
            session.send(commands.build(pb.CommandSuccess, request_id=request_id))
        elif kind == T.PRODUCER:
            session.send(brief.producer_success(request_id, "scripted-producer"))
        elif kind not in (T.FLOW, T.ACK, T.AUTH_RESPONSE):
            raise AssertionError(f"no answer for {body}")
