"""A message within itself is a column of its bytes: Spark has no recursive types."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Type

from pulsar_spark.schema.protobuf import codec
from tests.schema.protobuf.cases import add, add_map, class_of, info_of, new_file

TREE = ".t.Tree"
BYTES = pa.binary()


def file(*, grows: bool = False) -> Any:
    """Return a file of trees, whose newer version has one more field, in front."""
    found = new_file(syntax="proto2")
    tree = found.message_type.add(name="Tree")
    if grows:
        add(tree, "size", 7, Type.TYPE_INT32)
    add(tree, "name", 1, Type.TYPE_STRING)
    add(tree, "left", 2, Type.TYPE_MESSAGE, type_name=TREE)
    add(tree, "kids", 3, Type.TYPE_MESSAGE, label=Type.LABEL_REPEATED, type_name=TREE)
    add_map(tree, "t.Tree", "named", 4, Type.TYPE_STRING, Type.TYPE_MESSAGE, TREE)
    add(tree, "grouped", 5, Type.TYPE_GROUP, type_name=TREE)
    message = found.message_type.add(name="M")
    add(message, "id", 1, Type.TYPE_INT32)
    add(message, "tree", 2, Type.TYPE_MESSAGE, type_name=TREE)
    return found


MESSAGE = class_of(file())


def fill(rng: random.Random, tree: Any, depth: int = 0) -> None:
    if rng.random() < 0.8:
        tree.name = rng.choice(["", "oak", "Bäume"])
    if depth > 3:
        return
    if rng.random() < 0.5:
        fill(rng, tree.left, depth + 1)
    for _ in range(rng.randrange(3)):
        fill(rng, tree.kids.add(), depth + 1)
    if rng.random() < 0.3:
        fill(rng, tree.named[rng.choice("ab")], depth + 1)
    if rng.random() < 0.3:
        tree.grouped.SetInParent()
        fill(rng, tree.grouped, depth + 1)


def random_values(count: int) -> list[bytes]:
    rng = random.Random(count)
    made = []
    for number in range(count):
        message = MESSAGE(id=number)
        message.tree.SetInParent()
        fill(rng, message.tree)
        made.append(message.SerializeToString())
    return made


def test_the_innermost_message_is_the_binary_column() -> None:
    tree = pa.struct(
        [
            ("name", pa.string()),
            ("left", BYTES),
            ("kids", pa.list_(pa.field("element", BYTES))),
            ("named", pa.map_(pa.string(), BYTES)),
            ("grouped", BYTES),
        ]
    )
    assert codec.arrow_schema(info_of(file())) == pa.schema([("id", pa.int32()), ("tree", tree)])
    outermost = codec.arrow_schema(info_of(file(), "Tree"))
    assert outermost == pa.schema(list(tree))


@pytest.mark.usefixtures("each_implementation")
def test_what_was_read_is_written_again_as_it_was() -> None:
    info, values = info_of(file()), random_values(300)
    schema = codec.arrow_schema(info)
    found = codec.decoder(info, info, schema.names).decode(pa.array(values, BYTES))
    assert not found.bad
    batch = pa.RecordBatch.from_arrays(list(found.columns), schema=schema)
    batch.validate(full=True)
    trees = [MESSAGE.FromString(value).tree for value in values]
    rows = batch.to_pylist()
    assert [row["tree"]["kids"] for row in rows] == [
        [kid.SerializeToString() for kid in tree.kids] for tree in trees
    ]
    written = codec.encoder(info, schema).encode(batch).to_pylist()
    # Protobuf writes a map in any order.
    assert list(map(MESSAGE.FromString, written)) == list(map(MESSAGE.FromString, values))


@pytest.mark.usefixtures("each_implementation")
def test_versions_are_read_as_each_other() -> None:
    old, new, values = info_of(file()), info_of(file(grows=True)), random_values(20)
    found = codec.decoder(old, new, ["tree"]).decode(pa.array(values, BYTES)).columns[0]
    expected = [MESSAGE.FromString(value).tree for value in values]
    assert [row["name"] for row in found.to_pylist()] == [
        tree.name if tree.HasField("name") else None for tree in expected
    ]
    codec.decoder(new, old, ["tree"])
