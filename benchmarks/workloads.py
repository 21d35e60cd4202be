"""What is read and written: how many messages, how large, batched or not."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

BATCHING_MAX_MESSAGES = 1000
BATCHING_MAX_BYTES = 128 * 1024
DIGITS = 12


@dataclass(frozen=True)
class Workload:
    """`messages` messages of `size` bytes each, over `partitions` topic partitions."""

    name: str
    messages: int
    size: int
    batched: bool
    partitions: int = 1

    @property
    def title(self) -> str:
        """How the tables call it."""
        size = f"{self.size} B" if self.size < 1000 else f"{self.size // 1000} KB"
        kind = "batched" if self.batched else "unbatched"
        plural = "s" if self.partitions > 1 else ""
        return f"{self.messages:,} × {size}, {kind}, {self.partitions} partition{plural}"

    def scaled(self, factor: float) -> Workload:
        """The same workload with fewer messages."""
        count = max(1000, int(self.messages * factor))
        return Workload(self.name, count, self.size, self.batched, self.partitions)

    def payloads(self) -> Iterator[bytes]:
        """The values: a number, filled up to the size."""
        return (value(number, self.size) for number in range(self.messages))

    def checksum(self) -> int:
        """The sum of all values' CRC32, which does not depend on their order."""
        return sum(map(zlib.crc32, self.payloads()))


def value(number: int, size: int) -> bytes:
    """The value of one message; `value_sql` is the same in Spark."""
    return b"%0*d" % (size, number)


def value_sql(size: int) -> str:
    """The same value as an expression over Spark's `id`.

    Only the last digits go through `lpad`, which takes longer for 100 KB than all else does.
    """
    zeros = size - DIGITS
    return (
        f"CAST(concat(repeat('0', {zeros}), lpad(CAST(id AS STRING), {DIGITS}, '0')) AS BINARY) "
        "AS value"
    )


WORKLOADS = (
    Workload("small", 1_000_000, 100, batched=True),
    Workload("small-4", 1_000_000, 100, batched=True, partitions=4),
    Workload("medium", 100_000, 1_000, batched=False),
    Workload("medium-4", 100_000, 1_000, batched=False, partitions=4),
    Workload("large", 10_000, 100_000, batched=False),
    Workload("large-4", 10_000, 100_000, batched=False, partitions=4),
)
