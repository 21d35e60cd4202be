"""docs/options.md."""

from __future__ import annotations

import re

from pulsar_spark.spark.options.foreign import FOREIGN
from pulsar_spark.spark.options.parsers import Choice
from pulsar_spark.spark.options.table import GROUPS, OPTIONS
from tools.options_page import FIRST, markdown


def sections() -> dict[str, str]:
    """Return the text of each option's section of the page."""
    found = re.split(
        r"^### `(.+)`$", markdown().partition("## Names from elsewhere")[0], flags=re.M
    )
    return {
        key: text.partition("\n## ")[0] for key, text in zip(found[1::2], found[2::2], strict=True)
    }


def test_every_option_has_a_heading_with_what_it_means_and_what_it_is_for() -> None:
    assert list(sections()) == [option.key for option in OPTIONS]
    for option in OPTIONS:
        meaning, facts = sections()[option.key].strip().split("\n\n")
        assert option.help.partition(".md")[0].rpartition(" ")[0] in meaning
        assert re.match(r"(batch |stream )?(read|write)\b", facts)
        assert all(f"`{alias}`" in facts for alias in option.aliases)


def test_every_option_is_in_one_group() -> None:
    assert len({option.key for option in OPTIONS}) == len(OPTIONS)
    titles = re.findall(r"^## (.+)$", markdown(), re.M)
    assert titles == ["Start here", *GROUPS, "Names from elsewhere"]


def test_the_options_to_start_with_link_to_their_headings() -> None:
    links = re.findall(r"^\| \[`(.+)`\]\(#(.+)\) \|", markdown(), re.M)
    assert [key for key, _ in links] == list(FIRST)
    assert len(links) == 6
    assert all(anchor == re.sub(r"\W", "", key).lower() for key, anchor in links)
    assert set(FIRST) <= set(sections())


def test_every_name_from_elsewhere_has_a_row_of_three_cells() -> None:
    rows = markdown().partition("## Names from elsewhere")[2].splitlines()
    rows = [row for row in rows if row.startswith("| ")][1:]
    assert len(rows) == len(FOREIGN)
    for row, foreign in zip(rows, FOREIGN, strict=True):
        assert row.count("|") == 4
        assert all(f"`{name}`" in row for name in (*foreign.names, *foreign.ours))


def test_all_values_of_a_choice_are_shown() -> None:
    choices = [option for option in OPTIONS if isinstance(option.parse, Choice)]
    assert len(choices) > 8
    for option in choices:
        assert isinstance(option.parse, Choice)
        assert all(f"`{word}`" in sections()[option.key] for word in option.parse.words)
