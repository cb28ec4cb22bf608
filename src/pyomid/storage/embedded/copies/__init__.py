"""Copies of a folder: backups, each of one moment, and folders whose files other tools copied."""
