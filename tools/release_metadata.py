"""What a package index shows: the README with absolute links, and the project's addresses.

A package has both if it is built with PULSAR_SPARK_REPOSITORY, the repository's public address, as
the release workflow does. Without it, links stay relative and there are no addresses: no build
names an address that nobody can open.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY = "PULSAR_SPARK_REPOSITORY"

_RELATIVE_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!\w+:|#)(?P<path>[^)\s]+)\)")


class ReleaseMetadata(MetadataHookInterface):
    """Adds `readme` and `urls` to the metadata of a build."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling, which has found the version before."""
        text = Path(self.root, "README.md").read_text("utf-8")
        if repository := os.environ.get(REPOSITORY, "").rstrip("/"):
            text = with_absolute_links(text, repository, f"v{metadata['version']}")
            metadata["urls"] = {
                "Source": repository,
                "Documentation": f"{repository}/tree/v{metadata['version']}/docs",
                "Changelog": f"{repository}/blob/v{metadata['version']}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """Return Markdown whose relative links lead to a tag of the repository."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["image"] else "blob"
        return f"{link['image']}[{link['text']}]({repository}/{kind}/{tag}/{link['path']})"

    return _RELATIVE_LINK.sub(absolute, text)
