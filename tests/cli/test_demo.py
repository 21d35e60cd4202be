"""``python -m pulsar_spark demo`` writes and reads back, on nothing but this package."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.timeout(240)
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
    assert "2,000 rows are written and acknowledged" in done.stdout
    assert "2,000 rows were read" in done.stdout
    assert done.stdout.count("persistent://public/default/orders-partition-") == 9
    assert "3,000 in all" in done.stdout
    assert "All of them arrived." in done.stdout
    assert "Traceback" not in done.stderr
