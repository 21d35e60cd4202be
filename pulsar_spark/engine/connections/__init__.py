"""The network side: addresses, sockets, TLS, and one connection to one broker."""
