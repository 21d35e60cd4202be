from array import array
from collections.abc import Callable, Sequence
from typing import Any, final

from pulsar_spark.protocol.blocks import Progress

__all__ = [
    "CONTRACT",
    "BlockDecoder",
    "Columns",
    "Memory",
    "SendEncoder",
    "ValueDecoder",
    "ValueEncoder",
    "hash_values",
    "scan_messages",
    "scan_receipts",
]

CONTRACT: int

@final
class Memory:
    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    def __bytes__(self) -> bytes: ...

_Buffer = bytes | bytearray | memoryview
_Values = bytes | Memory

def hash_values(
    values: Sequence[bytes | None], seed: int, word: int = 0, words: bytes | None = None
) -> bytes: ...
def scan_messages(data: bytes, at: int, limit: int) -> tuple[int, int, int, int]: ...
def scan_receipts(data: bytes, at: int, limit: int) -> tuple[int, int, array[int]]: ...

@final
class BlockDecoder:
    def __new__(
        cls, options: Any, decompress: Callable[[int, _Buffer, int, int], _Buffer]
    ) -> BlockDecoder: ...
    @property
    def rows(self) -> int: ...
    @property
    def slow_frames(self) -> int: ...
    def decode(
        self,
        data: bytes,
        at: int,
        stop: int,
        position: tuple[int, int, int],
        /,
    ) -> Progress: ...
    def take(self) -> Columns | None: ...

@final
class SendEncoder:
    def __new__(
        cls,
        producer_id: int,
        producer_name: str,
        common: bytes,
        compression: int,
        compress: Callable[[int, _Buffer], _Buffer],
    ) -> SendEncoder: ...
    @property
    def overhead(self) -> int: ...
    def encode(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        fields: Sequence[bytes] | None,
        sequence_ids: int | Sequence[int],
        publish_time: int,
        per_entry: int,
        *,
        by_highest: bool = False,
    ) -> tuple[list[bytes], array[int]]: ...

@final
class Columns:
    @property
    def rows(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_exact(self) -> bool: ...
    @property
    def columns(self) -> dict[str, Any]: ...
    @property
    def version_runs(self) -> tuple[list[bytes], bytes, bytes]: ...
    def locate(self, row: int) -> tuple[int, int, int, int]: ...

@final
class ValueDecoder:
    def __new__(
        cls, kind: Any, plans: Sequence[Any], cells: int, empty_items: int = 0
    ) -> ValueDecoder: ...
    def decode(
        self,
        data: bytes,
        edges: memoryview[int],
        valid: bytes | None = None,
        versions: bytes | None = None,
    ) -> tuple[_Values, list[int]]: ...

@final
class ValueEncoder:
    def __new__(cls, kinds: Sequence[Any], plan: tuple[Any, ...]) -> ValueEncoder: ...
    def encode(self, message: bytes) -> tuple[_Values, _Values, list[int]]: ...
