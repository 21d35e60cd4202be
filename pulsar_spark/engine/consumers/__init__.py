"""Everything that receives: sessions, readers, consumers, subscriptions, acknowledgments."""
