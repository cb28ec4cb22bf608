"""Databases: transactions, tables, indexes, savepoints, retries, the change feed, DDL and upkeep.

Imports `protocol`, `rows` and the ports, never a home (`folder`, `omid`), which is passed in (`ports.Deployment`).
"""
