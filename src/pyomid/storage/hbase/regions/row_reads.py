"""Rows at the point grain, in answers of bounded size: sixty versions of a large cell would end a region server that
had to put them into one.

    few rows, and what did not fit below     a scan each: its answers end after `SCAN_BYTES`, inside a row if need be
    many rows                                one call of gets, some cells of each row at most

A reader needs few versions of a column, the newest that it sees and what lies above (`ReadBounds`). So the first look
asks for `VERSIONS_FIRST` of each; where that does not reach down far enough the whole row is read once more with more
of them. Never is a row put together from two looks: between them a compactor may have dropped a tombstone and what
it hid (R5).

    q       v9  v7  v4 │           three asked for, three came: below v4 nothing is known of q,
    q's SC  v7  v4  v2 │ …         nor below v2 of its shadow cells
                   └ v7 has its shadow cell, below the snapshot: enough
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyomid.storage.hbase.codec.batches import cells_of
from pyomid.storage.hbase.codec.keyvalues import KeyValue, decode
from pyomid.storage.hbase.codec.layout import is_shadow, shadowed_qualifier
from pyomid.storage.hbase.regions.operations import Budget, RegionOperations, ScanCursor, ScanSpec, Steps
from pyomid.storage.hbase.rpc.failures import RemoteFailure
from pyomid.storage.hbase.rpc.requests import ALL_VERSIONS, RowGet
from pyomid.types import Cell, KeyRange, ReadBounds

VERSIONS_FIRST: Final = 3
"""The newest, one in flight above it, and one that was rolled back or is the newest's predecessor."""

_VERSIONS_TIMES: Final = 4

GETS_MIN: Final = 2
"""Fewer rows are scanned: a scan's answer is bounded in bytes, a get's in cells only."""

CELLS_PER_GET: Final = 64
"""Of a family."""

SCANS_AT_ONCE: Final = 4
SCAN_BYTES: Final = 2 << 20


@dataclass(frozen=True, slots=True)
class WantedCells:
    """What is read of each row."""

    table: str
    columns: tuple[tuple[bytes, tuple[bytes, ...]], ...]
    bounds: ReadBounds

    @property
    def time_range(self) -> tuple[int, int] | None:
        whole = ReadBounds()
        at_least, below = self.bounds.at_least, self.bounds.below
        return None if (at_least, below) == (whole.at_least, whole.below) else (at_least, below)

    def get(self, row: bytes, versions: int) -> RowGet:
        return RowGet(row, self.columns, versions, self.time_range, CELLS_PER_GET)

    def scan(self, row: bytes, versions: int) -> ScanSpec:
        return ScanSpec(
            self.table,
            KeyRange(row, row + b"\0"),
            self.columns,
            versions,
            rows_per_call=1,
            bytes_per_call=SCAN_BYTES,
            read_ahead=False,
            limit=1,
            time_range=self.time_range,
            is_fresh=True,
        )


def read_rows_steps(
    operations: RegionOperations, wanted: WantedCells, rows: Sequence[bytes], budget: Callable[[], Budget]
) -> Steps[list[list[Cell]]]:
    """The cells of each row, in order; of each row from one atomic read. `budget`: of one call."""
    found: list[list[Cell]] = [[]] * len(rows)
    versions = VERSIONS_FIRST if wanted.bounds.committed_below else ALL_VERSIONS
    left = list(range(len(rows)))
    if len(rows) >= GETS_MIN:
        left = yield from _get_steps(operations, wanted, rows, versions, found, budget())
    while left:
        short: list[int] = []
        for first in range(0, len(left), SCANS_AT_ONCE):
            some = left[first : first + SCANS_AT_ONCE]
            specs = [wanted.scan(rows[index], versions) for index in some]
            scanned = yield from _scan_steps(operations, specs, budget)
            for index, key_values in zip(some, scanned, strict=True):
                cells = certain_cells(key_values, versions, wanted.bounds)
                if cells is None:
                    short.append(index)
                else:
                    found[index] = cells
        versions = min(versions * _VERSIONS_TIMES, ALL_VERSIONS)
        left = short
    return found


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


def _get_steps(
    operations: RegionOperations,
    wanted: WantedCells,
    rows: Sequence[bytes],
    versions: int,
    found: list[list[Cell]],
    budget: Budget,
) -> Steps[list[int]]:
    """Fills `found`; returns the rows that must be read in another way."""
    left: list[int] = []
    results = yield from operations.settle_rows_steps(wanted.table, [wanted.get(row, versions) for row in rows], budget)
    for index, result in enumerate(results):
        if isinstance(result, RemoteFailure) and result.simple_name != "RowTooBigException":
            raise result.as_error(budget.what)
        cells = None
        if isinstance(result, list) and not _is_cut(result):
            cells = certain_cells(result, versions, wanted.bounds)
        if cells is None:
            left.append(index)
        else:
            found[index] = cells
    return left


def _is_cut(key_values: Sequence[KeyValue]) -> bool:
    """A family brought all the cells that a get may bring."""
    if len(key_values) < CELLS_PER_GET:
        return False
    counts: dict[bytes, int] = {}
    for each in key_values:
        counts[each.family] = counts.get(each.family, 0) + 1
    return max(counts.values()) >= CELLS_PER_GET


def _scan_steps(
    operations: RegionOperations, specs: Sequence[ScanSpec], budget: Callable[[], Budget]
) -> Steps[list[list[KeyValue]]]:
    """The cells of each one-row scan; all are on their way at once."""
    cursors = [ScanCursor(operations, spec) for spec in specs]
    for cursor in cursors:
        yield from cursor.send_steps(budget())
    found = []
    for cursor in cursors:
        found.append((yield from _whole_row_steps(cursor, budget)))
    return found


def _whole_row_steps(cursor: ScanCursor, budget: Callable[[], Budget]) -> Generator[Any, Any, list[KeyValue]]:
    cells: list[KeyValue] = []
    while (block := (yield from cursor.fetch_steps(budget()))) is not None:
        if block.restarted:
            cells.clear()
        cells += decode(block.cells)
    return cells
