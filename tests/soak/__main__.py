"""``python -m tests.soak``: a stream on a real broker, while all that can be killed is killed."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.integration.brokers import Real
from tests.soak.soak import Settings, Soak
from tests.support.real_broker import OwnBroker, prepare

BROKER = {
    # What a writer sends again after a lost receipt is dropped: see producers.py.
    "brokerDeduplicationEnabled": "true",
    # Ledgers end, and go when they are read.
    "managedLedgerMaxEntriesPerLedger": "1000",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "retentionCheckIntervalInSeconds": "5",
}


def main() -> int:
    """Run a soak; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--faults", type=int, default=110, help="besides unloads, every second")
    parser.add_argument("--seed", type=int, help="default: another one each time")
    parser.add_argument("--rate", type=float, default=8000.0, help="rows written a second, at most")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    settings = Settings(arguments.rows, arguments.faults, seed, arguments.rate)
    print(f"{settings}: --seed {seed} strikes the same way again", flush=True)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    folder = Path(tempfile.mkdtemp(prefix="pulsar-spark-soak-"))
    with contextlib.closing(OwnBroker(prepare(), BROKER)) as broker:
        broker.start()
        report = Soak(Real(broker), folder, settings, lambda line: print(line, flush=True)).run()
    print(report, flush=True)
    if report.problems:
        print(f"What it has left is in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
