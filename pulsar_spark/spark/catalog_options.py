"""What Spark's catalog makes of the options of a table → the options that the user gave.

For CREATE TABLE Spark hands over one flat map: the table's OPTIONS, each of them a second time
with the prefix `option.`, its TBLPROPERTIES, and keys of the catalog's own (`provider`, `owner`,
`location`, `is_managed_location`, `comment`, …). Properties are the user's notes: one that is
called `topic` is not the option.
"""

from __future__ import annotations

from collections.abc import Mapping

_PREFIX = "option."
# The catalog sets both, whatever else it adds.
_MARKS = ("provider", "owner")


def without_catalog_keys(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a read, a write, a view or a table, without what a catalog added.

    A table's `path` is the folder of its LOCATION, or of `OPTIONS (path …)`, never a topic.
    """
    lowered = {name.lower(): value for name, value in options.items()}
    if not all(mark in lowered for mark in _MARKS):
        return dict(options)
    names = [name[len(_PREFIX) :] for name in lowered if name.startswith(_PREFIX)]
    return {name: lowered.get(name, lowered[_PREFIX + name]) for name in names if name != "path"}
