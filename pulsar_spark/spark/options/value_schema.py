"""The schema of a read that the user gives: `valueFormat`, `valueSchema` and `valueMessage`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

from pulsar_spark.errors import OptionError, SchemaMismatch, listed
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.validation import is_unicode
from pulsar_spark.schema.codec import typed_columns
from pulsar_spark.spark.options.resolve import Values

_MAX_BYTES = 16 * 1024 * 1024
_SHOWN = 100
_NAMES = 20
_REMEDIES = {
    "avro": "Give an Avro definition in JSON, or the path (or file:// URL) of a file with one, on "
    "the driver.",
    "protobuf": "Give the path (or file:// URL) of a file on the driver that protoc "
    "--include_imports --descriptor_set_out wrote, or its content as base64.",
}


def given_schema(values: Values) -> SchemaInfo | None:
    """Return the schema of a read's values, None if the topics' schemas or the columns decide.

    Reads the file in `valueSchema`. Raises OptionError for one that cannot be used, and for options
    that do not go together.
    """
    kind, text, message = (values[key] for key in ("valueFormat", "valueSchema", "valueMessage"))
    if text is not None and kind not in _REMEDIES:
        raise OptionError(
            f"valueSchema cannot be used with valueFormat={kind}",
            "Set valueFormat to avro or protobuf, or leave valueSchema out: topics' schemas decide "
            "with auto, the columns of .schema(…) with json.",
        )
    if message is not None and kind != "protobuf":
        raise OptionError(
            f"valueMessage cannot be used with valueFormat={kind}",
            "Leave it out, or set valueFormat=protobuf.",
        )
    if kind in _REMEDIES and text is None:
        raise OptionError(
            f"valueFormat={kind} needs the option valueSchema to read topics without a schema",
            f"{_REMEDIES[kind]} If the topic has a schema, valueFormat=auto reads by it.",
        )
    if kind == "avro":
        return _checked(SchemaInfo(pb.Schema.Avro, "", _avro_text(text).encode()), kind)
    if kind == "protobuf":
        return _protobuf(text, message)
    return SchemaInfo(pb.Schema.String, "String") if kind == "string" else None


def schema_text(info: SchemaInfo | None) -> str | None:
    """Return a given schema as text for `valueSchema`, None if it does not come from there."""
    if info is not None and info.type == pb.Schema.Avro:
        return info.schema_data.decode()
    if info is not None and info.type == pb.Schema.ProtobufNative:
        return str(json.loads(info.schema_data)["fileDescriptorSet"])
    return None


def with_schema(options: Mapping[str, str], text: str) -> dict[str, str]:
    """Return options with a text for `valueSchema`."""
    others = {name: value for name, value in options.items() if name.lower() != "valueschema"}
    return {**others, "valueSchema": text}


def _avro_text(text: str) -> str:
    if text.startswith(("{", "[", '"')):
        return text
    try:
        return _file(text, "avro").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _unusable(f"the file {text[:_SHOWN]!r} is not text in UTF-8", "avro") from None


def _protobuf(text: str, message: str | None) -> SchemaInfo:
    data = _from_base64(text)
    names = _messages(data)
    if not names:
        data = _file(text, "protobuf")
        names = _messages(data)
    if not names:
        raise _unusable("it is not a descriptor set, or has no message", "protobuf")
    wanted = (message or "").removeprefix(".")
    found = [name for name in names if name == wanted] or [
        name for name in names if wanted and name.endswith(f".{wanted}")
    ]
    if len(found) != 1:
        what = "valueFormat=protobuf needs the option valueMessage"
        if message is not None:
            many = f"of several messages: {listed(found, _NAMES)}" if found else "of no message"
            what = f"valueMessage={message[:_SHOWN]} is the name {many} in valueSchema"
        raise OptionError(what, f"Its messages are {listed(sorted(names, key=_order), _NAMES)}.")
    definition = {
        "fileDescriptorSet": base64.b64encode(data).decode(),
        "rootMessageTypeName": found[0],
    }
    native = SchemaInfo(pb.Schema.ProtobufNative, "", json.dumps(definition).encode())
    return _checked(native, "protobuf")


def _messages(data: bytes) -> list[str]:
    """Return the full names of a descriptor set's messages; none if it is not one."""
    names: list[str] = []
    try:
        files = FileDescriptorSet.FromString(data)
    except (DecodeError, RecursionError):
        return names
    pending = [(file.package, message) for file in files.file for message in file.message_type]
    while pending:
        outer, message = pending.pop()
        name = f"{outer}.{message.name}" if outer else message.name
        if is_unicode(name) and not message.options.map_entry:
            names.append(name)
        pending += [(name, inner) for inner in message.nested_type]
    return names


def _order(name: str) -> tuple[bool, str]:
    """Order names so that the user's own come before those that they import."""
    return name.startswith("google.protobuf."), name


def _from_base64(text: str) -> bytes:
    """Return what is in base64, nothing for another text."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        return b""


def _file(text: str, kind: str) -> bytes:
    try:
        with open(_path(text), "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a path"
        raise _unusable(f"the file {text[:_SHOWN]!r} cannot be read: {why}", kind) from None
    if len(data) > _MAX_BYTES:
        raise _unusable(f"the file {text[:_SHOWN]!r} has more than {_MAX_BYTES} bytes", kind)
    return data


def _path(text: str) -> str:
    if not text.startswith("file:"):
        return text
    return unquote(urlsplit(text).path)


def _checked(info: SchemaInfo, kind: str) -> SchemaInfo:
    """Return a schema whose values can be columns; raises OptionError for others."""
    try:
        typed_columns(info)
    except SchemaMismatch as error:
        raise _unusable(error.what.replace("the topic's ", "the "), kind) from None
    return info


def _unusable(why: str, kind: str) -> OptionError:
    return OptionError(f"valueSchema cannot be used: {why}", _REMEDIES[kind])
