"""HBase by its native RPC, and Apache Omid's bytes in it.

    rpc/       connections, frames, calls, and how to react to a remote exception; blocking and asyncio
    regions/   where regions are; each operation on them once, as a generator that yields the calls it waits for
    codec/     cell blocks and Omid's bytes, one cell at a time and in compiled passes
    store, commit_table, leader_state, catalog, timestamp_ceiling, coordination    the ports

`rpc` and `regions` do not know of transactions. Outside this package only `wiring`, `cli` and `testing` import from
it.
"""

from importlib.util import find_spec

from pyomid.errors import Misuse

for _needed in ("kazoo", "numpy", "numba"):
    if find_spec(_needed) is None:
        raise Misuse(
            f"omid+hbase:// needs {_needed}, which this Python lacks: install pyomid with its extra, pyomid[hbase]"
        )
