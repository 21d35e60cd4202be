"""Compile proto/PulsarApi.proto into pulsar_spark/protocol/pulsar_api_pb2.py and its .pyi.

    python -m tools.generate_proto           write both files
    python -m tools.generate_proto --check   fail if either is outdated

protoc (from grpcio-tools) only turns the .proto into a descriptor. The module around it is ours,
for two reasons. protoc's own output refuses to run on any protobuf runtime older than itself, or a
major version newer; the few calls used here are the same since 5.29. And it registers its messages
in the process-wide descriptor pool, where they would clash with any other Pulsar library that has
the same messages; ours use their own pool.
"""

from __future__ import annotations

import argparse
import keyword
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto" / "PulsarApi.proto"
MODULE = ROOT / "pulsar_spark" / "protocol" / "pulsar_api_pb2.py"
STUB = MODULE.with_suffix(".pyi")

_DO_NOT_EDIT = "Written by tools/generate_proto.py from proto/PulsarApi.proto: do not edit."

_MODULE_HEAD = f'''\
"""The messages of the Pulsar binary protocol.

{_DO_NOT_EDIT}
"""

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(
'''

_MODULE_HELPERS = """\
)

DESCRIPTOR = _POOL.FindFileByName("PulsarApi.proto")


def _message(name):
    return message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name[name])


def _enum(name):
    return enum_type_wrapper.EnumTypeWrapper(DESCRIPTOR.enum_types_by_name[name])


"""

_STUB_HEAD = f"""\
# {_DO_NOT_EDIT}

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.internal.containers import (
    RepeatedCompositeFieldContainer,
    RepeatedScalarFieldContainer,
)
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

DESCRIPTOR: FileDescriptor
"""

# Messages with the name of another message's enum value, which hides them inside that message.
_HIDDEN = {"KeyValue"}

_SCALARS = {
    FieldDescriptorProto.TYPE_DOUBLE: "float",
    FieldDescriptorProto.TYPE_INT32: "int",
    FieldDescriptorProto.TYPE_INT64: "int",
    FieldDescriptorProto.TYPE_UINT32: "int",
    FieldDescriptorProto.TYPE_UINT64: "int",
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_STRING: "str",
    FieldDescriptorProto.TYPE_BYTES: "bytes",
}


def compile_proto(path: Path = PROTO) -> FileDescriptorProto:
    """Return the .proto's descriptor, without differences between versions of protoc.

    Raises SystemExit if protoc reports an error, ImportError without grpcio-tools.
    """
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "descriptors")
        status = protoc.main(
            ["protoc", f"-I{path.parent}", f"--descriptor_set_out={out}", str(path)]
        )
        if status:
            raise SystemExit(f"protoc failed with status {status}")
        (file,) = FileDescriptorSet.FromString(out.read_bytes()).file
    for message in file.message_type:
        for field in message.field:
            field.ClearField("json_name")
    return file


def render_module(file: FileDescriptorProto) -> str:
    """Return the text of pulsar_api_pb2.py."""
    serialized = file.SerializeToString(deterministic=True)
    lines = [f"    {serialized[i : i + 64]!r}\n" for i in range(0, len(serialized), 64)]
    names = [f'{enum.name} = _enum("{enum.name}")\n' for enum in file.enum_type]
    names += [f"{value.name} = {value.number}\n" for enum in file.enum_type for value in enum.value]
    names += [f'{message.name} = _message("{message.name}")\n' for message in file.message_type]
    return "".join([_MODULE_HEAD, *lines, _MODULE_HELPERS, *names])


def render_stub(file: FileDescriptorProto) -> str:
    """Return the text of pulsar_api_pb2.pyi."""
    lines: list[str] = []
    for enum in file.enum_type:
        lines += ["", *_stub_enum(enum)]
    for message in file.message_type:
        lines += ["", *_stub_message(message)]
    return _STUB_HEAD + "\n".join(lines) + "\n"


def _stub_enum(enum: EnumDescriptorProto) -> Iterator[str]:
    """At run time enum values are plain ints, so they are ints in the stub too."""
    yield f"{enum.name}: EnumTypeWrapper"
    for value in enum.value:
        # A value such as `None` needs getattr or the enum's Value().
        if not keyword.iskeyword(value.name):
            yield f"{value.name}: int"


def _stub_message(message: DescriptorProto) -> Iterator[str]:
    yield f"class {message.name}(Message):"
    for enum in message.enum_type:
        for line in _stub_enum(enum):
            name, kind = line.split(": ")
            yield f"    {name}: ClassVar[{kind}]"
    for field in message.field:
        yield from _indented(_stub_field(field))
    yield from _indented(_stub_init(message.field))
    if message.name in _HIDDEN:
        yield ""
        yield f"_{message.name}: TypeAlias = {message.name}"


def _stub_field(field: FieldDescriptorProto) -> Iterator[str]:
    kind = _type(field)
    is_message = field.type == FieldDescriptorProto.TYPE_MESSAGE
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        container = "Composite" if is_message else "Scalar"
        kind = f"Repeated{container}FieldContainer[{kind}]"
    elif not is_message:
        yield f"{field.name}: {kind}"
        return
    # Messages and repeated fields cannot be assigned.
    yield "@property"
    yield f"def {field.name}(self) -> {kind}: ..."


def _stub_init(fields: Iterable[FieldDescriptorProto]) -> Iterator[str]:
    parameters = [f"{field.name}: {_parameter(field)} | None = ..." for field in fields]
    if not parameters:
        yield "def __init__(self) -> None: ..."
        return
    yield "def __init__("
    yield "    self,"
    yield "    *,"
    for parameter in parameters:
        yield f"    {parameter},"
    yield ") -> None: ..."


def _parameter(field: FieldDescriptorProto) -> str:
    kind = _type(field)
    if field.type == FieldDescriptorProto.TYPE_MESSAGE:
        kind = f"{kind} | Mapping[str, Any]"
    if field.type == FieldDescriptorProto.TYPE_ENUM:
        kind = f"{kind} | str"
    return f"Iterable[{kind}]" if field.label == FieldDescriptorProto.LABEL_REPEATED else kind


def _type(field: FieldDescriptorProto) -> str:
    if field.type == FieldDescriptorProto.TYPE_ENUM:
        return "int"
    if field.type == FieldDescriptorProto.TYPE_MESSAGE:
        name = field.type_name.rpartition(".")[2]
        return f"_{name}" if name in _HIDDEN else name
    return _SCALARS[field.type]


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def main(arguments: list[str] | None = None) -> int:
    """Write the generated files, or with --check compare them; 0 if all is well."""
    parser = argparse.ArgumentParser(description="Compile proto/PulsarApi.proto.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args(arguments).check
    file = compile_proto()
    stale = []
    for path, text in ((MODULE, render_module(file)), (STUB, render_stub(file))):
        if check:
            if not path.exists() or path.read_text("utf-8") != text:
                stale.append(path.name)
        else:
            path.write_text(text, "utf-8")
    if stale:
        print(f"not current: {', '.join(stale)}; run python -m tools.generate_proto")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
