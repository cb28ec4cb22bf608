"""Conformance suites for stores. The test class of a store inherits a suite and defines its fixtures.

    class TestMyStore(DataStoreConformance):
        @pytest.fixture
        def store(self): ...                # a DataStore
        @pytest.fixture
        def table(self, store): ...         # the name of an empty table in it, with FAMILIES

The other suites need one new, empty port each: `CommitTableConformance` a fixture `commits`, `LeaderStateConformance` a
fixture `leader_state`, `CatalogConformance` a fixture `catalog`. `another` returns a second handle on the same content,
as another process would have; by default the same one.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, Final

import numpy as np

from pyomid.cells import CellBatch, batch_of
from pyomid.errors import Deposed, Misuse, OmidError, UnknownTable
from pyomid.omid.memory import MemoryLeaderState, MemoryStore
from pyomid.omid.oracle.instructions import Flush, Flushed
from pyomid.omid.ports import CommitTable, LeaderState
from pyomid.omid.tso.store_calls import Flushes
from pyomid.ports import Catalog, DataStore
from pyomid.protocol.visibility import visible_point
from pyomid.types import (
    NOT_FOUND,
    SEALED,
    TABLES_UNCONFIRMED,
    TIMESTAMP_MAX,
    Cell,
    CellVersion,
    ChangeBounds,
    Column,
    ColumnSchema,
    ConflictLevel,
    IndexInfo,
    IndexState,
    KeyRange,
    LeaderRecord,
    LeaderStateChanges,
    PendingCommit,
    ReadBounds,
    RegionWatermark,
    RowKeyPart,
    RowWrite,
    SealOutcome,
    ShadowWrite,
    TableEntry,
    TableInfo,
    TableSchema,
    TableState,
    VersionedRows,
    prefix_range,
)

FAMILIES: Final = (b"f", b"g")
A, B, OTHER = Column(b"f", b"a"), Column(b"f", b"b"), Column(b"g", b"a")
FAMILY = Column(b"f", b"")

ORDERED_KEYS: Final = [
    b"\x00",
    b"\x00\x00",
    b"\x00\xff",
    b"\x01",
    b"a",
    b"a\x00",
    b"a\x00\x00",
    b"a\x00\x01",
    b"a\x00\xff",
    b"a\x01",
    b"ab",
    b"a\xff",
    b"a\xff\xff",
    b"b",
    b"\xff",
    b"\xff\x00",
    b"\xff\xff",
    b"\xff\xff\xff",
]
"""Ascending keys, with every pair that a careless encoding would confuse."""
assert sorted(ORDERED_KEYS) == ORDERED_KEYS


@contextmanager
def refused(kind: type[OmidError]) -> Iterator[None]:
    """Require that the block raises this branch of the error tree."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def column_write(row: bytes, *cells: tuple[Column, bytes | None]) -> RowWrite:
    return RowWrite(row, cells)


def version_of(row: bytes, column: Column, version: int) -> CellVersion:
    return CellVersion(row, column.family, column.qualifier, version)


def cell_set(cells: Sequence[Cell]) -> set[Cell]:
    """Return the cells as a set, after checking that none occurs twice."""
    found = set(cells)
    assert len(found) == len(cells), f"duplicate cells: {cells}"
    return found


def scanned(store: DataStore, table: str, key_range: KeyRange = KeyRange(), **options: Any) -> list[tuple[bytes, Any]]:  # noqa: B008
    """Return (row, set of cells) pairs in the order of the scan."""
    return [
        (batch.row_key(index), cell_set(list(batch.row_cells(index))))
        for batch in store.scan(table, key_range, **options)
        for index in range(batch.rows)
    ]


def in_forked_child(work: Callable[[], object]) -> str:
    """Return the name of the error that `work` raises in a forked child; empty if none."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        name = ""
        try:
            work()
        except BaseException as error:
            name = type(error).__name__
        os.write(writer, name.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        name = answer.read().decode()
    os.waitpid(child, 0)
    return name


def run_together(*works: Callable[[], object]) -> None:
    """Run these in threads that start together; raise the first error of any."""
    errors: list[BaseException] = []
    gate = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        try:
            gate.wait()
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class DataStoreConformance:
    """Suite for a `DataStore`. Fixtures: `store`, `table`."""

    ROWS_MANY: ClassVar[int] = 3000
    """Rows enough for several transactions and batches."""
    CHECKS_FORK: ClassVar[bool] = True

    def another(self, store: DataStore) -> DataStore:
        return store

    # Writing and reading

    def test_written_cells_are_found_without_shadow_cells(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 100, [column_write(b"r", (A, b"1"), (OTHER, b"2")), column_write(b"s", (B, b"3"))])
        first, second = self.another(store).read_rows(table, [b"r", b"s"])
        assert cell_set(first) == {Cell(b"r", *A, 100, b"1"), Cell(b"r", *OTHER, 100, b"2")}
        assert second == [Cell(b"s", *B, 100, b"3")]

    def test_versions_lie_side_by_side(self, store: DataStore, table: str) -> None:
        # HBase treats the very last timestamp as "now".
        for version in (100, 50, TIMESTAMP_MAX - 1, 101):
            store.write_cells(table, version, [column_write(b"r", (A, b"%d" % version))])
        (cells,) = store.read_rows(table, [b"r"])
        assert cell_set(cells) == {Cell(b"r", *A, v, b"%d" % v) for v in (50, 100, 101, TIMESTAMP_MAX - 1)}

    def test_same_version_replaces_the_cell_and_leaves_the_others(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 100, [column_write(b"r", (A, b"old"), (B, b"stays"))])
        store.write_cells(table, 100, [column_write(b"r", (A, b"new"), (OTHER, b"added"))])
        (cells,) = store.read_rows(table, [b"r"])
        assert cell_set(cells) == {
            Cell(b"r", *A, 100, b"new"),
            Cell(b"r", *B, 100, b"stays"),
            Cell(b"r", *OTHER, 100, b"added"),
        }

    def test_of_shared_writes_each_has_its_own_outcome(self, store: DataStore, table: str) -> None:
        bad = [column_write(b"r", (A, b"1")), column_write(b"s", (Column(b"no such family", b"q"), b"1"))]
        outcomes = store.write_shared(table, [
            VersionedRows(100, [column_write(b"r", (A, b"1")), column_write(b"s", (B, b"2"))]),
            VersionedRows(150, bad),
            VersionedRows(200, [column_write(b"r", (A, b"3"))]),
            VersionedRows(-50, [column_write(b"r", (A, b"4"))]),
            VersionedRows(250, []),
        ])  # fmt: skip
        assert [type(outcome) for outcome in outcomes] == [type(None), Misuse, type(None), Misuse, type(None)]
        first, second = self.another(store).read_rows(table, [b"r", b"s"])
        assert cell_set(first) == {Cell(b"r", *A, 100, b"1"), Cell(b"r", *A, 200, b"3")}
        assert second == [Cell(b"s", *B, 100, b"2")]

    def test_tombstones_of_columns_and_families_are_cells(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 100, [column_write(b"r", (A, None), (FAMILY, None), (B, b"v"))])
        (cells,) = store.read_rows(table, [b"r"])
        expected = {Cell(b"r", *A, 100, None), Cell(b"r", *FAMILY, 100, None), Cell(b"r", *B, 100, b"v")}
        assert cell_set(cells) == expected
        assert scanned(store, table) == [(b"r", expected)]

    def test_rows_come_in_the_order_asked_missing_ones_empty(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 50, [column_write(b"a", (A, b"1")), column_write(b"b", (A, b"2"))])
        found = store.read_rows(table, [b"b", b"nothing", b"a", b"b"])
        assert [[cell.row for cell in cells] for cells in found] == [[b"b"], [], [b"a"], [b"b"]]
        assert store.read_rows(table, []) == []

    def test_row_is_read_and_deleted_without_its_neighbours(self, store: DataStore, table: str) -> None:
        for version in (100, 50):
            store.write_cells(table, version, [column_write(key, (A, b"v")) for key in ORDERED_KEYS])
        for key, cells in zip(ORDERED_KEYS, store.read_rows(table, ORDERED_KEYS), strict=True):
            assert cell_set(cells) == {Cell(key, *A, version, b"v") for version in (50, 100)}
        for gone, key in enumerate(ORDERED_KEYS, 1):
            store.delete_versions(table, [version_of(key, A, version) for version in (50, 100)])
            assert [row for row, _ in scanned(store, table)] == ORDERED_KEYS[gone:]

    def test_any_bytes_are_row_qualifier_and_value(self, store: DataStore, table: str) -> None:
        every = bytes(range(256))
        column = Column(b"f", every[:100])
        store.write_cells(table, 50, [column_write(every[:200], (column, every), (A, b"\x00"))])
        (cells,) = store.read_rows(table, [every[:200]])
        expected = {Cell(every[:200], *column, 50, every), Cell(every[:200], *A, 50, b"\x00")}
        assert cell_set(cells) == expected
        assert scanned(store, table) == [(every[:200], expected)]

    def test_columns_choose_cells_and_bring_family_tombstones(self, store: DataStore, table: str) -> None:
        cells = [(A, b"a"), (B, b"b"), (OTHER, b"o"), (FAMILY, None)]
        store.write_cells(table, 50, [column_write(b"r", *cells)])
        store.write_cells(table, 50, [column_write(b"s", (OTHER, b"o"))])
        for wanted, expected in [
            ([A], {A, FAMILY}),
            ([OTHER], {OTHER}),
            ([A, OTHER], {A, FAMILY, OTHER}),
            ([FAMILY], {A, B, FAMILY}),
            ([Column(b"f", b"unheard of")], {FAMILY}),
            (None, {A, B, OTHER, FAMILY}),
        ]:
            (found,) = store.read_rows(table, [b"r"], wanted)
            assert {Column(cell.family, cell.qualifier) for cell in found} == expected
            rows = dict(scanned(store, table, columns=wanted))
            assert {Column(cell.family, cell.qualifier) for cell in rows[b"r"]} == expected
            assert (b"s" in rows) == (OTHER in expected), "a row without wanted cells is omitted"

    def test_bounds_leave_out_nothing_that_their_reader_needs(self, store: DataStore, table: str) -> None:
        """Mixes committed, in-flight and rolled-back versions, and tombstones of cells and of families."""
        for version in range(50, 1050, 50):
            rng = random.Random(version)
            cells: list[tuple[Column, bytes | None]] = [(A, b"%d" % version), (OTHER, rng.choice([None, b"o"]))]
            cells += [(FAMILY, None)] if version in (300, 700) else [(B, b"b")] if version % 450 == 0 else []
            cells = cells if version % 100 == 0 else rng.sample(cells, rng.randint(1, len(cells)))
            store.write_cells(table, version, [column_write(key, *cells) for key in (b"r", b"s")])
            if version % 200:
                names = [CellVersion(key, *column, version) for key in (b"r", b"s") for column, _ in cells]
                store.write_shadow_cells(table, [ShadowWrite(name, version + 120) for name in names])
        for reader in (0, 51, 300, 450, 800, 1000, 2000):
            bounds = ReadBounds(below=max(reader, 1), committed_below=reader)
            for wanted in (None, [A], [OTHER, FAMILY]):
                whole = store.read_rows(table, [b"r", b"nothing", b"s"], wanted)
                found = store.read_rows(table, [b"r", b"nothing", b"s"], wanted, bounds=bounds)
                for cells_found, cells_whole in zip(found, whole, strict=True):
                    assert set(bounds.needed(cells_whole)) <= set(cells_found) <= set(cells_whole)
                    assert visible_point(cells_found, reader) == visible_point(cells_whole, reader)
                rows = dict(scanned(store, table, columns=wanted))
                for row, cells_scanned in scanned(store, table, columns=wanted, bounds=bounds):
                    assert set(bounds.needed(rows[row])) <= set(cells_scanned) <= set(rows.pop(row))
                assert all(not bounds.needed(cells) for cells in rows.values()), "a needed row was omitted"
        one = ReadBounds(at_least=400, below=401)
        assert Cell(b"r", *A, 400, b"400") in store.read_rows(table, [b"r"], [A], bounds=one)[0]

    def test_changed_rows_are_found_by_their_versions(self, store: DataStore, table: str) -> None:
        """Each row once and in order, however many versions it has; a row whose shadow cells are old enough is
        omitted."""
        for version in (100, 150, 200):
            store.write_cells(table, version, [column_write(b"%d" % n, (A, b"a"), (B, b"b")) for n in range(8)])
        store.write_cells(table, 300, [column_write(b"new", (A, b"a"))])
        names = [CellVersion(b"3", *column, version) for column in (A, B) for version in (100, 150, 200)]
        store.write_shadow_cells(table, [ShadowWrite(name, name.version + 20) for name in names])

        def found(at_least: int, below: int, committed_above: int) -> list[bytes]:
            bounds = ChangeBounds(at_least, below, committed_above)
            parts = store.changed_rows(table, KeyRange(b"2", b"nez"), bounds, batch_rows_max=3)
            return [row for part in parts for row in part]

        rows = [b"%d" % n for n in range(2, 8)]
        assert found(0, 1000, 0) == [*rows, b"new"]
        assert found(150, 1000, 210) == [*rows, b"new"]
        assert found(150, 1000, 220) == [*(row for row in rows if row != b"3"), b"new"]
        assert found(201, 1000, 0) == [b"new"]
        assert b"new" not in found(150, 300, 0)

    # Limits and bad input

    def test_what_breaks_a_rule_is_refused_before_anything_is_written(self, store: DataStore, table: str) -> None:
        limits, good = store.limits, column_write(b"good", (A, b"1"))
        for bad in (
            column_write(b"", (A, b"1")),
            column_write(b"r" * (limits.row_bytes_max + 1), (A, b"1")),
            column_write(b"r", (Column(b"no such family", b"q"), b"1")),
            column_write(b"r", (Column(b"f", b"q" * (limits.qualifier_bytes_max + 1)), b"1")),
            column_write(b"r", (A, b"v" * (limits.value_bytes_max + 1))),
            column_write(b"r", (A, b"")),
            column_write(b"r", (FAMILY, b"a family has no value")),
        ):
            with refused(Misuse):
                store.write_cells(table, 50, [good, bad])
            with refused(Misuse):
                store.write_batch(table, 50, written_batch(*sorted([good, bad])))
        for version in (0, -50, TIMESTAMP_MAX + 1):
            with refused(Misuse):
                store.write_cells(table, version, [good])
        assert scanned(store, table) == []

    def test_what_just_keeps_the_limits_is_written(self, store: DataStore, table: str) -> None:
        row = b"r" * store.limits.row_bytes_max
        value = b"v" * min(store.limits.value_bytes_max, 1 << 20)
        store.write_cells(table, 50, [column_write(row, (A, value))])
        assert store.read_rows(table, [row]) == [[Cell(row, *A, 50, value)]]

    def test_unknown_table_is_said_by_every_operation(self, store: DataStore, table: str) -> None:
        nobody = table + "-nobody"
        batch = written_batch(column_write(b"r", (A, b"1")))
        nothing = np.array([], dtype=np.int64)
        operations: list[Callable[[], object]] = [
            lambda: store.write_cells(nobody, 50, [column_write(b"r", (A, b"1"))]),
            lambda: store.write_batch(nobody, 50, batch),
            lambda: store.read_rows(nobody, [b"r"]),
            lambda: list(store.scan(nobody, KeyRange())),
            lambda: store.write_shadow_cells(nobody, [ShadowWrite(version_of(b"r", A, 50), 60)]),
            lambda: store.delete_versions(nobody, [version_of(b"r", A, 50)]),
            lambda: store.clean_batch(nobody, batch, nothing, np.array([0], dtype=np.int64)),
            lambda: store.regions(nobody),
            lambda: store.split_points(nobody, KeyRange(), 4),
            lambda: store.start_of_last_rows(nobody, KeyRange(), 4),
            lambda: store.flush_and_merge(nobody, KeyRange()),
        ]
        for operation in operations:
            with refused(UnknownTable):
                operation()

    # Scans

    def test_scan_is_in_the_order_of_row_bytes(self, store: DataStore, table: str) -> None:
        for version in (50, 100):
            rows = [column_write(key, (A, b"v")) for key in ORDERED_KEYS]
            random.Random(version).shuffle(rows)
            store.write_cells(table, version, rows)
        for batch_rows_max in (1, 2, 5, 1000):
            found = scanned(store, table, batch_rows_max=batch_rows_max)
            assert [row for row, _ in found] == ORDERED_KEYS
            assert all(len(cells) == 2 for _, cells in found), "a row must not be torn"

    def test_scan_range_includes_its_start_and_not_its_stop(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 50, [column_write(key, (A, b"v")) for key in ORDERED_KEYS])
        bounds = [b"", *ORDERED_KEYS, b"a\x00\x00\x00", b"c", b"\xff\xff\xff\xff"]
        for start in bounds:
            for stop in [*bounds, None]:
                expected = [key for key in ORDERED_KEYS if key in KeyRange(start, stop)]
                if len(expected) % 3 == 0 or stop is None:  # a third of them is enough
                    found = [row for row, _ in scanned(store, table, KeyRange(start, stop), batch_rows_max=7)]
                    assert found == expected, (start, stop)

    def test_prefix_scan_finds_exactly_the_prefix(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 50, [column_write(key, (A, b"v")) for key in ORDERED_KEYS])
        for prefix in (b"", b"a", b"a\x00", b"a\xff", b"\xff", b"\xff\xff", b"\x00", b"nothing"):
            found = [row for row, _ in scanned(store, table, prefix_range(prefix))]
            assert found == [key for key in ORDERED_KEYS if key.startswith(prefix)], prefix

    def test_scan_batches_hold_whole_rows_and_not_too_many(self, store: DataStore, table: str) -> None:
        for version in (50, 100, 150):
            store.write_cells(table, version, [column_write(b"%03d" % i, (A, b"a"), (B, b"b")) for i in range(40)])
        rows = []
        for batch in store.scan(table, KeyRange(), batch_rows_max=7):
            assert 0 < batch.rows <= 7
            assert all(len(list(batch.row_cells(index))) == 6 for index in range(batch.rows))
            rows += [batch.row_key(index) for index in range(batch.rows)]
        assert rows == [b"%03d" % i for i in range(40)]

    def test_each_batch_is_fetched_fresh(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 50, [column_write(b"%03d" % i, (A, b"old")) for i in range(20)])
        batches = store.scan(table, KeyRange(), batch_rows_max=5)
        first = next(batches)
        assert first.rows == 5
        self.another(store).write_cells(
            table, 100, [column_write(b"0195", (A, b"new")), column_write(b"019", (A, b"n"))]
        )
        later = {cell for batch in batches for cell in batch.all_cells()}
        assert Cell(b"0195", *A, 100, b"new") in later
        assert Cell(b"019", *A, 100, b"n") in later

    def test_scan_may_be_left_at_any_time(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 50, [column_write(b"%03d" % i, (A, b"v")) for i in range(50)])
        for _ in range(200):
            batches = store.scan(table, KeyRange(), batch_rows_max=10)
            next(batches)
            batches.close()  # type: ignore[attr-defined]
        store.write_cells(table, 100, [column_write(b"after", (A, b"v"))])
        assert len(scanned(store, table)) == 51

    def test_batch_owns_its_bytes(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 50, [column_write(b"%03d" % i, (A, b"value%03d" % i)) for i in range(50)])
        (batch,) = store.scan(table, KeyRange())
        for version in range(100, 150):
            store.write_cells(table, version, [column_write(b"%03d" % i, (A, b"other")) for i in range(50)])
        assert [cell.value for cell in batch.all_cells()] == [b"value%03d" % i for i in range(50)]

    # Bulk writes

    def test_batches_are_written_as_cells_are(self, store: DataStore, table: str) -> None:
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        rng = random.Random(seed)
        keys = sorted({rng.randbytes(rng.randint(1, 12)) for _ in range(self.ROWS_MANY)})
        writes = [
            column_write(
                key, *((c, rng.choice([None, b"\x00", b"v" * rng.randint(1, 300)])) for c in some_columns(rng))
            )
            for key in keys
        ]
        store.write_batch(table, 100, written_batch(*writes))
        expected = [(row, {Cell(row, *column, 100, value) for column, value in cells}) for row, cells in writes]
        assert scanned(store, table) == expected
        assert [cell_set(cells) for cells in store.read_rows(table, keys[:50])] == [cells for _, cells in expected[:50]]

    def test_batch_merges_into_what_the_version_wrote_before(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 100, [column_write(b"b", (A, b"old"), (B, b"stays"))])
        store.write_batch(table, 100, written_batch(*(column_write(key, (A, b"new")) for key in (b"a", b"b", b"c"))))
        assert scanned(store, table) == [
            (b"a", {Cell(b"a", *A, 100, b"new")}),
            (b"b", {Cell(b"b", *A, 100, b"new"), Cell(b"b", *B, 100, b"stays")}),
            (b"c", {Cell(b"c", *A, 100, b"new")}),
        ]

    def test_empty_writes_write_nothing(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 100, [])
        store.write_cells(table, 100, [column_write(b"r")])
        store.write_batch(table, 100, written_batch())
        store.write_shadow_cells(table, [])
        store.delete_versions(table, [])
        assert scanned(store, table) == []

    # Shadow cells, deletes, compaction

    def test_shadow_cell_is_found_beside_its_cell(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 100, [column_write(b"r", (A, b"1")), column_write(b"s", (A, b"2"))])
        store.write_cells(table, 150, [column_write(b"r", (A, b"3"))])
        for _ in range(2):  # idempotent
            store.write_shadow_cells(table, [ShadowWrite(version_of(b"r", A, 100), 120)])
        expected = {Cell(b"r", *A, 100, b"1", 120), Cell(b"r", *A, 150, b"3")}
        found, other = self.another(store).read_rows(table, [b"r", b"s"])
        assert cell_set(found) == expected
        assert other == [Cell(b"s", *A, 100, b"2")]
        assert dict(scanned(store, table))[b"r"] == expected

    def test_tombstones_have_shadow_cells_too(self, store: DataStore, table: str) -> None:
        """And keep them if they are written again, as attempts of an overwrite may."""
        store.write_cells(table, 100, [column_write(b"r", (A, None), (FAMILY, None))])
        store.write_shadow_cells(table, [ShadowWrite(version_of(b"r", c, 100), 120) for c in (A, FAMILY)])
        healed = {Cell(b"r", *A, 100, None, 120), Cell(b"r", *FAMILY, 100, None, 120)}
        assert cell_set(store.read_rows(table, [b"r"])[0]) == healed
        store.write_batch(table, 100, written_batch(column_write(b"r", (A, None))))
        store.write_cells(table, 100, [column_write(b"r", (FAMILY, None))])
        assert cell_set(self.another(store).read_rows(table, [b"r"])[0]) == healed

    def test_shadow_cell_never_stands_alone(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 100, [column_write(b"r", (A, b"1"))])
        shadows = [
            ShadowWrite(version_of(b"r", A, 150), 160),
            ShadowWrite(version_of(b"r", B, 100), 160),
            ShadowWrite(version_of(b"r", Column(b"g", b"new column"), 100), 160),
            ShadowWrite(version_of(b"nobody", A, 100), 160),
        ]
        store.write_shadow_cells(table, shadows)
        assert scanned(store, table) == [(b"r", {Cell(b"r", *A, 100, b"1")})]
        store.write_cells(table, 150, [column_write(b"r", (A, b"2")), column_write(b"nobody", (A, b"3"))])
        assert store.read_rows(table, [b"nobody"]) == [[Cell(b"nobody", *A, 100 + 50, b"3")]]
        assert cell_set(store.read_rows(table, [b"r"])[0]) == {Cell(b"r", *A, 100, b"1"), Cell(b"r", *A, 150, b"2")}

    def test_exact_versions_are_deleted_with_their_shadow_cells(self, store: DataStore, table: str) -> None:
        for version in (100, 101, 150):
            store.write_cells(table, version, [column_write(b"r", (A, b"a"), (B, b"b"))])
        store.write_shadow_cells(table, [ShadowWrite(version_of(b"r", c, 101), 120) for c in (A, B)])
        gone = [version_of(b"r", A, 101), version_of(b"r", B, 150), version_of(b"r", A, 50), version_of(b"x", A, 101)]
        for _ in range(2):  # idempotent
            store.delete_versions(table, gone)
        assert cell_set(self.another(store).read_rows(table, [b"r"])[0]) == {
            Cell(b"r", *A, 100, b"a"),
            Cell(b"r", *B, 100, b"b"),
            Cell(b"r", *B, 101, b"b", 120),
            Cell(b"r", *A, 150, b"a"),
        }

    def test_deleted_cell_written_again_has_no_shadow_cell(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 100, [column_write(b"r", (A, b"1"))])
        store.write_shadow_cells(table, [ShadowWrite(version_of(b"r", A, 100), 120)])
        store.delete_versions(table, [version_of(b"r", A, 100)])
        assert scanned(store, table) == []
        store.write_cells(table, 150, [column_write(b"r", (A, b"2"))])
        assert scanned(store, table) == [(b"r", {Cell(b"r", *A, 150, b"2")})]

    def test_cleaning_heals_and_drops(self, store: DataStore, table: str) -> None:
        for version in (50, 100, 150):
            store.write_cells(table, version, [column_write(row, (A, b"a"), (B, b"b")) for row in (b"r", b"s")])
        (batch,) = store.scan(table, KeyRange())
        heals, drops = cleaning_of(
            batch, heals={100: 120}, drops=[(b"r", 50, A), (b"r", 50, B), (b"r", 100, A), (b"s", 150, B)]
        )
        for _ in range(2):  # idempotent
            store.clean_batch(table, batch, heals, drops)
        rows = dict(scanned(self.another(store), table))
        assert rows[b"r"] == {
            Cell(b"r", *B, 100, b"b", 120),
            Cell(b"r", *A, 150, b"a"),
            Cell(b"r", *B, 150, b"b"),
        }
        assert rows[b"s"] == {
            Cell(b"s", *A, 50, b"a"),
            Cell(b"s", *B, 50, b"b"),
            Cell(b"s", *A, 100, b"a", 120),
            Cell(b"s", *B, 100, b"b", 120),
            Cell(b"s", *A, 150, b"a"),
        }

    def test_cleaning_leaves_what_was_written_since(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 50, [column_write(b"r", (A, b"old"))])
        store.write_cells(table, 100, [column_write(b"r", (A, b"a"))])
        (batch,) = store.scan(table, KeyRange())
        store.write_cells(table, 150, [column_write(b"r", (A, b"new"))])
        store.delete_versions(table, [version_of(b"r", A, 100)])
        heals, drops = cleaning_of(batch, heals={100: 120}, drops=[(b"r", 50, A)])
        store.clean_batch(table, batch, heals, drops)
        assert scanned(store, table) == [(b"r", {Cell(b"r", *A, 150, b"new")})]

    def test_cleaning_works_on_many_rows(self, store: DataStore, table: str) -> None:
        keys = [b"%06d" % i for i in range(self.ROWS_MANY)]
        for version in (50, 100):
            store.write_batch(table, version, written_batch(*(column_write(k, (A, b"a"), (B, b"b")) for k in keys)))
        batches = list(store.scan(table, KeyRange(), batch_rows_max=self.ROWS_MANY))
        for batch in batches:
            rows = [batch.row_key(index) for index in range(batch.rows)]
            old = [(row, 50, column) for row in rows[::2] for column in (A, B)]
            store.clean_batch(table, batch, *cleaning_of(batch, heals={100: 120}, drops=old))
        untouched = still_old(batches)
        for index, (row, cells) in enumerate(scanned(store, table)):
            assert row == keys[index]
            healed = {Cell(row, *column, 100, column.qualifier, 120) for column in (A, B)}
            kept = {Cell(row, *column, 50, column.qualifier) for column in (A, B)}
            assert cells == (healed | kept if row in untouched else healed)

    def test_cleaning_of_a_row_is_never_seen_by_half(self, store: DataStore, table: str) -> None:
        """K3: if a tombstone went before what it hid, deleted data would return."""
        stop = threading.Event()
        halves: list[list[Cell]] = []

        def clean() -> None:
            try:
                # The tombstone is written first and is dropped with what it hides: a version … 50 is never alone.
                # Each round uses new versions: none is written again after its deletion (law 10).
                for old in range(50, 3050, 100):
                    store.write_cells(table, old + 50, [column_write(b"r", (FAMILY, None))])
                    store.write_cells(table, old, [column_write(b"r", (A, b"hidden"), (B, b"hidden"))])
                    (batch,) = store.scan(table, KeyRange())
                    drops = [(b"r", old, A), (b"r", old, B), (b"r", old + 50, FAMILY)]
                    store.clean_batch(table, batch, *cleaning_of(batch, heals={}, drops=drops))
            finally:
                stop.set()

        def read() -> None:
            while not stop.is_set():
                (cells,) = store.read_rows(table, [b"r"])
                if {cell.version % 100 for cell in cells} == {50}:
                    halves.append(cells)

        run_together(clean, read)
        assert halves == []

    # Regions and tables

    def test_regions_tile_all_keys(self, store: DataStore, table: str) -> None:
        keys = [b"%06d" % i for i in range(self.ROWS_MANY)]
        store.write_batch(table, 50, written_batch(*(column_write(key, (A, b"v")) for key in keys)))
        regions = store.regions(table)
        assert regions[0].start == b""
        assert regions[-1].stop is None
        assert [region.stop for region in regions[:-1]] == [region.start for region in regions[1:]]
        assert all(region.start < (region.stop or b"\xff" * 99) for region in regions)
        assert [row for region in regions for row, _ in scanned(store, table, region)] == keys

    def test_split_points_lie_inside_their_range(self, store: DataStore, table: str) -> None:
        keys = [b"%06d" % i for i in range(self.ROWS_MANY)]
        store.write_batch(table, 50, written_batch(*(column_write(key, (A, b"v")) for key in keys)))
        for key_range in (KeyRange(), KeyRange(b"000100", b"000200"), KeyRange(b"x"), KeyRange(b"b", b"a")):
            for partitions in (1, 2, 5):
                points = store.split_points(table, key_range, partitions)
                assert len(points) < partitions
                assert points == sorted(set(points))
                assert all(point in key_range and point != key_range.start for point in points)

    def test_last_rows_of_a_range_begin_inside_it(self, store: DataStore, table: str) -> None:
        keys = [b"%02d\0" % number for number in range(50)]
        for version in (100, 200):
            store.write_cells(table, version, [RowWrite(key, ((A, b"v"),)) for key in keys])
        for key_range in (KeyRange(), KeyRange(keys[7], keys[30]), KeyRange(b"1", b"2"), KeyRange(b"7", b"8")):
            for rows in (1, 3, 60):
                inside = [key for key in keys if key in key_range]
                start = store.start_of_last_rows(table, key_range, rows)
                assert start == key_range.start or start in inside
                assert start == key_range.start or 1 <= sum(key >= start for key in inside) <= rows
                if len(inside) > rows:
                    assert start > key_range.start, "a descending scan must not read everything at once"

    def test_flush_and_merge_loses_nothing(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 50, [column_write(b"r", (A, b"1"))])
        store.write_cells(table, 100, [column_write(b"r", (A, b"2"))])
        store.flush_and_merge(table, store.regions(table)[0])
        assert scanned(store, table) == [(b"r", {Cell(b"r", *A, 50, b"1"), Cell(b"r", *A, 100, b"2")})]

    def test_creating_a_table_again_keeps_its_cells(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 50, [column_write(b"r", (A, b"1"))])
        store.create_table(TableInfo(table, FAMILIES))
        assert store.read_rows(table, [b"r"]) == [[Cell(b"r", *A, 50, b"1")]]

    def test_dropped_table_is_gone_and_comes_back_empty(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 50, [column_write(b"r", (A, b"1"))])
        for _ in range(2):  # idempotent
            store.drop_table(table)
        with refused(UnknownTable):
            store.read_rows(table, [b"r"])
        store.create_table(TableInfo(table, FAMILIES))
        assert scanned(store, table) == []
        store.write_cells(table, 100, [column_write(b"r", (B, b"2"))])
        assert scanned(self.another(store), table) == [(b"r", {Cell(b"r", *B, 100, b"2")})]

    def test_table_given_back_is_as_it_was(self, store: DataStore, table: str) -> None:
        store.write_cells(table, 50, [column_write(b"r", (A, b"1"))])
        assert store.withdraw_table(table) is not None
        store.give_back_table(table)
        store.give_back_table(table)
        store.write_cells(table, 100, [column_write(b"r", (A, b"2"))])
        assert len(store.read_rows(table, [b"r"])[0]) == 2

    def test_drop_takes_no_table_made_after_it_was_withdrawn(self, store: DataStore, table: str) -> None:
        """Otherwise a client that stalled in between would delete acknowledged rows of the next table of that name."""
        withdrawn = store.withdraw_table(table)
        another = self.another(store)
        assert another.drop_table(table, another.withdraw_table(table))
        assert store.withdraw_table(table) is None
        assert store.drop_table(table, withdrawn)
        another.create_table(TableInfo(table, FAMILIES))
        another.write_cells(table, 50, [column_write(b"r", (A, b"new"))])
        assert not store.drop_table(table, withdrawn)
        assert scanned(store, table) == [(b"r", {Cell(b"r", *A, 50, b"new")})]

    # Threads and processes

    def test_threads_write_together_and_nothing_is_lost(self, store: DataStore, table: str) -> None:
        def write(number: int) -> Callable[[], None]:
            def work() -> None:
                for i in range(20):
                    version = 50 * (1 + number * 20 + i)
                    cells = [
                        column_write(b"shared", (A, b"%d" % number)),
                        column_write(b"%d-%d" % (number, i), (B, b"b")),
                    ]
                    store.write_cells(table, version, cells)
                    store.write_shadow_cells(table, [ShadowWrite(version_of(b"shared", A, version), version + 1)])

            return work

        run_together(*(write(number) for number in range(4)))
        rows = dict(scanned(store, table))
        assert len(rows) == 81
        assert {(cell.version, cell.commit_ts) for cell in rows[b"shared"]} == {
            (50 * (1 + i), 50 * (1 + i) + 1) for i in range(80)
        }

    def test_child_of_fork_is_refused(self, store: DataStore, table: str) -> None:
        """C5."""
        if not self.CHECKS_FORK:
            return
        store.write_cells(table, 50, [column_write(b"r", (A, b"1"))])
        assert in_forked_child(lambda: store.read_rows(table, [b"r"])) == "Misuse"
        assert in_forked_child(lambda: store.write_cells(table, 50, [column_write(b"r", (A, b"2"))])) == "Misuse"
        assert in_forked_child(lambda: list(store.scan(table, KeyRange()))) == "Misuse"
        assert store.read_rows(table, [b"r"]) == [[Cell(b"r", *A, 50, b"1")]]

    # Everything at once

    def test_random_work_leaves_what_it_leaves_in_memory(self, store: DataStore, table: str) -> None:
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        mirror = MemoryStore()
        mirror.create_table(TableInfo(table, FAMILIES))
        work = RandomWork(random.Random(seed), table)
        for _ in range(150):
            work.step(store, mirror)
        assert scanned(store, table) == scanned(mirror, table), f"seed {seed}"
        keys = [*work.keys, b"nobody"]
        ours, theirs = store.read_rows(table, keys), mirror.read_rows(table, keys)
        assert [cell_set(cells) for cells in ours] == [cell_set(cells) for cells in theirs], f"seed {seed}"


class RandomWork:
    """Performs the same random operations on two stores. All cells of a row and version are healed together, as
    commits do."""

    def __init__(self, rng: random.Random, table: str) -> None:
        self._rng = rng
        self._table = table
        self.keys = sorted({rng.randbytes(rng.randint(1, 3)) for _ in range(12)})
        self._version = 0

    def step(self, *stores: DataStore) -> None:
        kind = self._rng.choice([self._write, self._write, self._write_batch, self._heal, self._delete, self._clean])
        kind(stores)

    def _write(self, stores: Sequence[DataStore]) -> None:
        version = self._some_version()
        rows = [self._some_write(key) for key in self._rng.sample(self.keys, self._rng.randint(1, 4))]
        for store in stores:
            store.write_cells(self._table, version, rows)

    def _write_batch(self, stores: Sequence[DataStore]) -> None:
        version = self._some_version()
        rows = [self._some_write(key) for key in sorted(self._rng.sample(self.keys, self._rng.randint(1, 8)))]
        for store in stores:
            store.write_batch(self._table, version, written_batch(*rows))

    def _heal(self, stores: Sequence[DataStore]) -> None:
        cells = self._some_row(stores[-1])
        if cells:
            version = self._rng.choice(cells).version
            shadows = [ShadowWrite(CellVersion(*cell[:4]), version + 7) for cell in cells if cell.version == version]
            for store in stores:
                store.write_shadow_cells(self._table, shadows)
            self._version += 50  # a healed version was committed: nothing new is written under it

    def _delete(self, stores: Sequence[DataStore]) -> None:
        cells = self._some_row(stores[-1])
        chosen = self._rng.sample(cells, self._rng.randint(0, len(cells)))
        for store in stores:
            store.delete_versions(self._table, [CellVersion(*cell[:4]) for cell in chosen])
        self._version += 50  # no version is written again after its deletion (law 10)

    def _clean(self, stores: Sequence[DataStore]) -> None:
        heals = [version for version in range(0, self._version + 50, 50) if self._rng.random() < 0.2]
        gone = {CellVersion(*cell[:4]) for cell in self._some_row(stores[-1]) if self._rng.random() < 0.5}
        for store in stores:
            for batch in store.scan(self._table, KeyRange(), batch_rows_max=5):
                drops = [(c.row, c.version, Column(c.family, c.qualifier)) for c in gone]
                ready = cleaning_of(batch, heals={version: version + 7 for version in heals}, drops=drops)
                store.clean_batch(self._table, batch, *ready)
        self._version += 50

    def _some_version(self) -> int:
        if self._rng.random() < 0.5:
            self._version += 50
        return self._version + 50

    def _some_write(self, key: bytes) -> RowWrite:
        return column_write(key, *((c, self._rng.choice([None, b"x", b"y" * 200])) for c in some_columns(self._rng)))

    def _some_row(self, store: DataStore) -> list[Cell]:
        (cells,) = store.read_rows(self._table, [self._rng.choice(self.keys)])
        return sorted(cells, key=lambda cell: cell[:4])


def some_columns(rng: random.Random) -> list[Column]:
    """Return at least one column; never the column of a family tombstone, which cannot hold a value."""
    return rng.sample([A, B, OTHER, Column(b"g", b"long" * 50)], rng.randint(1, 4))


def written_batch(*rows: RowWrite) -> CellBatch:
    """Return a batch for `write_batch`, with one record per row."""
    return batch_of([[Cell(row, *column, 1, value) for column, value in cells] for row, cells in rows])


def cleaning_of(
    batch: CellBatch, *, heals: dict[int, int], drops: Sequence[tuple[bytes, int, Column]]
) -> tuple[Any, Any]:
    """Return the index arrays for `clean_batch`: `heals` are versions with their commit timestamps, `drops` are cells
    to delete."""
    gone = set(drops)
    heal_records, drop_cells = [], []
    for row in range(batch.rows):
        key = batch.row_key(row)
        for record in range(int(batch.row_rec[row]), int(batch.row_rec[row + 1])):
            version = int(batch.rec_version[record])
            if version in heals:
                batch.rec_commit[record] = heals[version]
                heal_records.append(record)
            for cell in range(int(batch.rec_cell[record]), int(batch.rec_cell[record + 1])):
                if (key, version, batch.columns[int(batch.cell_col[cell])]) in gone:
                    drop_cells.append(cell)
    return np.array(heal_records, dtype=np.int64), np.array(drop_cells, dtype=np.int64)


def still_old(batches: Sequence[CellBatch]) -> set[bytes]:
    """Return the rows, every second of each batch, from which `test_cleaning_works_on_many_rows` dropped nothing."""
    return {batch.row_key(index) for batch in batches for index in range(1, batch.rows, 2)}


class CommitTableConformance:
    """Suite for a `CommitTable`. Fixture: `commits`, new and empty."""

    PUT_TELLS_REFUSALS: ClassVar[bool] = True
    """Whether `put` reports refused starts. False: `put` is unconditional, and a marker wins only at a lookup."""
    CHECKS_FORK: ClassVar[bool] = True
    MANY: ClassVar[int] = 5000

    def another(self, commits: CommitTable) -> CommitTable:
        return commits

    def leader_state_of(self, commits: CommitTable) -> LeaderState:
        """Return the leader state whose epoch a flush reads: the store's, if the table reads the epoch there."""
        return MemoryLeaderState()

    def test_lookup_answers_in_the_order_asked(self, commits: CommitTable) -> None:
        assert commits.put([(50, 110), (100, 150)]) == []
        commits.seal(200)
        assert self.another(commits).lookup([100, 200, 50, 250, 100]) == [150, SEALED, 110, NOT_FOUND, 150]
        assert commits.lookup([]) == []

    def test_entries_of_any_size_and_order_are_put(self, commits: CommitTable) -> None:
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        rng = random.Random(seed)
        starts = [50 * start for start in rng.sample(range(1, 10 * self.MANY), self.MANY)]
        starts += [TIMESTAMP_MAX - TIMESTAMP_MAX % 50 - 1000, (1 << 40) * 50]
        entries = {start: start + rng.randint(1, 99) for start in starts}
        for first in range(0, len(starts), 999):
            commits.put([(start, entries[start]) for start in starts[first : first + 999]])
        assert commits.lookup(starts) == [entries[start] for start in starts]
        assert list(commits.entries()) == sorted(entries.items()) or set(commits.entries()) == set(entries.items())
        assert commits.count() == len(entries)

    def test_putting_an_entry_again_changes_nothing(self, commits: CommitTable) -> None:
        for _ in range(2):
            assert commits.put([(50, 110)]) == []
        assert list(commits.entries()) == [(50, 110)]

    def test_mark_wins_over_an_entry_that_comes_later(self, commits: CommitTable) -> None:
        assert commits.seal(50) == SealOutcome(placed=True)
        assert commits.put([(50, 110), (100, 150)]) == ([50] if self.PUT_TELLS_REFUSALS else [])
        assert commits.lookup([50, 100]) == [SEALED, 150]

    def test_entry_wins_over_a_mark_that_comes_later(self, commits: CommitTable) -> None:
        commits.put([(50, 110)])
        assert commits.seal(50) == SealOutcome(placed=False, commit_ts=110)
        assert commits.lookup([50]) == [110]

    def test_mark_already_there_counts_as_placed(self, commits: CommitTable) -> None:
        assert commits.seal(50).placed
        assert self.another(commits).seal(50) == SealOutcome(placed=True)

    def test_decision_of_a_large_commit_loses_to_a_mark(self, commits: CommitTable) -> None:
        assert commits.put_unless_sealed(50, 110)
        commits.seal(100)
        assert not commits.put_unless_sealed(100, 150)
        assert commits.lookup([50, 100]) == [110, SEALED]

    def test_branches_of_a_decided_commit_replace_marks(self, commits: CommitTable) -> None:
        """T13."""
        commits.seal(100)
        commits.put_branches([100, 150, 200], 300)
        assert commits.lookup([100, 150, 200]) == [300, 300, 300]
        assert commits.seal(100) == SealOutcome(placed=False, commit_ts=300)

    def test_deleting_leaves_marks_and_is_idempotent(self, commits: CommitTable) -> None:
        commits.put([(50, 110), (100, 150)])
        commits.seal(200)
        for _ in range(2):
            commits.delete([50, 200, 999 * 50])
        assert commits.lookup([50, 100, 200]) == [NOT_FOUND, 150, SEALED]

    def test_sanitizing_deletes_entries_and_marks_below_the_horizon(self, commits: CommitTable) -> None:
        commits.put([(50, 110), (100, 150), (150, 400), (200, 210)])
        for start in (250, 300, 350):
            commits.seal(start)
        assert commits.delete_below(50) == 0
        assert commits.delete_below(150) == 2
        assert commits.delete_below(300) == 3
        assert commits.lookup([50, 100, 150, 200, 250, 300, 350]) == [NOT_FOUND] * 5 + [SEALED] * 2
        assert set(commits.entries()) == {(300, SEALED), (350, SEALED)}
        assert commits.count() == 2

    def test_sanitizing_many_at_once(self, commits: CommitTable) -> None:
        commits.put([(50 * i, 50 * i + 10) for i in range(1, self.MANY + 1)])
        assert commits.delete_below(50 * self.MANY) == self.MANY - 1
        assert list(commits.entries()) == [(50 * self.MANY, 50 * self.MANY + 10)]

    def test_of_seal_and_put_exactly_one_wins(self, commits: CommitTable) -> None:
        """R2: once a caller has the reply that the marker is placed, it stays placed."""
        starts = [50 * i for i in range(1, 61)]
        sealed: dict[int, SealOutcome] = {}
        kept: dict[int, bool] = {}

        def seal() -> None:
            for start in starts:
                sealed[start] = commits.seal(start)

        def put() -> None:
            for start in starts:
                kept[start] = commits.put_unless_sealed(start, start + 10)

        run_together(seal, put)
        for start, answer in zip(starts, commits.lookup(starts), strict=True):
            assert sealed[start].placed != kept[start], start
            assert answer == (SEALED if sealed[start].placed else start + 10)

    def test_of_seal_and_flush_the_mark_wins(self, commits: CommitTable) -> None:
        starts = [50 * i for i in range(1, 61)]
        sealed: dict[int, SealOutcome] = {}
        refusals: set[int] = set()

        def seal() -> None:
            for start in reversed(starts):
                sealed[start] = commits.seal(start)

        def put() -> None:
            for first in range(0, len(starts), 10):
                refusals.update(commits.put([(start, start + 10) for start in starts[first : first + 10]]))

        run_together(seal, put)
        for start, answer in zip(starts, commits.lookup(starts), strict=True):
            assert answer == (SEALED if sealed[start].placed else start + 10)
            if self.PUT_TELLS_REFUSALS:
                assert (start in refusals) == sealed[start].placed

    def test_a_block_is_put_as_its_entries_are(self, commits: CommitTable) -> None:
        commits.seal(100)
        refused = commits.put_block(np.array([(50, 110), (100, 150), (150, 210)], dtype=np.int64))
        assert refused == ([100] if self.PUT_TELLS_REFUSALS else [])
        assert commits.lookup([50, 100, 150]) == [110, SEALED, 210]

    def test_many_seals_are_told_in_their_order(self, commits: CommitTable) -> None:
        commits.put([(100, 150)])
        commits.seal(200)
        outcomes = commits.seal_many([200, 100, 50])
        assert outcomes == [
            SealOutcome(placed=True),
            SealOutcome(placed=False, commit_ts=150),
            SealOutcome(placed=True),
        ]
        assert commits.lookup([50, 100, 200]) == [SEALED, 150, SEALED]
        assert commits.seal_many([]) == []

    def test_entries_with_watermarks_are_those_of_a_lookup(self, commits: CommitTable) -> None:
        commits.put([(50, 110)])
        commits.seal(100)
        both = commits.lookup_then_watermarks([100, 50, 150])
        assert both is None or both == ([SEALED, 110, NOT_FOUND], 0, 0)

    def test_deleted_entries_are_gone_and_marks_stay(self, commits: CommitTable) -> None:
        commits.put([(50, 110), (100, 150)])
        commits.seal(200)
        commits.delete([50, 200, 999 * 50])
        assert commits.lookup([50, 100, 200]) == [NOT_FOUND, 150, SEALED]

    def test_submitted_entries_are_durable_when_that_is_told(self, commits: CommitTable) -> None:
        """Several blocks at once, one of them empty: each ends once, on the loop, with the epoch and what was
        refused."""
        leader_state = self.leader_state_of(commits)
        assert leader_state.take_over(expected=0, epoch=5000, ceiling=9000)
        commits.seal(50 * self.MANY)
        counts = (1, 7, 0, self.MANY // 2, 1, self.MANY // 3)
        starts = 50 * np.arange(self.MANY, self.MANY + sum(counts))
        rows = np.stack([starts, starts + 10], axis=1)
        blocks = [rows[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]
        results: list[tuple[int, Any, list[int]]] = []
        failed: list[Exception] = []

        async def scenario() -> None:
            flushes = Flushes(commits, leader_state, threads_max=2, fail=failed.append)
            loop_thread, all_ended = threading.get_ident(), asyncio.Event()

            def ended(number: int, result: object) -> None:
                assert threading.get_ident() == loop_thread
                results.append((number, result, self.another(commits).lookup(blocks[number][:, 0].tolist())))
                if len(results) == len(blocks):
                    all_ended.set()

            for number, block in enumerate(blocks):
                flushes.submit(Flush((), block), partial(ended, number))
            async with asyncio.timeout(60):
                await all_ended.wait()
            flushes.close(wait=True)

        asyncio.run(scenario())
        assert not failed
        assert sorted(number for number, _, _ in results) == list(range(len(blocks)))
        for number, result, found in results:
            sealed = {50 * self.MANY} & set(blocks[number][:, 0].tolist())
            assert result == Flushed(frozenset(sealed if self.PUT_TELLS_REFUSALS else ()), 5000)
            assert found == [SEALED if start in sealed else start + 10 for start in blocks[number][:, 0].tolist()]

    def test_child_of_fork_is_refused(self, commits: CommitTable) -> None:
        if self.CHECKS_FORK:
            commits.put([(50, 110)])
            assert in_forked_child(lambda: commits.lookup([50])) == "Misuse"
            assert in_forked_child(lambda: commits.put([(100, 150)])) == "Misuse"
            assert commits.lookup([50, 100]) == [110, NOT_FOUND]


class LeaderStateConformance:
    """Suite for a `LeaderState`. Fixture: `leader_state`, new and empty."""

    def another(self, leader_state: LeaderState) -> LeaderState:
        return leader_state

    def test_new_row_is_all_zero(self, leader_state: LeaderState) -> None:
        assert leader_state.read() == LeaderRecord()
        assert leader_state.read_watermarks() == (0, 0)

    def test_a_database_keeps_its_id(self, leader_state: LeaderState) -> None:
        """By this id a client detects that another database has replaced its own."""
        database_id = leader_state.database_id()
        assert len(database_id) == 16
        assert leader_state.take_over(expected=0, epoch=100, ceiling=1000)
        leader_state.update(100, LeaderStateChanges(watermark=90, leases_added=(150,)))
        assert self.another(leader_state).database_id() == database_id
        assert leader_state.read().leases == {150}

    def test_taking_over_changes_epoch_and_ceiling_only(self, leader_state: LeaderState) -> None:
        assert leader_state.take_over(expected=0, epoch=100, ceiling=1000)
        pending = PendingCommit(150, (200, 250))
        changes = LeaderStateChanges(watermark=90, horizon=80, leases_added=(150,), pending_added=(pending,))
        leader_state.update(100, changes)
        assert not leader_state.take_over(expected=0, epoch=2000, ceiling=3000)
        assert leader_state.take_over(expected=100, epoch=1000, ceiling=2000)
        assert self.another(leader_state).read() == LeaderRecord(1000, 2000, 90, 80, frozenset({150}), (pending,))
        assert leader_state.read_watermarks() == (90, 80)

    def test_taking_over_fails_where_the_ceiling_moved_meanwhile(self, leader_state: LeaderState) -> None:
        assert leader_state.take_over(expected=0, epoch=100, ceiling=1000)
        leader_state.update(100, LeaderStateChanges(ceiling=5000))
        assert not leader_state.take_over(expected=100, epoch=1000, ceiling=9000)
        assert leader_state.take_over(expected=100, epoch=5000, ceiling=9000)

    def test_changes_are_all_or_nothing(self, leader_state: LeaderState) -> None:
        """T5: a deposed leader changes nothing."""
        assert leader_state.take_over(expected=0, epoch=100, ceiling=1000)
        leader_state.update(100, LeaderStateChanges(watermark=10, leases_added=(50, 150)))
        assert leader_state.take_over(expected=100, epoch=1000, ceiling=2000)
        before = leader_state.read()
        changes = LeaderStateChanges(
            ceiling=9000, watermark=99, horizon=98, leases_added=(250,), leases_removed=(50,), pending_removed=(1,)
        )
        with refused(Deposed):
            self.another(leader_state).update(100, changes)
        assert leader_state.read() == before

    def test_leases_and_pending_records_come_and_go(self, leader_state: LeaderState) -> None:
        assert leader_state.take_over(expected=0, epoch=100, ceiling=1000)
        large = PendingCommit(200, tuple(range(250, 250 + 50 * 10_000, 50)))
        small = PendingCommit(150, ())
        leader_state.update(100, LeaderStateChanges(leases_added=(150, 200), pending_added=(small, large)))
        state = leader_state.read()
        assert state.leases == {150, 200}
        assert {record.start_ts: record.branches for record in state.pending} == {150: (), 200: large.branches}
        leader_state.update(100, LeaderStateChanges(leases_removed=(150, 999), pending_removed=(200, 999)))
        assert leader_state.read() == replace(state, leases=frozenset({200}), pending=(small,))

    def test_pending_record_put_again_is_replaced(self, leader_state: LeaderState) -> None:
        assert leader_state.take_over(expected=0, epoch=100, ceiling=1000)
        for branches in ((200,), (250, 300)):
            leader_state.update(100, LeaderStateChanges(pending_added=(PendingCommit(150, branches),)))
        assert leader_state.read().pending == (PendingCommit(150, (250, 300)),)

    def test_one_of_many_takes_over(self, leader_state: LeaderState) -> None:
        taken: list[int] = []

        def take(epoch: int) -> Callable[[], None]:
            def work() -> None:
                if leader_state.take_over(expected=0, epoch=epoch, ceiling=epoch + 1000):
                    taken.append(epoch)

            return work

        run_together(*(take(50 * i) for i in range(1, 9)))
        assert len(taken) == 1
        assert leader_state.read().epoch == taken[0]


def put_entry(catalog: Catalog, info: TableInfo, state: TableState = TableState.PRESENT) -> TableEntry:
    """Put an entry, replacing one of the same name, for tests that need a table but not its creation."""
    entry = TableEntry(info, state, os.urandom(8).hex())
    assert catalog.change_entry(catalog.entry(info.name), entry), f"another changed {info.name!r} meanwhile"
    return entry


def remove_entry(catalog: Catalog, name: str) -> None:
    """Remove the entry of this name, if there is one."""
    if (found := catalog.entry(name)) is not None:
        catalog.remove_entry(found)


class CatalogConformance:
    """Suite for a `Catalog`. Fixture: `catalog`, new and empty."""

    def another(self, catalog: Catalog) -> Catalog:
        return catalog

    def test_entries_come_back_as_they_were_put(self, catalog: Catalog) -> None:
        counter = ColumnSchema("zähler", "long", Column(b"f", b"\x00\xff"), ("short", "integer"))
        schema = TableSchema(
            (ColumnSchema("id", "long", None), counter),
            (RowKeyPart("id", descending=True),),
            (Column(b"f", b"old"), Column(b"\xff", b"\x00\xfe")),
            b"f",
        )
        plain = TableEntry(TableInfo("plain", (b"f",)), TableState.CREATING, "1")
        families = (b"f", b"\xff")
        index = IndexInfo("by", (Column(b"f", b"\x00\xff"),), "PYOMID_INDEX_7", IndexState.READY, 50)
        rich = TableEntry(
            TableInfo("größe", families, ConflictLevel.ROW, 7, schema, None, True, (index,)), TableState.PRESENT, "2"
        )
        assert catalog.entry("plain") is None
        assert catalog.change_entry(None, rich)
        assert catalog.change_entry(None, plain)
        assert self.another(catalog).entries() == [rich, plain]
        assert self.another(catalog).entry("plain") == plain
        assert catalog.table("größe") == rich.info

    def test_entry_changes_only_on_top_of_the_one_read(self, catalog: Catalog) -> None:
        """Otherwise a slow writer would remove a column that another one added."""
        first, second, third = (
            TableEntry(TableInfo("t", (b"f",), generation=n), TableState.PRESENT, str(n)) for n in (1, 2, 3)
        )
        assert catalog.change_entry(None, first)
        assert not catalog.change_entry(None, second)
        assert not catalog.change_entry(second, third)
        assert catalog.change_entry(first, second)
        assert not catalog.change_entry(first, third)
        catalog.remove_entry(first)
        assert catalog.entry("t") == second

    def test_same_content_put_again_is_another_entry(self, catalog: Catalog) -> None:
        """No ABA: a writer that stalled during a change and its reversal changes nothing."""
        info = TableInfo("t", (b"f",))
        slept, back = TableEntry(info, TableState.PRESENT, "1"), TableEntry(info, TableState.PRESENT, "3")
        assert catalog.change_entry(None, slept)
        between = TableEntry(replace(info, generation=9), TableState.PRESENT, "2")
        assert catalog.change_entry(slept, between)
        assert catalog.change_entry(between, back)
        assert not catalog.change_entry(slept, between)
        catalog.remove_entry(slept)
        assert catalog.entry("t") == back

    def test_one_of_many_changes_an_entry(self, catalog: Catalog) -> None:
        made: list[int] = []

        def make(generation: int) -> Callable[[], None]:
            def work() -> None:
                info = TableInfo("t", (b"f",), generation=generation)
                if catalog.change_entry(None, TableEntry(info, TableState.PRESENT, str(generation))):
                    made.append(generation)

            return work

        run_together(*(make(i) for i in range(1, 7)))
        assert made == [catalog.table("t").generation]

    def test_only_present_tables_are_tables(self, catalog: Catalog) -> None:
        """The sanitizer also sees a table that is being dropped, because its cells may still be read."""
        for state in TableState:
            put_entry(catalog, TableInfo(state.value, (b"f",)), state)
        assert [info.name for info in catalog.tables()] == ["present"]
        assert [info.name for info in catalog.registered()] == ["dropping", "present"]
        assert [entry.info.name for entry in catalog.entries()] == ["creating", "dropping", "present"]
        for name in ("creating", "dropping", "nobody"):
            with refused(UnknownTable):
                catalog.table(name)

    def test_only_a_present_table_has_a_generation(self, catalog: Catalog) -> None:
        """R10: what a reader compares."""
        assert catalog.generation("t") == 0
        assert catalog.watermark_and_generation("t") in (None, (0, 0))
        for state, generation in ((TableState.CREATING, 0), (TableState.PRESENT, 250), (TableState.DROPPING, 0)):
            put_entry(catalog, TableInfo("t", (b"f",), generation=250), state)
            assert self.another(catalog).generation("t") == generation
            assert catalog.watermark_and_generation("t") in (None, (0, generation))
            assert catalog.generation("tt") == 0

    def test_the_greatest_noted_drop_stays(self, catalog: Catalog) -> None:
        """R10."""
        assert catalog.noted_drop("t") == 0
        for fence_ts in (300, 1 << 40, 350):
            catalog.note_drop("t", fence_ts)
        assert self.another(catalog).noted_drop("t") == 1 << 40
        others = [catalog.noted_drop(f"another {number}") for number in range(100)]
        assert others.count(0) > 90

    def test_marks_of_unknown_tables_stay_until_cleared(self, catalog: Catalog) -> None:
        """K6."""
        ids = [-(1 << 63), -1, 0, 7, (1 << 63) - 1, TABLES_UNCONFIRMED]
        for table_id in [*ids, 7]:
            catalog.mark_unknown_table(table_id)
        marks = self.another(catalog).unknown_tables()
        assert sorted(marks) == ids
        for table_id in (7, -1):
            catalog.clear_unknown_table(table_id, marks[table_id])
        catalog.clear_unknown_table(12345, marks[0])
        assert sorted(catalog.unknown_tables()) == [-(1 << 63), 0, (1 << 63) - 1, TABLES_UNCONFIRMED]

    def test_a_late_clear_never_takes_a_newer_mark_away(self, catalog: Catalog) -> None:
        """K6: a commit decided after the drop's fence marks the table again."""
        catalog.mark_unknown_table(7)
        seen = catalog.unknown_tables()[7]
        catalog.mark_unknown_table(7)
        again = self.another(catalog).unknown_tables()[7]
        assert again != seen
        catalog.clear_unknown_table(7, seen)
        assert catalog.unknown_tables() == {7: again}
        catalog.clear_unknown_table(7, again)
        catalog.clear_unknown_table(7, again)
        assert catalog.unknown_tables() == {}

    def test_region_watermarks_stay_beside_those_of_their_range(self, catalog: Catalog) -> None:
        def record(start: bytes, stop: bytes | None, watermark: int, table: str = "t") -> RegionWatermark:
            return RegionWatermark(table, 1, KeyRange(start, stop), watermark, 1000.5 + watermark)

        long_key = b"\xfe" * 400
        first = [record(b"", b"m", 1), record(b"m", long_key, 2), record(long_key, None, 3)]
        for each in [*first, record(b"", b"m", 9, table="tt")]:
            catalog.put_region_watermark(each)
        assert self.another(catalog).region_watermarks("t") == first
        catalog.put_region_watermark(record(b"m", long_key, 5))
        assert [each.watermark for each in catalog.region_watermarks("t")] == [1, 5, 2, 3]
        assert catalog.region_watermarks("t")[1:3] == [record(b"m", long_key, 5), record(b"m", long_key, 2)]
        catalog.drop_region_watermarks([record(b"m", long_key, 2), first[0]])
        assert [each.watermark for each in catalog.region_watermarks("t")] == [5, 2, 3], "only where it is the newest"
        catalog.put_region_watermark(replace(record(b"m", long_key, 6), generation=2))
        assert [each.watermark for each in catalog.region_watermarks("t")] == [6, 3], "of the present generation"
        assert [each.watermark for each in catalog.region_watermarks("tt")] == [9]

    def test_removed_table_takes_its_watermarks_along(self, catalog: Catalog) -> None:
        for name in ("t", "tt"):
            put_entry(catalog, TableInfo(name, (b"f",)))
            catalog.put_region_watermark(RegionWatermark(name, 1, KeyRange(), 5, 1.0))
        for _ in range(2):  # idempotent
            remove_entry(catalog, "t")
        assert [info.name for info in catalog.tables()] == ["tt"]
        assert catalog.region_watermarks("t") == []
        assert len(catalog.region_watermarks("tt")) == 1
