"""A raw drain: subscribe, then read the socket as fast as it goes and decode nothing."""

from __future__ import annotations

import socket
import time
import uuid
from urllib.parse import urlsplit

from pulsar_spark.protocol import commands
from pulsar_spark.protocol.connection import Connection
from pulsar_spark.protocol.events import CommandReceived, Event
from pulsar_spark.protocol.message_id import EARLIEST
from pulsar_spark.protocol.states import Role

_CHUNK = 1024 * 1024
_PERMITS = 2**31 - 1
_TIMEOUT = 30.0


class Drain:
    """One connection with one non-durable consumer at the beginning of a topic partition."""

    def __init__(self, service_url: str, topic: str) -> None:
        address = urlsplit(service_url)
        assert address.hostname is not None
        self._socket = socket.create_connection((address.hostname, address.port or 6650), _TIMEOUT)
        self._connection = Connection(Role.CLIENT)
        self._send(commands.connect("drain"))
        self._wait("CONNECTED")
        self._send(
            commands.subscribe(
                topic, f"drain-{uuid.uuid4().hex}", 1, 1,
                durable=False, start_message_id=EARLIEST.to_pb(),
            )
        )  # fmt: skip
        self._wait("SUCCESS")

    def _send(self, command: object) -> None:
        self._connection.send(command)  # type: ignore[arg-type]
        self._socket.sendall(b"".join(self._connection.data_to_send()))

    def _receive(self) -> list[Event]:
        self._connection.receive_data(self._socket.recv(_CHUNK))
        return self._connection.events_received()

    def _wait(self, name: str) -> None:
        while True:
            for event in self._receive():
                if isinstance(event, CommandReceived) and event.name == name:
                    return

    def count_bytes(self, messages: int) -> int:
        """Decode until `messages` messages came; return the bytes that it took on the wire."""
        from pulsar_spark.protocol.frames import MessageBlock, parse_payload

        self._send(commands.flow(1, _PERMITS))
        total = count = 0
        while count < messages:
            data = self._socket.recv(_CHUNK)
            total += len(data)
            self._connection.receive_data(data)
            for event in self._connection.events_received():
                if isinstance(event, MessageBlock):
                    for message in event.messages():
                        metadata = parse_payload(message.payload, verify=False).metadata
                        count += metadata.num_messages_in_batch
        return total

    def run(self, total: int) -> float:
        """Read `total` bytes; return the seconds."""
        buffer = bytearray(_CHUNK)
        started = time.perf_counter()
        self._send(commands.flow(1, _PERMITS))
        while total > 0:
            count = self._socket.recv_into(buffer)
            if count == 0:
                raise ConnectionError("the broker closed the connection")
            total -= count
        return time.perf_counter() - started

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
