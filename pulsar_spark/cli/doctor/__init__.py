"""The doctor: which step of a connection fails, and what to change."""
