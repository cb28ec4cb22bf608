"""The transaction protocol as pure steps: what a snapshot sees, what has committed, what may be cleaned.

It uses no sockets, threads, clocks or random numbers. docs/protocol.md has the rules.
"""
