"""Test tools for users: the history recorder and checker."""
