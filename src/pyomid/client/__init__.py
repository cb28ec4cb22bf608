"""Transactional clients: session with the TSO, transaction, table, retry. Knows `core`, `wire`, `ports`; never a database."""
