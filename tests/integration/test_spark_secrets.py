"""A credential in options is in nothing that Spark or this package show, log or keep."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("secrets_job.py")
SECONDS = 240

# In the form of a JSON web token, all parts of which can be recognized.
PARTS = ("eyJjYW5hcnk4YjFm", "canary8b1fBody", "canary8b1fSignature")


@pytest.mark.slow
@pytest.mark.fault(96, 97)
@pytest.mark.timeout(SECONDS + 60)
def test_a_credential_is_nowhere_to_be_seen(tmp_path: Path) -> None:
    events, printed = tmp_path / "events", tmp_path / "printed"
    events.mkdir()
    with printed.open("wb") as file:
        subprocess.run(
            [sys.executable, JOB, events, ".".join(PARTS)],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            env=dict(os.environ),
            timeout=SECONDS,
            check=True,
        )
    text = printed.read_text("utf-8", "replace")
    assert "--- the end" in text
    # What should have worked did, and what should not did not.
    assert "--- write: None" in text
    assert "--- read: [Row(" in text
    for kind in ("AuthenticationError", "AuthorizationError", "NotAllowed", "OptionError"):
        assert kind in text, kind
    assert "--- nobody there failed" in text
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(events in path.parents for path in files)
    for path in files:
        lines = path.read_text("utf-8", "replace").splitlines()
        found = [line[:300] for line in lines if any(part in line for part in PARTS)]
        assert not found, (path, found[:5])
