"""Maintenance as Spark jobs: compaction, sanitizing, verification, import of tables."""
