"""The table of commands: type → handler function.

A handler gets the session and the command's body, and the payload of a SEND; it answers through the
session. It raises Refusal to refuse the command, and returns a coroutine if it must wait.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.handlers import (
    acknowledge,
    connect,
    consume,
    lookup,
    produce,
    schema,
    transact,
)

Handler = Callable[..., Coroutine[Any, Any, None] | None]

_T = pb.BaseCommand

HANDLERS: dict[int, Handler] = {
    _T.CONNECT: connect.connect,
    _T.AUTH_RESPONSE: connect.auth_response,
    _T.TC_CLIENT_CONNECT_REQUEST: transact.connect,
    _T.NEW_TXN: transact.begin,
    _T.ADD_PARTITION_TO_TXN: transact.add_partitions,
    _T.ADD_SUBSCRIPTION_TO_TXN: transact.add_subscriptions,
    _T.END_TXN: transact.end,
    _T.END_TXN_ON_PARTITION: transact.end_on_partition,
    _T.LOOKUP: lookup.lookup,
    _T.PARTITIONED_METADATA: lookup.partitioned_metadata,
    _T.GET_TOPICS_OF_NAMESPACE: lookup.topics_of_namespace,
    _T.WATCH_TOPIC_LIST: lookup.watch_topics,
    _T.WATCH_TOPIC_LIST_CLOSE: lookup.unwatch_topics,
    _T.PRODUCER: produce.producer,
    _T.SEND: produce.send,
    _T.CLOSE_PRODUCER: produce.close_producer,
    _T.SUBSCRIBE: consume.subscribe,
    _T.FLOW: consume.flow,
    _T.SEEK: consume.seek,
    _T.GET_LAST_MESSAGE_ID: consume.last_message_id,
    _T.CONSUMER_STATS: consume.stats,
    _T.CLOSE_CONSUMER: consume.close_consumer,
    _T.UNSUBSCRIBE: consume.unsubscribe,
    _T.ACK: acknowledge.ack,
    _T.REDELIVER_UNACKNOWLEDGED_MESSAGES: acknowledge.redeliver,
    _T.GET_SCHEMA: schema.get_schema,
    _T.GET_OR_CREATE_SCHEMA: schema.get_or_create_schema,
}
