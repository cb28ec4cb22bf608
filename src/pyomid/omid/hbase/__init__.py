"""The ports over HBase: its native RPC, with cells in Apache Omid's format.

    rpc/       connections, frames, calls, and reactions to a remote exception
    codec/     cell blocks and Omid's formats, one cell at a time and in compiled passes
    regions/   region locations, and each operation on regions as one coroutine (`regions/calls`)
    cluster, loop_client    run these coroutines: on threads, and on an event loop for the TSO's flushes
    store, commit_table, leader_state, catalog, coordination    the ports

`rpc` and `regions` know nothing of transactions. Outside this package only `wiring` and `cli` import from it.
"""

from importlib.util import find_spec

from pyomid.errors import extra_missing

if find_spec("kazoo") is None:
    raise extra_missing("omid+hbase:// needs the package kazoo", "hbase")
