"""Names of columns."""

from __future__ import annotations

from pulsar_spark.schema.table import names as column_names


def test_names_are_unique_and_only_the_values_is_not_reserved() -> None:
    names = [name for name in vars(column_names) if name.isupper()]
    values = [getattr(column_names, name) for name in names]
    assert len(set(values)) == len(values)
    assert [value for value in values if not value.startswith("__")] == ["value"]
