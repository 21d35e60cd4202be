"""The examples of the README run, and print what it says they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pulsar_spark.cli import main as cli
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.pages import DOCS, here

README = DOCS.parent / "README.md"


def blocks() -> list[tuple[str, str]]:
    """Return language and text of the blocks before the installation."""
    text = README.read_text("utf-8").partition("\n## ")[0]
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shape(text: str) -> list[list[str]]:
    """Return the words of a text by lines, in any order: two tasks write at the same time.

    A digit stands for each number, and a dash for each rule.
    """
    lines = [re.sub(r"\d+", "0", re.sub(r"-+", "-", line)).split() for line in text.splitlines()]
    return sorted(lines)


def test_the_examples_run_and_print_what_the_readme_says(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed: list[str] = []
    with EmbeddedBroker() as broker:
        broker.create_topic("orders", partitions=0)
        names: dict[str, Any] = {"__name__": "readme"}
        for language, code in blocks():
            if language == "text":
                assert shape(printed.pop()) == shape(code)
                continue
            example = here(code, broker.service_url, tmp_path)
            if language == "python":
                exec(compile(example, str(README), "exec"), names)
            else:
                export, command = example.splitlines()
                name, _, value = export.removeprefix("export ").partition("=")
                monkeypatch.setenv(name, value)
                program, *words = shlex.split(command)
                assert program == "pulsar-spark"
                assert cli.main(words) == 0
            if shown := capsys.readouterr().out:
                printed.append(shown.rstrip("\n") + "\n")
        names["query"].processAllAvailable()
        names["query"].stop()
        assert broker.stats("orders-copy").messages_in >= 2
    assert printed == []


def test_code_is_on_the_first_screen_and_limits_come_last() -> None:
    text = README.read_text("utf-8")
    assert text[: text.index("```python")].count("\n") < 10
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert sections[0] == "Install"
    assert sections.index("Why this one") < sections.index("Limits")
    assert sections[-2:] == ["Limits", "More"]
