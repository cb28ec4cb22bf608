"""Compiled loops between Arrow columns and cell batches. Each file: one kernel and its plain Python twin.

May know numpy, `pyomid.compiled` and `pyomid.cells`; nothing of Spark, stores or transactions.
"""
