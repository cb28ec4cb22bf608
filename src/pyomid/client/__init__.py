"""Transactional clients: session with the TSO, transaction, table, retry.

Knows `core`, `wire`, `ports`; never a database: its parts (`client.deployment`) are handed in.
"""
