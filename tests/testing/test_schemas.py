"""Schemas get versions, and incompatible ones are rejected."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.schemas import SchemaHistory, is_stored


def avro(*fields: object, name: str = "R", kind: Any = pb.Schema.Avro) -> pb.Schema:
    definition = {"type": "record", "name": name, "fields": list(fields)}
    return pb.Schema(name="", type=kind, schema_data=json.dumps(definition).encode())


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "int"}
B_OPTIONAL = {"name": "b", "type": ["null", "int"], "default": None}
STRING = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")


def version(number: int) -> bytes:
    return number.to_bytes(8, "big")


def test_versions_count_from_zero_and_known_schemas_keep_theirs() -> None:
    history = SchemaHistory()
    assert history.get(None) is None
    assert history.add(avro(A)) == version(0)
    assert history.add(avro(A, B_OPTIONAL)) == version(1)
    assert history.add(avro(A)) == version(0)
    latest = history.get(None)
    assert latest is not None
    assert latest[1] == version(1)
    oldest = history.get(version(0))
    assert oldest is not None
    assert oldest[0] == avro(A)
    assert history.get(version(2)) is None
    assert len(history) == 2


def test_a_record_may_be_renamed() -> None:
    history = SchemaHistory()
    history.add(avro(A, name="v1"))
    assert history.add(avro(A, B_OPTIONAL, name="v2")) == version(1)


@pytest.mark.parametrize(
    "new,why",
    [
        (STRING, "exists schema type AVRO, new schema type STRING"),
        (avro(A, kind=pb.Schema.Json), "new schema type JSON"),
        (avro(A, B), "the new field 'b' has no default"),
        (avro({"name": "a", "type": "string"}), "changed its type"),
        (avro(), "the removed field 'a' has no default"),
        (pb.Schema(name="", type=pb.Schema.Avro, schema_data=b"{"), "Invalid schema definition"),
        (pb.Schema(name="", type=pb.Schema.Avro, schema_data=b'"int"'), "the types differ"),
        (
            pb.Schema(name="", type=pb.Schema.Avro, schema_data=b"[" * 100_000),
            "Invalid schema definition|nested too deeply",
        ),
    ],
)
def test_what_does_not_fit_is_refused(new: pb.Schema, why: str) -> None:
    history = SchemaHistory()
    history.add(avro(A))
    with pytest.raises(Refusal, match=why) as caught:
        history.add(new)
    assert caught.value.code == pb.IncompatibleSchema
    if "removed" not in why:
        with pytest.raises(Refusal):
            history.check_reader(new)


def test_a_reader_may_want_less_than_there_is() -> None:
    history = SchemaHistory()
    history.add(avro(A, B))
    history.check_reader(avro(A))
    with pytest.raises(Refusal, match="removed field 'b'"):
        history.check_reader(avro(A), "FULL_TRANSITIVE")


LONG = {"name": "a", "type": "long"}


@pytest.mark.parametrize(
    "strategy,taken",
    [
        ("FULL", [(A, B_OPTIONAL)]),
        ("UNDEFINED", [(A, B_OPTIONAL)]),
        ("BACKWARD", [(A, B_OPTIONAL), (LONG,), ()]),
        ("FORWARD", [(A, B_OPTIONAL), (A, B)]),
        ("ALWAYS_COMPATIBLE", [(A, B_OPTIONAL), (A, B), (LONG,), ()]),
        ("ALWAYS_INCOMPATIBLE", []),
    ],
)
def test_the_strategy_says_which_schemas_a_topic_takes(
    strategy: str, taken: list[tuple[object, ...]]
) -> None:
    found: list[tuple[object, ...]] = []
    for fields in ((A, B_OPTIONAL), (A, B), (LONG,), ()):
        history = SchemaHistory()
        history.add(avro(A))
        with suppress(Refusal):
            history.add(avro(*fields), strategy)
            found.append(fields)
    assert found == taken


def test_a_transitive_strategy_looks_at_all_versions() -> None:
    for strategy, fits in (("BACKWARD", True), ("BACKWARD_TRANSITIVE", False)):
        history = SchemaHistory()
        history.add(avro(A))
        history.add(avro(A, B), "ALWAYS_COMPATIBLE")
        with nullcontext() if fits else pytest.raises(Refusal):
            history.add(avro(A, B, B_OPTIONAL | {"name": "c"}), strategy)


def test_versions_go_on_after_a_schema_was_deleted() -> None:
    history = SchemaHistory()
    history.add(STRING)
    assert history.delete(force=False) == 1
    assert history.get(None) is None
    assert history.get(version(0)) is None
    assert history.add(avro(A)) == version(2)
    assert list(history.kept()) == [2]
    assert history.delete(force=True) == -1
    assert history.add(STRING) == version(0)


def test_a_topic_without_updates_takes_the_schemas_that_it_has() -> None:
    history = SchemaHistory()
    history.add(STRING)
    assert history.add(STRING, update=False) == version(0)
    with pytest.raises(Refusal, match="schema auto updating is disabled"):
        history.add(avro(A), update=False)


def test_readers_need_a_schema_to_read() -> None:
    history = SchemaHistory()
    with pytest.raises(Refusal, match="active topic"):
        history.check_reader(STRING)
    history.add(STRING)
    history.check_reader(STRING)


def test_a_schema_that_stands_for_the_topics_own_is_not_stored() -> None:
    assert not is_stored(pb.Schema(name="", type=pb.Schema.AutoConsume, schema_data=b""))
    assert is_stored(STRING)
