"""How MkDocs changes the pages of docs/ for the site: see mkdocs.yml."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NOTEBOOKS = "PULSAR_SPARK_DOCS_NOTEBOOKS"
"""With `0`, this variable shows notebooks without outputs: a quick build, without Java."""

# In the repository such a link leads to a file beside docs/, which the site lacks.
_NOTEBOOK = re.compile(r"\]\(\.\./notebooks/(\w+)\.ipynb\)")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#\s]+)(?:#[^)]*)?\)")


def on_files(files: Any, *, config: Any) -> Any:
    """Add a page for each notebook, with its outputs and charts."""
    from mkdocs.structure.files import File

    from tools import notebook_pages

    notebooks = [notebook_pages.read(path) for path in notebook_pages.NOTEBOOKS]
    if os.environ.get(NOTEBOOKS) != "0":
        notebooks = notebook_pages.execute(notebooks)
    for path, notebook in zip(notebook_pages.NOTEBOOKS, notebooks, strict=True):
        text, images = notebook_pages.page(notebook, path.stem)
        contents: dict[str, str | bytes] = {f"{path.stem}.md": text, **images}
        for name, content in contents.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Change a page's links: to notebooks' pages, and to plain names for other files.

    Raises ValueError for a file that does not exist.
    """

    def named(link: re.Match[str]) -> str:
        text, path = link.groups()
        if not (ROOT / path).exists():
            raise ValueError(f"{page.file.src_path} links to {path}, which does not exist")
        return f"{text} (`{path}`)" if path not in text else f"`{path}`"

    return _OUTSIDE.sub(named, _NOTEBOOK.sub(r"](notebooks/\1.md)", markdown))
