"""What recorded clients sent to a real broker gets the same answers from the embedded one.

The clients' bytes are sent again unchanged. Before that, a capture's topics get the entries that it
received and did not send itself, with the same ids, so that the client's commands need no changes.
"""

from __future__ import annotations

import contextlib
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pulsar_spark.errors import NotAllowed
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import BODY_FIELDS
from pulsar_spark.protocol.frames import encode_payload_command
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.topic_store import topic_name
from tests.protocol import golden
from tests.support.frames import SingleFrames
from tests.support.waiting import wait_until

T = pb.BaseCommand
PATIENCE = 5.0
NONE = 2**64 - 1

# Captures that say nothing about the embedded broker, or need more than their own bytes.
LEFT_OUT = {
    "auth": "the embedded broker knows no authentication",
    "txn": "it has no transactions",
    "keepalive": "takes a minute",
    "topics-of-namespace": "lists the topics of the broker that was recorded",
    "multi-topics": "lists the topics of the broker that was recorded",
    "compact": "it does not compact",
    "rollback": "depends on the time of the recording",
    "deliver-after": "depends on the time of the recording",
    "unload": "the topic is unloaded from outside",
    "terminated": "the topic is terminated from outside",
    "send-error": "a policy limits the messages",
    "fencing": "which of two producers comes first depends on the moment",
    "error-namespace": "the embedded broker was not told which namespaces exist",
    "ack-timeout": "depends on the moment",
    "auto-consume": "schemas were registered before it",
    "key-shared-auto": "which consumer gets which key is up to the broker",
}


@dataclass
class Frame:
    """A recorded frame: its sender, its bytes, and their content."""

    connection: int
    sender: str
    data: bytes
    command: pb.BaseCommand
    entry: bytes | None

    @property
    def kind(self) -> int:
        return self.command.type

    @property
    def body(self) -> Any:
        return getattr(self.command, BODY_FIELDS[self.kind])


def frames_of(recorded: golden.Manifest) -> list[Frame]:
    streams = {
        (connection["id"], side): golden.stream(connection, side)
        for connection in recorded["connections"]
        for side in golden.SIDES
    }
    found = []
    for each in recorded["frames"]:
        whole = streams[each["conn"], each["from"]]
        data = whole[each["offset"] : each["offset"] + each["size"]]
        decoder = SingleFrames(64 * 1024 * 1024)
        decoder.receive_data(data)
        frame = decoder.next_frame()
        assert frame is not None
        entry = bytes(frame.payload) or None
        found.append(Frame(each["conn"], each["from"], data, frame.command, entry))
    return found


def options_of(recorded: golden.Manifest) -> dict[str, Any]:
    settings = recorded["broker"]["settings"]
    return {
        "expose_entry_metadata": "exposingBrokerEntryMetadataToClientEnabled=true" in settings,
        "deduplication": "deduplication on" in recorded["about"],
        # With transactions, a real broker keeps acknowledged indexes in memory in any case.
        "batch_index_ack": "acknowledgmentAtBatchIndexLevelEnabled=true" in settings
        or recorded["name"] == "java-ack-batch-index",
        "failover_delay": 1.0 if "failover" in recorded["name"] else 0.0,
    }


def chosen() -> list[str]:
    return [
        name
        for name in golden.names()
        if name not in ("java-schema", "py-schema") and not any(word in name for word in LEFT_OUT)
    ]


class Before:
    """The stored messages of a capture's topics before it began, as far as it shows them.

    `entries` maps topic and entry id to what is stored there, `ledgers` topic to ledger.
    """

    def __init__(self, frames: list[Frame]) -> None:
        self.entries: dict[str, dict[int, bytes]] = defaultdict(dict)
        self.ledgers: dict[str, int] = {}
        self._own: dict[str, set[int]] = defaultdict(set)
        self._topics: dict[tuple[int, str, int], str] = {}
        for frame in frames:
            self._look_at(frame, frame.body)
        # The capture's own messages can come after some that it does not show.
        for topic, own in self._own.items():
            if own:
                self.entries[topic].setdefault(min(own) - 1, b"")

    def _look_at(self, frame: Frame, body: Any) -> None:
        connection = frame.connection
        if frame.kind == T.SUBSCRIBE:
            self._topics[connection, "consumer", body.consumer_id] = body.topic
        elif frame.kind == T.PRODUCER:
            self._topics[connection, "producer", body.producer_id] = body.topic
        elif frame.kind == T.SEND_RECEIPT:
            topic = self._topics[connection, "producer", body.producer_id]
            if self._stores(topic, body.message_id):
                self._own[topic].add(body.message_id.entryId)
        elif frame.kind == T.MESSAGE:
            assert frame.entry is not None
            topic = self._topics[connection, "consumer", body.consumer_id]
            self._add(topic, body.message_id, without_broker_metadata(frame.entry))
        elif frame.kind == T.GET_LAST_MESSAGE_ID:
            topic = self._topics[connection, "consumer", body.consumer_id]
            self._topics[connection, "request", body.request_id] = topic
        elif frame.kind == T.GET_LAST_MESSAGE_ID_RESPONSE:
            topic = self._topics[connection, "request", body.request_id]
            last = body.last_message_id
            self._add(topic, last, stand_in(last.batch_index + 1))
            self._stores(topic, body.consumer_mark_delete_position)

    def _stores(self, topic: str, message_id: pb.MessageIdData) -> bool:
        if message_id.ledgerId == NONE:
            return False
        self.ledgers.setdefault(topic, message_id.ledgerId)
        return True

    def _add(self, topic: str, message_id: pb.MessageIdData, data: bytes) -> None:
        if self._stores(topic, message_id) and message_id.entryId not in self._own[topic]:
            self.entries[topic].setdefault(message_id.entryId, data)


def stand_in(messages: int) -> bytes:
    """An entry of which a capture shows only that it existed."""
    metadata = pb.MessageMetadata(producer_name="", sequence_id=0, publish_time=0)
    if messages:
        metadata.num_messages_in_batch = messages
    command = pb.BaseCommand(type=T.SEND, send=pb.CommandSend(producer_id=0, sequence_id=0))
    head, body = encode_payload_command(command, metadata.SerializeToString(), b"")
    return bytes(head)[8 + command.ByteSize() :] + bytes(body)


def without_broker_metadata(entry: bytes) -> bytes:
    if entry[:2] != b"\x0e\x02":
        return entry
    return entry[6 + int.from_bytes(entry[2:6], "big") :]


def prepare(broker: EmbeddedBroker, frames: list[Frame]) -> None:
    before = Before(frames)
    for topic, ledger in before.ledgers.items():
        broker.create_topic(topic, ledger_id=ledger)
        following = 0
        for entry_id, data in sorted(before.entries[topic].items()):
            # Of an entry without data, only its existence is known.
            gap = entry_id - following + (not data)
            broker.skip_entries(topic, gap)
            following += gap
            if data:
                broker.append(topic, data)
                following += 1
    asked: dict[int, pb.CommandPartitionedTopicMetadata] = {}
    for frame in frames:
        if frame.kind == T.PARTITIONED_METADATA:
            asked[frame.body.request_id] = frame.body
        elif frame.kind == T.PARTITIONED_METADATA_RESPONSE:
            prepare_topic(broker, asked[frame.body.request_id].topic, frame.body)


def prepare_topic(
    broker: EmbeddedBroker, topic: str, body: pb.CommandPartitionedTopicMetadataResponse
) -> None:
    name = str(topic_name(topic))
    partitioned = {f"{name}-partition-{index}" for index in range(body.partitions)}
    if body.HasField("error") or name in broker.topics():
        return
    with contextlib.suppress(NotAllowed):
        broker.create_topic(name, partitions=len(partitioned))


class Replay:
    """One recorded connection, replayed."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.decoder = SingleFrames(64 * 1024 * 1024)
        self.expected: list[Frame] = []
        self.received: list[pb.BaseCommand] = []

    def catch_up(self) -> None:
        """Read until each type has as many frames as in the recording."""
        wanted = Counter(frame.kind for frame in self.expected)
        wanted.subtract(command.type for command in self.received)

        def has_come() -> bool:
            if max(wanted.values(), default=0) <= 0:
                return True
            with contextlib.suppress(TimeoutError):
                data = self.socket.recv(1 << 20)
                assert data, "the embedded broker closed the connection"
                self.decoder.receive_data(data)
            while (frame := self.decoder.next_frame()) is not None:
                self.received.append(frame.command)
                wanted[frame.command.type] -= 1
            return False

        self.socket.settimeout(0.5)
        wait_until(has_come, "as many frames as in the recording")

    def compare(self) -> None:
        real = by_kind(frame.command for frame in self.expected)
        embedded = by_kind(iter(self.received))
        assert embedded == real


def by_kind(commands: Iterator[pb.BaseCommand]) -> dict[str, list[str]]:
    """Commands as text, without fields that differ between brokers; in order for each type."""
    found: dict[str, list[str]] = defaultdict(list)
    for command in commands:
        copy = pb.BaseCommand()
        copy.CopyFrom(command)
        body = getattr(copy, BODY_FIELDS[copy.type])
        for field in ("server_version", "feature_flags", "producer_name", "brokerServiceUrl",
                      "message", "error_message", "highest_sequence_id"):  # fmt: skip
            if field in body.DESCRIPTOR.fields_by_name and copy.type != T.MESSAGE:
                body.ClearField(field)
        # A field set to its default value means the same as an absent one.
        for descriptor, value in body.ListFields():
            if descriptor.has_presence and value == descriptor.default_value:
                body.ClearField(descriptor.name)
        name = pb.BaseCommand.Type.Name(copy.type)
        if copy.type == T.MESSAGE:
            name += f" for {body.consumer_id}"
        found[name].append(str(body))
    for name in ("SUCCESS", "PARTITIONED_METADATA_RESPONSE"):
        found[name].sort()
    return found


@pytest.mark.parametrize("name", chosen())
def test_recorded_clients_get_the_recorded_answers(
    start_broker: Callable[..., EmbeddedBroker], name: str
) -> None:
    recorded = golden.manifest(name)
    frames = frames_of(recorded)
    broker = start_broker(**options_of(recorded))
    prepare(broker, frames)
    connections: dict[int, Replay] = {}
    try:
        for frame in frames:
            if frame.connection not in connections:
                connections[frame.connection] = Replay(broker.port)
            replay = connections[frame.connection]
            if frame.sender == "broker":
                replay.expected.append(frame)
            else:
                replay.catch_up()
                replay.socket.sendall(frame.data)
        for replay in connections.values():
            replay.catch_up()
            replay.compare()
    finally:
        for replay in connections.values():
            replay.socket.close()
