"""If a jar on the class path has a source called "pulsar", register ours under another name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from pulsar_spark.testing import EmbeddedBroker

JOB = Path(__file__).with_name("name_clash_job.py")
SECONDS = 480
SOURCE = """
public class Clash implements org.apache.spark.sql.sources.DataSourceRegister {
    public String shortName() { return "pulsar"; }
}
"""


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    """A jar with a data source that can only be found by the name "pulsar"."""
    if shutil.which("javac") is None:
        pytest.skip("there is no Java compiler")
    services = tmp_path / "META-INF" / "services"
    services.mkdir(parents=True)
    (services / "org.apache.spark.sql.sources.DataSourceRegister").write_text("Clash\n")
    (tmp_path / "Clash.java").write_text(SOURCE)
    spark_jars = Path(pyspark.__file__).parent / "jars" / "*"
    for command in (
        ["javac", "-cp", str(spark_jars), "Clash.java"],
        ["jar", "cf", "clash.jar", "Clash.class", "META-INF"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True, timeout=SECONDS)
    return tmp_path / "clash.jar"


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
def test_another_name_is_the_cure_for_a_name_clash(jar: Path) -> None:
    with EmbeddedBroker(auto_create=False) as broker:
        broker.create_topic("orders")
        done = subprocess.run(
            [sys.executable, JOB, jar, broker.service_url, "orders"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    # Spark uses the jar's, whatever is registered.
    assert "not a valid Spark SQL Data Source" in answer["clash"]
    assert answer["values"] == ["a"]
