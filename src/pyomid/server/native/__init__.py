"""The server's socket loop, compiled: many peers read and written in one call."""
