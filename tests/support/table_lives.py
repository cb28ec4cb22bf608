"""Every way to read a table, broken off in its middle by another client that changes the table (R10, X1).

A way is a generator: it opens what it reads by, yields once, reads on, and returns the numbers of the rows that it saw.
Its table has `ROWS` rows with the same number in two columns. While the way stands still, `CHANGES` are made. Then it
returns all rows, or, where the table of its snapshot is gone, raises `SnapshotTooOld`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

import pyomid.aio
from pyomid.database import change_feed, table_admin
from pyomid.database.database import Database
from pyomid.database.issued import drawn_start
from pyomid.database.tables import arrow
from pyomid.database.tables.arrow import ArrowScan
from pyomid.errors import OmidError, SnapshotTooOld
from pyomid.types import TableEntry, TableInfo, TableState

ROWS: Final = 40
BATCH: Final = 10
"""Rows that every reader fetches at once (`small_batches`)."""
OPTIONS: Final[dict[str, Any]] = {"scan_batch_rows": BATCH}

Seen = Generator[None, None, Sequence[int]]
Way = Callable[[Database, str], Seen]
WAYS: Final[dict[str, Way]] = {}
"""Those of clients; `spark_lives` has those of Spark's tasks."""
ALL: Final = list(range(ROWS))


def _way(read: Way) -> Way:
    WAYS[read.__name__] = read
    return read


@contextmanager
def small_batches() -> Iterator[None]:
    sizes = ((arrow, "ROWS_AT_ONCE"), (change_feed, "ROWS_AT_ONCE"), (change_feed, "INSERTS_AT_ONCE"))
    with patch.multiple(change_feed, INSERTS_LEAST=2), ExitStack() as patches:
        for module, name in sizes:
            patches.enter_context(patch.object(module, name, BATCH))
        yield


def make(db: Database, table: str, value: Callable[[int], int] = lambda number: number) -> None:
    db.create_table(table, ["f"])
    db.set_schema(table, {"id": int, "v": int, "kind": int, "gone": int}, row_key="id")
    with db.begin() as tx:
        rows = tx.table(table, codec=dict)
        for number in range(ROWS):
            rows.put(row_of(number, value(number)))


def row_of(number: int, value: int) -> dict[str, int]:
    return {"id": number, "v": value, "kind": 1, "gone": 1}


# ---------------------------------------------------------------- what others do meanwhile


@dataclass(frozen=True)
class Change:
    name: str
    make: Callable[[Database, str], object]
    ends_life: bool


def _drop_and_create(db: Database, table: str) -> None:
    db.drop_table(table)
    db.create_table(table, ["f"])


def _drop_and_fill(db: Database, table: str) -> None:
    db.drop_table(table)
    make(db, table, lambda number: -1)


def _half_dropped(db: Database, table: str) -> None:
    """Its client died after the first step."""
    catalog = db._core.deployment.catalog
    found = catalog.entry(table)
    assert found is not None
    assert catalog.change_entry(found, table_admin._put(found.info, TableState.DROPPING))


def _half_made_again(db: Database, table: str) -> None:
    """Whoever makes it anew died before it was a table."""
    db.drop_table(table)
    parts = db._core.deployment
    info = TableInfo(table, (b"f",), generation=drawn_start(parts))
    creating = TableEntry(info, TableState.CREATING, "half")
    assert parts.catalog.change_entry(None, creating)
    table_admin._make_physical(parts, creating, ())


def _dropped_twice(db: Database, table: str) -> None:
    _drop_and_fill(db, table)
    _drop_and_create(db, table)


def _another_table(db: Database, table: str) -> None:
    for _ in range(2):
        make(db, f"{table}_other")
        db.drop_table(f"{table}_other")


CHANGES: Final = {
    each.name: each
    for each in (
        Change("drop", lambda db, table: db.drop_table(table), ends_life=True),
        Change("drop and create", _drop_and_create, ends_life=True),
        Change("drop, create and fill", _drop_and_fill, ends_life=True),
        Change("half a drop", _half_dropped, ends_life=True),
        Change("drop and half a creation", _half_made_again, ends_life=True),
        Change("drop and create twice", _dropped_twice, ends_life=True),
        Change("rename", lambda db, table: db.alter_columns(table, rename={"v": "w"}), ends_life=False),
        Change(
            "rename, and its name to another",
            lambda db, table: db.alter_columns(table, rename={"v": "w", "gone": "v"}),
            ends_life=False,
        ),
        Change("drop a column", lambda db, table: db.alter_columns(table, drop=["gone"]), ends_life=False),
        Change("level", lambda db, table: db.alter_table(table, conflict_level="row"), ends_life=False),
        Change("another table", _another_table, ends_life=False),
    )
}
FEW: Final = ("drop", "drop and create", "rename")
"""Where a store is slow."""


# ---------------------------------------------------------------- rows as programs see them


def numbers_of(rows: Any) -> list[int]:
    """Of typed rows, whose values must be those of the first life."""
    found = [(row["id"], row["v"]) for row in rows]
    assert all(number == value for number, value in found), found
    return [number for number, _ in found]


def of_arrow(batches: Any) -> list[int]:
    return [number for batch in batches for number in numbers_of(batch.select(["id", "v"]).to_pylist())]


def _keys(db: Database, table: str) -> list[bytes]:
    with db.snapshot() as tx:
        return [key for key, _ in tx.table(table).scan()]


@contextmanager
def _ended(tx: Any) -> Iterator[Any]:
    """The transaction is rolled back, whatever it came to."""
    try:
        yield tx
    finally:
        with suppress(OmidError):
            tx.rollback()


# ---------------------------------------------------------------- gets


@_way
def get(db: Database, table: str) -> Seen:
    keys = _keys(db, table)
    with _ended(db.begin()) as tx:
        rows = tx.table(table)
        found = [rows.get(key) for key in keys[:BATCH]]
        yield
        found += [rows.get(key) for key in keys[BATCH:]]
        return [number for number, row in enumerate(found) if row]


@_way
def get_opened_before(db: Database, table: str) -> Seen:
    """Nothing was read before the change."""
    keys = _keys(db, table)
    with _ended(db.begin()) as tx:
        rows = tx.table(table)
        yield
        return [number for number, key in enumerate(keys) if rows.get(key)]


@_way
def get_columns(db: Database, table: str) -> Seen:
    keys = _keys(db, table)
    with _ended(db.snapshot()) as tx:
        rows = tx.table(table)
        yield
        return [number for number, key in enumerate(keys) if rows.get(key, [b"f:v"])]


@_way
def typed_get(db: Database, table: str) -> Seen:
    with _ended(db.begin()) as tx:
        rows = tx.table(table, codec=dict)
        found = [rows.get(number) for number in ALL[:BATCH]]
        yield
        found += [rows.get(number) for number in ALL[BATCH:]]
        return numbers_of(row for row in found if row is not None)


@_way
def many_rows(db: Database, table: str) -> Seen:
    keys = _keys(db, table)
    with _ended(db.begin()) as tx:
        rows = tx.table(table)
        found = rows.rows(keys[:BATCH])
        yield
        found |= rows.rows(keys[BATCH:])
        return [number for number, key in enumerate(keys) if found[key]]


@_way
def typed_rows(db: Database, table: str) -> Seen:
    with _ended(db.begin()) as tx:
        rows = tx.table(table, codec=dict)
        yield
        return numbers_of(row for row in rows.rows(ALL).values() if row is not None)


# ---------------------------------------------------------------- scans


def _scanned(rows: Iterator[tuple[bytes, Any]]) -> Seen:
    found = 0
    for found, _ in enumerate(rows, start=1):
        if found == BATCH // 2:
            yield
    return ALL[:found]


def _scanned_typed(rows: Iterator[Any]) -> Seen:
    found: list[int] = []
    for row in rows:
        found += numbers_of([row])
        if len(found) == BATCH // 2:
            yield
    return found


@_way
def scan(db: Database, table: str) -> Seen:
    with _ended(db.begin()) as tx:
        return (yield from _scanned(tx.table(table).scan()))


@_way
def scan_opened_before(db: Database, table: str) -> Seen:
    with _ended(db.begin()) as tx:
        rows = tx.table(table).scan()
        yield
        return ALL[: len(list(rows))]


@_way
def scan_of_columns(db: Database, table: str) -> Seen:
    with _ended(db.begin()) as tx:
        return (yield from _scanned(tx.table(table).scan(columns=[b"f:v"], limit=ROWS)))


@_way
def scan_backwards(db: Database, table: str) -> Seen:
    with _ended(db.begin()) as tx:
        return (yield from _scanned(tx.table(table).scan(reverse=True)))


@_way
def scan_under_a_lease(db: Database, table: str) -> Seen:
    with _ended(db.begin(lease=True)) as tx:
        return (yield from _scanned(tx.table(table).scan()))


@_way
def scan_of_the_past(db: Database, table: str) -> Seen:
    with db.begin() as tx:
        at = tx.start_ts
    with _ended(db.snapshot(at=at)) as tx:
        return (yield from _scanned(tx.table(table).scan()))


@_way
def typed_scan(db: Database, table: str) -> Seen:
    with _ended(db.begin()) as tx:
        return (yield from _scanned_typed(tx.table(table, codec=dict).scan()))


@_way
def pages(db: Database, table: str) -> Seen:
    with _ended(db.begin()) as tx:
        rows = tx.table(table, codec=dict)
        page = rows.page(limit=BATCH)
        found = numbers_of(page.rows)
        yield
        while page.next is not None:
            page = rows.page(limit=BATCH, after=page.next)
            found += numbers_of(page.rows)
        return found


@_way
def lookup(db: Database, table: str) -> Seen:
    """By an index, whose table is dropped with the table."""
    if not db.table_info(table).indexes:
        db.create_index(table, "by_kind", ["kind"])
    with _ended(db.begin()) as tx:
        return (yield from _scanned_typed(tx.table(table, codec=dict).lookup("by_kind", 1)))


# ---------------------------------------------------------------- within transactions that write


@_way
def scan_over_own_writes(db: Database, table: str) -> Seen:
    """Some are buffered, some sent."""
    with _ended(db.begin()) as tx:
        rows = tx.table(table, codec=dict)
        rows.put(row_of(ROWS + 1, 1))
        tx.flush()
        rows.put(row_of(ROWS + 2, 1))
        return (yield from _scanned((b"", row) for row in rows.scan() if row["id"] < ROWS))


@_way
def get_beside_own_writes(db: Database, table: str) -> Seen:
    with _ended(db.begin()) as tx:
        rows = tx.table(table, codec=dict)
        rows.put(row_of(ROWS + 1, 1))
        yield
        return numbers_of(row for number in ALL if (row := rows.get(number)) is not None)


@_way
def claimed_rows(db: Database, table: str) -> Seen:
    keys = _keys(db, table)
    with _ended(db.begin()) as tx:
        rows = tx.table(table)
        yield
        found = rows.rows(keys, for_update=True)
        return [number for number, key in enumerate(keys) if found[key]]


@_way
def reads_of_writes(db: Database, table: str) -> Seen:
    """What a put, an increment or a delete looks at before it writes."""
    keys = _keys(db, table)
    with _ended(db.begin()) as tx:
        rows = tx.table(table)
        yield
        absent = [rows.put_if_absent(key, {b"f:v": b"x"}) for key in keys]
        return [number for number, wrote in enumerate(absent) if not wrote]


# ---------------------------------------------------------------- Arrow


@_way
def to_arrow(db: Database, table: str) -> Seen:
    with _ended(db.begin()) as tx:
        batches = iter(tx.table(table).to_arrow())
        found = of_arrow([next(batches)])
        yield
        return found + of_arrow(batches)


@_way
def to_arrow_untyped(db: Database, table: str) -> Seen:
    with _ended(db.snapshot(lease=True)) as tx:
        batches = iter(tx.table(table).to_arrow(columns=[b"f:v"]))
        found = next(batches).num_rows
        yield
        return ALL[: found + sum(batch.num_rows for batch in batches)]


@_way
def export(db: Database, table: str) -> Seen:
    reached, goes_on = threading.Event(), threading.Event()
    batches = ArrowScan.batches

    def held(scan: ArrowScan, run: Any) -> Any:
        for batch in batches(scan, run):
            yield batch
            if threading.current_thread().name.startswith("exports") and not reached.is_set():
                reached.set()
                assert goes_on.wait(60)

    with TemporaryDirectory() as folder, ThreadPoolExecutor(1, "exports") as pool:
        with patch.object(ArrowScan, "batches", held):
            exported = pool.submit(db.export_parquet, folder, [table])
            assert reached.wait(60)
            yield
            goes_on.set()
            count = exported.result()[table]
    return ALL[:count]


# ---------------------------------------------------------------- the change feed


@_way
def changes(db: Database, table: str) -> Seen:
    since = db.table_info(table).generation
    found: list[int] = []
    for change in db.changes(table, since):
        found.append(len(found))
        assert change.kind == "insert"
        if len(found) == BATCH // 2:
            yield
    return found


@_way
def watch(db: Database, table: str) -> Seen:
    since = db.table_info(table).generation
    found: list[int] = []
    with db.watch(table, after=since, max_wait_seconds=0.01, poll_seconds=0.01) as changed:
        for _ in changed:
            found.append(len(found))
            if len(found) == BATCH // 2:
                yield
    return found


@_way
def watch_at_rest(db: Database, table: str) -> Seen:
    """All was told before; the next look tells that the table is gone."""
    since = db.table_info(table).generation
    with db.watch(table, after=since, max_wait_seconds=0.01, poll_seconds=0.01) as changed:
        found = len(list(changed))
        yield
        return ALL[: found + len(list(changed))]


# ---------------------------------------------------------------- asyncio


@contextmanager
def _async_database(db: Database) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
    loop = asyncio.new_event_loop()
    try:
        other = loop.run_until_complete(pyomid.aio.connect(db.url, **OPTIONS))
        try:
            yield other, loop.run_until_complete
        finally:
            loop.run_until_complete(other.close())
    finally:
        loop.close()


@_way
def asyncio_get(db: Database, table: str) -> Seen:
    keys = _keys(db, table)
    with _async_database(db) as (other, run):
        tx = run(other.begin())
        rows = run(tx.table(table))
        found = [run(rows.get(key)) for key in keys[:BATCH]]
        yield
        found += [run(rows.get(key)) for key in keys[BATCH:]]
        run(tx.rollback())
        return [number for number, row in enumerate(found) if row]


async def _some(rows: Any, most: int) -> int:
    count = 0
    async for _ in rows:
        count += 1
        if count == most:
            break
    return count


@_way
def asyncio_scan(db: Database, table: str) -> Seen:
    with _async_database(db) as (other, run):
        tx = run(other.begin())
        rows = aiter(run(tx.table(table)).scan())
        found = run(_some(rows, BATCH // 2))
        yield
        found += run(_some(rows, -1))
        run(tx.rollback())
        return ALL[:found]


@_way
def asyncio_changes(db: Database, table: str) -> Seen:
    since = db.table_info(table).generation
    with _async_database(db) as (other, run):
        rows = aiter(other.changes(table, since))
        found = run(_some(rows, BATCH // 2))
        yield
        found += run(_some(rows, -1))
        return ALL[:found]


# ---------------------------------------------------------------- the whole of it


def begun(db: Database, table: str, way: Way) -> Seen:
    """The way, up to its middle."""
    reading = way(db, table)
    next(reading)
    return reading


def outcome(reading: Seen) -> str:
    """Of the way from its middle on, in words."""
    try:
        next(reading)
    except StopIteration as end:
        return "all rows" if sorted(end.value) == ALL else f"{len(end.value)} of {ROWS} rows, without an error"
    except SnapshotTooOld:
        return "SnapshotTooOld"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("a way yields once")


def expected(change: Change) -> str:
    return "SnapshotTooOld" if change.ends_life else "all rows"
