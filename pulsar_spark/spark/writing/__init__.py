"""Writing: rows → messages, in tasks, and what the driver checks before."""
