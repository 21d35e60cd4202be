"""Spark's Data Source API over the client: options, planning, reading, writing."""
