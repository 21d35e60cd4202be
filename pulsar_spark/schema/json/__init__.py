"""JSON topics: values ↔ columns."""
