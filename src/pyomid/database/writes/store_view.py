"""A transaction's view of the store: everything committed before its snapshot, and the writes that it has sent
itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pyomid.coroutines import Effect, Routine
from pyomid.database.writes.own_cells import Row
from pyomid.protocol.effects import ReadRows
from pyomid.protocol.expiry import expiring
from pyomid.protocol.reading import (
    ROWS_AT_ONCE,
    CommitCache,
    Snapshot,
    SnapshotScan,
    check_life,
    read_rows,
    read_settled,
    start_of_last_rows,
)
from pyomid.protocol.visibility import NO_STARTS
from pyomid.types import TIMESTAMP_STEP, BeginReply, Cell, Column, KeyRange, ReadBounds, TableInfo


class StoreView:
    """A transaction's snapshot, for each table. `version` is the version under which the transaction writes before its
    commit, 0 if it has none. `settled` is the store's capability `settled_reads`."""

    def __init__(self, begun: BeginReply, cache: CommitCache, *, version: int = 0, settled: bool = False) -> None:
        self.start_ts: Final = begun.read_at or begun.start_ts
        self.version = version
        self._snapshot = Snapshot(self.start_ts, begun.epoch, frozenset((version,)) if version else NO_STARTS)
        self._expiring: dict[str, Snapshot] = {}
        """The snapshot for each table with a time to live (E1)."""
        self._cache = cache
        self._settled = settled

    def see_own(self, version: int) -> None:
        """Write under this version from now on, and see its writes."""
        self.version = version
        for snapshot in (self._snapshot, *self._expiring.values()):
            snapshot.own_too(version)

    def note_expiring(self, info: TableInfo) -> None:
        """Note that a table has a time to live, before its first read."""
        self._expiring[info.name] = expiring(self._snapshot, info)

    def check_life(self, info: TableInfo) -> Routine[None]:
        """Check that the snapshot may read a table that is younger than the snapshot (R10), before its first use."""
        return check_life(info, self._snapshot, info.generation)

    def of(self, table: str) -> Snapshot:
        return self._expiring.get(table, self._snapshot)

    # Reads, all without buffered writes

    def read(self, info: TableInfo, keys: Sequence[bytes], columns: Sequence[Column] | None) -> Routine[list[Row]]:
        read_stored = read_settled if self._settled and len(keys) <= ROWS_AT_ONCE else read_rows
        return read_stored(info, keys, columns, self._expiring.get(info.name, self._snapshot), self._cache)

    def read_others(
        self, info: TableInfo, keys: Sequence[bytes], columns: Sequence[Column] | None
    ) -> Routine[list[Row]]:
        """Return rows, like `read`, but without the transaction's own versions."""
        return read_rows(info, keys, columns, replace(self.of(info.name), own=NO_STARTS), self._cache)

    def read_own(self, table: str, keys: Sequence[bytes]) -> Effect[list[list[Cell]]]:
        """Return the own versions of at most `ROWS_AT_ONCE` rows."""
        bounds = ReadBounds(at_least=self.version, below=self.version + TIMESTAMP_STEP)
        return ReadRows(table, keys, None, bounds)

    def scan(
        self, info: TableInfo, key_range: KeyRange, columns: Sequence[Column] | None, rows_max: int
    ) -> SnapshotScan:
        return SnapshotScan(info, key_range, columns, self.of(info.name), self._cache, rows_max=rows_max)

    def start_of_last_rows(self, info: TableInfo, key_range: KeyRange, rows: int) -> Routine[bytes]:
        """Return the key at which about the last `rows` rows of the range begin."""
        return start_of_last_rows(info, key_range, rows, self.of(info.name))
