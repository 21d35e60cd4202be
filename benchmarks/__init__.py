"""Benchmarks: our Spark source and sink, the official client, a raw drain and plain Spark."""
