"""Reading: how a read is planned, and how a task reads its part."""
