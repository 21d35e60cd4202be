"""Messages as tables: runs of them, their columns, and record batches."""
