"""Credentials for brokers: tokens, certificates, passwords, OAuth2."""
