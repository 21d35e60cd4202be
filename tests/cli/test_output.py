"""Tables: with colours on a terminal, as plain text elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from pulsar_spark.cli import output

COLUMNS = ("step", "status", "seconds", "detail")
ROWS = [("read", "ok", 0.0125, "[red]all[/red]"), ("write", "failed", 12.0, None)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return what is printed from now on, as on a terminal."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return shown


def test_plain_text_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(COLUMNS, ROWS)
    output.print_table(("a",), [], header=False)
    assert capsys.readouterr().out.splitlines() == [
        "step   status  seconds  detail",
        "read   ok        0.013  [red]all[/red]",
        "write  failed   12.000  -",
    ]


def test_a_terminal_gets_colours_and_no_markup_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
    shown = terminal(monkeypatch)
    output.print_table(COLUMNS, ROWS)
    text = shown.getvalue()
    assert "\x1b[" in text
    assert "[red]all[/red]" in text


def test_progress_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
    shown = terminal(monkeypatch)
    with output.progress("beginning") as tell:
        tell("looking")
    assert shown.getvalue()


def test_without_rich_a_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    output.print_table(COLUMNS, ROWS)
    with output.progress("beginning") as tell:
        tell("looking")
    assert shown.getvalue().splitlines()[0] == "step   status  seconds  detail"
