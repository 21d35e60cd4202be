"""Scripts for those who work on this project; no part of the distribution."""
