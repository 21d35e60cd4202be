"""Pulsar's binary protocol: bytes and events, without sockets, threads or clocks."""
