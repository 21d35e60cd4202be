"""Scripts for developing this project; not part of the distribution."""
