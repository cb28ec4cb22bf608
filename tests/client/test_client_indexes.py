"""Secondary indexes: whatever becomes of rows and of those who write them, an index has exactly its rows (X3, X4)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyomid
import pyomid.aio
from at_points import dying_at, meanwhile, once
from pyomid import crashpoints
from pyomid.database.database import Database
from pyomid.database.tables import indexes as admin
from pyomid.database.tables import table as tables
from pyomid.database.transaction import Transaction
from pyomid.errors import ConflictError, Misuse, OmidError, SnapshotTooOld, TransactionEnded, UnknownTable
from pyomid.types import IndexState

pytestmark = pytest.mark.fast

_numbers = itertools.count()


@pytest.fixture
def orders(db: Database) -> Database:
    made(db)
    return db


@pytest.fixture
def keeper(orders: Database, keeper: Database) -> Database:
    """It has what it keeps of `orders`."""
    with keeper.snapshot() as tx:
        tx.table("orders")
    return keeper


def made(db: Database, level: str = "cell") -> None:
    db.create_table("orders", ["d"], conflict_level=level)
    db.set_schema("orders", {"id": int, "buyer": str, "total": int, "note": str}, row_key="id")
    for number, buyer in ((1, "alice"), (2, "bob"), (3, "alice")):
        put(db, {"id": number, "buyer": buyer, "total": number * 10})


def put(db: Database, row: dict[str, Any]) -> None:
    with db.begin() as tx:
        tx.table("orders", codec=dict).put(row)


def found(db: Database, values: Any, index: str = "by_buyer", **how: Any) -> list[int]:
    with db.snapshot() as tx:
        return [row["id"] for row in tx.table("orders", codec=dict).lookup(index, values, **how)]


def check(db: Database) -> None:
    """The indexes have the rows of the table, and no others."""
    assert db.verify().violations == []


def test_rows_are_found_by_their_columns(orders: Database) -> None:
    orders.create_index("orders", "by_buyer", ["buyer"])
    orders.create_index("orders", "by_both", ["buyer", "total"])
    assert found(orders, "alice") == [1, 3]
    assert found(orders, "alice", reverse=True, limit=1) == [3]
    assert found(orders, ("alice", 30), "by_both") == [3]
    assert found(orders, "alice", "by_both") == [1, 3]
    with orders.begin() as tx:
        table = tx.table("orders", codec=dict)
        table.put({"id": 1, "buyer": "bob"})
        table.delete(3)
        assert table.put_if_absent({"id": 4, "buyer": "alice"})
        assert [row["id"] for row in table.lookup("by_buyer", "alice")] == [4]
        with tx.savepoint() as savepoint:
            table.put({"id": 4, "buyer": "carol"})
            savepoint.rollback()
        tx.table("orders").put(b"\x80\0\0\0\0\0\0\x05", {b"d:buyer": b"alice"})
        table.increment(2, "total", 5)
    assert found(orders, "alice") == [4, 5]
    assert found(orders, "bob") == [1, 2]
    assert found(orders, ("bob", 25), "by_both") == [2]
    assert found(orders, "alice", "by_both") == [], "a row with a null is in no index"
    with orders.begin() as tx:
        import pyarrow

        tx.table("orders").write_arrow(pyarrow.table({"id": [2, 9], "buyer": ["eve", "eve"], "total": [1, 2]}))
        tx.table("orders").delete(b"\x80\0\0\0\0\0\0\x05", [b"d:buyer"])
    assert found(orders, "eve", "by_both") == [2, 9]
    check(orders)


def test_indexes_that_are_built_at_once_have_tables_of_their_own(db: Database) -> None:
    """In a folder the builders' transactions may share a start."""
    names = ["one", "two", "three", "four"]
    for name in names:
        db.create_table(name, families=["f"])
        db.set_schema(name, {"id": "long", "buyer": "string"}, row_key="id")
        with db.begin() as tx:
            tx.table(name, codec=dict).put({"id": 1, "buyer": name})
    together = Barrier(len(names))

    def build(name: str) -> None:
        together.wait()
        db.create_index(name, "by_buyer", ["buyer"])

    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(build, names))
    assert len({db.table_info(name).indexes[0].table for name in names}) == len(names)
    check(db)


@pytest.mark.parametrize("level", ["cell", "row"])
def test_of_two_who_change_a_rows_indexed_columns_one_aborts(memory_db: Database, level: str) -> None:
    """Each of another column: else the index has a row of one's old and the other's new value."""
    made(memory_db, level)
    memory_db.create_index("orders", "by_both", ["buyer", "total"])
    one, two = memory_db.begin(), memory_db.begin()
    one.table("orders", codec=dict).put({"id": 1, "buyer": "eve"})
    two.table("orders", codec=dict).put({"id": 1, "total": 99})
    one.commit()
    with pytest.raises(ConflictError):
        two.commit()
    check(memory_db)


@pytest.mark.parametrize("begun_at", ["before", "client.index.kept", "client.index.fenced", "client.index.filled"])
@pytest.mark.parametrize("commits_at", ["client.index.fenced", "client.index.filled", "after"])
def test_who_writes_beside_a_build_is_in_it_or_aborts(
    orders: Database, keeper: Database, monkeypatch: pytest.MonkeyPatch, begun_at: str, commits_at: str
) -> None:
    monkeypatch.setattr(admin, "ROWS_AT_ONCE", 2)
    points = ["before", "client.index.kept", "client.index.fenced", "client.index.filled", "after"]
    if points.index(commits_at) < points.index(begun_at):
        return
    begun: list[Transaction] = []

    def begin() -> None:
        begun.append(keeper.begin())
        table = begun[0].table("orders", codec=dict)
        table.put({"id": 7, "buyer": "eve"})
        if commits_at != "after":  # the build claims these rows: only the fence keeps a new one out
            table.put({"id": 1, "buyer": "eve"})
            table.delete(3)

    def commit() -> None:
        try:
            begun[0].commit()
        except ConflictError:
            return

    def begun_here() -> None:
        begin()
        if commits_at == begun_at:
            commit()
        elif commits_at != "after":
            crashpoints.arm_action(commits_at, once(commit))

    if begun_at == "before":
        begun_here()
    else:
        crashpoints.arm_action(begun_at, once(begun_here))
    try:
        orders.create_index("orders", "by_buyer", ["buyer"])
    finally:
        crashpoints.disarm()
    if commits_at == "after":
        commit()
    check(orders)
    with orders.snapshot() as tx:
        wanted = [row["id"] for row in tx.table("orders", codec=dict).scan() if row["buyer"] == "eve"]
    assert found(orders, "eve") == wanted


@pytest.mark.parametrize("point", ["client.index.kept", "client.index.fenced", "client.index.filled"])
def test_half_a_build_is_kept_by_writers_and_read_by_nobody(
    orders: Database, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr(admin, "ROWS_AT_ONCE", 2)

    with dying_at(point):
        orders.create_index("orders", "by_buyer", ["buyer"])
    put(orders, {"id": 1, "buyer": "eve"})
    with pytest.raises(Misuse, match="is being built"):
        found(orders, "eve")
    orders.create_index("orders", "by_buyer", ["buyer"])
    assert found(orders, "eve") == [1]
    check(orders)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_lookup_ends_with_its_transaction(orders: Database, end: str) -> None:
    orders.create_index("orders", "by_buyer", ["buyer"])
    tx = orders.begin()
    rows = tx.table("orders", codec=dict).lookup("by_buyer", "alice")
    assert next(rows)["id"] == 1
    getattr(tx, end)()
    with pytest.raises(TransactionEnded):
        next(rows)


def test_who_built_an_index_reads_it_at_once(keeper: Database) -> None:
    """It kept nothing of the time when the index was being built."""
    keeper.create_index("orders", "by_buyer", ["buyer"])
    assert found(keeper, "alice") == [1, 3]


def test_a_snapshot_older_than_an_index_does_not_read_it(orders: Database) -> None:
    old = orders.snapshot()
    orders.create_index("orders", "by_buyer", ["buyer"])
    with pytest.raises(SnapshotTooOld, match="younger than snapshot"):
        old.table("orders", codec=dict).lookup("by_buyer", "alice")
    old.rollback()


def test_a_writer_beside_a_drop_begins_anew(orders: Database) -> None:
    """It knows nothing of the table that holds the index's rows."""
    orders.create_index("orders", "by_buyer", ["buyer"])
    tries: list[int] = []

    def change(tx: Transaction) -> None:
        tx.table("orders", codec=dict).put({"id": 1, "buyer": "eve"})
        if not tries:
            orders.drop_index("orders", "by_buyer")
        tries.append(tx.start_ts)

    orders.run(change)
    assert len(tries) == 2


@pytest.mark.parametrize("point", ["client.columns.fenced", "client.index.dropping"])
def test_a_dropped_index_is_read_by_nobody_who_sees_later_rows(orders: Database, keeper: Database, point: str) -> None:
    orders.create_index("orders", "by_buyer", ["buyer"])
    assert found(keeper, "alice") == [1, 3]
    before = keeper.begin()
    with meanwhile(point, lambda: found(keeper, "alice") if point == "client.columns.fenced" else None):
        orders.drop_index("orders", "by_buyer")
    put(orders, {"id": 3, "buyer": "eve"})
    with pytest.raises(Misuse, match="has no index"):
        found(keeper, "alice")
    before.rollback()
    assert not [table for table in orders.tables() if table.name.startswith("PYOMID_INDEX_")]
    orders.create_index("orders", "by_buyer", ["buyer"])
    orders.drop_table("orders")
    assert not [table for table in orders.tables() if table.name.startswith("PYOMID_INDEX_")]


def test_what_an_index_cannot_keep_is_refused(orders: Database) -> None:
    with pytest.raises(Misuse, match="no column 'byer'; did you mean 'buyer'"):
        orders.create_index("orders", "by_buyer", ["byer"])
    with pytest.raises(Misuse, match="a column of the row key"):
        orders.create_index("orders", "by_id", ["id"])
    with pytest.raises(UnknownTable):
        orders.create_index("order", "by_id", ["buyer"])
    orders.create_index("orders", "by_buyer", ["buyer"])
    assert orders.create_index("orders", "by_buyer", ["buyer"]).indexes == orders.table_info("orders").indexes
    for changes in ({"drop": ["buyer"]}, {"widen": {"buyer": bytes}}):
        with pytest.raises(Misuse, match="is in the index 'by_buyer'"):
            orders.alter_columns("orders", **changes)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="an index 'by_buyer' on other columns"):
        orders.create_index("orders", "by_buyer", ["total"])
    with orders.begin() as tx:
        table = tx.table("orders", codec=dict)
        with pytest.raises(Misuse, match="conflict=False"):
            table.put({"id": 1, "buyer": "x"}, conflict=False)
        table.put({"id": 1, "note": "x"}, conflict=False)
    orders.alter_columns("orders", rename={"buyer": "customer"}, order=["note"])
    assert found(orders, "alice") == [1, 3]


def test_a_value_of_another_type_is_refused_and_goes(orders: Database) -> None:
    """Programs of bytes may have written it before the index was there."""
    key = b"\x80\0\0\0\0\0\0\x01"
    with orders.begin() as tx:
        tx.table("orders").put(key, {b"d:total": b"x"})
    with pytest.raises(Misuse, match="index 'by_total' of total cannot contain row"):
        orders.create_index("orders", "by_total", ["total"])
    put(orders, {"id": 1, "total": 10})
    orders.create_index("orders", "by_total", ["total"])
    tx = orders.begin()
    with pytest.raises(Misuse, match="index 'by_total' of total cannot contain row"):
        tx.table("orders").put(key, {b"d:total": b"x"})
    tx.rollback()
    check(orders)


@pytest.mark.parametrize(
    "point", ["client.index.planned", "client.create.begun", "client.create.made", "client.index.kept"]
)
@pytest.mark.parametrize(
    "other",
    [
        lambda db: db.create_index("orders", "by_buyer", ["buyer"]),
        lambda db: db.drop_index("orders", "by_buyer"),
        lambda db: db.drop_table("orders"),
        lambda db: db.alter_columns("orders", rename={"buyer": "customer"}),
    ],
    ids=["builds it too", "drops it", "drops the table", "renames its column"],
)
def test_a_build_beside_another_change_leaves_no_part_of_an_index(
    orders: Database, point: str, other: Callable[[Database], object]
) -> None:
    with meanwhile(point, lambda: other(orders)), suppress(OmidError):
        orders.create_index("orders", "by_buyer", ["buyer"])
    entries = orders._core.deployment.catalog.entries()
    indexes = [index for entry in entries for index in entry.info.indexes]
    assert all(index.state is IndexState.READY for index in indexes)
    assert {index.table for index in indexes} == {
        entry.info.name for entry in entries if entry.info.name.startswith("PYOMID_INDEX_")
    }
    if indexes:
        assert found(orders, "alice") == [1, 3]
        check(orders)


LONG = "x" * 3000
"""Longer than a row key of a folder."""

in_a_folder = pytest.mark.parametrize("url", ["embedded"], indirect=True)


@in_a_folder
def test_a_refused_build_leaves_nothing(orders: Database) -> None:
    """Not for writers either: such a text was allowed before."""
    put(orders, {"id": 9, "note": LONG})
    for _ in range(2):
        with pytest.raises(Misuse, match="index 'by_note' of note cannot contain row"):
            orders.create_index("orders", "by_note", ["note"])
        assert orders.table_info("orders").indexes == ()
        assert not [table for table in orders.tables() if table.name.startswith("PYOMID_INDEX_")]
    put(orders, {"id": 10, "note": LONG})
    put(orders, {"id": 9, "note": "short"})
    with orders.begin() as tx:
        tx.table("orders", codec=dict).delete(10)
    orders.create_index("orders", "by_note", ["note"])
    assert found(orders, "short", "by_note") == [9]
    check(orders)


@in_a_folder
@pytest.mark.parametrize(
    "point",
    [
        "client.index.fenced",
        "client.columns.changing",
        "client.columns.fenced",
        "client.index.dropping",
        "client.index.emptied",
    ],
)
def test_a_refused_build_that_died_hinders_nobody(orders: Database, point: str) -> None:
    """A row that no index can have is shortened, or deleted, while the entry still names the index."""
    for number in (8, 9):
        put(orders, {"id": number, "note": LONG})
    with dying_at(point):
        orders.create_index("orders", "by_note", ["note"])
    put(orders, {"id": 8, "note": "short"})
    with orders.begin() as tx:
        tx.table("orders", codec=dict).delete(9)
    orders.create_index("orders", "by_note", ["note"])
    assert found(orders, "short", "by_note") == [8]
    check(orders)


@pytest.mark.parametrize("first", ["by_buyer", "by_total"])
def test_a_refused_write_changes_neither_row_nor_index(memory_db: Database, first: str) -> None:
    """The transaction goes on, and may commit."""
    made(memory_db)
    for name in sorted(["by_buyer", "by_total"], key=lambda each: each != first):
        memory_db.create_index("orders", name, [name.removeprefix("by_")])
    with memory_db.begin() as tx:
        table = tx.table("orders")
        for cells in ({b"d:buyer": b"eve", b"d:total": b"x"}, {b"d:buyer": b"x" * 40_000}):
            with pytest.raises(Misuse, match="cannot contain row"):
                table.put(b"\x80\0\0\0\0\0\0\x01", cells)
        tx.table("orders", codec=dict).put({"id": 1, "note": "x"})
    assert found(memory_db, "alice") == [1, 3]
    check(memory_db)


@pytest.mark.parametrize("act", ["put", "increment", "delete", "arrow"])
def test_a_write_that_breaks_off_amid_its_cells_never_commits(
    memory_db: Database, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    import pyarrow

    made(memory_db)
    memory_db.create_index("orders", "by_both", ["buyer", "total"])
    tx = memory_db.begin()
    table = tx.table("orders", codec=dict)
    real, left = tx._core.writes.buffer, [1]

    def interrupted(*what: Any, **how: Any) -> bool:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(*what, **how)

    monkeypatch.setattr(tx._core.writes, "buffer", interrupted)
    data = pyarrow.table({"id": [7, 8], "buyer": ["eve", "eve"], "total": [1, 2]})
    acts: dict[str, Callable[[], object]] = {
        "put": lambda: table.put({"id": 1, "buyer": "eve"}),
        "increment": lambda: table.increment(1, "total"),
        "delete": lambda: table.delete_rows([1, 2]),
        "arrow": lambda: tx.table("orders").write_arrow(data),
    }
    with pytest.raises(KeyboardInterrupt):
        acts[act]()
    with pytest.raises(TransactionEnded):
        tx.commit()
    tx.rollback()
    check(memory_db)


@pytest.mark.parametrize("rows_at_once", [1, 100])
def test_refused_arrow_rows_leave_no_part_to_commit(
    memory_db: Database, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    import pyarrow

    made(memory_db)
    memory_db.create_index("orders", "by_buyer", ["buyer"])
    monkeypatch.setattr(tables, "INDEXED_ROWS_AT_ONCE", rows_at_once)
    tx = memory_db.begin()
    with pytest.raises(Misuse, match="cannot contain row"):
        tx.table("orders").write_arrow(pyarrow.table({"id": [7, 8], "buyer": ["ok", "x" * 40_000]}))
    if tx._core.can_write:
        tx.commit()
    else:
        tx.rollback()
    assert found(memory_db, "ok") == []
    check(memory_db)


def test_a_drop_ends_no_index_that_was_made_meanwhile(memory_db: Database, memory_url: str) -> None:
    made(memory_db)
    memory_db.create_index("orders", "by_buyer", ["buyer"])
    with pyomid.connect(memory_url) as other:

        def anew() -> None:
            other.drop_index("orders", "by_buyer")
            other.create_index("orders", "by_buyer", ["buyer"])

        with meanwhile("client.columns.changing", anew):
            memory_db.drop_index("orders", "by_buyer")
    assert found(memory_db, "alice") == [1, 3]
    check(memory_db)


@pytest.mark.parametrize(
    "point",
    [
        "client.columns.changing",
        "client.columns.fenced",
        "client.index.dropping",
        "client.drop.decided",
        "client.drop.fenced",
        "client.drop.emptied",
        "client.index.emptied",
    ],
)
def test_half_a_drop_hinders_no_writer_and_is_finished(memory_db: Database, point: str) -> None:
    made(memory_db)
    memory_db.create_index("orders", "by_buyer", ["buyer"])

    with dying_at(point):
        memory_db.drop_index("orders", "by_buyer")
    put(memory_db, {"id": 1, "buyer": "eve"})
    memory_db.drop_index("orders", "by_buyer")
    names = [entry.info.name for entry in memory_db._core.deployment.catalog.entries()]
    assert not [name for name in names if name.startswith("PYOMID_INDEX_")]
    memory_db.create_index("orders", "by_buyer", ["buyer"])
    assert found(memory_db, "eve") == [1]
    check(memory_db)


@pytest.mark.parametrize("moment", ["lookup", "scan"])
def test_a_reader_beside_a_drop_begins_anew(memory_db: Database, moment: str) -> None:
    made(memory_db)
    memory_db.create_index("orders", "by_buyer", ["buyer"])
    tries: list[int] = []

    def again() -> None:
        memory_db.drop_index("orders", "by_buyer")
        memory_db.create_index("orders", "by_buyer", ["buyer"])

    def read(tx: Transaction) -> list[int]:
        tries.append(tx.start_ts)
        table = tx.table("orders", codec=dict)
        if len(tries) == 1 and moment == "lookup":
            again()
        rows = table.lookup("by_buyer", "alice")
        if len(tries) == 1 and moment == "scan":
            again()
        return [row["id"] for row in rows]

    assert memory_db.run(read) == [1, 3]
    assert len(tries) == 2


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "delete", "absent", "one", "rollback", "commit", "build", "drop"]),
        st.integers(0, 3),
        st.sampled_from(["a", "b", None]),
        st.sampled_from([1, 2, None]),
        st.booleans(),
    ),
    max_size=20,
)


@settings(max_examples=40, deadline=None)
@given(_STEPS)
def test_an_index_has_its_rows_after_any_history(steps: list[tuple[str, int, str | None, int | None, bool]]) -> None:
    """Two transactions at a time, which write, meet, and end in any order; the index is built and dropped amid."""
    with pyomid.connect(f"omid-memory:indexes-{next(_numbers)}") as db:
        made(db)
        db.create_index("orders", "by_both", ["buyer", "total"])
        open_now: dict[bool, Transaction] = {}
        for kind, key, buyer, total, which in steps:
            if kind == "drop":
                if db.table_info("orders").indexes:
                    db.drop_index("orders", "by_both")
                continue
            if kind == "build":
                db.create_index("orders", "by_both", ["buyer", "total"])
                continue
            tx = open_now.get(which) or open_now.setdefault(which, db.begin())
            if kind in ("commit", "rollback"):
                _end(open_now.pop(which), commits=kind == "commit")
                continue
            try:
                _change(tx, kind, {"id": key, "buyer": buyer, "total": total})
            except ConflictError:  # the index was dropped
                open_now.pop(which).rollback()
        for tx in open_now.values():
            _end(tx, commits=True)
        check(db)


def _change(tx: Transaction, kind: str, row: dict[str, Any]) -> None:
    table = tx.table("orders", codec=dict)
    if kind == "put":
        table.put(row)
    elif kind == "one":
        table.put({name: value for name, value in row.items() if name != ("buyer" if row["total"] else "total")})
    elif kind == "delete":
        table.delete(row["id"])
    else:
        table.put_if_absent(row)


def _end(tx: Transaction, *, commits: bool) -> None:
    try:
        tx.commit() if commits else tx.rollback()
    except ConflictError:
        return


@pytest.mark.parametrize("scan", [1, 2], ids=["of the table", "of the index"])
def test_verify_beside_a_drop_looks_at_what_is_left(
    orders: Database, url: str, monkeypatch: pytest.MonkeyPatch, scan: int
) -> None:
    """Before this look's first or second scan another client drops the index that it is of."""
    orders.create_index("orders", "by_buyer", ["buyer"])
    orders.create_index("orders", "by_total", ["total"])
    scans = itertools.count(1)
    whole = tables.RowScan

    def scanned(*arguments: Any) -> Any:
        if next(scans) == scan:
            with pyomid.connect(url) as other:
                other.drop_index("orders", "by_buyer")
        return whole(*arguments)

    monkeypatch.setattr(tables, "RowScan", scanned)
    assert orders.verify("orders").ok
    assert next(scans) > scan + 2, "the other index was looked at"
