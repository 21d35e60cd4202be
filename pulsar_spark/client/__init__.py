"""The client layer: sockets, threads and retries around the protocol core."""
