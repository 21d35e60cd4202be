"""Write the pages of columns, options and errors from their tables and classes.

``python -m tools.reference_pages`` writes the pages, ``--check`` fails if they are outdated.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from pulsar_spark import errors
from pulsar_spark.errors import PulsarError
from pulsar_spark.policies import Policy
from pulsar_spark.spark.columns import METADATA_COLUMNS, POSITION_COLUMNS, Column
from pulsar_spark.spark.writing.columns import WRITABLE_COLUMNS
from tools import options_page
from tools.pages import keep_current

ROOT = Path(__file__).parent.parent

_COLUMNS = """\
# Columns

A row is a message. The columns of its value come first: `value`, or the fields of the topic's
schema ([schemas.md](schemas.md#what-columns-a-schema-becomes)). They are null for a null value
(a tombstone). The columns below follow, in this order.

A schema that you give (`.schema("value binary, __publishTime timestamp")`) is a projection, in any
order: only these columns are decoded and built.

## On every read

| column | type | null | |
|---|---|---|---|
{metadata}
## With `includeMetadata=true`

| column | type | null | |
|---|---|---|---|
{positions}
With `mode=PERMISSIVE` one more column is last: `_corrupt_record`, the bytes of a value that could
not be decoded ([schemas.md](schemas.md#values-that-cannot-be-decoded)). It is null where values are
read as bytes.

## On write

All columns without a name of this page form the value, so a misspelt `__keys` does too. All names
are case-insensitive.

| column | type | |
|---|---|---|
{written}
`__messageId`, `__publishTime` and the other columns of a read are dropped, so that you can write
back what you have read, to the same partitions.
"""

_TROUBLE = """\
# Troubleshooting

Every error of this package is a subclass of `pulsar_spark.errors.PulsarError` (the API reference
has [the classes](api.md#errors)). It says what happened and what to do, and carries `topic`,
`partition`, `message_id`, `broker` and `role` where they are known. Spark shows it inside an
error of its own (`PythonException`, `StreamingQueryException`): search the text for the names
below. On Spark Connect, the server's JVM frames follow it:
[deploying.md](deploying.md#spark-connect) says how to leave them out. What goes wrong before this
package is reached (`DATA_SOURCE_NOT_FOUND`, a missing module) is in
[deploying.md](deploying.md#when-it-does-not-work), too.

`retryable` errors pass by themselves: the package tries again until its timeout, and Spark may run
the task again.

[Policies](#policies) that a broker enforces are at the end.
{sections}
## Policies

Brokers answer most policies with codes that they also use for other things, so errors of these
classes can have any of these causes. Where the broker's text tells which, the error names the
policy and says what to do. `pulsar-admin` sets a policy for a namespace or for one topic,
`broker.conf` for all that have none of their own; with `get-…`, and `--applied` for a topic, it
shows them. How many consumers, subscriptions and producers are needed is in
[deploying.md](deploying.md#what-topics-must-allow).

| policy | error | `pulsar-admin` for a namespace | `pulsar-admin` for a topic | `broker.conf` |
|---|---|---|---|---|
{policies}"""


def _columns(columns: Iterable[Column]) -> str:
    return "".join(
        f"| `{column.name}` | `{column.data_type.simpleString()}` | "
        f"{'yes' if column.optional else 'never'} | {column.help} |\n"
        for column in columns
    )


def _types(described: str) -> str:
    return re.sub(r"(map<[a-z,]+>|string|binary|timestamp|long)", r"`\1`", described)


def columns_page() -> str:
    """Return the text of docs/columns.md."""
    written = "".join(
        f"| `{name}` | {_types(it.types)} | {it.help} |\n" for name, it in WRITABLE_COLUMNS.items()
    )
    return _COLUMNS.format(
        metadata=_columns(METADATA_COLUMNS), positions=_columns(POSITION_COLUMNS), written=written
    )


def kinds() -> dict[str, list[type[PulsarError]]]:
    """Return the error classes in source order, grouped by the headings there."""
    source = inspect.getsource(errors)
    headings = {
        source.count("\n", 0, found.start()) + 1: found[1]
        for found in re.finditer(r"^# --- (.*?) -+$", source, re.MULTILINE)
    }
    found: dict[str, list[type[PulsarError]]] = {}
    for node in ast.parse(source).body:
        kind = getattr(errors, node.name) if isinstance(node, ast.ClassDef) else None
        if kind is not None and kind is not PulsarError:
            heading = headings[max(line for line in headings if line < node.lineno)]
            found.setdefault(heading, []).append(kind)
    return found


def trouble_page() -> str:
    """Return the text of docs/troubleshooting.md."""
    sections = "".join(
        f"\n## {heading[0].upper()}{heading[1:]}\n" + "".join(map(_trouble, members))
        for heading, members in kinds().items()
    )
    return _TROUBLE.format(sections=sections, policies=_policies())


def _policies() -> str:
    """Return the rows of all policies, with the classes of their errors."""
    names: dict[Policy, set[str]] = {}
    for kind, policy in errors.policies():
        names.setdefault(policy, set()).add(kind.__name__)
    return "".join(
        f"| `{policy.name}` | {', '.join(f'`{name}`' for name in sorted(kinds))} | "
        f"{_code(policy.namespace)} | {_code(policy.topic)} | {_code(policy.broker)} |\n"
        for policy, kinds in names.items()
    )


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _trouble(kind: type[PulsarError]) -> str:
    what, cause, remedy = parts(kind)
    retry = " It is `retryable`." if kind.retryable else ""
    return (
        f"\n### {kind.__name__}\n\n{what}{retry}\n\n- **Cause**: {cause}\n- **Remedy**: {remedy}\n"
    )


def parts(kind: type[PulsarError]) -> tuple[str, str, str]:
    """Return the description, cause and remedy in an error class's docstring.

    Raises ValueError if its docstring lacks one of them.
    """
    told = errors.described(kind)
    if not {"Cause", "Remedy"} <= told.keys():
        raise ValueError(f"the docstring of {kind.__name__} needs a `Cause:` and a `Remedy:`")
    return told["What"], told["Cause"], told["Remedy"]


PAGES: dict[Path, Callable[[], str]] = {
    ROOT / "docs" / "columns.md": columns_page,
    ROOT / "docs" / "options.md": options_page.markdown,
    ROOT / "docs" / "troubleshooting.md": trouble_page,
}


def main() -> int:
    """Write the pages, or check them."""
    return keep_current("tools.reference_pages", __doc__, PAGES)


if __name__ == "__main__":
    sys.exit(main())
