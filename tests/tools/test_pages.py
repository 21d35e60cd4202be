"""Pages that are made from the code are current."""

from __future__ import annotations

from tools import fault_table, file_map


def test_the_file_map_of_the_design_is_current() -> None:
    assert file_map.PAGE.read_text() == file_map.page(), "python -m tools.file_map"


def test_the_page_of_faults_is_current() -> None:
    assert fault_table.PAGE.read_text() == fault_table.page(), "python -m tools.fault_table"


def test_every_marked_row_is_described() -> None:
    described = {row for rows in fault_table.SECTIONS.values() for row in rows}
    assert set(fault_table.marked_tests()) <= described
