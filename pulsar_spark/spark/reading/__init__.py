"""Reading: what a read is planned into, and what a task does with its part."""
