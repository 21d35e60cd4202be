"""A table's options as Spark's catalog returns them → the user's options.

For CREATE TABLE Spark passes one flat map: the table's OPTIONS, each of them again with the prefix
`option.`, its TBLPROPERTIES, and the catalog's own keys (`provider`, `owner`, `location`,
`is_managed_location`, `comment`, …). Properties are the user's notes: one called `topic` is not the
option.
"""

from __future__ import annotations

from collections.abc import Mapping

OPTION_PREFIX = "option."
CATALOG_KEYS = frozenset(
    {"provider", "owner", "location", "is_managed_location", "external", "comment", "collation"}
)
"""What a catalog stores about a table, in lower case; none of these is a source's option."""


def without_catalog_keys(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a read, write, view or table, without the catalog's additions.

    A table's `path` is the folder of its LOCATION, or of `OPTIONS (path …)`, never a topic.
    """
    lowered = {name.lower(): value for name, value in options.items()}
    prefixed = [name for name in lowered if name.startswith(OPTION_PREFIX)]
    if "provider" not in lowered or not ("owner" in lowered or prefixed):
        # Not from a table, or not from Spark's catalog: take the options as they are.
        folder = lowered.get("location")
        return {
            name: value
            for name, value in options.items()
            if folder is None or name.lower() != "path" or value != folder
        }
    names = [name[len(OPTION_PREFIX) :] for name in prefixed]
    given = {name: lowered.get(name, lowered[OPTION_PREFIX + name]) for name in names}
    given.pop("path", None)
    return given
