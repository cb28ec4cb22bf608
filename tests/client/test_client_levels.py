"""The conflict level of a table changes while it is used, and where a deployment has one for all tables (T9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

import pyomid
from at_points import dying_at, meanwhile
from pyomid.database.database import Database
from pyomid.database.table_admin import alter_level, choose_tables_level, create_table, make_table
from pyomid.database.transaction import Transaction
from pyomid.errors import ConflictError, Misuse, UnknownTable
from pyomid.omid.memory import MemoryCatalog
from pyomid.types import ConflictLevel, TableEntry, TableSchema

CELL, ROW = ConflictLevel.CELL, ConflictLevel.ROW
X, Y = b"f:x", b"f:y"


@pytest.fixture
def keeper(keeper: Database) -> Database:
    """It has the rules of `t`, of level cell."""
    with keeper.begin() as tx:
        tx.table("t").put(b"r", {X: b"0"})
    return keeper


def writing(db: Database, column: bytes) -> Transaction:
    tx = db.begin()
    tx.table("t").put(b"r", {column: b"1"})
    return tx


def commits(tx: Transaction) -> bool:
    try:
        tx.commit()
    except ConflictError:
        return False
    return True


@pytest.mark.parametrize("begun_at", ["before", "client.level.changed", "client.level.fenced"])
@pytest.mark.parametrize("first_commits", [True, False])
def test_a_level_that_changes_loses_no_update(
    db: Database, keeper: Database, begun_at: str, first_commits: bool
) -> None:
    """Whoever began under cells, or between, and whoever begins under rows: of two writers of a row one commits."""
    begun: list[Transaction] = []
    if begun_at == "before":
        begun.append(writing(keeper, X))
        db.alter_table("t", conflict_level="row")
    else:
        with meanwhile(begun_at, lambda: begun.append(writing(keeper, X))):
            db.alter_table("t", conflict_level="row")
    late = writing(keeper, Y)
    order = [begun[0], late] if first_commits else [late, begun[0]]
    assert [commits(tx) for tx in order].count(True) == 1
    assert commits(writing(keeper, X))


def test_between_two_levels_cells_still_meet_cells(db: Database, keeper: Database) -> None:
    old = writing(keeper, X)
    half_changed(db, "client.level.changed")
    between = writing(keeper, X)
    assert [commits(tx) for tx in (old, between)] == [True, False]


def half_changed(db: Database, point: str) -> None:
    """To level row, by a client that dies at that point."""
    with dying_at(point):
        db.alter_table("t", conflict_level="row")
    assert db.table_info("t").id_levels == (CELL, ROW)


@pytest.mark.parametrize("point", ["client.level.changed", "client.level.fenced"])
@pytest.mark.parametrize("then", [CELL, ROW])
def test_half_a_change_is_ended_by_the_next_one(db: Database, point: str, then: ConflictLevel) -> None:
    half_changed(db, point)
    assert db.alter_table("t", conflict_level=then).id_levels == (then,)
    assert db.table_info("t").id_levels == (then,)


def test_a_changer_that_slept_changes_no_later_change(db: Database, keeper: Database) -> None:
    """It drew its fence before another one changed the level to and fro, and half to again."""

    def others() -> None:
        db.alter_table("t", conflict_level="row")
        db.alter_table("t", conflict_level="cell")
        begun.append(writing(keeper, X))
        half_changed(db, "client.level.changed")

    begun: list[Transaction] = []
    with meanwhile("client.level.fenced", others):
        db.alter_table("t", conflict_level="row")
    late = writing(keeper, Y)
    assert [commits(tx) for tx in (begun[0], late)].count(True) == 1


def test_a_change_is_of_the_table_that_was_named(memory_db: Database) -> None:
    with pytest.raises(UnknownTable, match="did you mean 't'"):
        memory_db.alter_table("tt", conflict_level="row")
    with pytest.raises(Misuse, match="reserved for system tables"):
        memory_db.alter_table("PYOMID_MARKERS", conflict_level="row")
    with pytest.raises(Misuse, match="'rows' is not 'cell' or 'row'"):
        memory_db.alter_table("t", conflict_level="rows")


class OneLevel(MemoryCatalog):
    """As that of a deployment whose tables Java clients write too."""

    level: ConflictLevel | None = None

    def tables_level(self) -> ConflictLevel | None:
        return self.level

    def set_tables_level(self, level: ConflictLevel | None) -> None:
        self.level = level

    def change_tables_level(self, old: ConflictLevel, new: ConflictLevel | None) -> bool:
        if is_old := self.level is old:
            self.level = new
        return is_old


def test_tables_have_the_deployment_s_level(memory_db: Database) -> None:
    catalog = OneLevel()
    deployment = replace(memory_db._core.deployment, catalog=catalog)
    create_table(deployment, "cells", ["f"])
    with pytest.raises(Misuse, match=r"row cannot be .* because cells \(cell\) have another level"):
        choose_tables_level(catalog, ROW)
    choose_tables_level(catalog, CELL)
    with pytest.raises(Misuse, match="this deployment's level is 'cell': requests of Java clients do not name"):
        create_table(deployment, "rows", ["f"], conflict_level="row")
    with pytest.raises(Misuse, match="this deployment's level is 'cell'"):
        make_table(deployment, "rows", ["f"], conflict_level="row", schema=TableSchema((), ()))
    assert catalog.entry("rows") is None
    choose_tables_level(catalog, None)
    create_table(deployment, "rows", ["f"], conflict_level="row")
    with pytest.raises(Misuse, match=r"cell cannot be .* because rows \(row\)"):
        choose_tables_level(catalog, CELL)
    assert catalog.tables_level() is None


def test_a_level_set_during_a_change_refuses_the_change(memory_db: Database) -> None:
    """Put first, then look: the change sees what was set after its first look."""
    catalog = OneLevel()
    deployment = replace(memory_db._core.deployment, catalog=catalog)
    create_table(deployment, "cells", ["f"])
    read = catalog.entry

    def set_then_read(name: str) -> TableEntry | None:
        catalog.entry = read  # type: ignore[method-assign]
        choose_tables_level(catalog, CELL)
        return read(name)

    catalog.entry = set_then_read  # type: ignore[method-assign]
    with pytest.raises(Misuse, match="this deployment's level is 'cell'"):
        alter_level(deployment, "cells", "row")
    assert (catalog.tables_level(), catalog.table("cells").id_levels) == (CELL, (CELL,))


@pytest.mark.parametrize("before", [None, CELL, ROW])
def test_a_level_that_was_not_compared_is_taken_back(memory_db: Database, before: ConflictLevel | None) -> None:
    """By an interrupt, or by a refusal; ROW stood there by one that was killed between the two."""
    catalog = OneLevel()
    create_table(replace(memory_db._core.deployment, catalog=catalog), "cells", ["f"], conflict_level="cell")
    catalog.level, read = before, catalog.entries

    def interrupted() -> list[TableEntry]:
        catalog.entries = read  # type: ignore[method-assign]
        raise KeyboardInterrupt

    catalog.entries = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        choose_tables_level(catalog, ROW)
    assert catalog.tables_level() is before
    with pytest.raises(Misuse, match="row cannot be"):
        choose_tables_level(catalog, ROW)
    assert catalog.tables_level() is (None if before is ROW else before)


def test_a_new_table_takes_the_deployment_s_level(memory_db: Database) -> None:
    catalog = OneLevel()
    choose_tables_level(catalog, ROW)
    deployment = replace(memory_db._core.deployment, catalog=catalog)
    assert create_table(deployment, "t", ["f"]).conflict_level is ROW


def test_elsewhere_each_table_has_its_own_level(memory_db: Database) -> None:
    with pytest.raises(Misuse, match="in this database each table has its own level"):
        choose_tables_level(memory_db._core.deployment.catalog, CELL)


@pytest.mark.parametrize("flushes", [(True, True), (True, False), (False, True)])
def test_at_level_row_other_columns_of_a_row_conflict_also_if_they_were_flushed(
    url: str, flushes: tuple[bool, bool]
) -> None:
    with pyomid.connect(url) as db:
        db.create_table("rows", ["f"], conflict_level="row")
        first, second = db.begin(), db.begin()
        for tx, name, is_flushed in ((first, b"f:a", flushes[0]), (second, b"f:b", flushes[1])):
            tx.table("rows").put(b"k", {name: b"1"})
            if is_flushed:
                tx.flush()
        second.commit()
        with pytest.raises(ConflictError):
            first.commit()
