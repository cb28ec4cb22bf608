"""Test tools for users: the recorder and the checker of histories."""
