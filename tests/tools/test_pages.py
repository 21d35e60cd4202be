"""Pages generated from the code are current."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from pulsar_spark import errors
from pulsar_spark.errors import PulsarError
from tools import docs_hooks, fault_table, file_map, reference_pages


def test_the_page_of_modules_is_current() -> None:
    assert file_map.PAGE.read_text() == file_map.page(), "python -m tools.file_map"


def test_the_page_of_faults_is_current() -> None:
    assert fault_table.PAGE.read_text() == fault_table.page(), "python -m tools.fault_table"


def test_every_marked_row_is_described() -> None:
    described = {row for rows in fault_table.SECTIONS.values() for row in rows}
    assert set(fault_table.marked_tests()) <= described


def test_each_variable_of_the_tests_is_on_their_page() -> None:
    tests = Path(__file__).parents[1]
    pattern = re.compile(r"PULSAR_SPARK_TEST_[A-Z_]+")
    used = {name for path in tests.rglob("*.py") for name in pattern.findall(path.read_text())}
    assert used
    page = (tests / "README.md").read_text()
    assert used <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_a_link_to_a_file_beside_the_docs_becomes_its_name_on_the_site() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_path="a.md"))
    text = docs_hooks.on_page_markdown("[tests](../tests/README.md#x), [b](b.md)", page=page)
    assert text == "tests (`tests/README.md`), [b](b.md)"
    text = docs_hooks.on_page_markdown("[it](../notebooks/quickstart.ipynb)", page=page)
    assert text == "[it](notebooks/quickstart.md)"
    with pytest.raises(ValueError, match=r"a\.md links to nowhere\.md"):
        docs_hooks.on_page_markdown("[it](../nowhere.md)", page=page)


@pytest.mark.parametrize("path", reference_pages.PAGES, ids=lambda path: path.stem)
def test_the_pages_of_columns_and_errors_are_current(path: Path) -> None:
    page = reference_pages.PAGES[path]()
    assert path.read_text() == page, "python -m tools.reference_pages"


def test_every_error_is_on_the_page_of_troubles() -> None:
    def below(kind: type[PulsarError]) -> set[str]:
        return {kind.__name__}.union(*map(below, kind.__subclasses__()))

    shown = {kind.__name__ for kinds in reference_pages.kinds().values() for kind in kinds}
    ours = {name for name in below(PulsarError) if name in vars(errors)}
    assert shown == ours - {"PulsarError"}


def test_an_error_without_a_remedy_is_found() -> None:
    class Nameless(PulsarError):
        """Something.

        Cause: it is so.
        """

    with pytest.raises(ValueError, match="Nameless needs"):
        reference_pages.parts(Nameless)
