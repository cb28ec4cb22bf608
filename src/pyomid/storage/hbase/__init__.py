"""HBase by its native RPC, and Apache Omid's bytes in it.

From the wire up:

    hbase.proto, frames   bytes ↔ messages; no socket
    keyvalues             cell blocks ↔ cells; `decode_kernel`, `encode_kernel` are the compiled halves
    failures              what a remote exception asks us to do
    locations             which region holds a row; a cache that is only ever a hint
    steps                 each operation once, as a generator that yields the exchanges it waits for
    connection, cluster   the blocking driver; `aio` is its asyncio twin
    admin                 tables, regions, procedures
    layout                Omid's names and bytes: shadow cells, commit-table rows, marks
    store, commit_table, leader_state, catalog, ceiling, election    the ports

The first half knows nothing of transactions and could be published alone. May use sockets, threads, clocks, kazoo.
Outside this room only `wiring`, `cli` and `testing` import from it.
"""

from importlib.util import find_spec

from pyomid.errors import Misuse

if find_spec("kazoo") is None:
    raise Misuse("omid+hbase:// needs kazoo, which this Python lacks: install pyomid with its extra, pyomid[hbase]")
