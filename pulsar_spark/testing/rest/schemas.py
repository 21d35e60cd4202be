"""Schemas of topics: read, stored, deleted, compared."""

from __future__ import annotations

import json
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import (
    SchemaInfo,
    key_value_data,
    split_key_value,
    type_of_name,
)
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.rest.request import Failure, RestAnswer, RestRequest, encoded, typed
from pulsar_spark.testing.schemas import RECORD_TYPES, KeptSchema

if TYPE_CHECKING:
    from pulsar_spark.testing.server import Server

_MISSING = "Schema not found"


def latest(server: Server, asked: RestRequest) -> dict[str, Any]:
    """The latest version of a topic's schema."""
    kept = _kept(server, asked)
    return _shown(server, asked, max(kept, default=-1))


def version(server: Server, asked: RestRequest) -> dict[str, Any]:
    """One version of a topic's schema."""
    return _shown(server, asked, asked.whole("version"))


def versions(server: Server, asked: RestRequest) -> dict[str, Any]:
    """All versions of a topic's schema."""
    shown = [_shown(server, asked, number) for number in _kept(server, asked)]
    return {"getSchemaResponses": shown}


def _kept(server: Server, asked: RestRequest) -> dict[int, KeptSchema]:
    history = server.topics.schemas_if_any(_topic(asked))
    return {} if history is None else history.kept()


def _shown(server: Server, asked: RestRequest, number: int) -> dict[str, Any]:
    found = _kept(server, asked).get(number)
    if found is None:
        raise Failure(HTTPStatus.NOT_FOUND, _MISSING)
    schema = SchemaInfo.from_pb(found.schema)
    return {
        "version": number,
        "type": schema.type_name,
        "timestamp": found.timestamp,
        "data": _text(schema),
        "properties": dict(schema.properties),
    }


def store(server: Server, asked: RestRequest) -> dict[str, Any]:
    """Store a schema as a new version, unless it is known."""
    strategy = server.topics.namespaces.policies(_topic(asked)).schema_compatibility
    added = server.topics.schemas(_topic(asked)).add(_schema(asked), strategy)
    return {"version": {"version": int.from_bytes(added, "big")}}


def delete(server: Server, asked: RestRequest) -> dict[str, Any]:
    """Delete all versions of a topic's schema."""
    gone = server.topics.schemas(_topic(asked)).delete(force=asked.flag("force"))
    return {"version": gone}


def find(server: Server, asked: RestRequest) -> dict[str, Any]:
    """The version of the schema in the body, -1 if it is unknown."""
    number = server.topics.schemas(_topic(asked)).find(_schema(asked))
    return {"version": -1 if number is None else number}


def compatibility(server: Server, asked: RestRequest) -> RestAnswer:
    """Whether the schema in the body could be stored."""
    strategy = server.topics.namespaces.policies(_topic(asked)).schema_compatibility
    try:
        server.topics.schemas(_topic(asked)).check(_schema(asked), strategy)
    except Refusal as refusal:
        raise Failure(HTTPStatus.INTERNAL_SERVER_ERROR, refusal.message) from None
    told = {"schemaCompatibilityStrategy": strategy, "compatibility": True}
    return RestAnswer(HTTPStatus.ACCEPTED, encoded(told))


def _topic(asked: RestRequest) -> TopicName:
    """The topic in the path, which is decoded twice in these paths."""
    return replace(asked, named={**asked.named, "topic": unquote(asked.named["topic"])}).topic


def _schema(asked: RestRequest) -> pb.Schema:
    """The schema in the body."""
    given = asked.record()
    kind = type_of_name(str(given.get("type")))
    if kind is None:
        text = f"No enum constant {given.get('type')}"
        raise Failure(HTTPStatus.INTERNAL_SERVER_ERROR, text)
    text = typed(given.get("schema", ""), str)
    try:
        data = text.encode()
        if kind in RECORD_TYPES:
            json.loads(data)
        elif kind == pb.Schema.KeyValue:
            both = json.loads(data)
            data = key_value_data(*(_side(both.get(name, "")) for name in ("key", "value")))
    except (ValueError, RecursionError, AttributeError):
        text = f"Invalid schema definition data for {given['type']} schema"
        raise Failure(HTTPStatus.UNPROCESSABLE_ENTITY, text) from None
    properties = typed(given.get("properties") or {}, dict)
    texts = {key: str(value) for key, value in properties.items()}
    return SchemaInfo(kind, "", data, texts).to_pb()


def _side(definition: Any) -> bytes:
    """Return the definition of a key or a value, which is an object here or empty text."""
    return b"" if definition == "" else encoded(definition).encode()


def _text(schema: SchemaInfo) -> str:
    """Return a definition as the admin REST shows it: that of a pair is an object."""
    if schema.type != pb.Schema.KeyValue:
        return schema.schema_data.decode("utf-8", "replace")
    parts = split_key_value(schema)
    sides = {"key": parts.key.schema_data, "value": parts.value.schema_data}
    return encoded({name: json.loads(data) if data else "" for name, data in sides.items()})
