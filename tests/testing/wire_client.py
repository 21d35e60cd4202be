"""A client of raw frames: it sends what a test says, legal or not, and shows the answers."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import BODY_FIELDS, ReceivedEntry, parse_payload
from pulsar_spark.protocol.frames import encode_command, encode_payload_command
from pulsar_spark.protocol.versions import without_checksums
from pulsar_spark.testing import EmbeddedBroker
from tests.support.frames import SingleFrames
from tests.support.waiting import PATIENCE

EARLIEST = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
LATEST = pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)

FEATURES = pb.FeatureFlags(supports_auth_refresh=True, supports_broker_entry_metadata=True)
TIMEOUT = PATIENCE

BODIES = {pb.BaseCommand.Type.Name(kind): body for body, (kind, _) in commands.BODIES.items()}

# The broker's loop needs fewer turns to deliver everything and to write its output.
_TURNS = 4


@dataclass(frozen=True)
class Received:
    """A frame from the broker: its type's name, its body, and a MESSAGE's payload."""

    name: str
    body: Any
    raw: memoryview | None = None

    @property
    def entry(self) -> ReceivedEntry:
        """The parts of a MESSAGE's payload, without a check of the checksum."""
        assert self.raw is not None
        return parse_payload(self.raw, verify=False)

    @property
    def place(self) -> tuple[int, int]:
        """Ledger and entry of a MESSAGE or SEND_RECEIPT."""
        return self.body.message_id.ledgerId, self.body.message_id.entryId

    @property
    def payload(self) -> bytes:
        """The payload of a MESSAGE."""
        return bytes(self.entry.payload)


class WireClient:
    """One connection; every wait ends after `TIMEOUT` seconds by an AssertionError."""

    def __init__(
        self,
        port: int,
        *,
        handshake: bool = True,
        version: int = 21,
        answer_pings: bool = True,
        **connect: Any,
    ) -> None:
        self._answer_pings = answer_pings
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = SingleFrames(64 * 1024 * 1024)
        self._unread: list[Received] = []
        self._request_ids = itertools.count(1)
        self._sequence_ids = itertools.count()
        if handshake:
            connect.setdefault("feature_flags", FEATURES)
            self.send("CONNECT", client_version="test", protocol_version=version, **connect)
            self.expect("CONNECTED")

    # --- out ---

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def send_within(self, data: bytes, seconds: float) -> None:
        """Send bytes; raises TimeoutError if the broker does not take them in time."""
        self._socket.settimeout(seconds)
        self._socket.sendall(data)

    def shutdown(self) -> None:
        """Close the sending direction."""
        self._socket.shutdown(socket.SHUT_WR)

    def send(self, command: pb.BaseCommand | str, **fields: Any) -> None:
        """Send a command, given whole or by its name and fields."""
        built = commands.build(BODIES[command], **fields) if isinstance(command, str) else command
        self.send_bytes(encode_command(built))

    def ask(self, kind: str, **fields: Any) -> int:
        """Send a request under a new id and return that id."""
        request_id = next(self._request_ids)
        self.send(kind, request_id=request_id, **fields)
        return request_id

    def request(self, kind: str, **fields: Any) -> Received:
        """Send a request and return its answer, whatever it is."""
        return self.answer(self.ask(kind, **fields))

    def send_entry(
        self,
        payload: bytes = b"payload",
        *,
        producer_id: int = 0,
        sequence_id: int | None = None,
        batch: int | None = None,
        publish_time: int | None = None,
        checksum: bool = True,
        send_fields: dict[str, Any] | None = None,
        **metadata: Any,
    ) -> int:
        """Send an entry without waiting for its receipt; returns its sequence id."""
        number = next(self._sequence_ids) if sequence_id is None else sequence_id
        data = pb.MessageMetadata(
            producer_name="wire",
            sequence_id=number,
            publish_time=int(time.time() * 1000) if publish_time is None else publish_time,
            num_messages_in_batch=batch,
            **metadata,
        )
        command = commands.build(
            pb.CommandSend,
            producer_id=producer_id,
            sequence_id=number,
            num_messages=batch,
            **(send_fields or {}),
        )
        frame = b"".join(encode_payload_command(command, data.SerializeToString(), payload))
        self.send_bytes(frame if checksum else without_checksums(frame))
        return number

    def publish(self, payload: bytes = b"payload", **options: Any) -> Received:
        """Send an entry and return its receipt, or the SEND_ERROR."""
        self.send_entry(payload, **options)
        return self.expect("SEND_RECEIPT", "SEND_ERROR")

    def produce(self, topic: str, producer_id: int = 0, **fields: Any) -> Received:
        """Open a producer and return the answer."""
        return self.request("PRODUCER", topic=topic, producer_id=producer_id, **fields)

    def subscribe(
        self,
        topic: str,
        subscription: str = "sub",
        *,
        consumer_id: int = 0,
        kind: int = pb.CommandSubscribe.Exclusive,
        permits: int = 1000,
        earliest: bool = True,
        **fields: Any,
    ) -> Received:
        """Open a consumer, grant it permits on success, and return the answer."""
        fields.setdefault("initialPosition", int(earliest))
        answer = self.request(
            "SUBSCRIBE",
            topic=topic,
            subscription=subscription,
            subType=kind,
            consumer_id=consumer_id,
            **fields,
        )
        if answer.name == "SUCCESS" and permits:
            self.flow(permits, consumer_id)
        return answer

    def read(self, topic: str, start: pb.MessageIdData = EARLIEST, **fields: Any) -> Received:
        """Open a non-durable consumer at a position, as readers do."""
        return self.subscribe(topic, "reader", durable=False, start_message_id=start, **fields)

    def flow(self, permits: int, consumer_id: int = 0) -> None:
        """Grant permits."""
        self.send("FLOW", consumer_id=consumer_id, messagePermits=permits)

    def ack(self, *messages: Received, consumer_id: int = 0, **fields: Any) -> None:
        """Acknowledge entries one by one."""
        ids = [message.body.message_id for message in messages]
        self.send("ACK", consumer_id=consumer_id, ack_type=0, message_id=ids, **fields)

    # --- in ---

    @property
    def unread(self) -> list[Received]:
        """Received frames that nobody has asked for yet."""
        return self._unread

    def expect(self, *names: str, timeout: float = TIMEOUT) -> Received:
        """Return the next frame of one of these types; others stay unread."""
        return self._next(lambda received: received.name in names, f"{names}", timeout)

    def answer(self, request_id: int) -> Received:
        """Return the answer to a request."""
        return self._next(
            lambda received: getattr(received.body, "request_id", None) == request_id,
            f"an answer to request {request_id}",
            TIMEOUT,
        )

    def messages(self, count: int, consumer_id: int = 0) -> list[Received]:
        """Return the next deliveries to a consumer."""
        return [
            self._next(
                lambda received: (
                    received.name == "MESSAGE" and received.body.consumer_id == consumer_id
                ),
                f"{count} messages for consumer {consumer_id}",
                TIMEOUT,
            )
            for _ in range(count)
        ]

    def payloads(self, count: int, consumer_id: int = 0) -> list[bytes]:
        """Return the payloads of the next deliveries."""
        return [message.payload for message in self.messages(count, consumer_id)]

    def nothing_came(self, *names: str) -> None:
        """Check that nothing (of these types) is on its way.

        The answer to a PING comes after everything sent before it. Several PINGs cover what the
        broker's loop sends in its next turns.
        """
        for _ in range(_TURNS):
            self.send("PING")
            self.expect("PONG")
        self.nothing_unread(*names)

    def nothing_unread(self, *names: str) -> None:
        """Check that nothing (of these types) has come from a broker that answers no PING."""
        while self._read(time.monotonic() + 0.001):
            pass
        seen = [received for received in self._unread if not names or received.name in names]
        assert seen == []

    def closed(self, timeout: float = TIMEOUT) -> bool:
        """Wait until the broker closes the connection; return whether it did."""
        deadline = time.monotonic() + timeout
        try:
            while self._read(deadline):
                pass
        except AssertionError:
            return True
        return False

    def _next(self, wanted: Any, what: str, timeout: float) -> Received:
        deadline = time.monotonic() + timeout
        while True:
            for index, received in enumerate(self._unread):
                if wanted(received):
                    return self._unread.pop(index)
            assert self._read(deadline), f"no {what} came, but {names(self._unread)}"

    def _read(self, deadline: float) -> bool:
        """Read more frames. Returns False at the deadline; a closed connection is an error."""
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        self._socket.settimeout(remaining)
        try:
            data = self._socket.recv(1 << 20)
        except TimeoutError:
            return False
        except ConnectionError:
            data = b""
        assert data, f"the broker closed the connection; unread: {names(self._unread)}"
        self._decoder.receive_data(data)
        while (frame := self._decoder.next_frame()) is not None:
            kind = frame.command.type
            name = pb.BaseCommand.Type.Name(kind)
            if name == "PING" and self._answer_pings:
                self.send("PONG")
            body = getattr(frame.command, BODY_FIELDS[kind])
            self._unread.append(Received(name, body, frame.payload))
        return True

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def names(frames: Sequence[Received]) -> list[str]:
    """The types of frames."""
    return [frame.name for frame in frames]


def id_of(place: tuple[int, int], **fields: Any) -> pb.MessageIdData:
    """A message id on the wire."""
    return pb.MessageIdData(ledgerId=place[0] % 2**64, entryId=place[1] % 2**64, **fields)


def turn(broker: EmbeddedBroker) -> None:
    """Let the broker's loop process everything sent before."""
    for _ in range(_TURNS):
        broker.topics()
