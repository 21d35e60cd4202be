"""Every command of a client has a handler, or is rejected."""

from __future__ import annotations

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.handlers.table import HANDLERS
from tests.testing.wire_client import WireClient


def test_what_official_clients_send_is_handled() -> None:
    expected = {
        "CONNECT", "LOOKUP", "PARTITIONED_METADATA", "GET_TOPICS_OF_NAMESPACE", "PRODUCER",
        "SEND", "CLOSE_PRODUCER", "SUBSCRIBE", "FLOW", "ACK", "REDELIVER_UNACKNOWLEDGED_MESSAGES",
        "SEEK", "GET_LAST_MESSAGE_ID", "UNSUBSCRIBE", "CLOSE_CONSUMER", "CONSUMER_STATS",
        "GET_SCHEMA", "GET_OR_CREATE_SCHEMA", "WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST_CLOSE",
        "AUTH_RESPONSE",
    }  # fmt: skip
    assert expected <= {pb.BaseCommand.Type.Name(kind) for kind in HANDLERS}


def test_other_commands_are_refused(client: WireClient) -> None:
    answer = client.request("END_TXN_ON_SUBSCRIPTION")
    assert answer.name == "END_TXN_ON_SUBSCRIPTION_RESPONSE"
    assert answer.body.error == pb.NotAllowedError
    assert "END_TXN_ON_SUBSCRIPTION is not supported here" in answer.body.message
