"""Everything that sends: batches, the in-flight window, producers of topics and partitions."""
