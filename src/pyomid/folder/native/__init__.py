"""Compiled loops between LMDB's bytes and cell batches."""
