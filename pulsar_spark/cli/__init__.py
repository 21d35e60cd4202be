"""The command line: ``python -m pulsar_spark``."""
