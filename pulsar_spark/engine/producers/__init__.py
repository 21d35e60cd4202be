"""Sending: batches, the in-flight window, producers of topics and partitions."""
