"""Making, changing and dropping tables: what a death between any two steps leaves, and what others then find."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
from client_faults import failing, parts_with
from put_rows import put

import pyomid
from at_points import dying_at, meanwhile
from pyomid.database.database import Database
from pyomid.database.table_admin import alter_table, create_table, drop_table
from pyomid.errors import ConflictError, Misuse, UnknownTable
from pyomid.ports import Deployment
from pyomid.types import ColumnSchema, ConflictLevel, TableEntry, TableInfo, TableSchema, TableState

DROP_POINTS = ("client.drop.decided", "client.drop.fenced", "client.drop.withdrawn", "client.drop.emptied")
CREATE_POINTS = ("client.create.begun", "client.create.made")


def rows(db: Database, table: str = "t") -> list[bytes]:
    with db.begin() as tx:
        return [row for row, _ in tx.table(table).scan()]


@pytest.mark.parametrize("point", DROP_POINTS)
def test_half_a_drop_is_no_table_and_is_finished_by_a_drop(db: Database, point: str) -> None:
    """Else the name is taken by nobody, for ever, and its rows wait for who makes it again."""
    put(db, b"old")
    with dying_at(point):
        db.drop_table("t")
    with pytest.raises(UnknownTable), db.begin() as tx:
        tx.table("t")
    assert "t" not in [info.name for info in db.tables()]
    assert [info.name for info in db._core.deployment.catalog.registered()].count("t") == 1
    db.drop_table("t")
    assert db._core.deployment.catalog.entry("t") is None
    with pytest.raises(UnknownTable):
        db.drop_table("t")


@pytest.mark.parametrize("point", DROP_POINTS)
def test_a_new_table_never_shows_rows_older_than_itself(db: Database, point: str) -> None:
    put(db, b"old")
    late = db.begin()
    late.table("t").put(b"late", {b"f:x": b"1"})
    with dying_at(point):
        db.drop_table("t")
    made = db.create_table("t", families=["f"], conflict_level="row")
    with pytest.raises(ConflictError):
        late.commit()
    put(db, b"new")
    assert rows(db) == [b"new"]
    assert db.table_info("t") == made


@pytest.mark.parametrize("point", CREATE_POINTS)
def test_half_a_create_is_no_table_and_is_made_anew(db: Database, point: str) -> None:
    with dying_at(point):
        db.create_table("u", families=["f"])
    with pytest.raises(UnknownTable):
        db.drop_table("u")
    assert "u" not in [info.name for info in db._core.deployment.catalog.registered()]
    assert db.create_table("u", families=["g"], conflict_level="row").families == (b"g",)


@pytest.mark.parametrize("point", DROP_POINTS)
def test_a_dropper_that_slept_drops_no_later_table(db: Database, url: str, point: str) -> None:
    """Lost else: acknowledged rows of a table that was made while it slept."""
    put(db, b"old")

    def by() -> None:
        with pyomid.connect(url) as other:
            other.drop_table("t")
            other.create_table("t", families=["f"])
            put(other, b"new")

    with meanwhile(point, lambda: in_another_thread(by)):
        db.drop_table("t")
    assert rows(db) == [b"new"]


@pytest.mark.parametrize("point", CREATE_POINTS)
def test_a_creator_that_slept_makes_nothing_over_another(db: Database, url: str, point: str) -> None:
    def by() -> None:
        with pyomid.connect(url) as other:
            other.create_table("u", families=["g"], conflict_level="row")
            with other.begin() as tx:
                tx.table("u").put(b"new", {b"g:x": b"1"})

    with meanwhile(point, lambda: in_another_thread(by)), pytest.raises(Misuse, match="already exists"):
        db.create_table("u", families=["f"])
    assert db.table_info("u").conflict_level is ConflictLevel.ROW
    assert rows(db, "u") == [b"new"]


@pytest.mark.parametrize("point", CREATE_POINTS)
def test_a_creator_that_slept_over_a_whole_life_makes_a_whole_table(db: Database, url: str, point: str) -> None:
    """Never an entry without its physical table."""

    def by() -> None:
        with pyomid.connect(url) as other:
            other.create_table("u", families=["f"])
            put(other, b"gone", table="u")
            other.drop_table("u")

    with meanwhile(point, lambda: in_another_thread(by)):
        db.create_table("u", families=["f"])
    put(db, b"new", table="u")
    assert rows(db, "u") == [b"new"]


def test_a_table_that_cannot_be_made_leaves_no_entry(db: Database) -> None:
    """What HBase says of a table it holds."""
    parts = parts_with(db._core.deployment, store={"create_table": failing(Misuse("a family is missing"))})
    with pytest.raises(Misuse, match="a family is missing"):
        create_table(parts, "u", ["f"])
    assert db._core.deployment.catalog.entry("u") is None


def schema(*names: str) -> TableSchema:
    return TableSchema(tuple(ColumnSchema(name, "long", None) for name in names), ())


def with_column(name: str) -> Callable[[TableInfo], TableInfo]:
    def add(info: TableInfo) -> TableInfo:
        present = [column.name for column in info.schema.columns] if info.schema else []
        return replace(info, schema=schema(*present, name))

    return add


def test_a_slow_writer_of_an_entry_keeps_what_others_added(db: Database) -> None:
    """Blind, it takes back the column of another: rows of that one become unreadable."""
    seen = db.table_info("t")

    def slowly(info: TableInfo) -> TableInfo:
        if info == seen:
            alter_table(db._core.deployment, info, with_column("b"))
        return with_column("a")(info)

    altered = alter_table(db._core.deployment, seen, slowly)
    assert altered.schema == schema("b", "a")
    assert db.table_info("t") == altered


def test_a_slow_writer_of_an_entry_raises_no_dropped_table(db: Database) -> None:
    def slowly(info: TableInfo) -> TableInfo:
        db.drop_table("t")
        return with_column("a")(info)

    with pytest.raises(ConflictError, match="dropped or created again"):
        alter_table(db._core.deployment, db.table_info("t"), slowly)
    assert db._core.deployment.catalog.entry("t") is None


def test_a_slow_writer_of_an_entry_changes_no_later_table(db: Database) -> None:
    seen = db.table_info("t")
    db.drop_table("t")
    made = db.create_table("t", families=["f"], conflict_level="row")
    with pytest.raises(ConflictError, match="dropped or created again"):
        alter_table(db._core.deployment, seen, with_column("a"))
    assert db.table_info("t") == made


def test_many_who_drop_and_create_lose_no_row_of_the_last_table(db: Database, url: str) -> None:
    written: list[tuple[object, bytes]] = []

    def live(number: int) -> None:
        with pyomid.connect(url) as mine:
            for turn in range(6):
                row = b"%d-%d" % (number, turn)
                with suppress(UnknownTable, ConflictError):
                    if (turn + number) % 3 == 0:
                        mine.drop_table("t")
                    mine.create_table("t", families=["f"], if_not_exists=True)
                    entry = mine._core.deployment.catalog.entry("t")
                    put(mine, row)
                    written.append((entry, row))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(live, range(4)))
    db.create_table("t", families=["f"], if_not_exists=True)
    last = db._core.deployment.catalog.entry("t")
    assert last is not None
    assert last.state is TableState.PRESENT
    found = set(rows(db))
    assert found <= {row for _, row in written}
    assert found >= {row for entry, row in written if entry == last}


def in_another_thread(work: Callable[[], None]) -> None:
    """A transaction belongs to its thread, and a store may not be entered twice by one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def losing(db: Database, state: TableState, meanwhile: Callable[[], object]) -> Deployment:
    """Of the first entry that is put in that state the answer is lost, and `meanwhile` happens before it is looked
    for."""
    catalog, lost = db._core.deployment.catalog, list[TableEntry]()

    def change_entry(real: Callable[..., bool], old: TableEntry | None, new: TableEntry) -> bool:
        changed = real(old, new)
        if not changed or new.state is not state or lost:
            return changed
        lost.append(new)
        in_another_thread(meanwhile)
        return catalog.entry(new.info.name) == new

    return parts_with(db._core.deployment, catalog={"change_entry": change_entry})


def test_a_drop_that_took_effect_drops_no_later_table(db: Database, url: str) -> None:
    """Over a network its answer may be lost. Lost else: acknowledged rows of a table that another made since."""
    put(db, b"old")

    def remake() -> None:
        with pyomid.connect(url) as other:
            other.create_table("t", families=["f"])
            put(other, b"new")

    drop_table(losing(db, TableState.DROPPING, remake), "t")
    assert rows(db) == [b"new"]


def test_a_drop_that_another_finished_is_no_error(db: Database, url: str) -> None:
    def finish() -> None:
        with pyomid.connect(url) as other:
            other.drop_table("t")

    drop_table(losing(db, TableState.DROPPING, finish), "t")
    assert db._core.deployment.catalog.entry("t") is None


def test_who_made_a_table_is_not_told_that_it_exists(db: Database) -> None:
    """The answer was lost, and another altered the table since."""

    def alter() -> None:
        alter_table(db._core.deployment, db.table_info("u"), with_column("a"))

    made = create_table(losing(db, TableState.PRESENT, alter), "u", ["f"])
    assert made.generation == db.table_info("u").generation


def test_no_two_lives_of_a_name_have_one_generation(db: Database) -> None:
    """What a client keeps, or a compactor records, of the first would count for the second."""
    first: list[TableInfo] = []

    def drop() -> None:
        first.append(db.table_info("u"))
        db.drop_table("u")

    create_table(losing(db, TableState.PRESENT, drop), "u", ["f"])
    assert first[0].generation != db.table_info("u").generation


def test_a_table_dropped_behind_the_look_is_the_one_found(db: Database) -> None:
    """Not "there is no table" to who would have made it."""

    def entry(real: Callable[[str], TableEntry | None], name: str) -> TableEntry | None:
        found = real(name)
        db.drop_table("t")
        return found

    seen = db.table_info("t")
    parts = parts_with(db._core.deployment, catalog={"entry": entry})
    assert create_table(parts, "t", ["f"], if_not_exists=True) == seen
    db.create_table("t", families=["f"])
    with pytest.raises(Misuse, match="already exists"):
        create_table(parts, "t", ["f"])
