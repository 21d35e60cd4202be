"""Which partition a message goes to.

A message with a key goes to hash(key) mod partitions, so all clients with the same hashing scheme
send a key to the same partition. Messages without a key go round robin, in runs that fill a batch;
otherwise every message would be a batch of its own. Pulsar concepts, "Routing modes" and "Hashing
scheme".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from pulsar_spark.protocol.hashing import CACHED_LENGTH, java_string_hash, murmur3_32

JAVA_STRING_HASH = "JavaStringHash"
MURMUR3_32_HASH = "Murmur3_32Hash"
ROUND_ROBIN = "RoundRobinPartition"
SINGLE_PARTITION = "SinglePartition"

# Without keys, this many consecutive ids go to the same partition, if ids decide.
_IDS_TOGETHER = 1000
# Keys repeat, and hashing in Python takes microseconds.
_MAX_CACHED_KEYS = 100_000


_HASHES: dict[str, Callable[[bytes], int]] = {
    JAVA_STRING_HASH: lambda key: java_string_hash(key.decode()),
    MURMUR3_32_HASH: murmur3_32,
}


class PartitionRouter:
    """Routes messages of a topic with `partitions` partitions (0 or 1: nothing to route).

    `run_length` consecutive messages without a key go to one partition; 1 spreads every message.
    The first partition is random, as many writers may start together. Not thread-safe.
    """

    def __init__(
        self,
        partitions: int,
        *,
        hashing_scheme: str = JAVA_STRING_HASH,
        routing_mode: str = ROUND_ROBIN,
        run_length: int = 1,
        rng: random.Random | None = None,
    ) -> None:
        self.partitions = max(partitions, 1)
        self._hash = _HASHES[hashing_scheme]
        self._single = routing_mode == SINGLE_PARTITION
        self._fixed = self._single or self.partitions == 1
        self.run_length = max(run_length, 1)
        """How many consecutive messages without a key go to one partition."""
        self.current = (rng or random.Random()).randrange(self.partitions)
        """The current partition for messages without a key."""
        self._run = 0
        self._cache: dict[bytes | None, int] = {}

    def grow(self, partitions: int) -> None:
        """Route over more partitions from now on."""
        self.partitions = max(partitions, self.partitions)
        self._fixed = self._single or self.partitions == 1
        self._cache.clear()

    @property
    def spreads(self) -> bool:
        """Whether messages without a key go to all partitions."""
        return not self._fixed

    def advance(self) -> None:
        """Move on to the next partition; a single-partition router stays."""
        self._run = 0
        if not self._fixed:
            self.current = (self.current + 1) % self.partitions

    def partition_of(self, key: bytes) -> int:
        """Return the partition of a key, which is text in UTF-8."""
        if self.partitions == 1:
            return 0
        partition = self._cache.get(key)
        if partition is None:
            partition = self._hash(key) % self.partitions
            if len(key) <= CACHED_LENGTH:
                if len(self._cache) >= _MAX_CACHED_KEYS:
                    self._cache.clear()
                self._cache[key] = partition
        return partition

    def next_unkeyed(self) -> int:
        """Return the partition of the next message without a key."""
        partition = self.current
        self._run += 1
        if self._run >= self.run_length:
            self.advance()
        return partition

    def next_of(self, sequence_id: int) -> int:
        """Return the partition of an id's message without a key: always the same."""
        if self._fixed:
            return 0
        return sequence_id // _IDS_TOGETHER % self.partitions

    def route(self, keys: Sequence[bytes | None]) -> list[int]:
        """Return each message's partition, given a column of keys."""
        if self.partitions == 1:
            return [0] * len(keys)
        # Most keys of a column are cached.
        found = list(map(self._cache.get, keys))
        if None in found:
            # Those that never are may repeat, too.
            pairs = zip(keys, found, strict=True)
            new = {key for key, partition in pairs if partition is None and key is not None}
            places = {key: self.partition_of(key) for key in new}
            found = [
                (self.next_unkeyed() if key is None else places[key])
                if partition is None
                else partition
                for key, partition in zip(keys, found, strict=True)
            ]
        return found  # type: ignore[return-value]
