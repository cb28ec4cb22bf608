"""Groups of a scan's batches: what they show is what each batch by itself shows, with fewer look-ups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from pyomid.cells import CellBatch
from pyomid.client.bulk_reading import GROUP_MAX, resolved_groups
from pyomid.client.drivers import Driver
from pyomid.client.parts import Parts
from pyomid.config import Settings
from pyomid.core.commit_cache import CommitCache
from pyomid.core.reading import Snapshot, resolve_batch_steps
from pyomid.core.visibility import visible_cells
from pyomid.storage.memory import MemoryCatalogue, MemoryCommitTable, MemoryEpochRow, MemoryStore
from pyomid.types import CellVersion, Column, EpochChanges, KeyRange, RowWrite, ShadowWrite, TableInfo

pytestmark = pytest.mark.fast

TABLE, X = "t", Column(b"f", b"x")
ROWS, ROWS_OF_A_BATCH = 40, 2
READER = Snapshot(100_000, 0)


class FarTable(MemoryCommitTable):
    """Offers both in one call, as a table over a network does; counts."""

    def __init__(self, row: MemoryEpochRow) -> None:
        super().__init__()
        self.row, self.asked = row, list[tuple[int, ...]]()

    def lookup_then_watermarks(self, starts: Sequence[int]) -> tuple[list[int], int, int]:
        self.asked.append(tuple(starts))
        return self.lookup(starts), *self.row.read_watermarks()


@pytest.fixture
def parts() -> Parts:
    store, row = MemoryStore(), MemoryEpochRow()
    store.create_table(TableInfo(TABLE, (b"f",)))
    assert row.take_over(expected=0, epoch=1, ceiling=10)
    row.update(1, EpochChanges(horizon=150))
    return Parts(store, FarTable(row), row, MemoryCatalogue(), None, Settings())  # type: ignore[arg-type]


def fill(parts: Parts) -> None:
    """A transaction a row: committed, with or without its shadow cell; below H; open; after the snapshot."""
    for number in range(ROWS):
        start = 50 * (number + 1)
        parts.store.write_cells(TABLE, start, [RowWrite(key(number), ((X, b"%d" % number),))])
        if number % 5 != 3:
            parts.commit_table.put([(start, READER.start_ts + 7 if number % 5 == 4 else start + 7)])
        if number % 5 == 1:
            parts.store.write_shadow_cells(TABLE, [ShadowWrite(CellVersion(key(number), *X, start), start + 7)])


def key(number: int) -> bytes:
    return b"%04d" % number


def batches(parts: Parts) -> Iterator[CellBatch]:
    return parts.store.scan(TABLE, KeyRange(), batch_rows_max=ROWS_OF_A_BATCH)


def shown(batch: CellBatch) -> list[tuple[bytes, bytes | None]]:
    return [
        (batch.row_key(batch.row_of(batch.record_of(cell))), batch.value(cell))
        for cell in visible_cells(batch, READER.start_ts).cells.tolist()
    ]


def one_by_one(parts: Parts) -> list[tuple[bytes, bytes | None]]:
    driver, cache = Driver(parts), CommitCache()
    return [
        cell
        for batch in batches(parts)
        for cell in shown(driver.run(resolve_batch_steps(TABLE, batch, None, READER, cache)))
    ]


def in_groups(parts: Parts) -> tuple[list[tuple[bytes, bytes | None]], list[int]]:
    found, sizes = [], []
    for group in resolved_groups(parts, Driver(parts), TABLE, batches(parts), READER, CommitCache()):
        found += [cell for batch in group for cell in shown(batch)]
        sizes.append(len(group))
    return found, sizes


def test_groups_show_what_single_batches_show(parts: Parts) -> None:
    fill(parts)
    found, sizes = in_groups(parts)
    assert found == one_by_one(parts)
    assert {row for row, _ in found} == {key(n) for n in range(ROWS) if n % 5 == 1 or (n > 1 and n % 5 in (0, 2))}
    assert sizes[:3] == [1, 2, GROUP_MAX]
    assert sum(sizes) == ROWS // ROWS_OF_A_BATCH


def test_a_group_is_looked_up_once(parts: Parts) -> None:
    starts = [50 * number for number in range(10, 10 + ROWS)]
    for number, start in enumerate(starts):
        parts.store.write_cells(TABLE, start, [RowWrite(key(number), ((X, b"v"),))])
    parts.commit_table.put([(start, start + 7) for start in starts])
    found, sizes = in_groups(parts)
    assert len(found) == ROWS
    table = parts.commit_table
    assert isinstance(table, FarTable)
    assert [len(asked) for asked in table.asked] == [ROWS_OF_A_BATCH * size for size in sizes]
    assert sorted(start for asked in table.asked for start in asked) == starts


def test_what_explains_itself_goes_through_one_by_one(parts: Parts) -> None:
    for number in range(ROWS):
        parts.store.write_cells(TABLE, 500, [RowWrite(key(number), ((X, b"v"),))])
    parts.store.write_shadow_cells(TABLE, [ShadowWrite(CellVersion(key(n), *X, 500), 507) for n in range(ROWS)])
    read = iter(batches(parts))
    groups = resolved_groups(parts, Driver(parts), TABLE, read, READER, CommitCache())
    assert [len(shown(batch)) for batch in next(groups)] == [ROWS_OF_A_BATCH]
    assert next(read).row_key(0) == key(ROWS_OF_A_BATCH)
