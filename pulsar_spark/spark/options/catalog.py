"""A table's options as Spark's catalog returns them → the options that the user gave.

For CREATE TABLE Spark passes one flat map: the table's OPTIONS, each of them a second time
with the prefix `option.`, its TBLPROPERTIES, and keys of the catalog's own (`provider`, `owner`,
`location`, `is_managed_location`, `comment`, …). Properties are the user's notes: one that is
called `topic` is not the option.
"""

from __future__ import annotations

from collections.abc import Mapping

OPTION_PREFIX = "option."
CATALOG_KEYS = frozenset(
    {"provider", "owner", "location", "is_managed_location", "external", "comment", "collation"}
)
"""What a catalog knows of a table, in lower case; none of it is an option of a source."""


def without_catalog_keys(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a read, a write, a view or a table, without what a catalog added.

    A table's `path` is the folder of its LOCATION, or of `OPTIONS (path …)`, never a topic.
    """
    lowered = {name.lower(): value for name, value in options.items()}
    prefixed = [name for name in lowered if name.startswith(OPTION_PREFIX)]
    if "provider" not in lowered or not ("owner" in lowered or prefixed):
        # Not from a table, or from a catalog that is not Spark's: take the options as they are.
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
