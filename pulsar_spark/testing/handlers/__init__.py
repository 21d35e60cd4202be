"""The embedded broker's command handlers, grouped by kind."""
