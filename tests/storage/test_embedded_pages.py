"""The compiled walk over LMDB's pages against its twin, LMDB's own cursor."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from pyomid.cells import CellBatch
from pyomid.storage.embedded import EmbeddedStore
from pyomid.storage.embedded import page_kernels as kernels
from pyomid.storage.embedded.keys import VERSION_BYTES, range_bounds
from pyomid.storage.embedded.layout import CELLS
from pyomid.storage.embedded.store import _joined, _records_until
from pyomid.types import Column, KeyRange, RowWrite, TableInfo

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


def found_by_both(store: EmbeddedStore, key_range: KeyRange, records_max: int) -> None:
    def compare(transaction: object) -> None:
        prefix = store._tables.loaded(transaction, "t").prefix
        start, stop = range_bounds(prefix, key_range)
        walked = store._pages.records(
            transaction,
            (CELLS, store._cells),
            start,
            stop,
            tail_bytes=VERSION_BYTES,
            records_max=records_max,
            bytes_max=1 << 28,
        )
        with transaction.cursor(store._cells) as cursor:  # type: ignore[attr-defined]
            asked = _joined(*_records_until(cursor, start, stop, records_max))
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


def test_a_scan_of_unknown_pages_goes_by_the_cursor(tmp_path: Path) -> None:
    store = filled(tmp_path / "db", 1)
    expected = [cells_of(batch) for batch in store.scan("t", KeyRange(), batch_rows_max=100)]
    store._pages._is_known = False
    assert [cells_of(batch) for batch in store.scan("t", KeyRange(), batch_rows_max=100)] == expected
    store.close()


def cells_of(batch: CellBatch) -> list[object]:
    return list(batch.all_cells())


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
        measured = kernels.walk(damaged, 4096, rng.randrange(pages), start, stop, 8, 1000, len(out), *nothing)
        assert measured[0] in (kernels.WHOLE, kernels.MORE, kernels.OUTSIDE, kernels.STRANGE)
        assert measured[1] <= 2000
