"""docs/options.md."""

from __future__ import annotations

from pathlib import Path

from pulsar_spark.spark.options.docs import markdown
from pulsar_spark.spark.options.foreign import FOREIGN
from pulsar_spark.spark.options.parsers import Choice
from pulsar_spark.spark.options.table import OPTIONS

DOCS = Path(__file__).resolve().parent.parent.parent.parent / "docs"


def test_the_documented_options_are_current() -> None:
    text = (DOCS / "options.md").read_text("utf-8")
    assert text == markdown(), "run: python -m pulsar_spark.spark.options.docs > docs/options.md"


def test_every_option_has_a_row_of_four_cells() -> None:
    rows = [line for line in markdown().splitlines() if line.startswith("| `")]
    assert len(rows) == len(OPTIONS)
    for row in rows:
        assert row.replace("\\|", "").count("|") == 5


def test_every_name_from_elsewhere_has_a_row_of_three_cells() -> None:
    rows = markdown().partition("## Names from elsewhere")[2].splitlines()
    rows = [row for row in rows if row.startswith("| ")][1:]
    assert len(rows) == len(FOREIGN)
    for row, foreign in zip(rows, FOREIGN, strict=True):
        assert row.count("|") == 4
        assert all(f"`{name}`" in row for name in (*foreign.names, *foreign.ours))


def test_all_values_of_a_choice_are_shown() -> None:
    rows = {line.split("`")[1]: line for line in markdown().splitlines() if line.startswith("| `")}
    choices = [option for option in OPTIONS if isinstance(option.parse, Choice)]
    assert len(choices) > 8
    for option in choices:
        assert isinstance(option.parse, Choice)
        assert all(f"`{word}`" in rows[option.key] for word in option.parse.words)
