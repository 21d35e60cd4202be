"""A stream under many faults at once: ``python -m tests.soak``, and a small one in the tests."""
