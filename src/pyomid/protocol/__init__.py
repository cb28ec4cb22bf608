"""The rules of versions, for Omid's system and for folders: what is visible, committed, changed, expired and cleaned.

This package uses no sockets, threads, clocks or random numbers. docs/protocol.md has the rules.
"""
