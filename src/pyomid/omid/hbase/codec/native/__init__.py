"""Compiled loops that convert between HBase's bytes and cell batches, changes and commit entries."""
