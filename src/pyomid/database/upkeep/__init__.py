"""Compaction, sanitizing and verification without Spark, on request and in the background."""
