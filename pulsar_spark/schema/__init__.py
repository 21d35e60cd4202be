"""Values and columns: Pulsar's schemas ↔ Arrow."""
