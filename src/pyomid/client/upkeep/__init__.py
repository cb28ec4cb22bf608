"""Compaction, commit-table garbage collection and verification without Spark, by call and in the background."""
