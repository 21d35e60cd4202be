"""What is shown to a broker to log in: tokens, certificates, passwords, OAuth2."""
