"""Damaged definitions give a schema, or an error of ours."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value
from pulsar_spark.schema.codec import codec_of, decoder_of, is_record, record_name, typed_columns
from pulsar_spark.schema.protobuf.definition import PARSING_INFO
from tests.schema.avro.random_values import Schemas
from tests.schema.json.cases import random_record
from tests.schema.protobuf.cases import RandomSchema, info_of
from tests.schema.protobuf.test_listed_messages import info as listed

ODD: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63,
        2**200,
        1.5,
        "",
        "null",
        "int",
        "record",
        "\ud800",
    ),
    *("é", "a.b", "..", [], {}, ["null"], [[]], {"type": "int"}, {"type": {"type": "int"}}),
    *("x" * 2000, [1, 2], {"type": "array"}, {"type": "fixed", "name": "q", "size": -1}),
    {"type": "record", "name": "Y", "fields": [{"name": "y", "type": ["null", "Y"]}]},
    {"type": "bytes", "logicalType": "decimal", "precision": 99},
    *({"type": "record", "name": "Z", "fields": []}, {"type": "fixed", "name": "q", "size": 2**70}),
]
WORDS = ["name", "type", "fields", "items", "values", "symbols", "size", "logicalType", "precision"]
WORDS += ["scale", "default", "aliases", "namespace"]
KINDS = ["DOUBLE", "INT32", "STRING", "BYTES", "BOOL", "ENUM", "MESSAGE", "GROUP", "UINT64"]


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in JSON."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in inner:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def mutated(rng: Random, tree: Any) -> Any:
    """Return JSON with some values replaced by wrong ones."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 2, 4))):
        path = rng.choice([*places(tree), ()])
        if not path:
            return rng.choice(ODD)
        parent = tree
        for key in path[:-1]:
            parent = parent[key]
        choice, odd = rng.random(), copy.deepcopy(rng.choice(ODD))
        if choice < 0.3 and isinstance(parent, dict):
            parent[rng.choice(WORDS)] = odd
        elif choice < 0.4 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[path[-1]]))
        elif choice < 0.5:
            del parent[path[-1]]
        else:
            parent[path[-1]] = odd
        if not isinstance(tree, dict | list):
            break
    return tree


def avro(rng: Random) -> tuple[SchemaInfo, SchemaInfo]:
    kind = rng.choice((pb.Schema.Avro, pb.Schema.Json))
    tree = Schemas(rng).record() if kind == pb.Schema.Avro else random_record(rng)
    whole, damaged = json.dumps(tree), json.dumps(mutated(rng, tree))
    if rng.random() < 0.1:
        damaged = whole[: rng.randrange(len(whole))]
    return SchemaInfo(kind, "", whole.encode()), SchemaInfo(kind, "", damaged.encode())


def native(rng: Random) -> tuple[SchemaInfo, SchemaInfo]:
    info = info_of(RandomSchema(rng, rng.choice(["proto2", "proto3", "editions"])).file())
    definition = json.loads(info.schema_data)
    files = bytearray(base64.b64decode(definition["fileDescriptorSet"]))
    for _ in range(rng.choice((1, 2, 5))):
        files[-1 - rng.randrange(600)] = rng.randrange(256)
    definition["fileDescriptorSet"] = base64.b64encode(files).decode()
    return info, SchemaInfo(info.type, "", json.dumps(definition).encode())


def with_a_list(rng: Random) -> tuple[SchemaInfo, SchemaInfo]:
    labels = ["LABEL_OPTIONAL", "LABEL_REPEATED", "LABEL_REQUIRED"]
    info = listed([(n + 1, f"f{n}", rng.choice(KINDS), rng.choice(labels)) for n in range(4)])
    own = mutated(rng, json.loads(info.properties[PARSING_INFO]))
    fields = [{"name": f"f{n}", "type": "int", "default": rng.choice(ODD)} for n in range(4)]
    tree: Any = {"type": "record", "name": "M", "fields": fields}
    definition = json.dumps(mutated(rng, tree) if rng.random() < 0.5 else tree)
    return info, SchemaInfo(info.type, "", definition.encode(), {PARSING_INFO: json.dumps(own)})


def uses(whole: SchemaInfo, damaged: SchemaInfo) -> list[Callable[[], object]]:
    """Return everything that can be done with definitions."""

    def read(writer: SchemaInfo, reader: SchemaInfo) -> object:
        return decoder_of(writer, reader, codec_of(reader).arrow_schema(reader).names)

    def write(info: SchemaInfo) -> object:
        return codec_of(info).encoder(info, codec_of(info).arrow_schema(info))

    pair = join_key_value(damaged, whole, separated=False)
    return [
        lambda: is_record(damaged),
        lambda: record_name(damaged),
        lambda: typed_columns(pair),
        lambda: read(damaged, damaged),
        lambda: read(whole, damaged),
        lambda: read(damaged, whole),
        lambda: write(damaged),
    ]


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    "cases", [60, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
@pytest.mark.parametrize("make", [avro, native, with_a_list])
def test_damaged_definitions_are_schemas_or_errors_of_our_own(
    make: Callable[[Random], tuple[SchemaInfo, SchemaInfo]], cases: int
) -> None:
    refused = 0
    for case in range(cases):
        for use in uses(*make(Random(f"{cases} {case}"))):
            try:
                use()
            except PulsarError as error:
                str(error).encode()
                refused += 1
    assert cases < refused < 7 * cases
