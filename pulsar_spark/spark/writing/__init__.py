"""Writing: checks on the driver, and rows → messages in tasks."""
