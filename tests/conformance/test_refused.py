"""Commands unknown to brokers of 4.0 get an error that names them, in the expected answer."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from tests.testing.wire_client import WireClient

SUBSCRIBE = {
    "topic": "t",
    "subscription": "s",
    "consumer_name": "c",
    "consumer_id": 3,
    "consumer_type": pb.STREAM,
}


@pytest.mark.parametrize(
    "kind,answer,fields,known",
    [
        (
            "SCALABLE_TOPIC_LOOKUP",
            "SCALABLE_TOPIC_UPDATE",
            {"session_id": 7, "topic": "t"},
            ("session_id", 7),
        ),
        (
            "SCALABLE_TOPIC_SUBSCRIBE",
            "SCALABLE_TOPIC_SUBSCRIBE_RESPONSE",
            {"request_id": 8, **SUBSCRIBE},
            ("request_id", 8),
        ),
        (
            "WATCH_SCALABLE_TOPICS",
            "WATCH_SCALABLE_TOPICS_UPDATE",
            {"watch_id": 9, "namespace": "public/default"},
            ("watch_id", 9),
        ),
        (
            "WATCH_TC_ASSIGNMENTS",
            "WATCH_TC_ASSIGNMENTS_UPDATE",
            {"watch_id": 10},
            ("watch_id", 10),
        ),
    ],
    ids=["lookup", "subscribe", "topics", "coordinators"],
)
def test_what_is_not_spoken_is_refused_by_its_name(
    wire: WireClient, kind: str, answer: str, fields: dict[str, Any], known: tuple[str, int]
) -> None:
    wire.send(kind, **fields)
    told = wire.expect(answer).body
    assert getattr(told, known[0]) == known[1]
    assert told.error == pb.NotAllowedError
    assert told.message == f"{kind} is not supported here"
