from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

__all__ = [
    "CONTRACT",
    "BlockDecoder",
    "Columns",
    "Memory",
    "Progress",
    "SendEncoder",
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
_Binary = tuple[bytes | None, _Values, _Values, int]
_Fixed = tuple[bytes | None, _Values, int]
_Maps = tuple[bytes, _Binary, _Binary]

class Progress(NamedTuple):
    at: int
    status: int
    messages: int
    position: tuple[int, int, int]

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
    def nbytes(self) -> int: ...
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
        schema_version: bytes,
        compression: int,
        compress: Callable[[int, _Buffer], _Buffer],
    ) -> SendEncoder: ...
    @property
    def compression(self) -> int: ...
    @property
    def overhead(self) -> int: ...
    def encode(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        first_sequence_id: int,
        publish_time: int,
        per_entry: int,
        fields: Sequence[bytes] | None = None,
    ) -> tuple[bytes, array[int]]: ...
    def body(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        first_sequence_id: int,
        fields: Sequence[bytes] | None = None,
    ) -> bytes: ...
    def frame(
        self,
        body: bytes,
        first_sequence_id: int,
        publish_time: int,
        key: bytes | None = None,
        num_messages: int = 1,
    ) -> tuple[bytes, bytes]: ...

@final
class Columns:
    @property
    def rows(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_exact(self) -> bool: ...
    @property
    def value(self) -> _Binary | None: ...
    @property
    def key(self) -> _Binary | None: ...
    @property
    def message_id(self) -> _Binary | None: ...
    @property
    def publish_time(self) -> _Fixed | None: ...
    @property
    def event_time(self) -> _Fixed | None: ...
    @property
    def properties(self) -> _Maps | None: ...
    @property
    def ledger_id(self) -> _Fixed | None: ...
    @property
    def entry_id(self) -> _Fixed | None: ...
    @property
    def batch_index(self) -> _Fixed | None: ...
    @property
    def producer_name(self) -> _Binary | None: ...
    @property
    def sequence_id(self) -> _Fixed | None: ...
    @property
    def ordering_key(self) -> _Binary | None: ...
    @property
    def schema_version(self) -> _Binary | None: ...
    @property
    def redelivery_count(self) -> _Fixed | None: ...
    @property
    def size(self) -> _Fixed | None: ...
    @property
    def index(self) -> _Fixed | None: ...
    @property
    def replicated_from(self) -> _Binary | None: ...
    @property
    def version_runs(self) -> tuple[list[bytes], bytes, bytes]: ...
    def locate(self, row: int) -> tuple[int, int, int, int]: ...
