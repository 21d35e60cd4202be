"""Write pages generated from the source, or check that they are up to date."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent


def keep_current(
    tool: str, description: str | None, pages: Mapping[Path, Callable[[], str]]
) -> int:
    """Write outdated pages, or with ``--check`` name them; 0 if there are none."""
    parser = argparse.ArgumentParser(prog=f"python -m {tool}", description=description)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    stale = [
        path for path, text in pages.items() if not path.exists() or path.read_text() != text()
    ]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is not current: python -m {tool}")
        else:
            path.write_text(pages[path]())
    return 1 if check and stale else 0
