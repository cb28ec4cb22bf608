"""Marks of tables that nobody registered, from a client's side (K6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from pyomid.database.database import Database
from pyomid.database.foreign_tables import forget
from pyomid.database.table_admin import register_table, unregister_table
from pyomid.errors import Misuse, SnapshotTooOld, UnknownTable
from pyomid.omid.memory import MemoryStore
from pyomid.ports import ForeignTables
from pyomid.protocol.hashing import table_id
from pyomid.protocol.sanitize import sanitize_entries
from pyomid.types import KeyRange, TableInfo

pytestmark = pytest.mark.fast

JAVA = table_id(b"java")


def test_a_drop_takes_the_mark_of_its_table_along(memory_db: Database) -> None:
    """Else nothing would be sanitised until somebody makes a table of that name again."""
    catalog = memory_db._core.deployment.catalog
    catalog.mark_unknown_table(JAVA)
    memory_db.create_table("java", ["f"])
    memory_db._core.driver.run(sanitize_entries(now_s=time.time(), retry_bound_s=0.0))
    memory_db.drop_table("java")
    assert catalog.unknown_tables() == {}
    memory_db._core.driver.run(sanitize_entries(now_s=time.time(), retry_bound_s=0.0))


class SharedStore(MemoryStore, ForeignTables):
    """As HBase's: other programs make and write tables, too."""

    def foreign_tables(self) -> dict[str, list[str]]:
        return {name: ["f"] for name in self._tables}

    def holds_shadow_cells(self, table: str, *, rows_max: int) -> bool:
        return False

    def check_names(self, table: str, key_range: KeyRange) -> None: ...

    def check_markers(self, table: str, key_range: KeyRange, newest_ts: int, issued: Callable[[], int]) -> None: ...

    def check_table(self, table: str, families: Iterable[bytes]) -> object:
        if table not in self._tables:
            raise UnknownTable(f"no table {table}")
        return None


@pytest.fixture
def shared_db(memory_db: Database) -> Iterator[Database]:
    store = SharedStore()
    with Database(replace(memory_db._core.deployment, store=store, foreign=store)) as database:
        yield database


def test_a_table_that_is_unregistered_stops_sanitizing(shared_db: Database) -> None:
    """K6: what was committed to it may need its entries; registered again it is as it was, and `status` names it."""
    shared_db.create_table("java", ["f"])
    with shared_db.begin() as tx:
        tx.table("java").put(b"r", {b"f:q": b"v"})
    unregister_table(shared_db._core.deployment, "java")
    assert shared_db.status().unregistered == {JAVA: "java"}
    with pytest.raises(Misuse, match="discover"):
        shared_db._core.driver.run(sanitize_entries(now_s=time.time(), retry_bound_s=0.0))
    register_table(shared_db._core.deployment, "java", ["f"], conflict_level="cell")
    assert shared_db.status().unregistered == {}
    with shared_db.begin() as tx:
        assert tx.table("java").get(b"r") == {b"f:q": b"v"}


def test_a_table_is_registered_by_its_level_where_it_is_there(shared_db: Database) -> None:
    """By a wrong level conflicts would be overlooked, and a slip of the pen would make a table."""
    deployment = shared_db._core.deployment
    with pytest.raises(UnknownTable, match="jave"):
        register_table(deployment, "jave", ["f"], conflict_level="row")
    deployment.store.create_table(TableInfo("java", (b"f",)))
    with pytest.raises(Misuse, match="without its conflict level"):
        register_table(deployment, "java", ["f"], conflict_level=None)
    assert [info.name for info in shared_db.tables()] == ["t"]
    for _ in range(2):
        register_table(deployment, "java", ["f"], conflict_level="row")
    assert {info.name: info.conflict_level.value for info in shared_db.tables()} == {"java": "row", "t": "cell"}
    with pytest.raises(Misuse, match="exists with conflict level"):
        register_table(deployment, "java", ["f"], conflict_level="cell")


def test_a_table_that_is_gone_is_unregistered_without_a_mark(shared_db: Database) -> None:
    shared_db.create_table("java", ["f"])
    assert shared_db._core.deployment.store.drop_table("java")
    unregister_table(shared_db._core.deployment, "java")
    assert [info.name for info in shared_db.tables()] == ["t"]
    assert shared_db.status().unregistered == {}


def test_where_only_pyomid_writes_nothing_is_registered_or_split(memory_db: Database) -> None:
    with pytest.raises(Misuse, match="only tables in HBase"):
        unregister_table(memory_db._core.deployment, "t")
    with pytest.raises(Misuse, match="only tables in HBase"):
        register_table(memory_db._core.deployment, "u", ["f"], conflict_level="cell")
    with pytest.raises(Misuse, match="split keys"):
        memory_db.create_table("u", ["f"], split_keys=[b"m"])


@pytest.mark.parametrize("how", ["forgotten, created", "made elsewhere, registered", "gone before"])
def test_a_snapshot_takes_no_later_table_for_one_that_was_unregistered(shared_db: Database, how: str) -> None:
    """R10: what it knew of the table is gone with the physical table, which another program dropped."""
    deployment = shared_db._core.deployment
    store = deployment.store
    shared_db.create_table("java", ["f"])
    with shared_db.begin() as tx:
        tx.table("java").put(b"r", {b"f:q": b"v"})
    with shared_db.begin() as tx:
        if how == "gone before":
            store.drop_table("java")
            unregister_table(deployment, "java")
        else:
            unregister_table(deployment, "java")
            store.drop_table("java")
        if how == "forgotten, created":
            forget(deployment, "java")
        if "elsewhere" in how:
            store.create_table(TableInfo("java", (b"f",)))
        if how.endswith("registered"):
            register_table(deployment, "java", ["f"], conflict_level="cell")
        else:
            shared_db.create_table("java", ["f"])
        with pytest.raises(SnapshotTooOld, match="a former table with the same name"):
            tx.table("java").get(b"r")
        tx.rollback()
    with shared_db.begin() as tx:
        assert tx.table("java").get(b"r") is None
