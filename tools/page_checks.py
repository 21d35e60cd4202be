"""What the pages of the site must hold: blocks and tables that fit, and nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

COLUMNS = 76
"""Characters of a line of code: what a window of 1,400 pixels shows without scrolling."""
_TABLE = 688
"""Pixels of a table there."""
_LETTER, _CODE_LETTER = 6.6, 6.8
_PADDING = 21

_LONG = 14
"""Characters of a name above which it may be broken."""
_IN_NAMES = re.compile(r"(?<=[-/.,=_])(?=\w)|(?<=[a-z])(?=[A-Z])")
_IN_TEXT = re.compile(r"\s+|(?<=[-–…/])")

_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
_FETCHING = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "video": "src",
}
# A browser follows these links only if somebody clicks, or never.
_NOT_FETCHED = {"alternate", "author", "canonical", "edit", "license", "next", "prev"}
_IMPORTED = re.compile(r"(?:url\(|@import\s+)\s*['\"]?((?:https?:)?//[^'\")\s]+)")
_DIAGRAM_LANGUAGE = "mermaid"
"""Blocks for which the theme fetches a renderer."""


def faults(markdown: str) -> list[str]:
    """Return what is wrong with a page's text, with the lines."""
    return [*_wide_code(markdown), *_wide_tables(markdown)]


def _lines(markdown: str) -> Iterator[tuple[int, str, bool]]:
    """Yield number, text, and whether it is in a block of code, of all lines but fences."""
    fence = ""
    for number, line in enumerate(markdown.splitlines(), 1):
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence):
            fence = ""
        else:
            yield number, line, bool(fence)


def _wide_code(markdown: str) -> Iterator[str]:
    for number, line, in_code in _lines(markdown):
        if in_code and len(line) > COLUMNS:
            yield f"line {number}: {len(line)} columns of code, more than {COLUMNS}"


def _wide_tables(markdown: str) -> Iterator[str]:
    widths: list[float] = []
    first = 0
    for number, line, in_code in [*_lines(markdown), (0, "", False)]:
        if line.startswith("|") and not in_code:
            cells = re.split(r"(?<!\\)\|", line.strip())[1:-1]
            first = first or number
            widths += [0.0] * (len(cells) - len(widths))
            widths = [max(each) for each in zip(widths, map(_narrowest, cells), strict=False)]
        elif widths:
            if sum(widths) > _TABLE:
                yield f"line {first}: a table of {sum(widths):.0f} pixels, more than {_TABLE}"
            widths, first = [], 0


def _narrowest(cell: str) -> float:
    """Return the pixels of a cell whose lines break wherever a browser may break them."""
    cell = re.sub(r"\]\([^)]*\)", "]", cell)
    pieces = re.split(r"(`[^`]*`)", cell)
    widths = [0.0]
    for piece in pieces:
        code = piece.startswith("`")
        for word in _IN_TEXT.split(piece.strip("`[]*")):
            parts = _IN_NAMES.split(word) if code and len(word) > _LONG else [word]
            widths += [len(part) * (_CODE_LETTER if code else _LETTER) + 8 * code for part in parts]
    return _PADDING + max(widths)


def breakable(html: str) -> str:
    """Return a page whose tables and headings may break long names, at dots and before capitals."""

    def broken(word: re.Match[str]) -> str:
        return _IN_NAMES.sub("<wbr>", word[0]) if len(word[0]) > _LONG else word[0]

    def code(found: re.Match[str]) -> str:
        return found[1] + re.sub(r"[^\s<>&;]+", broken, found[2]) + found[3]

    def cell(found: re.Match[str]) -> str:
        return re.sub(r"(<code>)([^<]*)(</code>)", code, found[0])

    return re.sub(r"<(t[dh]|h\d)\b[^>]*>.*?</\1>", cell, html, flags=re.DOTALL)


class _Fetched(HTMLParser):
    """Collects what a browser fetches from other hosts to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        address = given.get(_FETCHING.get(tag, ""), "")
        followed = tag == "link" and set(given.get("rel", "").split()) & _NOT_FETCHED
        if re.match(r"(https?:)?//", address) and not followed:
            self.found.append(address)
        self.found += _IMPORTED.findall(given.get("style", ""))
        if _DIAGRAM_LANGUAGE in given.get("class", "").split():
            self.found.append(f"the renderer of {_DIAGRAM_LANGUAGE}")
        if given.get("data-md-component") == "source":
            self.found.append("the repository's facts")


def fetched_from_elsewhere(html: str) -> list[str]:
    """Return the addresses on other hosts that showing a page fetches."""
    parser = _Fetched()
    parser.feed(html)
    return parser.found


def imported_from_elsewhere(css: str) -> list[str]:
    """Return the addresses on other hosts that a stylesheet fetches."""
    return _IMPORTED.findall(css)
