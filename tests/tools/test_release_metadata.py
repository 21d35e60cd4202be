"""A package that is built for an index has absolute links, any other one none that is invented."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
from email.message import Message
from pathlib import Path

import pytest

from pulsar_spark import __version__
from tools.release_metadata import REPOSITORY, with_absolute_links

ROOT = Path(__file__).parents[2]
ADDRESS = "https://example.org/team/pulsar-spark"
_BUILD = "import sys, hatchling.build as b; print(b.prepare_metadata_for_build_wheel(sys.argv[1]))"


def metadata(folder: Path, repository: str) -> Message:
    environment = {**os.environ, REPOSITORY: repository}
    command = [sys.executable, "-c", _BUILD, str(folder)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=120)
    (found,) = folder.glob("*.dist-info/METADATA")
    return email.message_from_string(found.read_text("utf-8"))


def links(readme: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", readme)


def test_with_an_address_all_links_of_the_readme_lead_to_the_release(tmp_path: Path) -> None:
    found = metadata(tmp_path, ADDRESS + "/")
    shown = str(found.get_payload())
    assert len(links(shown)) > 20
    assert all(link.startswith("https://") for link in links(shown))
    assert f"{ADDRESS}/blob/v{__version__}/docs/options.md" in links(shown)
    assert f"{ADDRESS}/raw/v{__version__}/docs/benchmarks/overview.png" in links(shown)
    urls = dict(url.split(", ") for url in found.get_all("Project-URL", []))
    assert urls["Source"] == ADDRESS
    assert set(urls) == {"Source", "Documentation", "Changelog", "Issues"}
    assert found["Description-Content-Type"] == "text/markdown"


def test_without_an_address_the_readme_is_as_it_is_and_no_address_is_named(tmp_path: Path) -> None:
    found = metadata(tmp_path, "")
    assert "docs/options.md" in links(str(found.get_payload()))
    assert found.get_all("Project-URL") is None


def test_every_relative_link_of_the_readme_leads_to_a_file() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    relative = [link for link in links(readme) if "://" not in link and not link.startswith("#")]
    assert [link for link in relative if not (ROOT / link.partition("#")[0]).exists()] == []


@pytest.mark.parametrize(
    "text, expected",
    [
        ("[a](docs/a.md)", f"[a]({ADDRESS}/blob/v1/docs/a.md)"),
        ("[a](docs/a.md#b)", f"[a]({ADDRESS}/blob/v1/docs/a.md#b)"),
        ("![a](a.png)", f"![a]({ADDRESS}/raw/v1/a.png)"),
        ("[a](https://x.org/y)", "[a](https://x.org/y)"),
        ("[a](#install)", "[a](#install)"),
    ],
)
def test_only_relative_links_change(text: str, expected: str) -> None:
    assert with_absolute_links(text, ADDRESS, "v1") == expected
