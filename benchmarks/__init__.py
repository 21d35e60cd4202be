"""Benchmarks: our Spark source and sink against the official client, a drain and plain Spark."""
