"""Whatever clients send, in any order: no internal error, and the broker keeps serving."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import BODY_FIELDS
from pulsar_spark.protocol.frames import encode_command
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.handlers.table import HANDLERS
from tests.testing.wire_client import WireClient

T = pb.BaseCommand
KINDS = sorted(set(HANDLERS) - {T.CONNECT, T.SEND} | {T.PING, T.PONG})
TOPICS = ("t", "u", "p", "p-partition-0", "p-partition-9", "non-persistent://a/b/n", "a/b", "")
TEXTS = ("", "s", "r", "public/default", "persistent://public/default/.*", "(")


def random_command(dice: random.Random) -> pb.BaseCommand:
    """A command with all required and some other fields; small ids, so that commands interact."""
    kind = dice.choice(KINDS)
    command = pb.BaseCommand(type=kind)
    fill(getattr(command, BODY_FIELDS[kind]), dice)
    return command


def fill(message: Any, dice: random.Random) -> None:
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        required = field.label == field.LABEL_REQUIRED if hasattr(field, "label") else True
        if not required and dice.random() < 0.5:
            continue
        if field.message_type is not None:
            repeated = hasattr(getattr(message, field.name), "add")
            inner = getattr(message, field.name).add() if repeated else getattr(message, field.name)
            if field.name != "first_chunk_message_id":
                fill(inner, dice)
        else:
            fill_scalar(message, field, dice)


def fill_scalar(message: Any, field: Any, dice: random.Random) -> None:
    value: Any
    if field.enum_type is not None:
        value = dice.choice([each.number for each in field.enum_type.values])
    elif field.name in ("topic", "topics_pattern", "namespace", "subscription"):
        value = dice.choice(TOPICS if field.name == "topic" else TEXTS)
    elif field.name == "request_id":
        # Using an id twice is an error of its own.
        value = dice.randrange(2**31)
    elif field.type == field.TYPE_STRING:
        value = dice.choice(TEXTS)
    elif field.type == field.TYPE_BYTES:
        value = dice.randbytes(dice.choice((0, 8)))
    elif field.type == field.TYPE_BOOL:
        value = dice.random() < 0.5
    else:
        value = dice.choice((0, 1, 2, 3, dice.randrange(2**31)))
    present = getattr(message, field.name)
    if hasattr(present, "append") and not isinstance(present, (str, bytes)):
        present.append(value)
    else:
        setattr(message, field.name, value)


@pytest.mark.fault(42)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.filterwarnings("ignore:label:DeprecationWarning")
def test_random_commands_do_no_harm(
    start_broker: Callable[..., EmbeddedBroker], dial: Callable[..., WireClient], seed: int
) -> None:
    dice = random.Random(seed)
    broker = start_broker(liveness_timeout=0.05)
    broker.create_topic("p", partitions=2)
    clients = [dial(broker) for _ in range(3)]
    for _ in range(400):
        number = dice.randrange(len(clients))
        try:
            if dice.random() < 0.2:
                clients[number].send_entry(
                    producer_id=dice.randrange(4), batch=dice.choice((None, 3))
                )
            else:
                clients[number].send_bytes(encode_command(random_command(dice)))
        except ConnectionError:
            clients[number] = dial(broker)
        if dice.random() < 0.01:
            broker.unload(dice.choice(broker.topics()))
    assert dial(broker).request("LOOKUP", topic="t").name == "LOOKUP_RESPONSE"
