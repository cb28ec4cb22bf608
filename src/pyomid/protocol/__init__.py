"""The rules of versions, for both homes: what is visible, committed, changed, expired and cleaned.

No sockets, threads, clocks or random numbers. docs/protocol.md has the rules.
"""
