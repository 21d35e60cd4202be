"""Files for services that are not here are held to the schemas of those services."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    "schema, files",
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("dependabot", ".github/dependabot.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/*.yml"),
        ("compose-spec", "docker-compose.yml"),
    ],
)
def test_files_fit_the_schema_of_their_service(schema: str, files: str) -> None:
    found = [str(path) for path in ROOT.glob(files)]
    assert found
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *found], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
