"""Fields that only other software sets are read from, and written as, the specified bytes.

Others are proxies, brokers between each other, and clients of other versions. The bytes are built
here by the rules of protobuf, from the field numbers of the specification.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from google.protobuf.message import Message

from pulsar_spark.protocol.batches import unpack_batch
from pulsar_spark.protocol.frame_parts import Frame, ReceivedEntry, parse_payload
from pulsar_spark.protocol.frames import encode_command
from tests.support.frames import SingleFrames


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def number(tag: int, value: int) -> bytes:
    return varint(tag << 3) + varint(value)


def text(tag: int, value: bytes) -> bytes:
    return varint(tag << 3 | 2) + varint(len(value)) + value


class Known(NamedTuple):
    """A command's body: its type, the bytes of all its fields, and the path and value of one."""

    kind: int
    body: bytes
    path: str
    value: Any


TOPIC = text(1, b"t") + number(2, 7)
TOPIC_BEHIND = number(1, 7) + text(2, b"t")
# A CONNECT and its feature flags.
CONNECT = text(1, b"2.10")
# A producer's id and a sequence id.
SENT = number(1, 3) + number(2, 4)
PLACE = number(1, 11) + number(2, 12)
ASSIGNED = number(1, 2) + text(2, b"pulsar://a") + text(3, b"pulsar+ssl://b")
SNAPSHOT = number(1, 5) + text(2, number(1, 3) + text(2, ASSIGNED))
ACK = number(1, 3) + number(2, 0)

COMMANDS = {
    "CommandConnect.original_principal": Known(
        2, CONNECT + text(7, b"me"), "original_principal", "me"
    ),
    "CommandConnect.original_auth_data": Known(
        2, CONNECT + text(8, b"token"), "original_auth_data", "token"
    ),
    "CommandConnect.original_auth_method": Known(
        2, CONNECT + text(9, b"tls"), "original_auth_method", "tls"
    ),
    "CommandConnect.proxy_version": Known(2, CONNECT + text(11, b"3.3"), "proxy_version", "3.3"),
    "CommandPartitionedTopicMetadata.original_principal": Known(
        21, TOPIC + text(3, b"me"), "original_principal", "me"
    ),
    "CommandPartitionedTopicMetadata.original_auth_data": Known(
        21, TOPIC + text(4, b"token"), "original_auth_data", "token"
    ),
    "CommandPartitionedTopicMetadata.original_auth_method": Known(
        21, TOPIC + text(5, b"tls"), "original_auth_method", "tls"
    ),
    "CommandLookupTopic.original_principal": Known(
        23, TOPIC + text(4, b"me"), "original_principal", "me"
    ),
    "CommandLookupTopic.original_auth_data": Known(
        23, TOPIC + text(5, b"token"), "original_auth_data", "token"
    ),
    "CommandLookupTopic.original_auth_method": Known(
        23, TOPIC + text(6, b"tls"), "original_auth_method", "tls"
    ),
    "MessageIdData.batch_size": Known(
        10, ACK + text(3, PLACE + number(6, 3)), "message_id.0.batch_size", 3
    ),
    "MessageIdData.first_chunk_message_id": Known(
        10,
        ACK + text(3, PLACE + text(7, number(1, 9) + number(2, 8))),
        "message_id.0.first_chunk_message_id.ledgerId",
        9,
    ),
    "CommandLookupTopic.properties": Known(
        23, TOPIC + text(8, text(1, b"a") + text(2, b"b")), "properties.0.value", "b"
    ),
    "CommandGetTopicsOfNamespace.properties": Known(
        32,
        number(1, 7) + text(2, b"public/default") + text(6, text(1, b"a") + text(2, b"b")),
        "properties.0.value",
        "b",
    ),
    "CommandAckResponse.txnid_least_bits": Known(
        38, number(1, 3) + number(2, 4) + number(3, 5), "txnid_least_bits", 4
    ),
    "CommandAckResponse.txnid_most_bits": Known(
        38, number(1, 3) + number(2, 4) + number(3, 5), "txnid_most_bits", 5
    ),
    "CommandGetOrCreateSchema.producerName": Known(
        39,
        TOPIC_BEHIND + text(3, text(1, b"s") + text(3, b"") + number(4, 1)) + text(4, b"mine"),
        "producerName",
        "mine",
    ),
    "CommandSuccess.schema": Known(
        13,
        number(1, 7) + text(2, text(1, b"s") + text(3, b"") + number(4, 1)),
        "schema.type",
        1,
    ),
    "CommandConsumerStatsResponse.messageAckRate": Known(
        26, number(1, 7) + b"\x81\x01" + bytes(6) + b"\xf8\x3f", "messageAckRate", 1.5
    ),
    "FeatureFlags.supports_topic_watcher_reconcile": Known(
        3,
        text(1, b"4.1") + text(4, number(7, 1)),
        "feature_flags.supports_topic_watcher_reconcile",
        True,
    ),
    "FeatureFlags.supports_tc_metadata_discovery": Known(
        3,
        text(1, b"4.1") + text(4, number(9, 1)),
        "feature_flags.supports_tc_metadata_discovery",
        True,
    ),
    **{
        f"{name}.{field}": Known(kind, body, path, value)
        for name, kind, body, known in (
            ("CommandWatchTcAssignments", 79, number(1, 5), {"watch_id": ("watch_id", 5)}),
            ("CommandWatchTcAssignmentsClose", 81, number(1, 5), {"watch_id": ("watch_id", 5)}),
            (
                "CommandWatchTcAssignmentsUpdate",
                80,
                number(1, 5) + number(3, 22) + text(4, b"no"),
                {"watch_id": ("watch_id", 5), "error": ("error", 22), "message": ("message", "no")},
            ),
            (
                "CommandWatchTcAssignmentsUpdate",
                80,
                SNAPSHOT,
                {"snapshot": ("snapshot.parallelism", 3)},
            ),
            (
                "TcAssignmentsSnapshot",
                80,
                SNAPSHOT,
                {
                    "parallelism": ("snapshot.parallelism", 3),
                    "assignments": ("snapshot.assignments.0.tc_id", 2),
                },
            ),
            (
                "TcAssignment",
                80,
                SNAPSHOT,
                {
                    "tc_id": ("snapshot.assignments.0.tc_id", 2),
                    "broker_service_url": (
                        "snapshot.assignments.0.broker_service_url",
                        "pulsar://a",
                    ),
                    "broker_service_url_tls": (
                        "snapshot.assignments.0.broker_service_url_tls",
                        "pulsar+ssl://b",
                    ),
                },
            ),
        )
        for field, (path, value) in known.items()
    },
    "FeatureFlags.supports_repl_dedup_by_lid_and_eid": Known(
        2,
        CONNECT + text(10, number(6, 1)),
        "feature_flags.supports_repl_dedup_by_lid_and_eid",
        True,
    ),
}


def framed(kind: int, body: bytes) -> bytes:
    command = number(1, kind) + text(kind, body)
    size = len(command).to_bytes(4, "big")
    return (len(command) + 4).to_bytes(4, "big") + size + command


def read(frame: bytes) -> Frame:
    decoder = SingleFrames()
    decoder.receive_data(frame)
    found = decoder.next_frame()
    assert found is not None
    return found


def at(message: Message, path: str) -> Any:
    found: Any = message
    for name in path.split("."):
        found = found[int(name)] if name.isdigit() else getattr(found, name)
    return found


@pytest.mark.parametrize("field", COMMANDS)
def test_what_only_others_say_is_read_and_written_as_specified(field: str) -> None:
    known = COMMANDS[field]
    frame = framed(known.kind, known.body)
    command = read(frame).command
    body = next(value for name, value in command.ListFields() if name.name != "type")
    assert at(body, known.path) == known.value
    assert encode_command(command) == frame


# The metadata of SEND and MESSAGE, except for the three required fields.
METADATA = text(1, b"p") + number(2, 0) + number(3, 1)
CARRIED = {
    "MessageMetadata.marker_type": (number(20, 21), "marker_type", 21),
    "MessageMetadata.replicated_from": (text(5, b"west"), "replicated_from", "west"),
    "MessageMetadata.schema_id": (text(32, b"id"), "schema_id", b"id"),
    "MessageMetadata.compacted_batch_indexes": (
        number(31, 2) + number(31, 4),
        "compacted_batch_indexes",
        [2, 4],
    ),
}


def sent(metadata: bytes, payload: bytes = b"payload", extra: bytes = b"") -> Frame:
    """Return what a parser reads from a SEND with these bytes."""
    command = number(1, 6) + text(6, SENT + extra)
    rest = len(metadata).to_bytes(4, "big") + metadata + payload
    size = len(command).to_bytes(4, "big")
    return read((4 + len(command) + len(rest)).to_bytes(4, "big") + size + command + rest)


def carried(frame: Frame) -> ReceivedEntry:
    return parse_payload(frame.payload)


@pytest.mark.parametrize("field", CARRIED)
def test_what_brokers_store_with_a_message_is_read_as_specified(field: str) -> None:
    extra, path, value = CARRIED[field]
    assert at(carried(sent(METADATA + extra)).metadata, path) == value


@pytest.mark.parametrize(
    "extra,path,value",
    [
        pytest.param(number(8, 1), "marker", True, id="CommandSend.marker"),
        pytest.param(text(9, PLACE), "message_id.entryId", 12, id="CommandSend.message_id"),
    ],
)
def test_what_replicators_send_is_read_as_specified(extra: bytes, path: str, value: Any) -> None:
    assert at(sent(METADATA, extra=extra).command.send, path) == value


def test_a_key_that_is_null_is_told_for_each_message_of_a_batch() -> None:
    single = number(3, 1) + number(10, 1)
    body = len(single).to_bytes(4, "big") + single + b"x"
    parts = carried(sent(METADATA + number(11, 1), body))
    batch = unpack_batch(parts.payload, 1)
    assert batch.metadata_of(0).null_partition_key
