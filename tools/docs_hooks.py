"""What MkDocs does to the pages of docs/ on the way to the site: see mkdocs.yml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

# In the repository such a link leads to a file beside docs/, which the site does not have.
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#\s]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page with links to files outside docs/ as the names of these files.

    Raises ValueError for a file that does not exist.
    """

    def named(link: re.Match[str]) -> str:
        text, path = link.groups()
        if not (ROOT / path).exists():
            raise ValueError(f"{page.file.src_path} links to {path}, which does not exist")
        return f"{text} (`{path}`)" if path not in text else f"`{path}`"

    return _OUTSIDE.sub(named, markdown)
