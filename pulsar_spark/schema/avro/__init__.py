"""AVRO topics: values ↔ columns."""
