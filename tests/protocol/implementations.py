"""Both implementations, pure Python and compiled, for tests of both."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from pulsar_spark.engine.codecs import compress
from pulsar_spark.protocol import block_decoder, blocks
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import BlockDecoder, BlockOptions, Decompress
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.protocol.send_encoder import PythonSendEncoder, SendEncoder, SendLimits
from tests.protocol.block_streams import COLUMNS, Outcome, blockwise, opened, options


class Implementation:
    """One of the implementations, with the contract's names."""

    def __init__(self, name: str, native: ModuleType | None) -> None:
        self.name = name
        chosen: Any = native or blocks
        self.scan_messages = chosen.scan_messages
        self.scan_receipts = chosen.scan_receipts
        self._encoder: Any = native.SendEncoder if native else PythonSendEncoder
        self._decoder: Any = native.BlockDecoder if native else block_decoder.PythonBlockDecoder

    def make(self, wanted: BlockOptions, decompress: Decompress) -> BlockDecoder:
        """Return a new decoder."""
        decoder: BlockDecoder = self._decoder(wanted, decompress)
        return decoder

    def read(
        self,
        *stream: bytes,
        start: Position = EARLIEST_POSITION,
        columns: Iterable[str] = COLUMNS,
        **fields: Any,
    ) -> Outcome:
        """Read a stream, and assert that opening each entry gives the same."""
        wanted = options(columns, **fields)
        data = b"".join(stream)
        found = blockwise(self.make, data, wanted, start)
        found.same_as(opened(data, wanted, start))
        return found

    def encoder(
        self,
        producer_id: int,
        name: str,
        version: bytes = b"",
        codec: int = pb.NONE,
        txn: TxnId | None = None,
    ) -> SendEncoder:
        """Return a new encoder of SENDs."""
        common = SendLimits(name, producer_id, 0, schema_version=version, txn=txn).common
        encoder: SendEncoder = self._encoder(producer_id, name, common, codec, compress)
        return encoder
