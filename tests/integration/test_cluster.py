"""The built wheel works without this checkout: on a cluster, and behind Spark Connect."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import site
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.testing import EmbeddedBroker
from tests.support import groups
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
JOB = Path(__file__).with_name("cluster_job.py")
ROWS = 5_000
SECONDS = 480


@pytest.fixture(scope="module")
def wheel_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the wheel and its dependencies, but without this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
        timeout=SECONDS,
    )
    [wheel] = folder.glob("pulsar_spark-*.whl")
    environment = folder / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    [own] = (environment / "lib").glob("python*/site-packages")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", own, wheel],
        check=True,
        capture_output=True,
        timeout=SECONDS,
    )
    # It uses the tests' dependencies. A .pth file adds their folder without the .pth files in it,
    # one of which points to this checkout.
    (own / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return python


def run(python: Path, master: str, topic: str, folder: Path) -> dict[str, Any]:
    """Run the job in a process without the checkout on its path; return its output."""
    left_out = ("PYTHONPATH", "SPARK_HOME", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    environment |= {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with EmbeddedBroker() as broker:
        broker.create_topic(topic, partitions=3)
        done = _run_to_its_end(
            [python, JOB, master, broker.service_url, topic], environment, folder
        )
        assert done == 0, (folder / "stderr").read_text()[-4000:]
        names = [f"{topic}-partition-{partition}" for partition in range(3)]
        wait_until(lambda: not any(map(broker.subscriptions, names)), "subscriptions are left")
    answer: dict[str, Any] = json.loads((folder / "stdout").read_text().splitlines()[-1])
    return answer


def _run_to_its_end(command: list[Any], environment: dict[str, str], folder: Path) -> int:
    # Into files: executors outlive the driver for a while, and would keep pipes open.
    with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=out, stderr=errors, start_new_session=True
        )
        try:
            return process.wait(SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def check(answer: dict[str, Any], python: Path) -> None:
    environment = str(python.parent.parent)
    assert answer["rows"] == ROWS
    assert answer["sum"] == ROWS * (ROWS - 1) // 2
    assert answer["partitions"] == 3
    assert answer["package"]
    assert all(file.startswith(environment) for file in answer["package"])


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.xdist_group(groups.CONNECT_PORT)
@pytest.mark.parametrize(
    "master", ["local-cluster[2,1,1024]", "connect:local[2]"], ids=["cluster", "connect"]
)
def test_the_wheel_reads_and_writes_where_the_checkout_is_not(
    master: str, wheel_python: Path, tmp_path: Path
) -> None:
    check(run(wheel_python, master, "wheel", tmp_path), wheel_python)
