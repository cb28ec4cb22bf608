"""The `pyomid` command."""
