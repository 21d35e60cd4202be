"""The tables of legal commands: complete, and right at their edges."""

from __future__ import annotations

import random

import pytest

from pulsar_spark.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from pulsar_spark.protocol import commands, states
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.states import CONNECTION, CONSUMER, PRODUCER, Conversation, Role, State
from tests import brief

C, B = Role.CLIENT, Role.BROKER
Step = tuple[Role, pb.BaseCommand]

CONNECTED_STEPS: list[Step] = [(C, commands.connect("t")), (B, brief.connected("t"))]
MESSAGE_ID = pb.MessageIdData(ledgerId=1, entryId=1)


def ready(role: Role = C) -> Conversation:
    conversation = Conversation(role)
    for sender, command in CONNECTED_STEPS:
        assert conversation.apply(sender, command)
    return conversation


def play(conversation: Conversation, *steps: Step) -> list[bool]:
    return [conversation.apply(sender, command) for sender, command in steps]


PRODUCER_OPEN: list[Step] = [
    (C, commands.build(pb.CommandProducer, topic="t", producer_id=1, request_id=10)),
    (B, brief.producer_success(10, "name")),
]
CONSUMER_OPEN: list[Step] = [
    (C, brief.subscribe("t", "s", 1, 20)),
    (B, commands.build(pb.CommandSuccess, request_id=20)),
]


def test_every_state_of_a_table_that_can_be_reached_has_a_row() -> None:
    for table in (CONNECTION, PRODUCER, CONSUMER):
        reached = {after for row in table.values() for after in row.values()} - {State.STALE}
        assert reached <= set(table)


def test_once_connected_every_command_is_legal_from_the_side_that_sends_it() -> None:
    senders: dict[int, set[Role]] = {}
    for sender, number in CONNECTION[State.READY]:
        senders.setdefault(number, set()).add(sender)
    handshake = {pb.BaseCommand.CONNECT, pb.BaseCommand.CONNECTED}
    assert set(senders) == set(pb.BaseCommand.Type.values()) - handshake
    both = {
        name for name, number in pb.BaseCommand.Type.items() if len(senders.get(number, ())) == 2
    }
    assert both == {"PING", "PONG", "CLOSE_PRODUCER", "CLOSE_CONSUMER"}


@pytest.mark.parametrize(
    "sender, command",
    [
        (C, commands.build(pb.CommandLookupTopic, topic="t", request_id=1)),
        (C, commands.build(pb.CommandPing)),
        (B, brief.connected("t")),
        (B, brief.message(1, MESSAGE_ID)),
    ],
    ids=["LOOKUP", "PING", "CONNECTED", "MESSAGE"],
)
@pytest.mark.fault(42)
def test_nothing_but_connect_comes_first(sender: Role, command: pb.BaseCommand) -> None:
    with pytest.raises(ProtocolError):
        Conversation(C).apply(sender, command)


@pytest.mark.fault(42)
def test_a_second_connected_is_a_fault_of_the_broker() -> None:
    with pytest.raises(RemoteProtocolError, match="CONNECTED"):
        ready(C).apply(B, brief.connected("t"))
    with pytest.raises(LocalProtocolError, match="CONNECTED"):
        ready(B).apply(B, brief.connected("t"))


def test_a_refused_connect_closes_the_conversation() -> None:
    conversation = Conversation(C)
    play(conversation, CONNECTED_STEPS[0], (B, brief.error(0, 3, "no")))
    assert conversation.connection is State.CLOSED
    with pytest.raises(LocalProtocolError):
        conversation.apply(C, commands.build(pb.CommandPing))


def test_a_producer_opens_sends_and_closes() -> None:
    conversation = ready()
    assert all(play(conversation, *PRODUCER_OPEN, (C, commands.send(1, 0))))
    assert conversation.producer(1) is State.OPEN
    assert all(play(conversation, (C, brief.close_producer(1, 11))))
    assert conversation.producer(1) is State.CLOSING
    late = (B, brief.send_receipt(1, 0, MESSAGE_ID))
    assert all(play(conversation, late, (B, commands.build(pb.CommandSuccess, request_id=11))))
    assert conversation.producer(1) is State.ABSENT


def test_a_producer_that_waits_for_access_may_not_send_until_it_is_ready() -> None:
    conversation = ready()
    play(
        conversation,
        PRODUCER_OPEN[0],
        (B, brief.producer_success(10, "name", producer_ready=False)),
    )
    assert conversation.producer(1) is State.OPENING
    assert play(conversation, (C, commands.send(1, 0))) == [False]
    play(conversation, (B, brief.producer_success(10, "name")))
    assert conversation.producer(1) is State.OPEN


def test_what_crosses_a_close_is_dropped_on_both_ends() -> None:
    conversation = ready()
    play(conversation, *PRODUCER_OPEN, *CONSUMER_OPEN)
    play(
        conversation,
        (B, brief.close_producer(1, commands.NO_REQUEST_ID)),
        (B, brief.close_consumer(1, commands.NO_REQUEST_ID)),
    )
    assert (
        play(
            conversation,
            (C, commands.send(1, 0)),
            (C, commands.build(pb.CommandFlow, consumer_id=1, messagePermits=1)),
            (
                C,
                commands.build(
                    pb.CommandAck,
                    consumer_id=1,
                    ack_type=pb.CommandAck.Individual,
                    message_id=[MESSAGE_ID],
                ),
            ),
            (B, brief.message(1, MESSAGE_ID)),
            (B, brief.send_error(1, 0, pb.PersistenceError, "late")),
        )
        == [False] * 5
    )


def test_receipts_come_until_the_producer_may_send_again() -> None:
    conversation = ready()
    late = (B, brief.send_receipt(1, 0, MESSAGE_ID))
    assert all(
        play(
            conversation,
            *PRODUCER_OPEN,
            (C, commands.send(1, 0)),
            (B, brief.close_producer(1, commands.NO_REQUEST_ID)),
            late,
            (C, commands.build(pb.CommandProducer, topic="t", producer_id=1, request_id=11)),
            late,
            (B, brief.producer_success(11, "name", producer_ready=False)),
            late,
            (B, brief.producer_success(11, "name")),
        )
    )
    assert conversation.producer(1) is State.OPEN


@pytest.mark.fault(22)
def test_a_message_may_overtake_the_answer_to_subscribe() -> None:
    conversation = ready()
    steps = [CONSUMER_OPEN[0], (B, brief.message(1, MESSAGE_ID)), CONSUMER_OPEN[1]]
    assert all(play(conversation, *steps))
    assert conversation.consumer(1) is State.OPEN


@pytest.mark.fault(42)
def test_deliveries_to_a_consumer_that_never_was_are_dropped() -> None:
    assert play(ready(), (B, brief.message(99, MESSAGE_ID))) == [False]


def test_a_seek_closes_the_consumer_which_then_subscribes_again() -> None:
    conversation = ready()
    play(
        conversation,
        *CONSUMER_OPEN,
        (C, commands.build(pb.CommandSeek, consumer_id=1, request_id=21, message_publish_time=5)),
    )
    assert conversation.consumer(1) is State.SEEKING
    assert play(conversation, (B, brief.message(1, MESSAGE_ID))) == [False]
    play(conversation, (B, brief.close_consumer(1, commands.NO_REQUEST_ID)))
    play(conversation, (B, commands.build(pb.CommandSuccess, request_id=21)))
    assert conversation.consumer(1) is State.ABSENT
    play(
        conversation,
        (C, brief.subscribe("t", "s", 1, 22)),
        (B, commands.build(pb.CommandSuccess, request_id=22)),
    )
    assert conversation.consumer(1) is State.OPEN


def test_an_answer_to_an_older_request_leaves_the_newer_state_alone() -> None:
    conversation = ready()
    play(conversation, *CONSUMER_OPEN, (C, brief.close_consumer(1, 21)))
    play(
        conversation,
        (C, brief.subscribe("t", "s", 1, 22)),
        (B, commands.build(pb.CommandSuccess, request_id=21)),
    )
    assert conversation.consumer(1) is State.OPENING


def test_a_refused_unsubscribe_leaves_the_consumer_open() -> None:
    conversation = ready()
    play(
        conversation,
        *CONSUMER_OPEN,
        (C, commands.build(pb.CommandUnsubscribe, consumer_id=1, request_id=21)),
    )
    play(conversation, (B, brief.error(21, 0, "no")))
    assert conversation.consumer(1) is State.OPEN


def test_an_answer_that_nobody_asked_for_changes_nothing() -> None:
    conversation = ready()
    assert all(
        play(conversation, *CONSUMER_OPEN, (B, commands.build(pb.CommandSuccess, request_id=999)))
    )
    assert conversation.consumer(1) is State.OPEN


def test_unanswered_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MAX_OPEN_REQUESTS", 10)
    conversation = ready()
    for number in range(10):
        conversation.apply(C, brief.subscribe("t", "s", number, number))
    with pytest.raises(LocalProtocolError, match="without an answer"):
        conversation.apply(C, brief.subscribe("t", "s", 10, 10))


def test_a_request_that_is_not_allowed_now_is_not_open() -> None:
    conversation = ready()
    play(
        conversation,
        *CONSUMER_OPEN,
        (C, commands.build(pb.CommandSeek, consumer_id=1, request_id=30, message_publish_time=1)),
        PRODUCER_OPEN[0],
    )
    for _ in range(2):
        # The second time it is not "used again".
        with pytest.raises(LocalProtocolError, match="is not allowed while"):
            conversation.apply(
                C,
                commands.build(
                    pb.CommandSeek, consumer_id=1, request_id=31, message_publish_time=1
                ),
            )
        with pytest.raises(LocalProtocolError, match="is not allowed while"):
            conversation.apply(
                C, commands.build(pb.CommandProducer, topic="t", producer_id=1, request_id=32)
            )


def test_a_request_id_is_not_used_again_before_its_answer() -> None:
    again = brief.subscribe("t", "s", 2, 20)
    with pytest.raises(LocalProtocolError, match="used again"):
        play(ready(), CONSUMER_OPEN[0], (C, again))
    with pytest.raises(RemoteProtocolError, match="used again"):
        play(ready(B), CONSUMER_OPEN[0], (C, again))
    assert all(play(ready(), *CONSUMER_OPEN, (C, again)))


@pytest.mark.fault(42)
def test_random_commands_give_only_verdicts_or_protocol_errors() -> None:
    """20,000 conversations in random order: every command has a defined effect."""
    seed = random.Random(7)
    pool: list[Step] = [
        *CONNECTED_STEPS,
        *PRODUCER_OPEN,
        *CONSUMER_OPEN,
        (C, commands.send(1, 0)),
        (C, commands.build(pb.CommandFlow, consumer_id=1, messagePermits=5)),
        (C, commands.build(pb.CommandSeek, consumer_id=1, request_id=21, message_publish_time=1)),
        (C, brief.close_consumer(1, 22)),
        (C, brief.close_producer(1, 23)),
        (C, commands.build(pb.CommandUnsubscribe, consumer_id=1, request_id=24)),
        (B, commands.build(pb.CommandSuccess, request_id=21)),
        (B, commands.build(pb.CommandSuccess, request_id=22)),
        (B, brief.error(24, 0, "")),
        (B, brief.error(10, 0, "")),
        (B, brief.message(1, MESSAGE_ID)),
        (B, brief.send_receipt(1, 0, MESSAGE_ID)),
        (B, brief.send_error(1, 0, 0, "")),
        (B, brief.close_consumer(1, commands.NO_REQUEST_ID)),
        (B, brief.close_producer(1, commands.NO_REQUEST_ID)),
        (B, brief.producer_success(10, "n", producer_ready=False)),
        (B, commands.build(pb.CommandReachedEndOfTopic, consumer_id=1)),
    ]
    verdicts = set()
    for _ in range(20_000):
        conversation = ready() if seed.random() < 0.9 else Conversation(C)
        for sender, command in seed.choices(pool, k=8):
            try:
                verdicts.add(conversation.apply(sender, command))
            except LocalProtocolError:
                assert sender is C
                verdicts.add(False)
            except RemoteProtocolError:
                assert sender is B
    assert verdicts == {True, False}
