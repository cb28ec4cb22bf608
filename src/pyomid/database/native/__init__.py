"""Compiled code of the client (decision 0112)."""
