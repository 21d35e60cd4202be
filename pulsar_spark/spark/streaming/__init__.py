"""Streams: where micro-batches end, what they contain, and what is acknowledged."""
