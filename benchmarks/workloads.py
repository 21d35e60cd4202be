"""The shapes of topics that are read and written, and their messages.

Every message has a key, as on most topics. Values are a number and words that are as frequent as
those of a language, so that they compress as text does. Spark SQL can generate all of it too.
"""

from __future__ import annotations

import random
import string
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

KEYS = 5_000
EVENT_TIME = 1_700_000_000_000
"""Milliseconds: the event time of message 0, if there are event times."""

_DIGITS = 12
_FILLERS_BYTES = 1_000_000
_WORDS = 20_000


class Message(NamedTuple):
    """The arguments for sending a message."""

    value: bytes
    key: str
    event_time: int | None = None
    properties: dict[str, str] | None = None


@dataclass(frozen=True)
class Sums:
    """The sums over all messages of a topic, in any order."""

    count: int
    values: int
    keys: int
    event_times: int
    properties: int


@dataclass(frozen=True)
class Workload:
    """`messages` messages of `size` bytes, `batch` of them per entry (1: not batched).

    `producers` write an entry each in turn. `properties`: each message has an event time and three
    properties besides its key. A `stored` topic is read from the broker's storage; others are still
    in its memory, because they were just written. `over_tls`: our source also reads it over TLS.
    `one_core`: while it is read, the broker stays on one core (`measure.on_one_core` says why).
    """

    name: str
    messages: int
    size: int
    batch: int = 1
    partitions: int = 1
    compression: str = "NONE"
    producers: int = 1
    properties: bool = False
    stored: bool = False
    over_tls: bool = False
    one_core: bool = False

    @property
    def title(self) -> str:
        """The name in tables."""
        size = f"{self.size} B" if self.size < 1000 else f"{self.size // 1000} KB"
        words = [size if self.size else self.name]
        words += [] if self.compression == "NONE" else [self.compression]
        words += [f"batches of {self.batch:,}" if self.batch > 1 else "unbatched"]
        words += [f"{self.partitions} partitions"] if self.partitions > 1 else []
        words += [f"{self.producers} producers taking turns"] if self.producers > 1 else []
        words += ["event times and properties"] if self.properties else []
        words += ["from storage"] if self.stored else []
        return ", ".join(words)

    def scaled(self, factor: float) -> Workload:
        """The same shape with fewer messages."""
        return replace(self, messages=max(1000, int(self.messages * factor)))

    def made(self) -> Iterator[Message]:
        """The messages, in order."""
        fillers = _fillers(self.size)
        for number in range(self.messages):
            value = b"%0*d%s" % (_DIGITS, number, fillers[number % len(fillers)])
            key = str(number % KEYS)
            if self.properties:
                yield Message(value, key, EVENT_TIME + number, _properties(number))
            else:
                yield Message(value, key)

    def sums(self) -> Sums:
        """The sums over the messages."""
        values = keys = 0
        for message in self.made():
            values += zlib.crc32(message.value)
            keys += zlib.crc32(message.key.encode())
        numbers = sum(range(self.messages))
        if not self.properties:
            return Sums(self.messages, values, keys, 0, 0)
        event_times = self.messages * EVENT_TIME + numbers
        return Sums(self.messages, values, keys, event_times, numbers)

    def columns_sql(self) -> list[str]:
        """The messages as expressions of Spark's `id`, with the sink's column names."""
        fillers = _fillers(self.size)
        texts = ",".join(filler.decode() for filler in fillers)
        number = f"lpad(CAST(id AS STRING), {_DIGITS}, '0')"
        filler = f"element_at(split('{texts}', ','), CAST(id % {len(fillers)} AS INT) + 1)"
        columns = [
            f"CAST(concat({number}, {filler}) AS BINARY) AS value",
            f"CAST(id % {KEYS} AS STRING) AS __key",
        ]
        if self.properties:
            columns += [
                f"timestamp_millis({EVENT_TIME} + id) AS __eventTime",
                "map('number', CAST(id AS STRING), 'source', 'benchmark', 'region', 'eu-west-1') "
                "AS __messageProperties",
            ]
        return columns


def _properties(number: int) -> dict[str, str]:
    return {"number": str(number), "source": "benchmark", "region": "eu-west-1"}


@cache
def _fillers(size: int) -> list[bytes]:
    """Texts that fill values up to `size` bytes: 1 MB of them, at most 1,000.

    Words follow Zipf's law, which makes both LZ4 and zlib leave as much as of English text.
    """
    dice = random.Random(size)
    words = [
        "".join(dice.choices(string.ascii_lowercase, k=dice.randint(2, 10))) for _ in range(_WORDS)
    ]
    frequencies = [1 / rank for rank in range(1, _WORDS + 1)]
    length = size - _DIGITS
    count = min(1000, _FILLERS_BYTES // length)
    # With the space, a word has at least three characters.
    enough = count * length // 3 + 1
    text = " ".join(dice.choices(words, frequencies, k=enough)).encode()
    return [text[number * length : (number + 1) * length] for number in range(count)]


WORKLOADS = (
    Workload("batch1000", 2_000_000, 100, batch=1000, over_tls=True),
    Workload("batch10", 1_500_000, 100, batch=10),
    # The broker writes some 18 KB at a time, and passes each from thread to thread.
    Workload("unbatched100", 600_000, 100, one_core=True),
    Workload("unbatched1k", 400_000, 1_000, over_tls=True),
    Workload("lz4", 500_000, 1_000, batch=500, compression="LZ4"),
    Workload("four", 2_000_000, 100, batch=1000, partitions=4),
    Workload("turns", 600_000, 100, producers=3),
    Workload("properties", 1_000_000, 100, batch=1000, properties=True),
    Workload("unbatched_properties", 400_000, 100, properties=True),
    Workload("large", 5_000, 100_000),
    # The broker is the limit: it fetches each entry from the bookie.
    Workload("stored1000", 1_000_000, 100, batch=1000, stored=True, one_core=True),
    Workload("stored10", 900_000, 100, batch=10, stored=True, one_core=True),
    Workload("stored1k", 200_000, 1_000, stored=True, one_core=True),
)

BACKLOG = Workload("backlog", 2_000_000, 100, batch=1000, partitions=4)
ARRIVING = Workload("arriving", 20_000, 100)
"""What streams read: a backlog at full speed, and rows as they arrive."""

ALL = (*WORKLOADS, BACKLOG, ARRIVING)
