"""A transaction's own writes: the outbox sends them, the overlay shows them to its reads."""
