"""CONNECT, and renewed credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.refusals import Refusal

if TYPE_CHECKING:
    from pulsar_spark.testing.session import Session

SERVER_VERSION = "Pulsar Embedded"
# The first version whose clients understand broker entry metadata.
_ENTRY_METADATA_VERSION = 18
# The first version in which brokers announce features.
_FEATURES_VERSION = 20

FEATURES = pb.FeatureFlags(
    supports_topic_watchers=True,
    supports_get_partitioned_metadata_without_auto_creation=True,
)


def connect(session: Session, body: pb.CommandConnect) -> None:
    """Agree on a protocol version, and accept the client if it may connect."""
    if not session.server.options.accepts(body.auth_method_name, body.auth_data):
        raise Refusal(pb.AuthenticationError, "Failed to authenticate")
    session.connect = body
    own_version = session.server.options.protocol_version
    version = min(body.protocol_version, own_version)
    session.version = version
    session.exposes_metadata = (
        version >= _ENTRY_METADATA_VERSION and body.feature_flags.supports_broker_entry_metadata
    )
    answer = commands.build(
        pb.CommandConnected,
        server_version=SERVER_VERSION,
        protocol_version=version,
        max_message_size=session.server.options.max_message_size,
        feature_flags=FEATURES if own_version >= _FEATURES_VERSION else None,
    )
    session.send(answer)


def auth_response(session: Session, body: pb.CommandAuthResponse) -> None:
    """Check fresh credentials, or close the connection of a client without any."""
    data = body.response
    if not session.server.options.accepts(data.auth_method_name, data.auth_data):
        session.server.note(f"connection {session.number}: credentials refused")
        session.disconnect()
