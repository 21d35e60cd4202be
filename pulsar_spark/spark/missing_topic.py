"""What a user is told whose topic does not exist: the namespace's topics with a similar name."""

from __future__ import annotations

import difflib
from functools import partial
from typing import TYPE_CHECKING

from pulsar_spark.engine.operations import run
from pulsar_spark.errors import PulsarError, TopicNotFound
from pulsar_spark.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from pulsar_spark.engine.lookups.lookup import Lookup

_SECONDS = 5.0
_COMPARED = 10_000
_SHOWN = 3
# Below this similarity of two names, from 0 to 1, a suggestion would mislead.
_SIMILAR = 0.6
_NEVER = "Reading never creates a topic."
# In a broker's reason, words that say more than that there is no such topic.
_SAYS_MORE = ("namespace", "tenant", "policies")


def with_near_topics(
    lookup: Lookup, error: TopicNotFound, topic: str | None = None, *, remedy: str = _NEVER
) -> PulsarError:
    """Return the error, with the topics of the namespace that have a similar name.

    `topic` is what was looked for, if the error does not say; `remedy` is said last. Lists the
    namespace once, for five seconds at most; if that is not possible, the error is returned as it
    is.
    """
    name = topic or error.topic
    if name is None:
        return error
    wanted = TopicName.parse(name)
    attempt = partial(lookup.topics_operation, wanted.namespace_name)
    try:
        listed = [TopicName.parse(one) for one in run(attempt, _SECONDS)[:_COMPARED]]
    except PulsarError:
        return error
    locals_ = list(dict.fromkeys(one.partitioned.local_name for one in listed if not one.is_system))
    reason = error.what.partition(":")[2].lower().replace(str(wanted).lower(), "")
    plain = not any(word in reason for word in _SAYS_MORE)
    found = TopicNotFound(
        f"The topic {wanted} does not exist" if plain else error.what,
        f"{_advice(wanted, locals_)} {remedy}",
        topic=str(wanted),
        broker=error.broker,
        role=error.role,
    )
    found.__cause__ = error
    return found


def _advice(wanted: TopicName, names: list[str]) -> str:
    """Return what may be meant by the name, as sentences."""
    namespace = wanted.namespace_name
    if not names:
        return (
            f"The namespace {namespace} has no topics: check tenant and namespace, unless the "
            "topic was deleted."
        )
    base = wanted.partitioned.local_name
    if base in names and base != wanted.local_name:
        return f"{base!r} exists, but not this partition of it."
    lowered: dict[str, str] = {name.lower(): name for name in names}
    near = difflib.get_close_matches(base.lower(), lowered, n=_SHOWN, cutoff=_SIMILAR)
    if near:
        return f"Did you mean {' or '.join(repr(lowered[one]) for one in near)}?"
    number = f"{len(names):,} topic{'' if len(names) == 1 else 's'}"
    return (
        f"The namespace {namespace} has {number}, none with a similar name; the command "
        f"`pulsar-spark topics --namespace {namespace}` lists them."
    )
