"""``python -m pulsar_spark demo`` writes and reads back, with nothing else installed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.cli import demo
from pulsar_spark.cli import main as cli
from pulsar_spark.protocol.implementation import description


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demonstration_reads_back_all_that_it_wrote() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pulsar_spark", "demo", "--rows", "2000"],
        capture_output=True,
        text=True,
        timeout=200,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"The implementation is {description()}." in done.stdout
    assert "2,000 rows are written and acknowledged" in done.stdout
    assert "2,000 rows were read" in done.stdout
    assert done.stdout.count("persistent://public/default/orders-partition-") == 9
    assert "3,000 in all" in done.stdout
    assert "All of them arrived." in done.stdout
    assert "Traceback" not in done.stderr


def test_a_cluster_is_given_the_options_that_were_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("t")
    seen: list[dict[str, str]] = []

    def demonstrate(_: object, __: object, options: dict[str, str], rows: int) -> dict[str, Any]:
        seen.append(options)
        return {"ok": rows == 7}

    monkeypatch.setattr(demo, "reach", lambda _: None)
    monkeypatch.setattr(demo._Demo, "session", lambda _: contextlib.nullcontext(None))
    monkeypatch.setattr(demo._Demo, "demonstrate", demonstrate)
    given = ["--service-url", "pulsar://host:6650", "--token-file", str(file), "--rows", "7"]
    assert cli.main(["demo", *given, "--option", "pulsar.client.listenerName=outside"]) == 0
    assert seen == [
        {
            "service.url": "pulsar://host:6650",
            "topic": "orders",
            "pulsar.client.authPluginClassName": "token",
            "pulsar.client.authParams": file.as_uri(),
            "pulsar.client.listenerName": "outside",
        }
    ]


def test_what_spark_fails_with_is_our_error_without_its_calls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def demonstrate(*_: object) -> None:
        raise RuntimeError(
            "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):\n  File ...\n"
            "pulsar_spark.errors.ConnectError: cannot connect to h:1 Check it.\n SQLSTATE: 38000"
        )

    monkeypatch.setattr(demo, "reach", lambda _: None)
    monkeypatch.setattr(demo._Demo, "session", lambda _: contextlib.nullcontext(None))
    monkeypatch.setattr(demo._Demo, "demonstrate", demonstrate)
    assert cli.main(["demo", "--service-url", "pulsar://h:1"]) == 1
    assert capsys.readouterr().err == "error: cannot connect to h:1 Check it.\n"
