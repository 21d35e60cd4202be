"""CONNECT agrees on a version."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient

Dial = Callable[..., WireClient]


@pytest.mark.parametrize("theirs,agreed", [(5, 5), (20, 20), (21, 21), (99, 21)])
def test_the_lower_version_is_spoken(
    start_broker: Callable[..., EmbeddedBroker], dial: Dial, theirs: int, agreed: int
) -> None:
    client = dial(start_broker(max_message_size=12_345), handshake=False)
    client.send("CONNECT", client_version="x", protocol_version=theirs)
    body = client.expect("CONNECTED").body
    assert body.protocol_version == agreed
    assert body.max_message_size == 12_345
    assert body.feature_flags.supports_topic_watchers
    assert body.feature_flags.supports_get_partitioned_metadata_without_auto_creation


def test_any_credentials_will_do(broker: EmbeddedBroker, dial: Dial) -> None:
    client = dial(broker, auth_method_name="token", auth_data=b"anything")
    client.send("AUTH_RESPONSE", client_version="x")
    assert client.request("LOOKUP", topic="t")
