"""Reads of single rows, in answers of bounded size: sixty versions of a large cell would end a region server that had
to put them into one answer. HBase bounds the answer to a scan in bytes, inside a row if needed, but the answer to a get
only in cells (decision 0046). So each row is a scan of its own, which HBase serves as it serves a get. Several scans
are under way at once; the smaller their rows, the more of them:

    sent       a b c d │ e f │ g h │ …       four at first; a small answer allows one more (`_Window`)
    taken              a     b     c …       in order; the rest of a row beyond one answer comes before the next row

A reader needs few versions of a column: the newest that it sees, and those above (`ReadBounds`). So the first read asks
for `VERSIONS_FIRST` of each. If that does not reach down far enough the whole row is read again with more of them. A
row is never put together from two reads: between them a compactor may have dropped a tombstone and what it hid (R5).

    q       v9  v7  v4 │           three asked for, three came: below v4 nothing is known of q,
    q's SC  v7  v4  v2 │ …         nor below v2 of its shadow cells
                   └ v7 has its shadow cell, below the snapshot: enough
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pyomid.storage.hbase.codec.batches import cells_of
from pyomid.storage.hbase.codec.keyvalues import KeyValue, decode
from pyomid.storage.hbase.codec.layout import is_shadow, shadowed_qualifier
from pyomid.storage.hbase.regions.operations import Budget, RegionOperations, Steps
from pyomid.storage.hbase.regions.scan_cursor import ScanCursor, ScanSpec
from pyomid.storage.hbase.rpc.requests import ALL_VERSIONS, NAMES_AND_LENGTHS, Filter, column_list
from pyomid.types import Cell, CellVersion, Column, KeyRange, ReadBounds

VERSIONS_FIRST: Final = 3
"""The newest, one in flight above it, and one that was rolled back or is the newest's predecessor."""

_VERSIONS_TIMES: Final = 4

SCAN_BYTES: Final = 2 << 20
"""An answer holds at most so many bytes, and the cell that passes this bound."""

SCANS_FIRST: Final = 4
SCANS_MAX: Final = 16

BYTES_AT_ONCE: Final = SCANS_FIRST * SCAN_BYTES
"""Of rows as large as the last one came."""

LOOKED_AT_MAX: Final = 4
"""Columns of one look for cells whose values stay at the server: it may hold all of them until it answers."""

_Columns = tuple[tuple[bytes, tuple[bytes, ...]], ...]


@dataclass(frozen=True, slots=True)
class WantedCells:
    """What is read of each row."""

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


def read_rows_steps(
    operations: RegionOperations, wanted: WantedCells, rows: Sequence[bytes], budget: Callable[[], Budget]
) -> Steps[list[list[Cell]]]:
    """The cells of each row, in order, each row from one atomic read. `budget`: that of one call."""
    found: list[list[Cell]] = [[]] * len(rows)
    versions = VERSIONS_FIRST if wanted.bounds.committed_below else ALL_VERSIONS
    left = list(range(len(rows)))
    while left:
        short: list[int] = []
        scans = _RowScans(operations, (wanted.scan(rows[index], versions) for index in left), budget, SCANS_FIRST)
        for index in left:
            key_values = yield from scans.next_steps(_block_bytes)
            cells = certain_cells(key_values, versions, wanted.bounds)
            if cells is None:
                short.append(index)
            else:
                found[index] = cells
        versions = min(versions * _VERSIONS_TIMES, ALL_VERSIONS)
        left = short
    return found


def absent_cells_steps(
    operations: RegionOperations, table: str, cells: Sequence[CellVersion], budget: Callable[[], Budget]
) -> Steps[list[CellVersion]]:
    """Those of `cells` that are not there, each by a look of its own time. Values stay at the server, which says how
    long they are: it reads and holds them for an answer, and counts them as nothing."""
    looks: list[list[CellVersion]] = []
    open_looks: dict[tuple[bytes, int], list[CellVersion]] = {}
    for cell in cells:
        look = open_looks.get((cell.row, cell.version))
        if look is None or len(look) == LOOKED_AT_MAX:
            look = open_looks[cell.row, cell.version] = []
            looks.append(look)
        look.append(cell)
    scans = _RowScans(operations, (_look_scan(table, look) for look in looks), budget, 1)
    absent: list[CellVersion] = []
    for look in looks:
        found = yield from scans.next_steps(_lengths)
        there = {(each.family, each.qualifier) for each in found}
        absent += [cell for cell in look if (cell.family, cell.qualifier) not in there]
    return absent


def _look_scan(table: str, look: Sequence[CellVersion]) -> ScanSpec:
    columns = column_list(Column(cell.family, cell.qualifier) for cell in look)
    row, version = look[0].row, look[0].version
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
    """Of a row that was read with `versions` of each column at most: its cells that are known with their shadow
    cells; None where the reader needs older ones, too."""
    known_from = _known_from(key_values, versions)
    cells = cells_of(key_values)
    if not known_from:
        return cells
    cells = [cell for cell in cells if cell.version >= known_from.get((cell.family, cell.qualifier), 0)]
    ended = {(cell.family, cell.qualifier) for cell in cells if bounds.ends_column(cell)}
    return cells if known_from.keys() <= ended else None


def _known_from(key_values: Sequence[KeyValue], versions: int) -> dict[tuple[bytes, bytes], int]:
    """For each column of which, or of whose shadow cells, there may be older ones: the version from which on all of
    them are there."""
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
    """Scans of one row each, some of which are on their way while the first of them is waited for.

    Their number grows by one with each that came, while so many of its size are not more than `BYTES_AT_ONCE`. After a
    failed call each goes alone: they may have ended the server.
    """

    def __init__(
        self, operations: RegionOperations, specs: Iterable[ScanSpec], budget: Callable[[], Budget], at_once: int
    ) -> None:
        self._operations = operations
        self._specs = iter(specs)
        self._budget = budget
        self._at_once = at_once
        self._sent: deque[ScanCursor] = deque()

    def next_steps(self, held_bytes: Callable[[Sequence[KeyValue]], int]) -> Steps[list[KeyValue]]:
        """All cells of the next row. `held_bytes`: what they weigh at the server."""
        for spec in islice(self._specs, max(0, self._at_once - len(self._sent))):
            cursor = ScanCursor(self._operations, spec)
            yield from cursor.send_steps(self._budget())
            self._sent.append(cursor)
        cells, has_failed = yield from self._whole_row_steps(self._sent.popleft())
        most = 1 if has_failed else BYTES_AT_ONCE // max(1, held_bytes(cells))
        self._at_once = max(1, min(self._at_once + 1, SCANS_MAX, most))
        return cells

    def _whole_row_steps(self, cursor: ScanCursor) -> Steps[tuple[list[KeyValue], bool]]:
        cells: list[KeyValue] = []
        has_failed = False
        while True:
            budget = self._budget()
            block = yield from cursor.fetch_steps(budget)
            has_failed |= budget.last is not None
            if block is None:
                return cells, has_failed
            if block.restarted:
                cells.clear()
            cells += decode(block.cells)


def _block_bytes(cells: Sequence[KeyValue]) -> int:
    return sum(len(each.value) for each in cells)


def _lengths(cells: Sequence[KeyValue]) -> int:
    """Of the values that `NAMES_AND_LENGTHS` left out."""
    return sum(int.from_bytes(each.value) for each in cells)
