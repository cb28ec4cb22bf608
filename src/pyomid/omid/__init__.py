"""Transactions by Omid's design (docs/protocol.md). A status oracle in a process of its own, the TSO, decides commits.
A commit table and shadow cells lie in a store that many machines share. Clients have sessions with the TSO.

    oracle/     the status oracle: takes events, returns instructions
    tso/        the TSO process: peers, flushes, leadership
    client/     a client's session with the TSO
    wire/       messages ↔ bytes, compatible with Apache Omid
    hbase/      the store: RPC, regions, commit table, coordination
    memory      a store in memory, for tests and benchmarks

This package shares with `folder` only the version rules in `protocol`, and the ports.
"""
