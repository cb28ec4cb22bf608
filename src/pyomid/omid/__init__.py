"""Omid's system (docs/protocol.md), as its design documents name the parts: a status oracle that decides commits, in a
process of its own; a commit table and shadow cells in a store that many machines share; clients' sessions with it.

    oracle/     the status oracle: events in, instructions out
    tso/        its process: peers, flushes, leadership
    client/     a client's session with it
    wire/       messages ↔ bytes, Apache Omid's own
    hbase/      the store: RPC, regions, commit table, coordination
    memory      the same in memory, for tests and benchmarks

It shares nothing with `folder` but the rules of versions in `protocol` and the ports.
"""
