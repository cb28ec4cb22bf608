"""Transactional clients: session with the TSO, transaction, table, retry.

Imports `protocol`, `wire`, `ports`; never a database, which is handed in (`ports.Deployment`).
"""
