"""Every command that expects an answer can be refused."""

from __future__ import annotations

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import BODY_FIELDS
from pulsar_spark.testing.handlers.answers import refusal
from pulsar_spark.testing.handlers.table import HANDLERS

T = pb.BaseCommand
UNANSWERED = {T.FLOW, T.REDELIVER_UNACKNOWLEDGED_MESSAGES, T.AUTH_RESPONSE, T.ACK}


@pytest.mark.parametrize("kind", sorted(HANDLERS))
def test_refusals_name_request_and_reason(kind: int) -> None:
    body = getattr(pb.BaseCommand(), BODY_FIELDS[kind])
    for field in ("request_id", "producer_id", "sequence_id"):
        if field in body.DESCRIPTOR.fields_by_name and kind != T.ACK:
            setattr(body, field, 5)
    answer = refusal(kind, body, pb.ServiceNotReady, "why")
    if kind in UNANSWERED:
        assert answer is None
    else:
        assert answer is not None
        assert answer.IsInitialized()
        text = str(answer)
        assert "ServiceNotReady" in text
        assert '"why"' in text


def test_acks_are_refused_only_to_who_asked() -> None:
    body = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, request_id=7)
    answer = refusal(T.ACK, body, pb.UnknownError, "why")
    assert answer is not None
    assert answer.ackResponse.request_id == 7
