"""Options: the table of all, their text → values, and what those add up to."""
