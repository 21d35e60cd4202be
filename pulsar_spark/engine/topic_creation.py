"""Having a topic created by looking in: a consumer that comes and goes."""

from __future__ import annotations

from google.protobuf.message import Message

from pulsar_spark.engine.backoff import Deadline
from pulsar_spark.engine.lookup import Lookup
from pulsar_spark.engine.pipeline import Job
from pulsar_spark.engine.temporary_consumer import unique_name
from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.events import MessageReceived
from pulsar_spark.protocol.message_id import LATEST


class _Visitor:
    """A consumer that wants nothing."""

    def on_message(self, message: MessageReceived) -> None:
        """Nothing comes: there are no permits."""

    def on_close(self, command: pb.CommandCloseConsumer) -> None:
        """It was about to leave."""

    def on_command(self, body: Message) -> None:
        """It was about to leave."""

    def on_disconnect(self, error: PulsarError) -> None:
        """It was about to leave."""


def attach_once(lookup: Lookup, topic: str, deadline: Deadline) -> Job[None]:
    """Return a job that attaches to a topic, which creates it where policies allow, and leaves.

    The subscription is not durable, so nothing but the topic stays.
    """
    connection = yield from lookup.connection_job(topic, deadline)
    consumer_id = connection.add_consumer(_Visitor())
    try:
        yield connection.request_async(
            lambda request_id: commands.subscribe(
                topic,
                unique_name("pulsar-spark-visitor"),
                consumer_id,
                request_id,
                durable=False,
                start_message_id=LATEST.to_pb(),
                force_topic_creation=True,
            ),
            deadline.remaining(),
        )
        yield connection.request_async(
            lambda request_id: commands.close_consumer(consumer_id, request_id),
            deadline.remaining(),
        )
    finally:
        connection.remove_consumer(consumer_id)
