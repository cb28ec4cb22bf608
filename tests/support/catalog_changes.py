"""Every call that changes a table, and what must hold where one was broken off: all can use the table, and the same
call, by whichever client, ends what was begun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyomid.database.database import Database
from pyomid.errors import Misuse, UnknownTable
from pyomid.types import ColumnSchema, IndexState, TableState

ROWS = {number: {"id": number, "kept": "x", "old": number % 2, "gone": "y"} for number in range(1, 6)}


@dataclass(frozen=True)
class Change:
    """A call, what makes it possible, and what is true of the table when it is done."""

    name: str
    call: Callable[[Database, str], object]
    is_done: Callable[[Database, str], bool]
    prepare: Callable[[Database, str], object] = lambda db, table: None
    is_repeatable: bool = True
    """Done once more it does nothing. Else it is refused."""
    needs_limits: bool = False
    """Row keys have a length: not in the memory store."""


def columns(db: Database, table: str) -> tuple[ColumnSchema, ...]:
    schema = db.table_schema(table)
    return () if schema is None else schema.columns


def has_columns(*names: str) -> Callable[[Database, str], bool]:
    return lambda db, table: {column.name for column in columns(db, table)} == set(names)


def is_there(db: Database, table: str) -> bool:
    return table in [info.name for info in db.tables()]


def indexes(db: Database, table: str) -> list[str]:
    return [index.name for index in db.table_info(table).indexes]


def put_long_row(db: Database, table: str) -> None:
    with db.begin() as tx:
        tx.table(table, codec=dict).put({"id": 3, "kept": "x", "old": 1, "gone": "y" * 3000})


def build_refused(db: Database, table: str) -> None:
    try:
        db.create_index(table, "by_gone", ["gone"])
    except Misuse as error:
        if "cannot contain row" not in str(error):
            raise
    else:
        raise AssertionError("an index of a value that is too long for a key")


CHANGES = [
    Change(
        "create",
        lambda db, table: db.create_table(f"{table}_new", ["d"], if_not_exists=True),
        lambda db, table: is_there(db, f"{table}_new"),
    ),
    Change(
        "create with time to live",
        lambda db, table: db.create_table(f"{table}_new", ["d"], if_not_exists=True, ttl_seconds=1000),
        lambda db, table: is_there(db, f"{table}_new"),
    ),
    Change(
        "drop",
        lambda db, table: db.drop_table(table),
        lambda db, table: not is_there(db, table),
        is_repeatable=False,
    ),
    Change(
        "drop with an index",
        lambda db, table: db.drop_table(table),
        lambda db, table: not is_there(db, table),
        prepare=lambda db, table: db.create_index(table, "by_old", ["old"]),
        is_repeatable=False,
    ),
    Change(
        "schema",
        lambda db, table: db.set_schema(table, {"id": int, "more": int}),
        has_columns("id", "kept", "old", "gone", "more"),
    ),
    Change(
        "add",
        lambda db, table: db.alter_columns(table, add={"more": int}),
        has_columns("id", "kept", "old", "gone", "more"),
        is_repeatable=False,
    ),
    Change(
        "drop a column",
        lambda db, table: db.alter_columns(table, drop=["gone"]),
        has_columns("id", "kept", "old"),
        is_repeatable=False,
    ),
    Change(
        "rename",
        lambda db, table: db.alter_columns(table, rename={"gone": "new"}),
        has_columns("id", "kept", "old", "new"),
        is_repeatable=False,
    ),
    Change(
        "widen",
        lambda db, table: db.alter_columns(table, widen={"old": "long"}),
        lambda db, table: "long" in [column.spark_type for column in columns(db, table) if column.name == "old"],
    ),
    Change(
        "time to live",
        lambda db, table: db.alter_table(table, ttl_seconds=1000),
        lambda db, table: db.table_info(table).ttl_seconds == 1000,
    ),
    Change(
        "level",
        lambda db, table: db.alter_table(table, conflict_level="row"),
        lambda db, table: [level.value for level in db.table_info(table).id_levels] == ["row"],
    ),
    Change(
        "create an index",
        lambda db, table: db.create_index(table, "by_old", ["old"]),
        lambda db, table: indexes(db, table) == ["by_old"],
    ),
    Change(
        "drop an index",
        lambda db, table: db.drop_index(table, "by_old"),
        lambda db, table: indexes(db, table) == [],
        prepare=lambda db, table: db.create_index(table, "by_old", ["old"]),
        is_repeatable=False,
    ),
    Change(
        "an index that is refused",
        build_refused,
        lambda db, table: indexes(db, table) == [],
        prepare=put_long_row,
        needs_limits=True,
    ),
]


def make(db: Database, table: str) -> None:
    db.create_table(table, ["d"])
    db.set_schema(table, {"id": int, "kept": str, "old": "integer", "gone": str}, row_key="id")
    for row in ROWS.values():
        with db.begin() as tx:
            tx.table(table, codec=dict).put(row)


def check(db: Database, table: str, change: Change, end_by: Database) -> None:
    others_go_on(db, table, 6)
    others_go_on(end_by, table, 7)
    assert end_by.verify().ok
    db.compact()
    db.sanitize()
    was_done = change.is_done(db, table)
    try:
        change.call(end_by, table)
    except (Misuse, UnknownTable):
        assert was_done
        assert not change.is_repeatable
    assert change.is_done(db, table)
    assert others_go_on(db, table, 8) is not None or change.name.startswith("drop")
    nothing_is_left(db)


def others_go_on(db: Database, table: str, number: int) -> dict[int, Any] | None:
    """A row is written and all are read; None where the table is none any more."""
    if not is_there(db, table):
        return None
    with db.begin() as tx:
        tx.table(table, codec=dict).put({"id": number, "kept": "x", "old": number % 2})
    with db.begin() as tx:
        rows = {row["id"]: row for row in tx.table(table, codec=dict).scan()}
    assert set(rows) >= {*ROWS, number}
    assert all((row["kept"], row["old"]) == ("x", number % 2) for number, row in rows.items())
    if "by_old" in [index.name for index in db.table_info(table).indexes if index.state is IndexState.READY]:
        with db.snapshot() as tx:
            found = {row["id"] for row in tx.table(table, codec=dict).lookup("by_old", 1)}
        assert found == {number for number in rows if number % 2}
    return rows


def nothing_is_left(db: Database) -> None:
    assert db.verify().ok
    entries = db._core.deployment.catalog.entries()
    named = {index.table for entry in entries for index in entry.info.indexes}
    assert {entry.info.name for entry in entries if entry.info.name.startswith("PYOMID_INDEX_")} == named
    for entry in entries:
        assert entry.state is TableState.PRESENT, entry
        assert not entry.info.is_changing, entry
        assert entry.info.next_level is None, entry
        assert all(index.state is IndexState.READY for index in entry.info.indexes), entry
