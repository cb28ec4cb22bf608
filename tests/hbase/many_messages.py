"""Two megabytes put and read over a cluster's connections: many messages, whatever protects them."""

from __future__ import annotations

import asyncio
from functools import partial

from on_loop import run_on_loop

from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.keyvalues import KeyValue
from pyomid.omid.hbase.loop_client import LoopClient
from pyomid.omid.hbase.rpc.requests import RowGet, RowMutation, puts
from pyomid.omid.hbase.sasl import Protection

_VALUE = bytes(range(256)) * 400


def _mutations(first: int) -> list[RowMutation]:
    rows = [b"%04d" % number for number in range(first, first + 20)]
    return [RowMutation(row, (puts([KeyValue(row, b"f", b"q", 5, _VALUE)]),)) for row in rows]


def check_puts_are_read(cluster: Cluster, table: str, first: int) -> None:
    written = _mutations(first)
    cluster.rows(table, written)
    found = cluster.rows(table, [RowGet(each.row) for each in written])
    assert [cells[0].value for cells in found if isinstance(cells, list)] == [_VALUE] * 20


def check_puts_are_read_on_a_loop(cluster: Cluster, table: str, first: int) -> None:
    async def work() -> list[bytes]:
        client, budget = LoopClient(cluster), cluster.budget("twenty rows")
        written = _mutations(first)
        rows = partial(cluster.operations.rows, table, budget=budget)
        await asyncio.gather(*(run_on_loop(client, rows([each])) for each in written))
        found = await run_on_loop(client, rows([RowGet(each.row) for each in written]))
        client.close()
        return [cells[0].value for cells in found if isinstance(cells, list)]

    assert asyncio.run(work()) == [_VALUE] * 20


def protections(cluster: Cluster) -> set[Protection]:
    """Of the connections that are open."""
    layers = [connection._layer for connection in cluster._connections.values()]
    return {layer.protection if layer else Protection.AUTHENTICATION for layer in layers}
