"""The engine: sockets, threads and retries around the protocol core.

What Spark's sources and sinks and `PulsarClient` both stand on.
"""
