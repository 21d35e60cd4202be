"""The engine: sockets, threads and retries around the protocol core.

Spark's sources and sinks and `PulsarClient` are both built on it.
"""
