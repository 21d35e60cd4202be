"""The fields of the protocol, from the compiled interface."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from pulsar_spark.protocol import pulsar_api_pb2 as pb


def fields() -> dict[str, FieldDescriptor]:
    """Return all fields by their names, such as ``CommandSend.producer_id``, in their order."""
    return {
        f"{message.name}.{field.name}": field
        for message in pb.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
    }


@cache
def required() -> frozenset[str]:
    """Return the names of required fields: no parser accepts a message without them."""
    return frozenset(_labelled(FieldDescriptorProto.LABEL_REQUIRED))


def _labelled(label: int) -> Iterator[str]:
    file = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        for field in message.field:
            if field.label == label:
                yield f"{message.name}.{field.name}"


def name_of(field: FieldDescriptor) -> str:
    """Return a field's name as in `fields`."""
    owner: Any = field.containing_type
    return f"{owner.name}.{field.name}"
