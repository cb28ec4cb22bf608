"""Compiled loops between Arrow columns and cell batches. Each file: one kernel and its reference in plain Python."""
