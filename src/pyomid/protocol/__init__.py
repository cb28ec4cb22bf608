"""The transaction protocol as pure steps: visibility, outcomes of commits, and compaction.

No sockets, threads, clocks or random numbers. docs/protocol.md has the rules.
"""
