"""The schema of values that the options of a read give."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Type
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from pulsar_spark.errors import OptionError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.schema.codec import typed_columns
from pulsar_spark.spark.options.read import ReadOptions, parse_read_options
from pulsar_spark.spark.options.stream import parse_stream_options
from pulsar_spark.spark.options.write import parse_write_options
from tests.schema.protobuf.cases import add, new_file

URL = {"service.url": "pulsar://localhost:6650", "topic": "t"}
AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})


def descriptors(*packages: str) -> bytes:
    """Return a descriptor set in which each package has a message Order with an inner Item."""
    found = FileDescriptorSet()
    for package in packages:
        file = new_file(package)
        order = file.message_type.add(name="Order")
        add(order, "id", 1, Type.TYPE_INT64)
        add(order.nested_type.add(name="Item"), "name", 1, Type.TYPE_STRING)
        file.package = package
        found.file.append(file)
    return found.SerializeToString()


def parse(**more: str) -> ReadOptions:
    return parse_read_options({**URL, **more})


def avro(schema: str) -> ReadOptions:
    return parse(valueFormat="avro", valueSchema=schema)


def protobuf(schema: str, message: str = "Order") -> ReadOptions:
    return parse(valueFormat="protobuf", valueSchema=schema, valueMessage=message)


def columns(options: ReadOptions) -> list[str]:
    assert options.value_schema is not None
    names: list[str] = typed_columns(options.value_schema).fields.names
    return names


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
def test_a_schema_is_in_a_file(form: str, tmp_path: Path) -> None:
    definition, descriptor = tmp_path / "order ä.avsc", tmp_path / "order.desc"
    definition.write_text(AVRO, "utf-8-sig")
    descriptor.write_bytes(descriptors("shop"))
    found = avro(form.format(definition))
    assert found.value_schema is not None
    assert found.value_schema.type == pb.Schema.Avro
    assert columns(found) == ["id"]
    found = protobuf(form.format(descriptor))
    assert found.value_schema is not None
    assert found.value_schema.type == pb.Schema.ProtobufNative
    assert columns(found) == ["id"]


def test_a_schema_is_the_text_itself() -> None:
    assert columns(avro(f"\n{AVRO}")) == ["id"]
    assert columns(avro('"string"')) == ["value"]
    encoded = base64.encodebytes(descriptors("shop", "a-name-beyond-one-line" * 4)).decode()
    assert columns(protobuf(encoded, "shop.Order")) == ["id"]


@pytest.mark.parametrize(
    "message,fields",
    [
        ("shop.Order", ["id"]),
        (".shop.Order", ["id"]),
        ("shop.Order.Item", ["name"]),
        ("depot.Order", ["id"]),
        ("Order", ["id"]),
    ],
)
def test_a_message_has_its_full_name_or_the_unique_end_of_it(
    message: str, fields: list[str]
) -> None:
    packages = ["shop"] if message == "Order" else ["shop", "depot"]
    given = base64.b64encode(descriptors(*packages)).decode()
    assert columns(protobuf(given, message)) == fields


SET = base64.b64encode(descriptors("shop", "depot")).decode()
DEEP = '{"type":"array","items":' * 49 + '"int"' + "}" * 49


@pytest.mark.parametrize(
    "given,told",
    [
        ({"valueSchema": AVRO}, "valueSchema cannot be used with valueFormat=auto"),
        (
            {"valueFormat": "json", "valueSchema": AVRO},
            "valueSchema cannot be used with valueFormat=json",
        ),
        (
            {"valueFormat": "avro", "valueSchema": AVRO, "valueMessage": "Order"},
            "valueMessage cannot be used with valueFormat=avro",
        ),
        ({"valueMessage": "Order"}, "valueMessage cannot be used with valueFormat=auto"),
        ({"valueFormat": "avro"}, "valueFormat=avro needs the option valueSchema"),
        ({"valueFormat": "protobuf"}, "valueFormat=protobuf needs the option valueSchema"),
        (
            {"valueFormat": "avro", "valueSchema": "/nowhere/order.avsc"},
            "'/nowhere/order.avsc' cannot be read: No such file",
        ),
        ({"valueFormat": "avro", "valueSchema": "a\0b"}, "it is not a path"),
        ({"valueFormat": "avro", "valueSchema": "/"}, "Is a directory"),
        ({"valueFormat": "avro", "valueSchema": '{"type":'}, "is not JSON"),
        ({"valueFormat": "avro", "valueSchema": '{"type": "date"}'}, "unknown type 'date'"),
        ({"valueFormat": "avro", "valueSchema": DEEP}, "nested more than 48 levels"),
        (
            {"valueFormat": "protobuf", "valueSchema": "/nowhere/order.desc"},
            "'/nowhere/order.desc' cannot be read: No such file",
        ),
        (
            {"valueFormat": "protobuf", "valueSchema": SET},
            "valueFormat=protobuf needs the option valueMessage",
        ),
        (
            {"valueFormat": "protobuf", "valueSchema": SET, "valueMessage": "order"},
            "valueMessage=order is the name of no message in valueSchema",
        ),
        (
            {"valueFormat": "protobuf", "valueSchema": SET, "valueMessage": "Order"},
            "valueMessage=Order is the name of several messages: ",
        ),
    ],
)
def test_what_cannot_be_used_is_an_error_with_a_remedy(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(**given)
    assert told in caught.value.what
    assert caught.value.remedy


def test_an_unknown_message_is_told_with_those_there_are() -> None:
    with pytest.raises(OptionError) as caught:
        protobuf(SET, "Refund")
    assert "depot.Order, depot.Order.Item, shop.Order, shop.Order.Item" in (
        caught.value.remedy or ""
    )


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b'{"type": "record"}', AVRO.encode()])
@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_a_file_of_another_kind_is_an_error(kind: str, content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "schema"
    file.write_bytes(content if kind == "protobuf" else content.replace(b'"id"', b"") or b"\n\0")
    with pytest.raises(OptionError, match="valueSchema cannot be used"):
        parse(valueFormat=kind, valueSchema=str(file), **_message(kind))


def _message(kind: str) -> dict[str, str]:
    return {"valueMessage": "Order"} if kind == "protobuf" else {}


def test_a_file_beyond_the_limit_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_spark.spark.options.value_schema._MAX_BYTES", 10)
    file = tmp_path / "schema"
    file.write_text(AVRO)
    with pytest.raises(OptionError, match="more than 10 bytes"):
        avro(str(file))


def test_options_are_plain_data_that_shows_no_schema() -> None:
    marked = AVRO.replace("Order", "Canary")
    options = avro(marked)
    assert pickle.loads(pickle.dumps(options)) == options
    assert "Canary" not in repr(options)
    with pytest.raises(OptionError) as caught:
        avro(marked.replace('"long"', '"what"') + " " * 5000)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("key", ["valueSchema", "valueMessage"])
def test_on_write_they_are_refused(key: str) -> None:
    with pytest.raises(OptionError, match=f"{key} is only for reads"):
        parse_write_options({**URL, key.lower(): AVRO})


def test_protobuf_is_a_format_of_reads() -> None:
    with pytest.raises(OptionError, match="valueFormat=protobuf is only for reads"):
        parse_write_options({**URL, "valueFormat": "protobuf"})


def test_a_stream_has_them_too() -> None:
    given: dict[str, Any] = {**URL, "valueFormat": "avro", "valueSchema": AVRO}
    assert columns(parse_stream_options(given).read) == ["id"]
