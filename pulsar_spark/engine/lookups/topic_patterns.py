"""Topic patterns: which topics of a namespace they match."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pulsar_spark.errors import InvalidTopicName, OptionError
from pulsar_spark.protocol.topic_name import PERSISTENT, TopicName

_DEFAULT_NAMESPACE = "public/default"
_REMEDY = (
    "Write tenant and namespace as they are and the pattern behind them: "
    "persistent://tenant/namespace/orders-.*"
)
# Whatever else stands where a tenant or namespace is expected is pattern, not name. A dot can be
# in a name, and stands for itself there.
_ENTITY = re.compile(r"[-=:.A-Za-z0-9_]+")
# An alternative that begins with a tenant or namespace, where a topic's own name is expected.
_LONG_ALTERNATIVE = re.compile(r"\|[-=:.A-Za-z0-9_]*/")
_FULL_NAME = re.compile(r"([a-z-]+)://([^/]*)/([^/]*)/")


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A regular expression on names of persistent topics of one namespace.

    It is matched with whole full names, or with whole local names where `local` is set. Build
    one with `parse`. Topics of other `domains` than persistent ones match where they are given.
    """

    namespace: str
    regex: str
    local: bool
    domains: tuple[str, ...] = (PERSISTENT,)

    @classmethod
    def parse(cls, text: str) -> TopicPattern:
        """Return the pattern that `text` gives.

        Raises OptionError for one that is not a regular expression, that spans tenants or
        namespaces, or that can match non-persistent topics only.
        """
        text = text.strip()
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise OptionError(f"topicsPattern is not a regular expression: {error}") from None
        if "://" in text:
            return cls(_namespace_of_full(text), text, local=False)
        parts = text.split("/", 2)
        if len(parts) == 2:
            raise OptionError("topicsPattern has no tenant or namespace", _REMEDY)
        if len(parts) == 1:
            return cls(_DEFAULT_NAMESPACE, text, local=True)
        namespace = _namespace(parts[0], parts[1])
        if _LONG_ALTERNATIVE.search(parts[2]):
            raise OptionError(
                "topicsPattern names a namespace again in an alternative, which matches no topic",
                f"Put alternatives in parentheses behind the namespace: {namespace}/(orders|other)",
            )
        return cls(namespace, parts[2], local=True)

    def select(self, names: Iterable[str]) -> list[str]:
        """Return the full names, without partition suffix, of the topics that match, sorted.

        `names` are those of the namespace's topics and partitions. System topics and
        those of other domains never match.
        """
        pattern = re.compile(self.regex)
        matches: dict[str, bool] = {}
        for name in names:
            try:
                topic = TopicName.parse(name).partitioned
            except InvalidTopicName:
                # A broker can list names that were made by other rules: they match nothing.
                continue
            full = str(topic)
            if full not in matches:
                matches[full] = (
                    topic.domain in self.domains
                    and not topic.is_system
                    and topic.namespace_name == self.namespace
                    and pattern.fullmatch(topic.local_name if self.local else full) is not None
                )
        return sorted(full for full, matching in matches.items() if matching)


def _namespace_of_full(text: str) -> str:
    # An alternative can hold a full name of its own: all must be of one namespace.
    found = {(domain, tenant, name) for domain, tenant, name in _FULL_NAME.findall(text)}
    if not re.match(rf"[\^(?:]*{PERSISTENT}://", text) or {d for d, *_ in found} != {PERSISTENT}:
        raise OptionError(
            "topicsPattern does not begin with persistent://tenant/namespace/; only persistent "
            "topics can be read",
            _REMEDY,
        )
    namespaces = {_namespace(tenant, name) for _, tenant, name in found}
    if len(namespaces) > 1:
        raise OptionError(f"topicsPattern spans {' and '.join(sorted(namespaces))}", _REMEDY)
    return namespaces.pop()


def _namespace(tenant: str, name: str) -> str:
    for part in (tenant, name):
        if not _ENTITY.fullmatch(part):
            raise OptionError(
                f"topicsPattern: {part[:100]!r} is not a literal tenant or namespace",
                _REMEDY,
            )
    return f"{tenant}/{name}"
