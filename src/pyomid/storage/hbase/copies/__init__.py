"""Backups of a database over HBase, made of snapshots, and their restore (decision 0078)."""
