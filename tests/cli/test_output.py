"""Tables: with colours on a terminal, as plain text elsewhere."""

from __future__ import annotations

import io
import json
import sys

import pytest

from pulsar_spark.cli import output

COLUMNS = ("step", "status", "seconds", "detail")
ROWS = [("read", "ok", 0.0125, "[red]all[/red]"), ("write", "failed", 12.0, None)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch, stream: str = "stdout") -> Terminal:
    """Capture what is printed from now on, as on a terminal."""
    shown = Terminal()
    monkeypatch.setattr(sys, stream, shown)
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


def show_progress(*, quiet: bool = False) -> None:
    with output.progress("beginning", total=2, quiet=quiet) as bar:
        bar.advance()
        bar.tell("\x1b[31mlooking[bold]")


def test_progress_goes_to_a_terminal_and_not_among_what_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
    printed, shown = terminal(monkeypatch), terminal(monkeypatch, "stderr")
    show_progress()
    assert printed.getvalue() == ""
    assert "50%" in shown.getvalue()
    # The text is not markup, and its escape sequences have no effect.
    assert "\\x1b[31mlooking[bold]" in shown.getvalue()


@pytest.mark.parametrize("terminals", [(), ("stdout",), ("stderr",)], ids=["none", "out", "err"])
def test_no_progress_is_shown_into_a_pipe(
    terminals: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    streams = [terminal(monkeypatch, name) for name in terminals]
    show_progress()
    assert [stream.getvalue() for stream in streams] == [""] * len(streams)
    assert capsys.readouterr() == ("", "")


def test_no_progress_is_shown_where_json_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [terminal(monkeypatch), terminal(monkeypatch, "stderr")]
    show_progress(quiet=True)
    assert [stream.getvalue() for stream in streams] == ["", ""]


def test_without_rich_a_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, errors = terminal(monkeypatch), terminal(monkeypatch, "stderr")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    output.print_table(COLUMNS, ROWS)
    show_progress()
    assert shown.getvalue().splitlines()[0] == "step   status  seconds  detail"
    assert errors.getvalue() == ""


HOSTILE = "a\x1b]0;title\x07\x9b31m\rb\u202ec\u2028d\x7f\ud800"


def test_no_terminal_obeys_a_cell_or_the_name_of_a_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output.print_table((HOSTILE,), [(HOSTILE,)])
    spelt = r"a\x1b]0;title\x07\x9b31m\rb\u202ec\u2028d\x7f\ud800"
    assert capsys.readouterr().out.splitlines() == [spelt, spelt]
    pytest.importorskip("rich", reason="rich is not installed")
    monkeypatch.setenv("COLUMNS", "200")
    shown = terminal(monkeypatch)
    output.print_table(("[red]", HOSTILE), [("[/red]", HOSTILE)])
    assert shown.getvalue().count(spelt) == 2
    assert "[red]" in shown.getvalue()


def test_no_terminal_obeys_json_and_every_parser_takes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = {HOSTILE: [HOSTILE, "ein Büchlein 📕"]}
    output.print_json(value)
    output.print_json_line(value)
    text = capsys.readouterr().out
    assert not set(text) & set("\x1b\x07\x9b\r\u202e\u2028\x7f\ud800")
    whole, line = text.rstrip().rpartition("\n")[::2]
    assert json.loads(whole) == json.loads(line) == value
    # Text stays readable.
    assert "ein Büchlein 📕" in line


def test_numbers_that_json_does_not_know_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json_line({"a": [float("nan"), {"b": float("inf")}, -float("inf"), 1.5]})
    assert capsys.readouterr().out == '{"a": ["NaN", {"b": "Infinity"}, "-Infinity", 1.5]}\n'


@pytest.mark.fault(148)
def test_an_error_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_error("fields:\na\x1b[2J\rerror: forged\nb")
    assert capsys.readouterr().err == "error: fields:\\na\\x1b[2J\\rerror: forged\\nb\n"


def test_a_cell_of_a_table_has_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("a",), [("x" * 5_000_000,)])
    text = capsys.readouterr().out
    assert len(text) < 3_000
    assert "(5,000,000 characters)" in text
