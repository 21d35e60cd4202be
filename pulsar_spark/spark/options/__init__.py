"""Options: the option table, parsing, and the resulting settings."""
