"""Receiving: sessions, readers, consumers, subscriptions, acknowledgements."""
