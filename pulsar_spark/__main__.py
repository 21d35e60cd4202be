"""``python -m pulsar_spark``."""

from pulsar_spark.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
