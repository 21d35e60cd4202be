"""``python -m pulsar_spark``, and the command ``pulsar-spark``."""

from __future__ import annotations

import sys

from pulsar_spark.errors import missing_package


def main() -> int:
    """Run a command, or say which package is missing; return the exit status."""
    try:
        from pulsar_spark.cli.main import main as run
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is None:
            raise
        print(f"error: {missing}", file=sys.stderr)
        return 1
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
