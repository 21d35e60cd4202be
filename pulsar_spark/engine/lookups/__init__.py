"""Who serves a topic, how many partitions it has, and which topics there are."""
