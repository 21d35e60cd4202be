"""Credentials in options appear in nothing that Spark or this package shows, logs or stores."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

JOB = Path(__file__).with_name("secrets_job.py")
REDACTION_JOB = Path(__file__).with_name("redaction_job.py")
SECONDS = 480

# In the form of a JSON web token, whose parts can be recognized; the others look like nothing.
PARTS = ("eyJjYW5hcnk4YjFm", "canary8b1fBody", "canary8b1fSignature")
SECRETS = {
    "jwt": ".".join(PARTS),
    "token": "canaryTok+7q/2=x",
    "password": "canaryPw:9x",
    "oauth2": "canaryOauth-5z",
    "access": "canaryAccess6y",
    "url": "canaryUrl3k",
}


def forms(secret: str) -> set[str]:
    """Return the forms in which a secret can appear in a text."""
    coded = base64.b64encode(secret.encode()).decode().rstrip("=")
    return {secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1], coded}


def outcomes(printed: str) -> dict[str, str]:
    """Return the printed result of each piece of work, by its name."""
    found: dict[str, str] = {}
    for part in re.split(r"^--- ", printed, flags=re.M)[1:]:
        head = part.partition("\n")[0]
        match = re.match(r"(.*? failed): |(\w[\w ]*(?:: (?:read|write))?)(?:: |$)", head)
        assert match, head
        found[match[1] or match[2]] = part[match.end() :]
    return found


@pytest.mark.slow
@pytest.mark.fault(96, 97)
@pytest.mark.timeout(SECONDS + 60)
def test_a_credential_is_nowhere_to_be_seen(tmp_path: Path) -> None:
    kept, own = tmp_path / "kept", tmp_path / "own"
    kept.mkdir()
    own.mkdir()
    printed = kept / "printed"
    with printed.open("wb") as file:
        subprocess.run(
            [sys.executable, JOB, kept, own],
            input=json.dumps(SECRETS).encode(),
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=kept,
            env=dict(os.environ),
            timeout=SECONDS,
            check=True,
        )
    told = outcomes(printed.read_text("utf-8", "replace"))
    # Everything succeeded or failed as expected.
    for way in ("token", "JSON web token", "basic", "oauth2"):
        assert told.pop(f"{way}: write").startswith("None"), way
        assert told.pop(f"{way}: read").startswith("[Row("), way
        assert "AuthenticationError" in told.pop(f"{way}: read refused failed"), way
        assert "AuthenticationError" in told.pop(f"{way}: write refused failed"), way
    assert told.pop("certificate: write").startswith("None")
    for name in ("certificate: read", "decryption: read", "web: read", "stream", "view", "pages"):
        assert not told.pop(name).startswith("[]"), name
    for name, kind in (
        ("certificate: read refused", "TlsError"),
        ("issuer refused", "AuthenticationError"),
        ("nobody there", "BrokerUnreachable"),
        ("send refused", "NotAllowed"),
        ("stream refused", "AuthenticationError"),
        ("subscribe refused", "AuthorizationError"),
        ("web: read refused", "AuthorizationError"),
    ):
        assert kind in told.pop(f"{name} failed"), name
    del told["the end"]
    # The rest are wrong options.
    assert len(told) == 15
    for name, text in told.items():
        assert name.endswith(" failed"), name
        assert "OptionError" in text or "TlsError" in text, (name, text[:1000])

    key = (own / "reader.key").read_text()
    wanted = set(PARTS).union(*map(forms, SECRETS.values()))
    wanted |= {line for line in key.splitlines() if "-----" not in line and len(line) > 30}
    files = [path for path in kept.rglob("*") if path.is_file()]
    for folder in ("events", "pages", "good"):
        assert any(kept / folder in path.parents for path in files), folder
    for path in files:
        lines = path.read_text("utf-8", "replace").splitlines()
        found = [
            (part, line[max(0, line.index(part) - 200) :][:300])
            for line in lines
            for part in wanted
            if part in line
        ]
        assert not found, (path, found[:5])


def shown(tmp_path: Path, session: str) -> tuple[dict[str, bool], str]:
    """Run the job; return which of its secrets are shown anywhere, and what it printed."""
    kept, own = tmp_path / "kept", tmp_path / "own"
    kept.mkdir()
    own.mkdir()
    done = subprocess.run(
        [sys.executable, REDACTION_JOB, kept, own, session],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=kept,
        env=dict(os.environ),
        timeout=SECONDS,
        check=True,
    )
    printed, _, secrets = done.stdout.decode("utf-8", "replace").rstrip().rpartition("\n")
    assert "FAILED" not in printed, printed[printed.index("FAILED") :][:1000]
    events = [path for path in (kept / "events").rglob("*") if path.is_file()]
    files = [path.read_text("utf-8", "replace") for path in events]
    assert "SparkListenerSQLExecutionStart" in "".join(files)
    return {
        name: any(part in text for part in parts for text in (*files, printed))
        for name, parts in json.loads(secrets).items()
    }, printed


@pytest.mark.slow
@pytest.mark.fault(145)
@pytest.mark.timeout(SECONDS + 60)
def test_spark_hides_secrets_by_its_default_where_their_options_are_named_for_it(
    tmp_path: Path,
) -> None:
    found, printed = shown(tmp_path, "classic")
    # A secret under the other name shows that Spark would have shown it.
    assert found == {name: name.startswith("shown ") for name in found}
    assert len(found) == 9
    parts = re.split(r"^--- (.*)$", printed, flags=re.M)[1:]
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        kind, option = name.split()
        assert ("event log, unless" in text and option in text) == (kind == "shown"), name


@pytest.mark.slow
@pytest.mark.fault(145)
@pytest.mark.timeout(SECONDS + 60)
def test_spark_connect_shows_all_options_but_not_those_of_a_format(tmp_path: Path) -> None:
    found, _ = shown(tmp_path, "connect")
    option = "pulsar.client.authParams"
    assert found == {f"hidden {option}": True, f"format {option}": False}
