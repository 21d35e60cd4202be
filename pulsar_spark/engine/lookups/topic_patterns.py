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
# Any other character, where a tenant or namespace should be, makes it a pattern. A dot is valid in
# names, and is taken literally there.
_ENTITY = re.compile(r"[-=:.A-Za-z0-9_]+")
# An alternative that starts with a tenant or namespace instead of a local name.
_LONG_ALTERNATIVE = re.compile(r"\|[-=:.A-Za-z0-9_]*/")
_FULL_NAME = re.compile(r"([a-z-]+)://([^/]*)/([^/]*)/")


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A regular expression for names of persistent topics of one namespace.

    It matches whole full names, or whole local names with `local`. Build it with `parse`. Topics of
    further `domains` match if those are given.
    """

    namespace: str
    regex: str
    local: bool
    domains: tuple[str, ...] = (PERSISTENT,)

    @classmethod
    def parse(cls, text: str) -> TopicPattern:
        """Parse a pattern.

        Raises OptionError if it is not a regular expression, spans several tenants or namespaces,
        or can only match non-persistent topics.
        """
        text = text.strip()
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise OptionError(
                f"topicsPattern is not a regular expression: {error}",
                "Write .* for any characters: .*orders, where a shell has *orders.",
            ) from None
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
        """Return the full names of the matching topics, without partition suffix, sorted.

        `names` are the namespace's topics and partitions. System topics and other domains never
        match.
        """
        pattern = re.compile(self.regex)
        matches: dict[str, bool] = {}
        for name in names:
            try:
                topic = TopicName.parse(name).partitioned
            except InvalidTopicName:
                # Skip names that are invalid here; brokers may list some.
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
    # An alternative may contain its own full name: all must have the same namespace.
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
