"""Transactional clients: session with the TSO, transaction, table, retry.

Imports `protocol`, `wire` and `ports`, never a store, which is passed in (`ports.Deployment`).
"""
