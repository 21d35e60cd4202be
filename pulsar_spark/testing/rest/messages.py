"""Single entries: what is stored, and what a subscription gets next."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import parse_payload
from pulsar_spark.testing.compaction import body_of
from pulsar_spark.testing.entry_log import Entry
from pulsar_spark.testing.rest import found
from pulsar_spark.testing.rest.request import Failure, RestAnswer, RestRequest, encoded

if TYPE_CHECKING:
    from pulsar_spark.testing.server import Server


def stored(server: Server, asked: RestRequest) -> RestAnswer:
    """The entry with an id."""
    place = asked.whole("ledger"), asked.whole("entry")
    entry = found.topic(server, asked.topic).log.get(place)
    if entry is None:
        raise Failure(HTTPStatus.NOT_FOUND, "Message id not found")
    return _shown(entry)


def next_of(server: Server, asked: RestRequest) -> RestAnswer:
    """The n-th entry that a subscription has not acknowledged."""
    found.topic(server, asked.topic)
    left = found.subscriptions(server, asked)[0].cursor.left()
    entry = next(islice(left, max(0, asked.whole("number") - 1), None), None)
    if entry is None:
        raise Failure(HTTPStatus.NOT_FOUND, "Message not found")
    return _shown(entry)


def _shown(entry: Entry) -> RestAnswer:
    """Return an entry's content, decompressed: a batch as it is in the protocol."""
    parts = parse_payload(memoryview(entry.data))
    headers = {name: value for name, value in _headers(entry, parts.metadata) if value is not None}
    return RestAnswer(HTTPStatus.OK, bytes(body_of(parts)), headers)


def _headers(entry: Entry, metadata: pb.MessageMetadata) -> Iterator[tuple[str, str | None]]:
    properties = {one.key: one.value for one in metadata.properties}
    key = metadata.partition_key if metadata.HasField("partition_key") else None
    yield "Message-ID", f"{entry.place[0]}:{entry.place[1]}"
    yield "PROPERTY", encoded(properties)
    yield "publish-time", _time(metadata.publish_time)
    yield "event-time", _time(metadata.event_time) if metadata.event_time else None
    yield "producer-name", metadata.producer_name
    yield "sequence-id", str(metadata.sequence_id)
    yield "partition-key", key
    yield "num-batch-message", str(entry.messages) if entry.messages else None


def _time(milliseconds: int) -> str:
    """Return a time as Pulsar writes it; the largest one that there is for later ones."""
    seconds = min(milliseconds / 1000, 253_402_300_799)
    text = datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
