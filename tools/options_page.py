"""The text of docs/options.md, from the table of options; `reference_pages` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pulsar_spark.spark.options.foreign import FOREIGN, Foreign
from pulsar_spark.spark.options.parsers import Choice
from pulsar_spark.spark.options.table import GROUPS, Option, Scope

_HEAD = """\
# Options

Keys are case-insensitive. A duration is a number of milliseconds, or `500ms`, `30s`, `5m`, `1h`; a
size a number of bytes, or `64k`, `10m`, `1g`. An option that is unknown, misspelt, contradictory or
out of range is an error. Keys of Java's Pulsar client that have no effect here are ignored with one
log line; those that would change security are an error that names the equivalent.

## Start here

Most jobs need no more than these six. A login also has its method,
[`pulsar.client.authPluginClassName`](#pulsarclientauthpluginclassname).

| option | says |
|---|---|
"""

FIRST = {
    "service.url": "where the cluster is",
    "pulsar.client.authParams": "the token, or the file that holds it",
    "topic": "what is read, or written to",
    "startingOffsets": "where a batch, or a new stream, begins",
    "maxMessagesPerTrigger": "how much of a backlog a stream takes at once",
    "deliveryGuarantee": "whether rows can be written twice",
}
"""What the options that most jobs need are for."""

_FOREIGN = """
## Names from elsewhere

What other systems call these options, where their name is another. Such a name is an error that
says what stands here. Names of the Scala connector (streamnative/pulsar-spark) and of Java's
client are accepted as they are: see [Migrating](migrating.md). A name that ends with `*` stands
for all that begin so.

| there | here | what differs |
|---|---|---|
"""


def markdown() -> str:
    """Return the text of docs/options.md."""
    first = "".join(f"| [`{key}`](#{anchor(key)}) | {says} |\n" for key, says in FIRST.items())
    groups = "".join(
        f"\n## {title}\n" + "".join(map(_section, options)) for title, options in GROUPS.items()
    )
    foreign = "".join(map(_foreign_row, FOREIGN))
    return _HEAD + first + groups + _FOREIGN + foreign


def anchor(key: str) -> str:
    """Return the anchor of an option's heading, on the site as in the repository."""
    return key.lower().replace(".", "")


def _foreign_row(foreign: Foreign) -> str:
    there = f"{foreign.system}: {_code(foreign.names)}"
    return f"| {there} | {_code(foreign.ours)} | {foreign.differs.replace('|', chr(92) + '|')} |\n"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _section(option: Option) -> str:
    facts = [_scope(option.scope)]
    default = option.shown_default or (f"`{option.default}`" if option.default else "")
    if default == "required":
        facts.append(default)
    elif default:
        facts.append(f"default: {default}")
    if option.aliases:
        facts.append(f"also: {_code(option.aliases)}")
    text = re.sub(r"([\w-]+)\.md", r"[\1](\g<0>)", option.help)
    if isinstance(option.parse, Choice):
        text += f" One of {', '.join(f'`{word}`' for word in option.parse.words)}."
    if option.unbuilt:
        values = ", ".join(f"`{value}`" for value in option.unbuilt)
        text += f" *Not supported yet: {values}.*"
    return f"\n### `{option.key}`\n\n{text}\n\n{' · '.join(facts)}\n"


def _scope(scope: Scope) -> str:
    words = {
        Scope.BOTH: "read, write",
        Scope.READS: "read",
        Scope.WRITES: "write",
        Scope.READ: "batch read",
        Scope.STREAM_READ: "stream read",
        Scope.WRITE: "batch write",
    }
    return words[scope]
