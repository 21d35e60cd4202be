"""Arrow arrays: put together from buffers, and calculated with in columns."""
