"""Schemas of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.topic_store import parse_topic

if TYPE_CHECKING:
    from pulsar_spark.testing.session import Session


def get_schema(session: Session, body: pb.CommandGetSchema) -> None:
    """Return one version of a topic's schema, or the latest."""
    name = parse_topic(body.topic)
    version = body.schema_version if body.HasField("schema_version") else None
    if version and len(version) < 8:
        # A real one fails at it, as it reads a number of eight bytes.
        session.disconnect()
        return
    history = session.server.topics.schemas_if_any(name)
    found = None if history is None else history.get(version or None)
    if found is None:
        raise Refusal(pb.TopicNotFound, f"Topic not found or no-schema {name}")
    schema = pb.Schema()
    schema.CopyFrom(found[0])
    schema.name = f"{name.partitioned.namespace_name}/{name.partitioned.local_name}"
    session.answer(
        body, pb.CommandGetSchemaResponse, str(name), schema=schema, schema_version=found[1]
    )


def get_or_create_schema(session: Session, body: pb.CommandGetOrCreateSchema) -> None:
    """Register a schema, and return its version."""
    name = parse_topic(body.topic)
    store = session.server.topics
    if not store.parts(name):
        raise Refusal(pb.TopicNotFound, f"Topic not found {name}")
    version = store.namespaces.policies(name).add_schema(store.schemas(name), body.schema)
    session.answer(body, pb.CommandGetOrCreateSchemaResponse, str(name), schema_version=version)
