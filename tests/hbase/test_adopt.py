"""A table that was written without transactions is adopted: everything in it is seen by every transaction."""

from __future__ import annotations

import pytest

from pyomid.cli import main
from pyomid.client.database import Database
from pyomid.errors import Misuse
from pyomid.storage.hbase.adopt import adopt_range
from pyomid.storage.hbase.store import HBaseStore
from pyomid.types import Column, KeyRange, RowWrite, TableInfo

Q = Column(b"f", b"q")


def test_an_adopted_table_is_seen_whole(url: str, database: Database, store: HBaseStore, table_name: str) -> None:
    store.create_table(TableInfo(table_name, (b"f",)))
    for version in (3, 7):
        store.write_cells(table_name, version, [RowWrite(b"r%d" % row, ((Q, b"%d" % version),)) for row in range(5)])
    assert main(["adopt", url, table_name, "f"]) == 0
    assert main(["adopt", url, table_name, "f"]) == 0, "it may be repeated"
    with database.begin() as tx:
        rows = dict(tx.table(table_name).scan())
        assert rows == {b"r%d" % row: {b"f:q": b"7"} for row in range(5)}
        tx.table(table_name).put(b"r0", {b"f:q": b"new"})
    with database.begin() as tx:
        assert tx.table(table_name).get(b"r0") == {b"f:q": b"new"}
    database.drop_table(table_name)


def test_cells_that_nobody_would_see_are_refused(store: HBaseStore, table_name: str) -> None:
    store.create_table(TableInfo(table_name, (b"f",)))
    store.write_cells(table_name, 1_700_000_000_000, [RowWrite(b"r", ((Q, b"v"),))])
    with pytest.raises(Misuse, match="world-time"):
        adopt_range(store, table_name, KeyRange(), newest_ts=1_000_000)
    store.drop_table(table_name)
