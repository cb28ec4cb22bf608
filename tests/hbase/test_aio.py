"""The asyncio twin does what the blocking client does."""

from __future__ import annotations

import asyncio

from pyomid.cli.hbase_server import HBaseServer
from pyomid.storage.hbase.codec.keyvalues import KeyValue, decode
from pyomid.storage.hbase.regions.scan_cursor import ScanSpec
from pyomid.storage.hbase.rpc.aio_client import AsyncCluster
from pyomid.storage.hbase.rpc.requests import RowCondition, RowGet, RowMutation, puts
from pyomid.storage.hbase.store import HBaseStore
from pyomid.storage.hbase.zookeeper import ZooKeeper
from pyomid.types import KeyRange, TableInfo


def test_many_tasks_share_a_connection(hbase: HBaseServer, store: HBaseStore, table_name: str) -> None:
    store.create_table(TableInfo(table_name, (b"f",)))

    async def write_and_read(cluster: AsyncCluster, number: int) -> list[KeyValue]:
        row = b"%04d" % number
        cell = KeyValue(row, b"f", b"q", 50, row)
        absent = RowCondition(b"f", b"q", None)
        assert await cluster.rows(table_name, [RowMutation(row, (puts([cell]),), absent)]) == [True]
        assert await cluster.rows(table_name, [RowMutation(row, (puts([cell]),), absent)]) == [False]
        (found,) = await cluster.rows(table_name, [RowGet(row)])
        assert isinstance(found, list)
        return found

    async def work() -> None:
        cluster = AsyncCluster(ZooKeeper(hbase.quorum), deadline_s=120.0)
        found = await asyncio.gather(*(write_and_read(cluster, number) for number in range(200)))
        assert [cells[0].value for cells in found] == [b"%04d" % number for number in range(200)]
        spec = ScanSpec(table_name, KeyRange(), rows_per_call=30, is_fresh=True)
        rows = [cell.row async for block in cluster.scan(spec) for cell in decode(block.cells)]
        assert rows == [b"%04d" % number for number in range(200)]
        assert len(await cluster.regions(table_name)) == 1
        await cluster.close()

    asyncio.run(work())
    store.drop_table(table_name)
