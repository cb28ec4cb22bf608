"""The compiled walk over LMDB's pages against its twin, LMDB's own cursor."""

from __future__ import annotations

import os
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from pyomid.folder import EmbeddedStore
from pyomid.folder.environment import Environment
from pyomid.folder.layout import CELLS
from pyomid.folder.native import pages as kernels
from pyomid.folder.records import VERSION_BYTES, range_bounds
from pyomid.folder.scans import Limits, Pages, joined, records_until
from pyomid.types import (
    TIMESTAMP_MAX,
    Cell,
    CellVersion,
    Column,
    KeyRange,
    ReadBounds,
    RowWrite,
    ShadowWrite,
    TableInfo,
)

pytestmark = pytest.mark.fast

COLUMN = Column(b"f", b"v")


def filled(folder: Path, seed: int, rows: int = 1500) -> EmbeddedStore:
    """Rows of several versions, values of no byte to several pages, another table on either side."""
    rng = random.Random(seed)
    store = EmbeddedStore(folder)
    for table in ("before", "t", "behind"):
        store.create_table(TableInfo(table, (b"f",)))
    for table in ("before", "behind"):
        store.write_cells(table, 50, [RowWrite(b"x", ((COLUMN, b"1"),))])
    keys = [rng.randbytes(rng.choice((1, 8, 30, 200))) for _ in range(rows)]
    for version in (50, 100, 150):
        chosen = sorted(set(rng.sample(keys, rows // 2)))
        values = [rng.randbytes(rng.choice((1, 5, 100, 1900, 2100, 9000))) for _ in chosen]
        writes = [RowWrite(key, ((COLUMN, value),)) for key, value in zip(chosen, values, strict=True)]
        store.write_cells("t", version, writes)
    return store


def limits(tail_bytes: int, records_max: int, bytes_max: int, rng: random.Random | None = None) -> tuple[Any, ...]:
    """With `rng`, sometimes those of a reader that needs few versions."""
    committed_below = rng.choice((0, 60, 1 << 60)) if rng is not None else 0
    below = rng.choice((100, 1 << 62)) if rng is not None else TIMESTAMP_MAX
    at_least = rng.choice((0, 100)) if rng is not None else 0
    asked = np.ones(3, np.uint8)
    return Limits(tail_bytes, records_max, bytes_max, below, committed_below, asked, at_least)


def found_by_both(store: EmbeddedStore, key_range: KeyRange, records_max: int) -> None:
    def compare(transaction: object) -> None:
        prefix = store._tables.loaded(transaction, "t").prefix
        start, stop = range_bounds(prefix, key_range)
        walked = store._scans.pages.records(
            transaction,
            (CELLS, store._cells),
            start,
            stop,
            tail_bytes=VERSION_BYTES,
            records_max=records_max,
            bytes_max=1 << 28,
        )
        with transaction.cursor(store._cells) as cursor:  # type: ignore[attr-defined]
            asked = joined(*records_until(cursor, start, stop, records_max))
        assert walked is not None
        assert walked.next_key == asked.next_key
        assert walked.lens.tolist() == asked.lens.tolist()
        assert walked.data.tobytes() == asked.data.tobytes()

    store._environment.read(compare)


@pytest.mark.parametrize("seed", range(4))
def test_the_walk_finds_what_the_cursor_finds(seed: int, tmp_path: Path) -> None:
    store = filled(tmp_path / "db", seed)
    rng = random.Random(seed)
    keys = [batch.row_key(row) for batch in store.scan("t", KeyRange()) for row in range(batch.rows)]
    for records_max in (1, 2, 7, 100, 10_000):
        found_by_both(store, KeyRange(), records_max)
        for _ in range(20):
            one, other = sorted(rng.choice(keys)[: rng.randrange(1, 40)] for _ in range(2))
            found_by_both(store, KeyRange(one, other if rng.random() < 0.8 else None), records_max)
    store.close()


def test_an_empty_store_an_empty_table_and_an_empty_range_have_no_records(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "db")
    store.create_table(TableInfo("t", (b"f",)))
    found_by_both(store, KeyRange(), 10)
    store.create_table(TableInfo("other", (b"f",)))
    store.write_cells("other", 50, [RowWrite(b"x", ((COLUMN, b"1"),))])
    found_by_both(store, KeyRange(), 10)
    store.write_cells("t", 50, [RowWrite(b"x", ((COLUMN, b"1"),))])
    found_by_both(store, KeyRange(b"y", b"z"), 10)
    store.close()


def test_a_scan_sees_what_was_written_behind_the_end_of_its_mapping(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "db")
    store.create_table(TableInfo("t", (b"f",)))
    for version in range(50, 1050, 50):
        rows = [RowWrite(b"%05d" % number, ((COLUMN, bytes([1]) * 500),)) for number in range(version, version + 300)]
        store.write_cells("t", version, rows)
        assert sum(batch.records for batch in store.scan("t", KeyRange())) == 300 * version // 50
    store.close()


def batches_of(store: EmbeddedStore) -> list[list[Cell]]:
    return [list(batch.all_cells()) for batch in store.scan("t", KeyRange(), batch_rows_max=100)]


@pytest.mark.parametrize("seed", range(3))
def test_no_damage_leads_the_walk_out_of_the_file(seed: int, tmp_path: Path) -> None:
    """It ends, and says how; what it copied lies inside the pages. (An index too large would be a segmentation fault
    or another length.)"""
    store = filled(tmp_path / "db", seed, rows=300)
    store.close()
    rng = random.Random(seed)
    whole = np.fromfile(tmp_path / "db" / "data" / "data.mdb", dtype=np.uint8)
    pages = len(whole) // 4096
    for _ in range(300):
        damaged = whole.copy()
        for _ in range(rng.randrange(1, 200)):
            page = rng.randrange(pages)
            damaged[page * 4096 + rng.randrange(rng.choice((16, 64, 4096)))] = rng.randrange(256)
        out, lens = np.empty(len(whole), dtype=np.uint8), np.empty(100_000, dtype=np.int64)
        start, stop = np.zeros(1, dtype=np.uint8), np.full(4, 255, dtype=np.uint8)
        nothing = out[:0], lens[:0]
        measured = kernels.walk(
            damaged, 4096, rng.randrange(pages), start, stop, limits(8, 1000, len(out), rng), *nothing
        )
        assert measured[0] in (kernels.WHOLE, kernels.MORE, kernels.OUTSIDE, kernels.STRANGE)
        assert measured[1] <= 2000


def test_a_scan_reads_the_file_that_lmdb_has_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies under its name by now: a restored folder must not be read by the root of the one that is open.
    It is replaced behind the look that would refuse it."""
    monkeypatch.setattr(Environment, "_check_file", lambda environment: None)
    other = filled(tmp_path / "other", 2)
    other.close()
    store = filled(tmp_path / "db", 1)
    expected = batches_of(store)
    store._scans.pages.close()  # as it is before the first scan, and when the file has grown
    os.replace(tmp_path / "other" / "data" / "data.mdb", tmp_path / "db" / "data" / "data.mdb")
    assert batches_of(store) == expected
    store._environment._panicked = True  # LMDB is opened again, and finds the other file
    assert store.read_rows("t", [b"x"]) == [[]]
    found = batches_of(store)
    assert found != expected
    store._scans.pages._is_known = False
    assert batches_of(store) == found
    store.close()


def test_a_store_that_found_another_file_leaves_the_first_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the store is closed that file, or a new one that was given its number, is opened as any other."""
    monkeypatch.setattr(Environment, "_check_file", lambda environment: None)
    filled(tmp_path / "other", 2, rows=10).close()
    store = filled(tmp_path / "db", 1, rows=10)
    data = tmp_path / "db" / "data" / "data.mdb"
    os.rename(data, tmp_path / "first")
    os.rename(tmp_path / "other" / "data" / "data.mdb", data)
    store._environment._panicked = True  # LMDB is opened again, and finds the other file
    assert store.read_rows("t", [b"x"]) == [[]]
    store.close()
    os.rename(tmp_path / "first", data)
    again = EmbeddedStore(tmp_path / "db")
    assert again.read_rows("t", [b"x"]) == [[]]
    again.close()


def test_a_file_that_cannot_be_mapped_is_read_by_the_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Environment, "_check_file", lambda environment: None)
    store = filled(tmp_path / "db", 1)
    expected = batches_of(store)
    store._scans.pages.close()
    os.rename(tmp_path / "db", tmp_path / "elsewhere")
    assert batches_of(store) == expected
    store.close()


def test_a_walk_over_pages_in_a_circle_ends() -> None:
    """Branches whose children are all one page: no more pages are looked at than the file has."""
    pages, keys = np.zeros(4 * 4096, dtype=np.uint8), 20

    def page(number: int, flags: int, nodes: int, node: bytes) -> None:
        at, first = number * 4096, 4096 - nodes * len(node)
        pages[at : at + 16] = np.frombuffer(struct.pack("<QHHHH", number, 0, flags, 16 + 2 * nodes, first), np.uint8)
        for index in range(nodes):
            offset = first + index * len(node)
            pages[at + 16 + 2 * index : at + 18 + 2 * index] = np.frombuffer(struct.pack("<H", offset), np.uint8)
            pages[at + offset : at + offset + len(node)] = np.frombuffer(node, np.uint8)

    for number in (1, 2):
        page(number, 0x01, keys, struct.pack("<HHHH", number + 1, 0, 0, 1) + bytes([8]))
    key = bytes([7] * 12)
    page(3, 0x02, 1, struct.pack("<HHHH", 1, 0, 0, len(key)) + key + b"v")
    start, stop = np.full(1, 7, dtype=np.uint8), np.full(4, 255, dtype=np.uint8)
    nothing = np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.int64)
    how, records, *_ = kernels.walk(pages, 4096, 1, start, stop, limits(8, 1000, 1 << 20), *nothing)
    assert how == kernels.STRANGE
    assert records <= 4


def test_a_walk_never_writes_behind_what_it_was_given(tmp_path: Path) -> None:
    """Should the pages change after they were measured, against all rules."""
    filled(tmp_path / "db", 1, rows=300).close()
    whole = np.fromfile(tmp_path / "db" / "data" / "data.mdb", dtype=np.uint8)
    start, stop = np.zeros(1, dtype=np.uint8), np.full(4, 255, dtype=np.uint8)
    leaves = [number for number in range(2, len(whole) // 4096) if whole[number * 4096 + 10] == 2]
    for root in leaves:
        asked = whole, 4096, root, start, stop, limits(0, 1000, len(whole))
        how, records, size, *_ = kernels.walk(*asked, np.empty(0, np.uint8), np.empty(0, np.int64))
        if how == kernels.WHOLE and records > 1:
            for bytes_short, lens_short in ((1, 0), (0, 1), (size - 1, 0), (0, 2 * records - 1)):
                out, lens = np.full(size + 64, 77, dtype=np.uint8), np.full(2 * records + 64, 77, dtype=np.int64)
                ended = kernels.walk(*asked, out[: size - bytes_short], lens[: 2 * records - lens_short])
                assert ended[0] == kernels.NO_ROOM
                assert (out[size - bytes_short :] == 77).all()
                assert (lens[2 * records - lens_short :] == 77).all()
            return
    raise AssertionError("no leaf with records")


def test_databases_with_many_values_a_key_are_left_to_the_cursor(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), max_dbs=1) as environment:
        handle = environment.open_db(b"twice", dupsort=True, dupfixed=True)
        with environment.begin(db=handle, write=True) as transaction:
            for number in range(3000):
                transaction.put(b"0123456789" + b"%d" % (number % 3), b"%08d" % number)
        pages = Pages(Opened(tmp_path))
        with environment.begin() as transaction:
            limits = {"tail_bytes": 8, "records_max": 100, "bytes_max": 1 << 20}
            assert pages.records(transaction, (b"twice", handle), b"\x00", b"\xff", **limits) is None


@dataclass
class Opened:
    """An environment's file, as `Pages` wants to know it."""

    folder: Path

    @property
    def data_file(self) -> tuple[int, int]:
        status = os.stat(self.folder / "data.mdb")
        return status.st_dev, status.st_ino


@pytest.mark.parametrize("seed", range(3))
def test_a_scan_by_a_reader_leaves_out_nothing_that_it_sees(tmp_path: Path, seed: int) -> None:
    """Rows of one and of hundreds of versions: committed, in flight, rolled back, above the snapshot; tombstones of
    cells and of families; values of several pages. The same as of whole rows, at every snapshot and of any columns."""
    rng, store = random.Random(seed), EmbeddedStore(tmp_path)
    store.create_table(TableInfo("t", (b"f", b"g")))
    a, b, other, family = Column(b"f", b"a"), Column(b"f", b"b"), Column(b"g", b"a"), Column(b"f", b"")
    chance = {b"often": 1.0, b"often\0": 0.5, b"seldom": 0.05, b"last": 0.3}
    for version in range(50, 8050, 50):
        writes = []
        for row in sorted(row for row in chance if rng.random() < chance[row]):
            value = rng.randbytes(rng.choice((1, 30, 5000)))
            cells: dict[Column, bytes | None] = {rng.choice((a, a, b, other)): rng.choice((value, value, None))}
            if rng.random() < 0.03:
                cells[family] = None
            writes.append(RowWrite(row, tuple(cells.items())))
        store.write_cells("t", version, writes)
        if rng.random() < 0.8:
            names = [CellVersion(row, *column, version) for row, cells in writes for column, _ in cells]
            commit_ts = version + rng.choice((1, 1, 500))
            store.write_shadow_cells("t", [ShadowWrite(name, commit_ts) for name in names])
    left_out = 0
    for reader in (50, 51, 1000, 4001, 7000, 9000):
        bounds = ReadBounds(rng.choice((0, 0, 900, 5000)), reader, rng.choice((reader, reader, 0)))
        for columns in (None, [a], [b, other], [family], [Column(b"f", b"none")]):
            whole = {cell for batch in store.scan("t", KeyRange(), columns) for cell in batch.all_cells()}
            found: set[Cell] = set()
            for batch in store.scan("t", KeyRange(), columns, batch_rows_max=rng.choice((1, 3, 1000)), bounds=bounds):
                found.update(batch.all_cells())
            left_out += len(whole) - len(found)
            assert found <= whole
            for row in chance:
                needed = set(bounds.needed(cell for cell in whole if cell.row == row))
                assert needed <= {cell for cell in found if cell.row == row}
    assert left_out > 1000
    store.close()
