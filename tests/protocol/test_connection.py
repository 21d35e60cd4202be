"""The two ends of a connection talk to each other without a socket."""

from __future__ import annotations

import pytest

from pulsar_spark.errors import LocalProtocolError, RemoteProtocolError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.connection import MAX_MESSAGE_SIZE_LIMIT, Connection
from pulsar_spark.protocol.events import (
    CommandReceived,
    ConnectionFailed,
    EndOfStream,
    Event,
)
from pulsar_spark.protocol.frame_parts import Frame, parse_payload
from pulsar_spark.protocol.frames import (
    DEFAULT_MAX_MESSAGE_SIZE,
    MessageBlock,
    ReceiptBlock,
    encode_command,
    encode_payload_command,
)
from pulsar_spark.protocol.send_encoder import PythonSendEncoder
from pulsar_spark.protocol.states import Role, State
from tests import brief

METADATA = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2).SerializeToString()
MESSAGE_ID = pb.MessageIdData(ledgerId=1, entryId=2)


class Pair:
    """A client, a broker, and the wire between them."""

    def __init__(self) -> None:
        self.client = Connection(Role.CLIENT)
        self.broker = Connection(Role.BROKER)

    def to_broker(self) -> list[Event]:
        return self._carry(self.client, self.broker)

    def to_client(self) -> list[Event]:
        return self._carry(self.broker, self.client)

    @staticmethod
    def _carry(source: Connection, target: Connection) -> list[Event]:
        target.receive_data(b"".join(source.data_to_send()))
        return target.events_received()


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.client.send(commands.connect("test"))
    pair.to_broker()
    pair.broker.send(brief.connected("test"))
    pair.to_client()
    return pair


def open_producer(pair: Pair) -> None:
    pair.client.send(commands.build(pb.CommandProducer, topic="t", producer_id=1, request_id=10))
    pair.to_broker()
    pair.broker.send(brief.producer_success(10, "name"))
    pair.to_client()


def open_consumer(pair: Pair) -> None:
    pair.client.send(brief.subscribe("t", "s", 1, 20))
    pair.to_broker()
    pair.broker.send(commands.build(pb.CommandSuccess, request_id=20))
    pair.to_client()


def test_a_command_arrives_as_an_event_with_its_request_id(pair: Pair) -> None:
    pair.client.send(commands.build(pb.CommandLookupTopic, topic="some-topic", request_id=5))
    [event] = pair.to_broker()
    assert isinstance(event, CommandReceived)
    assert (event.name, event.request_id) == ("LOOKUP", 5)
    assert isinstance(event.body, pb.CommandLookupTopic)
    assert event.body.topic == "some-topic"


def test_a_ping_is_answered_inside_and_gives_no_event(pair: Pair) -> None:
    pair.broker.send(commands.build(pb.CommandPing))
    assert pair.to_client() == []
    assert b"".join(pair.client.data_to_send()) == encode_command(commands.build(pb.CommandPong))


def test_an_entry_goes_to_the_broker_and_comes_back_as_it_was_sent(pair: Pair) -> None:
    open_producer(pair)
    open_consumer(pair)
    pair.client.send_frames(1, encode_payload_command(commands.send(1, 0), METADATA, b"payload"))
    [sent] = pair.to_broker()
    assert isinstance(sent, Frame)
    pair.broker.send_raw_payload(brief.message(1, MESSAGE_ID), bytes(sent.payload))
    [block] = pair.to_client()
    assert isinstance(block, MessageBlock)
    [received] = block.frames()
    assert received.payload == sent.payload
    assert bytes(parse_payload(received.payload).payload) == b"payload"


def test_the_payload_of_a_send_is_not_copied(pair: Pair) -> None:
    open_producer(pair)
    payload = bytes(100_000)
    pair.client.send_frames(1, encode_payload_command(commands.send(1, 0), METADATA, payload))
    assert any(part is payload for part in pair.client.data_to_send())


def test_a_send_after_the_broker_closed_the_producer_goes_nowhere(pair: Pair) -> None:
    open_producer(pair)
    pair.broker.send(brief.close_producer(1, commands.NO_REQUEST_ID))
    pair.to_client()
    assert not pair.client.send_frames(1, [b"frame"])
    assert pair.client.data_to_send() == []


def test_local_misuse_raises_and_sends_nothing() -> None:
    client = Connection(Role.CLIENT)
    with pytest.raises(LocalProtocolError):
        client.send(commands.build(pb.CommandLookupTopic, topic="t", request_id=1))
    assert client.data_to_send() == []


def test_the_client_adopts_the_brokers_limit() -> None:
    client = Connection(Role.CLIENT)
    assert client.max_message_size == DEFAULT_MAX_MESSAGE_SIZE
    client.send(commands.connect("t"))
    client.receive_data(encode_command(brief.connected("b", max_message_size=10_240)))
    assert client.max_message_size == 10_240


@pytest.mark.fault(43)
@pytest.mark.parametrize("size", [0, -1])
def test_an_impossible_limit_fails_the_connection(size: int) -> None:
    client = Connection(Role.CLIENT)
    client.send(commands.connect("t"))
    client.receive_data(encode_command(brief.connected("b", max_message_size=size)))
    [failed] = client.events_received()
    assert isinstance(failed, ConnectionFailed)


@pytest.mark.fault(43)
def test_a_huge_limit_is_clamped() -> None:
    client = Connection(Role.CLIENT)
    client.send(commands.connect("t"))
    client.receive_data(encode_command(brief.connected("b", max_message_size=2**31 - 1)))
    assert client.max_message_size == MAX_MESSAGE_SIZE_LIMIT


def test_a_violation_is_an_event_and_what_follows_is_ignored(pair: Pair) -> None:
    pair.client.receive_data(encode_command(brief.connected("again")))
    pair.client.receive_data(encode_command(commands.build(pb.CommandSuccess, request_id=1)))
    [failed] = pair.client.events_received()
    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, RemoteProtocolError)


def test_events_before_a_violation_are_kept(pair: Pair) -> None:
    pair.client.receive_data(
        encode_command(commands.build(pb.CommandSuccess, request_id=1)) + b"\x00\x00\x00\x00"
    )
    events = pair.client.events_received()
    assert [type(event) for event in events] == [CommandReceived, ConnectionFailed]


@pytest.mark.parametrize("rest, clean", [(b"", True), (b"\x00\x00", False)])
def test_the_end_of_the_stream_tells_whether_a_frame_was_cut(
    pair: Pair, rest: bytes, clean: bool
) -> None:
    pair.client.receive_data(rest)
    pair.client.receive_eof()
    pair.client.receive_eof()
    assert pair.client.events_received() == [EndOfStream(clean=clean)]


def test_a_refused_connect_reaches_the_client() -> None:
    pair = Pair()
    pair.client.send(commands.connect("t"))
    pair.to_broker()
    pair.broker.send(brief.error(0, pb.AuthenticationError, "no"))
    [event] = pair.to_client()
    assert isinstance(event, CommandReceived)
    assert event.name == "ERROR"
    assert pair.client.state is State.CLOSED


def test_messages_that_come_together_are_one_block(pair: Pair) -> None:
    open_consumer(pair)
    stream = b""
    for number in range(50):
        command = brief.message(1, pb.MessageIdData(ledgerId=1, entryId=number))
        stream += b"".join(encode_payload_command(command, METADATA, b"x"))

    def counts() -> list[int]:
        events = pair.client.events_received()
        return [event.count for event in events if isinstance(event, MessageBlock)]

    pair.client.receive_data(stream[:-1])
    assert counts() == [49]
    # Only another command ends a block, even one without an event.
    pair.client.receive_data(
        stream[-1:] + stream + encode_command(commands.build(pb.CommandPing)) + stream
    )
    assert counts() == [51, 50]


def test_frames_of_a_producer_go_out_and_receipts_come_back_as_blocks(pair: Pair) -> None:
    open_producer(pair)
    assert pair.client.send_frames(
        1, PythonSendEncoder(1, "p").encode([b"a", b"b"], None, None, 0, 1, 1)[0]
    )
    assert [type(event) for event in pair.to_broker()] == [Frame] * 2
    for number in range(2):
        pair.broker.send(brief.send_receipt(1, number, MESSAGE_ID))
    pair.broker.send(brief.close_producer(1, 2**64 - 1))
    # What is stored by then is acknowledged, too.
    pair.broker.send(brief.send_receipt(1, 2, MESSAGE_ID))
    block, closed, late = pair.to_client()
    assert isinstance(block, ReceiptBlock)
    assert isinstance(late, ReceiptBlock)
    assert block.producer_id == late.producer_id == 1
    assert list(block.receipts) == [0, 0, 1, 2, 1, 1, 1, 2]
    assert list(late.receipts) == [2, 2, 1, 2]
    assert isinstance(closed, CommandReceived)
    assert not pair.client.send_frames(1, [b"pointless"])
    assert pair.client.data_to_send() == []


def test_receipts_that_a_client_sends_are_a_violation(pair: Pair) -> None:
    pair.broker.receive_data(encode_command(brief.send_receipt(1, 0, MESSAGE_ID)))
    [event] = pair.broker.events_received()
    assert isinstance(event, ConnectionFailed)
