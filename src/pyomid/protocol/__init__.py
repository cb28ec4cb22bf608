"""The transaction protocol as pure steps: what a snapshot sees, what has committed, what may be cleaned.

No sockets, threads, clocks or random numbers. The rules: docs/protocol.md.
"""
