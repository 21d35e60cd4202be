"""With several brokers: only the owner of a topic serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.refusals import Refusal

if TYPE_CHECKING:
    from pulsar_spark.testing.session import Session


def check(session: Session, topic: str) -> None:
    """Raise Refusal (ServiceNotReady) if the client's broker is not the topic's owner.

    With CONNECT.proxy_to_broker_url, the client's broker is the one named there.
    """
    if not is_owner(session, topic):
        raise Refusal(
            pb.ServiceNotReady,
            f"Namespace bundle for topic ({topic}) not served by this instance. "
            "Please redo the lookup.",
        )


def is_owner(session: Session, topic: str) -> bool:
    """Whether the client's broker serves a topic."""
    server = session.server
    broker = session.listener
    if session.connect is not None and session.connect.proxy_to_broker_url:
        broker = server.listener_of(session.connect.proxy_to_broker_url, default=broker)
    return server.topics.owner(topic) == broker
