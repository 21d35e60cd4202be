"""Edits frames wherever this process reads or writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from google.protobuf.message import Message

from pulsar_spark.engine.connections.transport import WriteQueue
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.frames import FrameDecoder
from pulsar_spark.testing.wire import Wire
from tests.conformance.interface import fields, name_of
from tests.conformance.wire import FrameEditor, Stream, clear

Edit: TypeAlias = Callable[[bytes], bytes]


def install(edit: Edit) -> None:
    """Edit all frames from now on, until the process ends.

    Input is edited where clients, the embedded broker and the tests' own peers decode frames.
    Output is edited, too, for the official client and real brokers; editing a frame twice makes no
    difference.
    """
    streams: WeakKeyDictionary[Any, Stream] = WeakKeyDictionary()

    def feed(owner: object, data: Buffer) -> bytes:
        return streams.setdefault(owner, Stream(edit)).feed(data)

    receive, write, add = FrameDecoder.receive_data, Wire.write, WriteQueue._add

    def receive_data(self: FrameDecoder, data: Buffer) -> None:
        receive(self, feed(self, data))

    def write_edited(self: Wire, data: bytes) -> None:
        write(self, feed(self, data))

    def add_edited(self: WriteQueue, buffers: Iterable[Buffer]) -> int:
        data = feed(self, b"".join(buffers))
        return add(self, [data] if data else [])

    FrameDecoder.receive_data = receive_data  # type: ignore[method-assign]
    Wire.write = write_edited  # type: ignore[method-assign]
    WriteQueue._add = add_edited  # type: ignore[method-assign]


class Clearing:
    """Clears one field; `count` is how often there was something to clear."""

    def __init__(self, name: str) -> None:
        self.count = 0
        self._field = fields()[name]
        self._kind = name.partition(".")[0]
        self.edit = FrameEditor(self._visit, frozenset({self._kind})).frame

    def _visit(self, message: Message) -> bool:
        if message.DESCRIPTOR.name != self._kind or not clear(message, self._field):
            return False
        self.count += 1
        return True


class Seeing:
    """Records which passing fields `Clearing` would change; changes nothing."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.edit = FrameEditor(self._visit).frame

    def _visit(self, message: Message) -> bool:
        for field, _ in message.ListFields():
            name = name_of(field)
            if not self.seen[name]:
                copy = type(message)()
                copy.CopyFrom(message)
                if clear(copy, field):
                    self.seen[name] = 1
        return False
