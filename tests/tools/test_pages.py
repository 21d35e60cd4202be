"""Pages that are made from the code are current."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tools import docs_hooks, fault_table, file_map


def test_the_file_map_of_the_design_is_current() -> None:
    assert file_map.PAGE.read_text() == file_map.page(), "python -m tools.file_map"


def test_the_page_of_faults_is_current() -> None:
    assert fault_table.PAGE.read_text() == fault_table.page(), "python -m tools.fault_table"


def test_every_marked_row_is_described() -> None:
    described = {row for rows in fault_table.SECTIONS.values() for row in rows}
    assert set(fault_table.marked_tests()) <= described


def test_a_link_to_a_file_beside_the_docs_becomes_its_name_on_the_site() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_path="a.md"))
    text = docs_hooks.on_page_markdown("[tests](../tests/README.md#x), [b](b.md)", page=page)
    assert text == "tests (`tests/README.md`), [b](b.md)"
    with pytest.raises(ValueError, match=r"a\.md links to nowhere\.md"):
        docs_hooks.on_page_markdown("[it](../nowhere.md)", page=page)
