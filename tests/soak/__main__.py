"""``python -m tests.soak``: a stream on a real broker, while everything that can be killed is."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from tests.integration.brokers import Real
from tests.soak.soak import Report, Settings, Soak, chosen_seed, conduct, say
from tests.support.real_broker import OwnBroker, prepare

BROKER = {
    # Deduplication drops what a writer resends after a lost receipt: see producers.py.
    "brokerDeduplicationEnabled": "true",
    # Small ledgers, which are deleted when they were read.
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
    settings = Settings(
        arguments.rows, arguments.faults, chosen_seed(arguments.seed), arguments.rate
    )

    def soak(folder: Path) -> Report:
        with contextlib.closing(OwnBroker(prepare(), BROKER)) as broker:
            broker.start()
            return Soak(Real(broker), folder, settings, say).run()

    return conduct(settings, "pulsar-spark-soak-", soak)


if __name__ == "__main__":
    sys.exit(main())
