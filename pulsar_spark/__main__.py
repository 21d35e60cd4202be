"""``python -m pulsar_spark``, and the command ``pulsar-spark``."""

from __future__ import annotations

import sys

from pulsar_spark.errors import OptionError, PulsarError, missing_package


def main() -> int:
    """Run a command; return the exit status. What keeps it from being loaded is told in one line.

    That can be a missing package, and the implementation that PULSAR_SPARK_IMPL chooses.
    """
    try:
        from pulsar_spark.cli.main import main as run
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is None:
            raise
        print(f"error: {missing}", file=sys.stderr)
        return 1
    except PulsarError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, OptionError) else 1
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
