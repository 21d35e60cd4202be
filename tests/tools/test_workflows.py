"""Files for external services fit the schemas of these services."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tools.matrix import PYTHONS

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


def test_each_spark_is_run_with_the_python_that_the_matrix_would_choose() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]
    pairs = jobs["spark"]["strategy"]["matrix"]["include"]
    assert {pair["spark"]: pair["python"] for pair in pairs} == PYTHONS


def test_docker_compose_brings_pulsar_spark_and_jupyter_with_the_notebooks() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert set(services) == {"pulsar", "spark-master", "spark-worker", "jupyter"}
    variables = services["jupyter"]["environment"]
    assert variables["PULSAR_URL"] == "pulsar://127.0.0.1:6650"
    assert variables["SPARK_MASTER"] == "spark://127.0.0.1:7077"
    # Read-only: the container's root writes nothing into the clone.
    assert "./notebooks:/clone:ro" in services["jupyter"]["volumes"]
    assert all("healthcheck" in service for service in services.values())
    assert "PULSAR_SPARK_BUILD_KERNEL=require" in services["jupyter"]["build"]["dockerfile_inline"]
    assert all(
        service["network_mode"] == "service:pulsar"
        for name, service in services.items()
        if name != "pulsar"
    )
