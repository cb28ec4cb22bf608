"""Compiled passes over cell batches for `protocol.hashing`, `protocol.visibility` and `protocol.compaction`."""
