"""Draw the diagrams of docs/ as SVG, in colours for light and for dark screens.

``python -m tools.diagrams`` writes docs/diagrams, ``--check`` fails if they are outdated.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from tools.pages import keep_current

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "diagrams"

_LIGHT = (
    "--paper:#ffffff;--ink:#1b2733;--soft:#52606d;--line:#6b778a;"
    "--box:#eaf2fb;--edge:#3a6ea5;--mark:#fdf0d9;--mark-edge:#a5691b"
)
_DARK = (
    "--paper:#1e2129;--ink:#e6ebf1;--soft:#b3bdc9;--line:#98a4b5;"
    "--box:#22344a;--edge:#78aadf;--mark:#453519;--mark-edge:#d9a35a"
)
_LIGHT_RULE = f".diagram{{{_LIGHT}}}"
_DARK_RULE = f"@media (prefers-color-scheme:dark){{.diagram{{{_DARK}}}}}"
_SITES_DARK_RULE = f'[data-md-color-scheme="slate"] .diagram{{{_DARK}}}'

_SIZE = 13
_LETTER = 0.6 * _SIZE
"""Width of a letter, in a font that is wider than most."""
_LEADING = 19


@dataclass
class Drawing:
    """An SVG in the making. Lengths are in its own units, which are pixels at full size."""

    title: str
    description: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, width: int, height: int, *lines: str, mark: bool = False) -> None:
        """A box with lines of text in its middle; of several lines, the first is its name.

        Raises ValueError if a line does not fit.
        """
        for line in lines:
            if len(line) * _LETTER > width - 8:
                raise ValueError(f"{line!r} is wider than its box of {width}")
        fill, edge = ("mark", "mark-edge") if mark else ("box", "edge")
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" '
            f'fill="var(--{fill})" stroke="var(--{edge})"/>'
        )
        top = y + height / 2 - _LEADING * (len(lines) - 1) / 2 + 4.5
        for number, line in enumerate(lines):
            self.text(
                x + width / 2,
                top + number * _LEADING,
                line,
                bold=number == 0 and len(lines) > 1,
            )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        bold: bool = False,
        soft: bool = False,
        rim: bool = False,
        anchor: str = "middle",
    ) -> None:
        """A line of text that begins, ends, or has its middle at `x`.

        Raises ValueError if it leaves the drawing.
        """
        width = len(text) * _LETTER
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        if left < 0 or left + width > self.width or not 0 < y < self.height:
            raise ValueError(f"{text!r} leaves {self.title!r}")
        weight = ' font-weight="bold"' if bold else ""
        # A rim in the colour of the paper keeps letters apart from lines behind them.
        behind = ' stroke="var(--paper)" stroke-width="5" paint-order="stroke"' if rim else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}{behind} '
            f'fill="var(--{"soft" if soft else "ink"})">{escape(text)}</text>'
        )

    def line(
        self, *points: tuple[int, int], head: bool = True, tail: bool = False, dashed: bool = False
    ) -> None:
        """A line through points, with an arrow's head at its end and perhaps at its start."""
        path = "M" + " ".join(f"{x},{y}" for x, y in points)
        ends = ' marker-end="url(#HEAD)"' if head else ""
        ends += ' marker-start="url(#HEAD)"' if tail else ""
        dashes = ' stroke-dasharray="4 4"' if dashed else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="var(--line)" stroke-width="1.5"{dashes}{ends}/>'
        )

    def svg(self, name: str) -> str:
        """Return the file's text."""
        head = f"{name}-head"
        body = "\n".join(self.parts).replace("HEAD", head)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="diagram" '
            f'viewBox="0 0 {self.width} {self.height}" role="img" '
            f'font-family="sans-serif" font-size="{_SIZE}">\n'
            f"<title>{escape(self.title)}</title>\n<desc>{escape(self.description)}</desc>\n"
            f"<style>{_LIGHT_RULE}{_DARK_RULE}</style>\n"
            f'<defs><marker id="{head}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto-start-reverse">'
            f'<path d="M0 0 8 4 0 8z" fill="var(--line)"/></marker></defs>\n'
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="var(--paper)"/>\n'
            f"{body}\n</svg>\n"
        )


def in_page(html: str, folder: Path = FOLDER) -> str:
    """Return a page of the site with its diagrams in it, which then follow its colour scheme."""

    def drawn(image: re.Match[str]) -> str:
        svg = (folder / image[1]).read_text("utf-8").replace(_DARK_RULE, _SITES_DARK_RULE)
        return f'<span class="drawn">{svg}</span>'

    return re.sub(r'<img [^>]*src="(?:\.\./)*diagrams/([\w-]+\.svg)"[^>]*>', drawn, html)


def overview() -> Drawing:
    """From the brokers to the sink, on one page."""
    made = Drawing(
        "Brokers, Spark tasks, Arrow columns, sinks",
        "The driver asks the brokers where topics end and plans ranges. Each task connects to the "
        "brokers itself, decodes messages into Arrow columns, and hands them to Spark; sinks write "
        "the other way.",
        780,
        200,
    )
    made.box(262, 14, 190, 32, "driver plans the ranges")
    made.box(16, 62, 166, 122, "Pulsar brokers", "orders-partition-0", "orders-partition-1")
    made.box(262, 62, 190, 122, "Spark tasks (Python)", "receive, verify", "decode by schema")
    made.box(532, 62, 90, 122, "Arrow", "typed", "columns")
    made.box(664, 62, 100, 122, "Spark", "SQL, Delta,", "sinks")
    made.line((260, 30), (99, 30), (99, 58))
    made.line((357, 46), (357, 59))
    made.line((186, 123), (258, 123), tail=True)
    made.text(222, 108, "binary", soft=True)
    made.text(222, 146, "protocol", soft=True)
    made.line((456, 123), (528, 123), tail=True)
    made.text(492, 108, "batches", soft=True)
    made.line((625, 123), (661, 123), tail=True)
    return made


def planning() -> Drawing:
    """How a batch read, or a micro-batch, becomes tasks."""
    made = Drawing(
        "How a read is planned",
        "The driver looks up the partitions of the topics, asks each for its last message, which "
        "fixes the end, and cuts the ranges into tasks. Each task reads its range from the broker "
        "that serves the partition.",
        780,
        300,
    )
    made.text(130, 24, "on the driver", soft=True)
    made.box(16, 36, 228, 48, "topics, topicsPattern", "which partitions are there?")
    made.box(16, 112, 228, 48, "startingOffsets, …Time", "where does each begin?")
    made.box(16, 188, 228, 48, "the last message of each", "fixed once: the end")
    made.line((130, 84), (130, 109))
    made.line((130, 160), (130, 185))
    made.text(410, 24, "one range for each partition", soft=True)
    made.box(300, 36, 220, 62, "orders-partition-0", "from 12:345 to 12:999")
    made.box(300, 124, 220, 62, "orders-partition-1", "from 13:0 to 14:87")
    made.box(300, 212, 220, 62, "orders-partition-2", "nothing new: no task", mark=True)
    made.line((244, 212), (272, 212), (272, 67), (297, 67))
    made.line((272, 155), (297, 155))
    made.line((272, 212), (272, 243), (297, 243))
    made.text(660, 24, "in the executors", soft=True)
    made.box(576, 36, 188, 28, "task: 12:345 to 12:700")
    made.box(576, 70, 188, 28, "task: 12:701 to 12:999")
    made.box(576, 141, 188, 28, "task: 13:0 to 14:87")
    made.line((520, 50), (573, 50))
    made.line((520, 84), (573, 84))
    made.line((520, 155), (573, 155))
    made.text(660, 120, "split by minPartitions", soft=True)
    made.text(660, 196, "each connects to the", soft=True)
    made.text(660, 214, "broker that serves it", soft=True)
    return made


def offsets() -> Drawing:
    """What a stream's checkpoint and its subscription hold while two micro-batches pass."""
    made = Drawing(
        "Offsets, subscription and checkpoint over time",
        "A micro-batch is planned and its end is written to the checkpoint; its rows go to the "
        "sink; Spark writes its commit; then the subscription moves, and the broker may delete "
        "what is behind it. A restart takes the last end of the checkpoint that was committed.",
        780,
        330,
    )
    made.text(16, 34, "topic", bold=True, anchor="start")
    made.text(16, 124, "checkpoint", bold=True, anchor="start")
    made.text(16, 194, "sink", bold=True, anchor="start")
    made.text(16, 264, "subscription", bold=True, anchor="start")
    made.box(130, 16, 200, 30, "batch 7: 12:0 to 12:99")
    made.box(330, 16, 220, 30, "batch 8: 12:100 to 13:40")
    made.box(550, 16, 200, 30, "not read yet", mark=True)
    made.box(130, 84, 150, 62, "offsets/7", "ends at 12:99")
    made.box(400, 84, 150, 62, "offsets/8", "ends at 13:40")
    made.box(290, 84, 96, 62, "commits/7", "done")
    made.box(560, 84, 96, 62, "commits/8", "done")
    made.box(170, 170, 150, 38, "rows of batch 7")
    made.box(440, 170, 150, 38, "rows of batch 8")
    made.box(346, 240, 190, 38, "moves to 12:99")
    made.box(596, 240, 168, 38, "moves to 13:40")
    made.line((205, 146), (205, 167))
    made.line((320, 189), (338, 189), (338, 149))
    made.line((372, 146), (372, 237))
    made.line((475, 146), (475, 167))
    made.line((590, 189), (608, 189), (608, 149))
    made.line((636, 146), (636, 237))
    made.line((130, 306), (750, 306))
    made.text(440, 324, "time", soft=True)
    return made


def commit() -> Drawing:
    """The steps of a commit of the exactly-once sink."""
    made = Drawing(
        "A commit of the exactly-once sink",
        "Each task announces a transaction, writes its rows in it, and reports to the driver. The "
        "driver records its decision, commits all transactions, and records that this is done. A "
        "driver that starts before the decision aborts; one that starts after it finishes.",
        780,
        392,
    )
    lanes = {"task": 90, "driver": 280, "records": 470, "topics": 670}
    names = {
        "task": ("task", "one of many"),
        "driver": ("driver", "of the sink"),
        "records": ("sinkStateTopic", "and …-attempts"),
        "topics": ("your topics", "with transactions"),
    }
    for lane, x in lanes.items():
        made.line((x, 60), (x, 376), head=False, dashed=True)
        made.box(x - 74, 14, 148, 46, *names[lane])
    steps = [
        ("task", "records", "1 announce my transaction"),
        ("task", "topics", "2 write rows: nobody sees them yet"),
        ("task", "driver", "3 rows, digest"),
        ("driver", "records", "4 decide"),
        ("driver", "topics", "5 commit all: readers see the rows"),
        ("driver", "records", "6 done"),
    ]
    y = 92
    for number, (start, end, label) in enumerate(steps):
        if number == 4:
            rule = "killed above this line, the next driver aborts; below it, it finishes"
            made.box(16, y - 20, 748, 26, rule, mark=True)
            y += 46
        x, to = lanes[start], lanes[end]
        made.text((x + to) / 2, y - 6, label, rim=True)
        made.line((x, y), (to - 3, y))
        y += 44
    return made


def layers() -> Drawing:
    """Which package imports which."""
    made = Drawing(
        "The layers of the package",
        "errors, protocol, engine and schema import one way; spark and client build on schema; "
        "testing builds on protocol; the command line uses spark and testing.",
        780,
        150,
    )
    for x, name in ((16, "errors"), (146, "protocol"), (276, "engine"), (406, "schema")):
        made.box(x, 20, 96, 34, name)
    made.box(546, 20, 96, 34, "spark")
    made.box(546, 70, 96, 34, "client")
    made.box(276, 102, 96, 34, "testing")
    made.box(676, 102, 88, 34, "cli")
    for x in (112, 242, 372):
        made.line((x, 37), (x + 31, 37))
    made.line((502, 37), (543, 37))
    made.line((522, 37), (522, 87), (543, 87))
    made.line((194, 54), (194, 119), (273, 119))
    made.line((372, 119), (673, 119))
    made.line((642, 37), (720, 37), (720, 99))
    return made


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "overview": overview,
    "planning": planning,
    "offsets": offsets,
    "commit": commit,
    "layers": layers,
}


def _text(name: str) -> Callable[[], str]:
    return lambda: DRAWINGS[name]().svg(name)


PAGES: dict[Path, Callable[[], str]] = {FOLDER / f"{name}.svg": _text(name) for name in DRAWINGS}


def main() -> int:
    """Write the diagrams, or check them."""
    return keep_current("tools.diagrams", __doc__, PAGES)


if __name__ == "__main__":
    sys.exit(main())
