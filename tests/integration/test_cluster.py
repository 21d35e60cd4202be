"""The built wheel works without this checkout: on a cluster, and behind Spark Connect."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from typing import Any

import pyspark
import pytest

from pulsar_spark.testing import EmbeddedBroker
from tests.support import groups
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
JOB = Path(__file__).with_name("cluster_job.py")
ROWS = 5_000
SECONDS = 480
LEFT_OUT = ("PYTHONPATH", "SPARK_HOME", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")


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
    environment = {key: value for key, value in os.environ.items() if key not in LEFT_OUT}
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
            process.wait()


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


SHIPPED = """
import sys
from pyspark.sql import SparkSession

import pulsar_spark

spark = SparkSession.builder.getOrCreate()
if sys.argv[1] == "register":
    pulsar_spark.register(spark)
options = {"service.url": sys.argv[2], "topic": "shipped"}
rows = spark.range(100).selectExpr("string(id) AS value")
rows.write.format("pulsar").options(**options).mode("append").save()
print("rows", spark.read.format("pulsar").options(**options).load().count())
where = spark.sparkContext.parallelize([0], 1).map(lambda _: pulsar_spark.__file__).first()
print("package", where)
"""


def shipping(title: str) -> str:
    """Return the commands of the page that ship the package in one way."""
    page = (ROOT / "docs" / "deploying.md").read_text("utf-8")
    [found] = re.findall(rf'^```sh title="{title}"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("way", ["archive", "py-files"])
def test_the_package_is_shipped_as_the_page_says(
    way: str, wheel_python: Path, tmp_path: Path
) -> None:
    environment = wheel_python.parent.parent
    packed = way == "archive"
    (tmp_path / "job.py").write_text(SHIPPED)
    commands = shipping(way).replace("spark://host:7077", "'local-cluster[2,1,1024]'")
    variables = {"SPARK_HOME": str(Path(pyspark.__file__).parent)}
    if packed:
        # As venv-pack does: executors find the interpreter at the same path.
        with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as archive:
            archive.add(environment, ".")
    else:
        [wheel] = environment.parent.glob("pulsar_spark-*.whl")
        shutil.copy(wheel, tmp_path / "pulsar_spark.whl")
        without = tmp_path / "without"
        venv.create(without, with_pip=False, symlinks=True)
        [own] = (without / "lib").glob("python*/site-packages")
        (own / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
        python = str(without / "bin" / "python")
        variables |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    inherited = {key: value for key, value in os.environ.items() if key not in LEFT_OUT}
    path = f"{variables['SPARK_HOME']}/bin{os.pathsep}{os.environ['PATH']}"
    variables |= {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    with EmbeddedBroker() as broker:
        broker.create_topic("shipped")
        arguments = f"{'found' if packed else 'register'} {broker.service_url}"
        script = commands.replace("job.py", f"job.py {arguments}")
        done = _run_to_its_end(["sh", "-c", script], inherited | variables, tmp_path)
    assert done == 0, (tmp_path / "stderr").read_text()[-4000:]
    said = dict(line.split(" ", 1) for line in (tmp_path / "stdout").read_text().splitlines()[-2:])
    assert said["rows"] == "100"
    # An executor's own folder, or the zip that was sent to it.
    place = r"/app-[\d-]+/\d+/environment/lib/" if packed else r"pulsar_spark\.zip/"
    assert re.search(place, said["package"])
