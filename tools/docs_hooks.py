"""How MkDocs changes and checks the pages of docs/ for the site: see mkdocs.yml."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

from tools import diagrams, page_checks

ROOT = Path(__file__).parent.parent
NOTEBOOKS = "PULSAR_SPARK_DOCS_NOTEBOOKS"
"""With `0`, this variable shows notebooks without outputs: a quick build, without Java."""

MAINTAINERS = "Develop"
"""The part of the navigation that the search leaves out."""
BOOSTS = {"options.md": 4, "columns.md": 3, "command-line.md": 2, "changelog.md": 0.3}
"""Pages that the search shows first, or last."""
SOURCES = {
    "changelog.md": "CHANGELOG.md",
    "columns.md": "pulsar_spark/schema/table/metadata_columns.py",
    "faults.md": "tools/fault_table.py",
    "modules.md": "tools/file_map.py",
    "options.md": "pulsar_spark/spark/options/table.py",
    "protocol.md": "tools/protocol_table.py",
    "troubleshooting.md": "pulsar_spark/errors.py",
}
"""Where a page is edited that is generated."""

# In the repository such a link leads to a file beside docs/, which the site lacks.
_NOTEBOOK = re.compile(r"\]\(\.\./notebooks/(\w+)\.ipynb\)")
_CHANGELOG = re.compile(r"\]\(\.\./CHANGELOG\.md(#[\w-]+)?\)")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#\s]+)(?:#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """Leave links to edit a page out if nobody said where the repository is."""
    if not config.repo_url:
        config.edit_uri = None
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the changelog, and a page for each notebook, with its outputs and charts."""
    from mkdocs.structure.files import File

    from tools import notebook_pages

    changes = (ROOT / "CHANGELOG.md").read_text("utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changes))
    notebooks = [notebook_pages.read(path) for path in notebook_pages.NOTEBOOKS]
    if os.environ.get(NOTEBOOKS) != "0":
        notebooks = notebook_pages.execute(notebooks)
    for path, notebook in zip(notebook_pages.NOTEBOOKS, notebooks, strict=True):
        text, images = notebook_pages.page(notebook, path.stem)
        contents: dict[str, str | bytes] = {f"{path.stem}.md": text, **images}
        for name, content in contents.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Check a page, say how the search treats it, and change its links: see `linked`.

    Raises PluginError, which ends the build with its text, for code or a table that is too wide, or
    a link to a file that does not exist.
    """
    name = page.file.src_uri
    maintainers = any(section.title == MAINTAINERS for section in page.ancestors)
    # The output of a notebook is what it is.
    checked = not maintainers and not name.startswith("notebooks/")
    if checked and (found := page_checks.faults(markdown)):
        raise PluginError(f"{name} does not fit the page: {'; '.join(found)}")
    if maintainers:
        page.meta["search"] = {"exclude": True}
    elif name in BOOSTS:
        page.meta["search"] = {"boost": BOOSTS[name]}
    if name in SOURCES and config.repo_url:
        page.edit_url = f"{config.repo_url.rstrip('/')}/edit/main/{SOURCES[name]}"
    try:
        return linked(markdown, name)
    except ValueError as error:
        raise PluginError(str(error)) from None


def linked(markdown: str, name: str) -> str:
    """Return a page with links to pages of notebooks and changes, and names of other files.

    Raises ValueError for a file that does not exist.
    """

    def named(link: re.Match[str]) -> str:
        text, path = link.groups()
        if not (ROOT / path).exists():
            raise ValueError(f"{name} links to {path}, which does not exist")
        return f"{text} (`{path}`)" if path not in text else f"`{path}`"

    markdown = _NOTEBOOK.sub(r"](notebooks/\1.md)", markdown)
    return _OUTSIDE.sub(named, _CHANGELOG.sub(r"](changelog.md\1)", markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Put the diagrams into the page, so that they follow its colours, and let tables fit."""
    return page_checks.breakable(diagrams.in_page(html))


def on_post_build(*, config: Any, **_: Any) -> None:
    """Check that to show a page, nothing is fetched from other hosts.

    Raises PluginError, with the pages and what they fetch.
    """
    site = Path(config.site_dir)
    found = {
        path.relative_to(site).as_posix(): addresses
        for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")])
        if (addresses := _addresses(path))
    }
    if found:
        raise PluginError(f"pages fetch from other hosts: {found}")


def _addresses(path: Path) -> list[str]:
    text = path.read_text("utf-8")
    if path.suffix == ".css":
        return page_checks.imported_from_elsewhere(text)
    return page_checks.fetched_from_elsewhere(text)
