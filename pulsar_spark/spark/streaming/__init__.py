"""Streams: where the next micro-batch ends, what it holds, and what is acknowledged."""
