"""Databases: transactions, tables, indexes, savepoints, retries, the change feed, DDL and upkeep.

The package imports `protocol`, `rows` and the ports, but never `folder` or `omid`, whose objects are passed in
(`ports.Deployment`).
"""
