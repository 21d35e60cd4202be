"""Topic names: every notation that Pulsar accepts, normalized.

    topic                                       persistent://public/default/topic
    tenant/namespace/topic                      persistent://tenant/namespace/topic
    domain://tenant/namespace/topic             as it is
    domain://tenant/cluster/namespace/topic     the legacy form, namespace "cluster/namespace"

Only the legacy form allows slashes in the last part. Partition 3 of a partitioned topic is the
topic `<name>-partition-3`; numbers with leading zeros or signs are no partition suffix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from pulsar_spark.errors import InvalidTopicName

MAX_NAME_BYTES = 32 * 1024
"""Maximum length of a name in bytes of UTF-8: far above real names, far below a frame."""

PARTITION_SUFFIX = "-partition-"
"""What stands between a topic's name and the number of a partition."""

PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"
SYSTEM_NAMESPACE = "pulsar/system"
_DOMAINS = (PERSISTENT, NON_PERSISTENT)
_DEFAULT_TENANT = "public"
_DEFAULT_NAMESPACE = "default"

_PARTITION = re.compile(r"(?s)(.+)-partition-(0|[1-9][0-9]{0,9})\Z")
_MAX_PARTITION = 2**31 - 1
# Characters that brokers accept in names of tenants, clusters and namespaces.
_ENTITY = re.compile(r"[-=:.A-Za-z0-9_]+")
_SHOWN = 100

_REMEDY = (
    'Write "topic", "tenant/namespace/topic" or "persistent://tenant/namespace/topic", '
    "with non-empty parts."
)


def _invalid(text: str, why: str) -> InvalidTopicName:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return InvalidTopicName(f"{shown!r} is not a topic name: {why}", _REMEDY)


@dataclass(frozen=True, slots=True)
class TopicName:
    """The parts of a valid topic name; `str()` gives the full name.

    `namespace` is "cluster/namespace" for a legacy name. Use `parse`, which validates; the
    constructor does not.
    """

    domain: str
    tenant: str
    namespace: str
    local_name: str

    @classmethod
    def parse(cls, text: str | bytes) -> TopicName:
        """Parse any notation of a topic name.

        Raises InvalidTopicName for empty or blank parts, an unknown domain, characters that a
        tenant or namespace cannot have, more than MAX_NAME_BYTES, or text that is not Unicode
        (protobuf returns bytes if text is not UTF-8).
        """
        if isinstance(text, bytes):
            raise _invalid(text.decode("utf-8", "replace"), "it is not UTF-8")
        return _parsed(text)

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local_name}"

    @property
    def namespace_name(self) -> str:
        """Tenant and namespace as in namespace commands: "tenant/namespace"."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def is_persistent(self) -> bool:
        """Whether brokers store the topic's messages."""
        return self.domain == PERSISTENT

    @property
    def is_system(self) -> bool:
        """Whether it is one of Pulsar's system topics."""
        return self.local_name.startswith("__") or self.namespace_name == SYSTEM_NAMESPACE

    @property
    def partition_index(self) -> int:
        """The partition in the name's suffix, or -1 without one."""
        return _split_partition(self.local_name)[1]

    @property
    def partitioned(self) -> TopicName:
        """The name without its partition suffix; the name itself if there is none."""
        base, index = _split_partition(self.local_name)
        return self if index < 0 else replace(self, local_name=base)

    def partition(self, index: int) -> TopicName:
        """Return the name of partition `index` (0 to 2^31-1) of this partitioned topic.

        Raises InvalidTopicName for other numbers.
        """
        if not 0 <= index <= _MAX_PARTITION:
            raise InvalidTopicName(
                f"{index} is not the number of a partition",
                "Partitions are numbered from 0.",
                topic=str(self),
            )
        return replace(self, local_name=f"{self.local_name}{PARTITION_SUFFIX}{index}")

    def partitions(self, count: int) -> list[str]:
        """Return the full names of its partitions, and its own if it is not partitioned (0)."""
        name = str(self)
        return [f"{name}{PARTITION_SUFFIX}{index}" for index in range(count)] or [name]


# Streams read and write the names of all their topic partitions in each trigger.
_CACHED_NAMES = 20_000


@lru_cache(_CACHED_NAMES)
def _parsed(text: str) -> TopicName:
    if len(text) > MAX_NAME_BYTES:
        raise _invalid(text, f"it has more than {MAX_NAME_BYTES} bytes")
    domain, separator, rest = text.partition("://")
    if separator:
        domain = domain.lower()
        if domain not in _DOMAINS:
            raise _invalid(text, "its domain is neither persistent nor non-persistent")
        *owner, local_name = rest.split("/", 3)
        if len(owner) < 2:
            raise _invalid(text, "after :// come tenant, namespace and topic")
    else:
        domain = PERSISTENT
        *owner, local_name = text.split("/")
        if not owner:
            owner = [_DEFAULT_TENANT, _DEFAULT_NAMESPACE]
        elif len(owner) != 2:
            raise _invalid(text, "a short name has one part or three")
    _check_parts(text, owner, local_name)
    return TopicName(domain, owner[0], "/".join(owner[1:]), local_name)


def _check_parts(text: str, owner: list[str], local_name: str) -> None:
    for part in owner:
        if not _ENTITY.fullmatch(part):
            raise _invalid(
                text, f"{part[:_SHOWN]!r} cannot be a tenant or namespace (letters, digits, -=:._)"
            )
    if not local_name or local_name.isspace():
        raise _invalid(text, "its last part is empty or blank")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise _invalid(text, "it holds half of a surrogate pair") from None
    if size > MAX_NAME_BYTES:
        raise _invalid(text, f"it has more than {MAX_NAME_BYTES} bytes")


def _split_partition(local_name: str) -> tuple[str, int]:
    # A name that is only a suffix is no partition: its topic would have no name.
    if match := _PARTITION.match(local_name):
        index = int(match[2])
        if index <= _MAX_PARTITION:
            return match[1], index
    return local_name, -1


def by_partition(topics: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield topic partitions and their values, some of which may be lists by partition number.

    None in a list is a partition without a value. Raises InvalidTopicName for a list's topic.
    """
    for topic, value in topics.items():
        if not isinstance(value, list):
            yield topic, value
            continue
        name = f"{TopicName.parse(topic)}{PARTITION_SUFFIX}"
        for number, item in enumerate(value):
            if item is not None:
                yield f"{name}{number}", item


def topics_hash(names: Iterable[str]) -> str:
    """Return the hash that GET_TOPICS_OF_NAMESPACE uses to detect a changed list.

    CRC32C of the sorted names joined by commas, as hex digits of its little-endian bytes.
    """
    # It loads much, which those who only show names do without.
    from crc32c import crc32c

    # Brokers sort by UTF-16 units, which differs from code points beyond the basic plane.
    ordered = sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    return crc32c(",".join(ordered).encode("utf-8", "surrogatepass")).to_bytes(4, "little").hex()


@lru_cache(_CACHED_NAMES)
def topic_of(name: str) -> str:
    """Return the full name of the topic that a partition is of, or of a topic itself.

    Raises InvalidTopicName.
    """
    return str(TopicName.parse(name).partitioned)
