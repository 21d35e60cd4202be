"""Arrow arrays: built from buffers, and arithmetic on columns."""
