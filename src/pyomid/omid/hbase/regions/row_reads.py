"""Reads of single rows in replies of limited size.

A region server that put sixty versions of a large cell into one reply would run out of memory. HBase limits the reply
to a scan in bytes, inside a row if needed, but the reply to a get only in cells (decision 0046). So each row is read by
its own scan, which HBase serves like a get. Several scans are in flight, more of them if their rows are small:

    sent       a b c d │ e f │ g h │ …       four at first; a small reply allows one more (`_RowScans`)
    received           a     b     c …       in order; a row larger than one reply is completed before the next row

A reader needs few versions of a column: the newest that it sees, and those above it (`ReadBounds`, R9). So the first
read requests `VERSIONS_FIRST` versions of each column. If these are not enough, the whole row is read again with more
versions. A row is never assembled from two reads: between them compaction may have deleted a tombstone and the versions
that it hid (R5).

    q       v9  v7  v4 │           three requested, three received: below v4 nothing is known of q,
    q's SC  v7  v4  v2 │ …         below v2 nothing of its shadow cells
                   └ v7 has its shadow cell, below the snapshot: enough
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pyomid.omid.hbase.codec.batches import cells_of
from pyomid.omid.hbase.codec.keyvalues import KeyValue, decode
from pyomid.omid.hbase.codec.layout import is_shadow, shadowed_qualifier
from pyomid.omid.hbase.regions.calls import Budget
from pyomid.omid.hbase.regions.operations import RegionOperations
from pyomid.omid.hbase.regions.scan_cursor import ScanCursor, ScanSpec
from pyomid.omid.hbase.rpc.requests import ALL_VERSIONS, NAMES_AND_LENGTHS, Filter, column_list
from pyomid.types import Cell, CellVersion, Column, KeyRange, ReadBounds

VERSIONS_FIRST: Final = 3
"""The newest committed version, a version above it that is in flight, and one that was rolled back or is the
predecessor."""

_VERSIONS_TIMES: Final = 4

SCAN_BYTES: Final = 2 << 20
"""A reply holds at most this many bytes, plus the cell that exceeds the limit."""

SCANS_FIRST: Final = 4
SCANS_MAX: Final = 16

BYTES_AT_ONCE: Final = SCANS_FIRST * SCAN_BYTES
"""The limit for all scans in flight together, if their rows are as large as the last row received."""

COLUMNS_PER_CHECK: Final = 4
"""The number of columns in one existence check. The server sends no values, but may hold all of them until it
replies."""

_Columns = tuple[tuple[bytes, tuple[bytes, ...]], ...]


@dataclass(frozen=True, slots=True)
class WantedCells:
    """The cells to read of each row."""

    table: str
    columns: _Columns
    bounds: ReadBounds

    @property
    def time_range(self) -> tuple[int, int] | None:
        whole = ReadBounds()
        at_least, below = self.bounds.at_least, self.bounds.below
        return None if (at_least, below) == (whole.at_least, whole.below) else (at_least, below)

    def scan(self, row: bytes, versions: int) -> ScanSpec:
        return _row_scan(self.table, row, self.columns, versions, self.time_range)


async def read_rows(
    operations: RegionOperations, wanted: WantedCells, rows: Sequence[bytes], budget: Callable[[], Budget]
) -> list[list[Cell]]:
    """Return the cells of each row, in order. Each row is read atomically. `budget` returns the budget of one call."""
    found: list[list[Cell]] = [[]] * len(rows)
    versions = VERSIONS_FIRST if wanted.bounds.committed_below else ALL_VERSIONS
    left = list(range(len(rows)))
    while left:
        short: list[int] = []
        scans = _RowScans(operations, (wanted.scan(rows[index], versions) for index in left), budget, SCANS_FIRST)
        for index in left:
            key_values = await scans.next(_block_bytes)
            cells = certain_cells(key_values, versions, wanted.bounds)
            if cells is None:
                short.append(index)
            else:
                found[index] = cells
        versions = min(versions * _VERSIONS_TIMES, ALL_VERSIONS)
        left = short
    return found


async def absent_cells(
    operations: RegionOperations, table: str, cells: Sequence[CellVersion], budget: Callable[[], Budget]
) -> list[CellVersion]:
    """Return the `cells` that do not exist. Each cell is checked separately, at its own time. The server sends the
    lengths of values in place of the values. But the server holds the values until it replies, and does not count them
    towards the limit."""
    checks: list[list[CellVersion]] = []
    open_checks: dict[tuple[bytes, int], list[CellVersion]] = {}
    for cell in cells:
        check = open_checks.get((cell.row, cell.version))
        if check is None or len(check) == COLUMNS_PER_CHECK:
            check = open_checks[cell.row, cell.version] = []
            checks.append(check)
        check.append(cell)
    scans = _RowScans(operations, (_check_scan(table, check) for check in checks), budget, 1)
    absent: list[CellVersion] = []
    for check in checks:
        found = await scans.next(_lengths)
        there = {(each.family, each.qualifier) for each in found}
        absent += [cell for cell in check if (cell.family, cell.qualifier) not in there]
    return absent


def _check_scan(table: str, check: Sequence[CellVersion]) -> ScanSpec:
    columns = column_list(Column(cell.family, cell.qualifier) for cell in check)
    row, version = check[0].row, check[0].version
    return _row_scan(table, row, columns, 1, (version, version + 1), (NAMES_AND_LENGTHS,))


def _row_scan(
    table: str,
    row: bytes,
    columns: _Columns,
    versions: int,
    time_range: tuple[int, int] | None,
    filters: tuple[Filter, ...] = (),
) -> ScanSpec:
    return ScanSpec(
        table,
        KeyRange(row, row + b"\0"),
        columns,
        versions,
        rows_per_call=1,
        bytes_per_call=SCAN_BYTES,
        read_ahead=False,
        limit=1,
        time_range=time_range,
        filters=filters,
        is_fresh=True,
    )


def certain_cells(key_values: Sequence[KeyValue], versions: int, bounds: ReadBounds) -> list[Cell] | None:
    """Return the cells of a row whose shadow cells were read as well. At most `versions` of each column were read.
    Returns None if the reader needs older versions."""
    known_from = _known_from(key_values, versions)
    cells = cells_of(key_values)
    if not known_from:
        return cells
    cells = [cell for cell in cells if cell.version >= known_from.get((cell.family, cell.qualifier), 0)]
    ended = {(cell.family, cell.qualifier) for cell in cells if bounds.ends_column(cell)}
    return cells if known_from.keys() <= ended else None


def _known_from(key_values: Sequence[KeyValue], versions: int) -> dict[tuple[bytes, bytes], int]:
    """Return a version for each column that may have more versions than were read. From this version on, cells and
    shadow cells were read completely."""
    known_from: dict[tuple[bytes, bytes], int] = {}
    if len(key_values) < versions:
        return known_from
    name, count = (b"", b""), 0
    for each in key_values:
        if (each.family, each.qualifier) != name:
            name, count = (each.family, each.qualifier), 0
        count += 1
        if count == versions:
            qualifier = shadowed_qualifier(each.qualifier) if is_shadow(each.qualifier) else each.qualifier
            column = each.family, qualifier
            known_from[column] = max(each.timestamp, known_from.get(column, 0))
    return known_from


class _RowScans:
    """Scans of one row each, several of them in flight.

    Their number grows by one with each row received, as long as that many rows of this size need at most
    `BYTES_AT_ONCE`. After a failed call only one scan is in flight, because the size of the replies may have killed the
    server.
    """

    def __init__(
        self, operations: RegionOperations, specs: Iterable[ScanSpec], budget: Callable[[], Budget], at_once: int
    ) -> None:
        self._operations = operations
        self._specs = iter(specs)
        self._budget = budget
        self._at_once = at_once
        self._sent: deque[ScanCursor] = deque()

    async def next(self, held_bytes: Callable[[Sequence[KeyValue]], int]) -> list[KeyValue]:
        """Return all cells of the next row. `held_bytes` returns how many bytes of the server's memory they take."""
        for spec in islice(self._specs, max(0, self._at_once - len(self._sent))):
            cursor = ScanCursor(self._operations, spec)
            await cursor.send(self._budget())
            self._sent.append(cursor)
        cells, has_failed = await self._whole_row(self._sent.popleft())
        most = 1 if has_failed else BYTES_AT_ONCE // max(1, held_bytes(cells))
        self._at_once = max(1, min(self._at_once + 1, SCANS_MAX, most))
        return cells

    async def _whole_row(self, cursor: ScanCursor) -> tuple[list[KeyValue], bool]:
        cells: list[KeyValue] = []
        has_failed = False
        while True:
            budget = self._budget()
            block = await cursor.fetch(budget)
            has_failed |= budget.last is not None
            if block is None:
                return cells, has_failed
            if block.restarted:
                cells.clear()
            cells += decode(block.cells)


def _block_bytes(cells: Sequence[KeyValue]) -> int:
    return sum(len(each.value) for each in cells)


def _lengths(cells: Sequence[KeyValue]) -> int:
    """Return the total length of the values that `NAMES_AND_LENGTHS` omitted."""
    return sum(int.from_bytes(each.value) for each in cells)
