"""Topics: made, grown, deleted, unloaded, truncated, terminated, compacted."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pulsar_spark.testing.entry_log import NOWHERE
from pulsar_spark.testing.rest import found
from pulsar_spark.testing.rest.request import Failure, RestRequest, whole
from pulsar_spark.testing.topic import Topic
from pulsar_spark.testing.transactions import COORDINATOR_TOPIC

if TYPE_CHECKING:
    from pulsar_spark.testing.server import Server

_DESCRIBED = "application/vnd.partitioned-topic-metadata+json"
MAX_PARTITIONS = 10_000


def create(server: Server, asked: RestRequest) -> None:
    """Create a topic that is not partitioned."""
    _create(server, asked, 0)


def create_partitioned(server: Server, asked: RestRequest) -> None:
    """Create a partitioned topic; the body is the number of partitions."""
    _create(server, asked, _number(asked))


def _create(server: Server, asked: RestRequest, count: int) -> None:
    name = asked.topic
    server.topics.namespaces.check(name)
    if str(name) in server.topics.topics or found.partitions(server, name) is not None:
        raise Failure(HTTPStatus.CONFLICT, "This topic already exists")
    server.topics.create(name, count)


def _number(asked: RestRequest) -> int:
    # Clients that give a topic properties send both in an object.
    described = asked.headers.get("content-type", "").startswith(_DESCRIBED)
    count = whole(asked.record().get("partitions")) if described else asked.whole()
    if count <= 0:
        text = "Number of partitions should be more than 0"
        raise Failure(HTTPStatus.NOT_ACCEPTABLE, text)
    if count > MAX_PARTITIONS:
        text = f"Number of partitions should be less than or equal to {MAX_PARTITIONS}"
        raise Failure(HTTPStatus.NOT_ACCEPTABLE, text)
    return count


def partitions(server: Server, asked: RestRequest) -> dict[str, Any]:
    """A topic's number of partitions, 0 for none."""
    name = asked.topic
    count = found.partitions(server, name)
    if str(name) == COORDINATOR_TOPIC and server.options.transactions:
        count = 1
    elif count is None and str(name) not in server.topics.topics:
        server.topics.namespaces.check(name)
        created = server.topics.namespaces.auto_partitions(name) is not None
        if not (created and asked.flag("checkAllowAutoCreation")):
            raise found.no_topic(name)
        count = server.topics.partitions(name, auto_create=True)
    return {"partitions": count or 0, "deleted": False}


def grow(server: Server, asked: RestRequest) -> None:
    """Increase a topic's number of partitions; the body is the number."""
    name, wanted = asked.topic, _number(asked)
    count = found.partitions(server, name)
    if count is None:
        text = f"Topic {name} is not the partitioned topic."
        raise Failure(HTTPStatus.CONFLICT, text)
    if wanted < count:
        text = f"Desired partitions {wanted} can't be less than the current partitions {count}."
        raise Failure(HTTPStatus.UNPROCESSABLE_ENTITY, text)
    server.topics.add_partitions(name, wanted)


def delete(server: Server, asked: RestRequest) -> None:
    """Delete a topic or a partition, with clients if `force` is given."""
    name = asked.topic
    if found.partitions(server, name) is not None:
        raise Failure(
            HTTPStatus.CONFLICT,
            f"{name} is a partitioned topic, instead of calling delete topic, "
            "please call delete-partitioned-topic.",
        )
    found.topic(server, name)
    _delete(server, asked)


def delete_partitioned(server: Server, asked: RestRequest) -> None:
    """Delete a partitioned topic, with clients if `force` is given."""
    name = asked.topic
    if found.partitions(server, name) is None:
        if str(name) not in server.topics.topics:
            raise Failure(HTTPStatus.NOT_FOUND, f"Topic {name} not found.")
        raise Failure(
            HTTPStatus.CONFLICT,
            f"{name} is a non-partitioned topic. Instead of calling delete-partitioned-topic "
            "please call delete.",
        )
    _delete(server, asked)


def _delete(server: Server, asked: RestRequest) -> None:
    for one in server.topics.parts(asked.topic):
        clients = len(one.producers) + len(one.consumers)
        if clients and not asked.flag("force"):
            text = f"Topic has {clients} connected producers/consumers"
            raise Failure(HTTPStatus.PRECONDITION_FAILED, text)
    # A partitioned topic may have lost its partitions, one by one.
    if server.topics.parts(asked.topic):
        found.Control(server).delete_topic(str(asked.topic))
    else:
        server.topics.delete(asked.topic)


def unload(server: Server, asked: RestRequest) -> None:
    """Unload a topic or all its partitions."""
    found.parts(server, asked.topic)
    found.Control(server).unload(str(asked.topic))


def truncate(server: Server, asked: RestRequest) -> None:
    """Acknowledge and delete all messages."""
    for one in found.parts(server, asked.topic):
        for name in one.subscriptions:
            one.skip(name)
        one.log.roll()
        one.trim(one.log.end_place())


def terminate(server: Server, asked: RestRequest) -> dict[str, int]:
    """Take no more messages; returns the last one's id."""
    if found.partitions(server, asked.topic) is not None:
        text = "Termination of a partitioned topic is not allowed"
        raise Failure(HTTPStatus.METHOD_NOT_ALLOWED, text)
    one = found.topic(server, asked.topic)
    one.terminate()
    return _last(one)


def terminate_partitions(server: Server, asked: RestRequest) -> dict[str, dict[str, int]]:
    """Take no more messages in any partition; returns the last ids by partition."""
    if found.partitions(server, asked.topic) is None:
        raise Failure(
            HTTPStatus.METHOD_NOT_ALLOWED,
            "Termination of a non-partitioned topic is not allowed using partitioned-terminate, "
            "please use terminate commands",
        )
    parts = found.parts(server, asked.topic)
    for one in parts:
        one.terminate()
    return {str(one.partition): {**_last(one), "partitionIndex": -1} for one in parts}


def last_message_id(server: Server, asked: RestRequest) -> dict[str, int]:
    """The id of the last message."""
    return _last(found.topic(server, asked.topic))


def message_id_at(server: Server, asked: RestRequest) -> dict[str, int]:
    """The id of the first message that was published at a time in ms, or later."""
    one = found.topic(server, asked.topic)
    place = one.log.first_published_at(asked.whole("timestamp"))
    return message_id(place, one.partition)


def compact(server: Server, asked: RestRequest) -> None:
    """Compact a topic or all its partitions."""
    for one in found.parts(server, asked.topic):
        one.compact()


def compaction(server: Server, asked: RestRequest) -> dict[str, str]:
    """Say whether the topic is compacted: compaction takes no time here."""
    done = found.topic(server, asked.topic).compacted.horizon != NOWHERE
    return {"status": "SUCCESS" if done else "NOT_RUN", "lastError": ""}


def _last(one: Topic) -> dict[str, int]:
    ledger_id, entry_id = one.log.end_place()
    last = one.last_message()
    return message_id(last[0] if last else (ledger_id, entry_id - 1), one.partition)


def message_id(place: tuple[int, int], partition: int) -> dict[str, int]:
    """Return a place as the admin REST shows it."""
    return {
        "ledgerId": place[0],
        "entryId": place[1],
        "partitionIndex": partition,
        "batchIndex": -1,
        "batchSize": 0,
    }
