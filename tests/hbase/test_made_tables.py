"""Tables of a real HBase, created and unregistered by the command line."""

from __future__ import annotations

import time

import pytest

from pyomid.cli import main
from pyomid.database.database import Database
from pyomid.errors import Misuse
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.store import HBaseStore
from pyomid.protocol.hashing import table_id
from pyomid.protocol.sanitize import sanitize_entries
from region_admin import OperatorsAdmin


def test_split_keys_say_where_regions_begin(url: str, database: Database, store: HBaseStore, table_name: str) -> None:
    """In any order; a key is bytes, as HBase's shell writes them."""
    assert (
        main(["tables", url, "create", table_name, "f", "--split-key=m", "--split-key=\\xfe\\x00", "--split-key=c"])
        == 0
    )
    assert [region.start for region in store.regions(table_name)] == [b"", b"c", b"m", b"\xfe\x00"]
    with database.begin() as tx:
        for row in (b"a", b"d", b"m", b"\xff"):
            tx.table(table_name).put(row, {b"f:q": row})
    with database.begin() as tx:
        assert [row for row, _ in tx.table(table_name).scan()] == [b"a", b"d", b"m", b"\xff"]
    database.drop_table(table_name)


def test_unregistering_a_table_keeps_its_rows(
    url: str, database: Database, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """K6: sanitizing waits until the table is registered again; then its commits are as they were."""
    with database.begin() as tx:
        tx.table(table).put(b"r", {b"f:q": b"v"})
    assert main(["tables", url, "unregister", table]) == 0
    assert database.status().unregistered == {table_id(table.encode()): table}
    with pytest.raises(Misuse, match="discover"):
        database._core.driver.run(sanitize_entries(now_s=time.time(), retry_bound_s=0.0))
    assert main(["tables", url, "register", table, "f"]) == 1, "a wrong level would overlook conflicts"
    assert "cannot be registered without its conflict level" in capsys.readouterr().err
    assert main(["tables", url, "register", f"{table}_misspelt", "f", "--conflict-level", "cell"]) == 1
    assert main(["tables", url, "register", table, "f", "--conflict-level", "cell"]) == 0
    assert database.status().unregistered == {}
    assert f"{table}_misspelt" not in [info.name for info in database.tables()]
    with database.begin() as tx:
        assert tx.table(table).get(b"r") == {b"f:q": b"v"}


def test_a_table_needs_its_namespace(url: str, database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", url, "create", "nowhere:t", "f"]) == 1
    assert "create_namespace" in capsys.readouterr().err
    assert "nowhere:t" not in [info.name for info in database.tables()]


def test_a_table_in_a_namespace_works_like_any_other(
    url: str, database: Database, own_cluster: Cluster, table_name: str
) -> None:
    OperatorsAdmin(own_cluster).create_namespace(f"ns_{table_name}")
    name = f"ns_{table_name}:orders"
    assert main(["tables", url, "create", name, "f", "--split-key", "m"]) == 0
    with database.begin() as tx:
        for row in (b"a", b"z"):
            tx.table(name).put(row, {b"f:q": row})
    with database.begin(lease=True) as tx:
        assert [row for row, _ in tx.table(name).scan()] == [b"a", b"z"]
    assert len(database.compact(name).tables) == 1
    assert database.verify(name).ok
    assert main(["tables", url, "drop", name, "--yes"]) == 0
    assert name not in OperatorsAdmin(own_cluster).tables()
