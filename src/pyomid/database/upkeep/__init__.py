"""Compaction, sanitizing and verification without Spark, by call and in the background."""
