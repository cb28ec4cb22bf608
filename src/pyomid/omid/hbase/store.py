"""The data store over HBase (`DataStore`), in Apache Omid's cell format: Java and Python clients share the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch, CellNames, without_cells
from pyomid.checks import check_column, check_row_key, check_value_length, check_version, check_writes
from pyomid.errors import Misuse, OmidError, Unavailable, UnknownTable
from pyomid.omid.hbase.cluster import Cluster, Scan
from pyomid.omid.hbase.codec.batches import BatchDecoder, batch_of_writes
from pyomid.omid.hbase.codec.changes import (
    Changes,
    changes_of,
    changes_of_batch,
    key_range_of,
    missing_cells,
    shadows_of_batch,
)
from pyomid.omid.hbase.codec.keyvalues import LATEST, KeyValue, first_row
from pyomid.omid.hbase.codec.layout import (
    LEGACY_TOMBSTONE,
    is_shadow,
    shadow_qualifier,
)
from pyomid.omid.hbase.codec.native import encode as kernels
from pyomid.omid.hbase.group_commit import GroupCommit, Results
from pyomid.omid.hbase.physical_tables import PhysicalTables
from pyomid.omid.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.regions.bulk_writes import (
    BegunPut,
    BulkOutcome,
    begin_put,
    end_put,
    put_batch,
    put_changes,
)
from pyomid.omid.hbase.regions.row_reads import WantedCells, absent_cells, read_rows
from pyomid.omid.hbase.regions.scan_cursor import ScanSpec
from pyomid.omid.hbase.rpc.failures import RemoteFailure, is_denied
from pyomid.omid.hbase.rpc.requests import (
    ALL_VERSIONS,
    INDETERMINATE,
    NAMES_ONLY,
    Mutation,
    RowMutation,
    puts,
)
from pyomid.ports import Capabilities, DataStore, ForeignTables
from pyomid.types import (
    TIMESTAMP_STEP,
    Cell,
    CellVersion,
    Column,
    KeyRange,
    ReadBounds,
    RowWrite,
    ShadowWrite,
    StoreLimits,
    TableInfo,
    VersionedRows,
    start_of,
)

_SHADOW_NAME_BYTES: Final = 5

BULK_ROWS_MIN: Final = 16
"""With fewer rows it is faster to encode them one by one than with a kernel and its arrays."""

LIMITS: Final = StoreLimits(
    row_bytes_max=32_767,
    qualifier_bytes_max=32_767 - _SHADOW_NAME_BYTES,
    # The server compares the size of a whole cell, with its key, with hbase.server.keyvalue.maxsize (10 MiB).
    value_bytes_max=(10 << 20) - (80 << 10),
)

_Columns = tuple[tuple[bytes, tuple[bytes, ...]], ...]


class HBaseStore(DataStore, ForeignTables):
    """The data store over HBase (`ports.DataStore`). It shares the cluster's connections with the other ports; `close`
    leaves them open.

    `read_watermark` returns the present W. If a cell's start is above W, only the cell's own transaction deletes it, so
    `write_shadow_cells` need not check such cells afterwards. Without `read_watermark` it checks every cell.
    """

    capabilities = Capabilities(pipelined_writes=True, shared_writes=True)

    def __init__(self, cluster: Cluster, *, read_watermark: Callable[[], int] | None = None) -> None:
        self._cluster = cluster
        self._read_watermark = read_watermark
        self._admin = Admin(cluster)
        self._physical = PhysicalTables(cluster, self._admin)
        self._group_commits: dict[str, GroupCommit] = {}

    @property
    def limits(self) -> StoreLimits:
        return LIMITS

    def write_cells(self, table: str, version: int, rows: Sequence[RowWrite]) -> None:
        _check_version(version)
        rows = [write for write in rows if write.cells]
        batch = batch_of_writes(rows) if len(rows) >= BULK_ROWS_MIN else None
        if batch is None:
            (failure,) = self.write_shared(table, [VersionedRows(version, rows)])
            if failure is not None:
                raise failure
        else:
            self._check_batch(table, batch)
            self._write_bulk(table, version, batch)

    def write_shared(self, table: str, writes: Sequence[VersionedRows]) -> list[Exception | None]:
        """Write rows of several transactions (`DataStore.write_shared`). Everything is written in one call; an error of
        the call is the outcome of each write."""
        outcomes: list[Exception | None] = [None] * len(writes)
        requests: list[RowMutation] = []
        sent: list[tuple[int, int]] = []
        for index, (version, rows) in enumerate(writes):
            try:
                _check_version(version)
                self._check_writes(table, rows)
                mutations = [RowMutation(w.row, (_put_of(w, version),), repeatable=False) for w in rows if w.cells]
            except Exception as error:
                outcomes[index] = error
                continue
            requests += mutations
            sent.append((index, len(mutations)))
        if requests:
            results = iter(self._group_commit(table).write(requests))
            for index, rows_count in sent:
                outcomes[index] = _failure_of_write(table, list(islice(results, rows_count)))
        return outcomes

    def write_batch(self, table: str, version: int, batch: CellBatch) -> None:
        _check_version(version)
        self._check_batch(table, batch)
        self._write_bulk(table, version, batch)

    def begin_write(self, table: str, version: int, batch: CellBatch) -> BegunPut:
        _check_version(version)
        self._check_batch(table, batch)
        budget = self._cluster.budget(_writing(table, batch))
        return self._cluster.run(begin_put(self._cluster.operations, table, version, batch, budget))

    def end_writes(self, begun: Sequence[BegunPut]) -> None:
        failure: OmidError | None = None
        for each in begun:
            budget = self._cluster.budget(_writing(each.table, each.batch))
            try:
                outcome = self._cluster.run(end_put(self._cluster.operations, each, budget))
                self._finish_write(each.table, each.version, each.batch, outcome)
            except OmidError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def read_rows(
        self,
        table: str,
        rows: Sequence[bytes],
        columns: Sequence[Column] | None = None,
        *,
        bounds: ReadBounds | None = None,
    ) -> list[list[Cell]]:
        wanted = WantedCells(table, _wanted(columns), bounds or ReadBounds())
        budget = partial(self._cluster.budget, f"reading {len(rows)} rows of {table}")
        found = self._cluster.run(read_rows(self._cluster.operations, wanted, rows, budget))
        if columns is None:
            return found
        whole = _whole_families(columns)
        return [[cell for cell in cells if _is_requested(cell, whole)] for cells in found]

    def scan(
        self,
        table: str,
        key_range: KeyRange,
        columns: Sequence[Column] | None = None,
        *,
        batch_rows_max: int = 10_000,
        bounds: ReadBounds | None = None,
    ) -> Iterator[CellBatch]:
        """Return an iterator of the range's cells, in batches (`DataStore.scan`). `bounds` permits a store to omit
        cells. This store omits versions that are too old, and HBase opens no file that holds only such versions."""
        versions = (bounds.at_least, bounds.below) if bounds is not None and bounds.at_least else None
        spec = ScanSpec(
            table,
            key_range,
            _wanted(columns),
            ALL_VERSIONS,
            rows_per_call=batch_rows_max,
            time_range=versions,
            is_fresh=True,
        )
        self._known_families(table)
        return _requested(_batches(self._cluster.scan(spec)), columns)

    def start_of_last_rows(self, table: str, key_range: KeyRange, rows: int) -> bytes:
        """Return the key at which about the last `rows` rows of the range begin (`DataStore.start_of_last_rows`).
        Searches only the last region of the range."""
        return self._cluster.start_of_last_rows(table, key_range, rows)

    def write_shadow_cells(self, table: str, shadows: Sequence[ShadowWrite]) -> None:
        """Write shadow cells, then delete those whose data cells compaction has deleted meanwhile.

        A compaction that starts after these writes sees the shadow cells, and deletes them with their data cells.
        """
        if not shadows:
            return
        cells = [shadow.cell for shadow in shadows]
        self._change(table, changes_of(cells, [shadow.commit_ts for shadow in shadows]))
        if self._read_watermark is not None:
            watermark = self._read_watermark()
            cells = [cell for cell in cells if start_of(cell.version) <= watermark]
        self._remove_orphans(table, cells)

    def write_shadow_batches(self, table: str, version: int, batches: Sequence[CellBatch], commit_ts: int) -> None:
        """Like `write_shadow_cells`, but without an object for each cell."""
        self._change(table, *(shadows_of_batch(batch, version, commit_ts) for batch in batches))
        if self._read_watermark is None or start_of(version) <= self._read_watermark():
            self._remove_orphans(table, list(CellNames(batches, version)))

    def delete_versions(self, table: str, cells: Sequence[CellVersion]) -> None:
        self._change(table, changes_of(cells, [kernels.DROPPED] * len(cells)))

    def clean_batch(self, table: str, batch: CellBatch, heals: NDArray[np.int64], drops: NDArray[np.int64]) -> None:
        """Put the shadow cells `heals` and delete the cells `drops` (`DataStore.clean_batch`). Raises `Misuse` if
        Omid's compaction coprocessor is active on the table: it keeps other versions than pyomid's compaction."""
        self._physical.check_cleaned(table)
        changes = changes_of_batch(batch, heals, drops)
        self._change(table, changes)
        healed = changes.only(changes.change > 0)
        if healed.rows and self._read_watermark is not None:
            healed = healed.only(healed.version < start_of(self._read_watermark()) + TIMESTAMP_STEP)
        if healed.rows:
            # Values are read too: before HBase 2.6, the limit of a reply counts only the bytes that the reply contains,
            # so a scan of names only could make the server read any amount.
            versions = int(healed.version.min()), int(healed.version.max()) + 1
            spec = ScanSpec(table, key_range_of(healed), max_versions=ALL_VERSIONS, time_range=versions, is_fresh=True)
            missing = missing_cells(healed, _batches(self._cluster.scan(spec)))
            self._change(table, healed.only(missing, kernels.ORPHANED))

    def regions(self, table: str) -> list[KeyRange]:
        return [region.key_range for region in self._cluster.regions(table)]

    def split_points(self, table: str, key_range: KeyRange, partitions: int) -> list[bytes]:
        """Divide the range at region borders, at the middle row of each region as estimated by HBase, and at keys
        interpolated between these."""
        known = []
        for region in self._cluster.regions(table):
            known.append(region.key_range.start)
            try:
                middle = self._admin.best_split(region)
            except (Misuse, Unavailable):
                continue  # the region was split or moved just now; the division is an estimate anyway
            known += [middle] if middle else []
        first, last = self._edge(table, key_range, known)
        if first is None or last is None:
            return []
        return _keys_between(first, last, [key for key in known if first < key < last], partitions)

    def flush_and_merge(self, table: str, region: KeyRange) -> None:
        """Flush the region server's memory to files. (A scan reads both anyway.)"""
        for each in self._cluster.regions(table):
            if each.key_range == region:
                self._admin.flush_region(each)

    def create_table(self, info: TableInfo, split_keys: Sequence[bytes] = ()) -> None:
        """Create the table, or use an existing one. Raises `Misuse` if the existing table lacks a family or keeps too
        few versions.

        An existing table is enabled. So a client that disabled it for a drop and then stalled cannot delete it.
        """
        wanted = tuple(FamilyDescriptor(family) for family in info.families)
        try:
            if self._admin.create_table(TableDescriptor(info.name, wanted), split_keys):
                return
        except Misuse as error:
            # A user who may not create tables may still use an existing one: HBase checks rights before existence.
            if not is_denied(error) or not self._admin.exists(info.name):
                raise
        self.check_table(info.name, info.families)
        self._admin.enable_if_disabled(info.name)

    def withdraw_table(self, table: str) -> object | None:
        """Disable the table. Returns None if there is none. HBase deletes by name, and deletes only disabled tables: if
        another client creates the table anew meanwhile, the new table is enabled, and `drop_table` cannot delete it."""
        try:
            self._admin.disable_table(table)
        except UnknownTable:
            return None
        return True

    def give_back_table(self, table: str) -> None:
        self._admin.enable_if_disabled(table)

    def foreign_tables(self) -> dict[str, list[str]]:
        return self._physical.families()

    def holds_shadow_cells(self, table: str, *, rows_max: int) -> bool:
        return self._physical.holds_shadow_cells(table, rows_max=rows_max)

    def check_names(self, table: str, key_range: KeyRange) -> None:
        self._physical.check_names(table, key_range)

    def check_markers(self, table: str, key_range: KeyRange, newest_ts: int, issued: Callable[[], int]) -> None:
        self._physical.check_markers(table, key_range, newest_ts, issued)

    def check_table(self, table: str, families: Iterable[bytes]) -> TableDescriptor:
        """Return the physical table. Raises `Misuse` if it could lose versions that transactions need, `UnknownTable`
        if there is no table."""
        return self._physical.check(table, families)

    def check_opened(self, table: str, families: Iterable[bytes], *, leased: bool = False) -> None:
        self._physical.check_opened(table, families, leased=leased)

    def drop_table(self, table: str, withdrawn: object | None = None) -> bool:
        dropped = self._admin.drop_table(table) if withdrawn is None else self._admin.delete_table(table)
        self._physical.forget(table)
        return dropped

    def close(self) -> None:
        pass

    def _write_bulk(self, table: str, version: int, batch: CellBatch) -> None:
        budget = self._cluster.budget(_writing(table, batch))
        outcome = self._cluster.run(put_batch(self._cluster.operations, table, version, batch, budget))
        self._finish_write(table, version, batch, outcome)

    def _finish_write(self, table: str, version: int, batch: CellBatch, outcome: BulkOutcome) -> None:
        """Resend refused rows. Rows without a reply must not be retried (law 10): for them, raise `Unavailable`."""
        if outcome.indeterminate:
            raise _indeterminate(table, len(outcome.indeterminate), batch.rows)
        if outcome.refused:
            (failure,) = self.write_shared(
                table, [VersionedRows(version, [batch.row_write(row) for row in outcome.refused])]
            )
            if failure is not None:
                raise failure

    def _group_commit(self, table: str) -> GroupCommit:
        self._cluster.check_process()
        found = self._group_commits.get(table)
        if found is None:
            found = self._group_commits.setdefault(table, GroupCommit(partial(self._cluster.row_outcomes, table)))
        return found

    def _change(self, table: str, *changes: Changes) -> None:
        """Make the changes; they are durable on return. They are idempotent, so refused and indeterminate rows are
        retried."""
        some = [each for each in changes if each.rows]
        if not some:
            return
        budget = self._cluster.budget(f"changing {sum(each.rows for each in some)} rows of {table}")
        outcomes = self._cluster.run(put_changes(self._cluster.operations, table, some, budget))
        for each, outcome in zip(some, outcomes, strict=True):
            again = sorted(outcome.refused + outcome.indeterminate)
            if again:
                self._cluster.rows(table, [each.as_mutation(row) for row in again])

    def _remove_orphans(self, table: str, cells: Sequence[CellVersion]) -> None:
        """Of the shadow cells just written, delete those whose data cells are gone.

        The check follows the write, so that no deletion can come between check and write. A crash between the write and
        this leaves a shadow cell without a data cell, which readers ignore.
        """
        if not cells:
            return
        budget = partial(self._cluster.budget, f"looking for {len(cells)} cells of {table}")
        orphans = self._cluster.run(absent_cells(self._cluster.operations, table, cells, budget))
        # Delete only the shadow cells: a delete marker for the data cell's version would hide that cell if it arrives
        # later.
        self._change(table, changes_of(orphans, [kernels.ORPHANED] * len(orphans)))

    def _check_batch(self, table: str, batch: CellBatch) -> None:
        families = self._known_families(table, [column.family for column in batch.columns])
        for column in batch.columns:
            check_column(column, families, LIMITS)
            _check_not_shadow(column)
        too_long = np.flatnonzero(batch.row_len > LIMITS.row_bytes_max)
        if len(too_long) or not bool(np.all(batch.row_len > 0)):
            check_row_key(batch.row_key(int(too_long[0]) if len(too_long) else int(np.argmin(batch.row_len))), LIMITS)
        for cell in np.flatnonzero((batch.cell_len > LIMITS.value_bytes_max) | (batch.cell_len == 0)):
            row = batch.row_key(batch.row_of(batch.record_of(int(cell))))
            check_value_length(row, batch.columns[int(batch.cell_col[cell])], int(batch.cell_len[cell]), LIMITS)
        for cell in np.flatnonzero(batch.cell_len == len(LEGACY_TOMBSTONE)):
            _check_not_tombstone(batch.columns[int(batch.cell_col[cell])], batch.value(int(cell)))
        for index, column in enumerate(batch.columns):
            if not column.qualifier:
                for cell in np.flatnonzero((batch.cell_col == index) & (batch.cell_len >= 0)):
                    check_value_length(b"", column, int(batch.cell_len[cell]), LIMITS)

    def _check_writes(self, table: str, rows: Sequence[RowWrite]) -> None:
        wanted = {column.family for write in rows for column, _ in write.cells}
        check_writes(rows, self._known_families(table, wanted), LIMITS)
        for write in rows:
            for column, value in write.cells:
                _check_not_shadow(column)
                _check_not_tombstone(column, value)

    def _known_families(self, table: str, wanted: Iterable[bytes] = ()) -> frozenset[bytes]:
        """Return the table's families. If one of `wanted` is missing, read them again: another process may have created
        the table anew."""
        families = self._physical.descriptor(table).family_names
        if not families.issuperset(wanted):
            families = self._physical.descriptor(table, age_s_max=0.0).family_names
        return families

    def _edge(self, table: str, key_range: KeyRange, known: Sequence[bytes]) -> tuple[bytes | None, bytes | None]:
        """Return the first row of the range, and a key at or after the last row of the range."""
        spec = ScanSpec(
            table, key_range, filters=(NAMES_ONLY,), rows_per_call=1, bytes_per_call=1, read_ahead=False, limit=1
        )
        with closing(self._cluster.scan(spec)) as scan:
            block = scan.fetch()
        if block is None:
            return None, None
        first = first_row(block.cells)
        if key_range.stop is not None:
            return first, key_range.stop
        return first, max((*known, first)) + b"\xff"


def _batches(blocks: Scan) -> Iterator[CellBatch]:
    decoder = BatchDecoder()
    with closing(blocks) as scan:
        while (block := scan.fetch()) is not None:
            batch, last_row = decoder.decode(block)
            if last_row is not None:
                scan.received(last_row)
            if batch is not None:
                yield batch


def _keys_between(first: bytes, last: bytes, known: Sequence[bytes], partitions: int) -> list[bytes]:
    """Return up to `partitions` - 1 ascending keys strictly between `first` and `last`. Assumes that there are about
    equally many rows between any two neighbouring `known` keys."""
    anchors = [first, *sorted(set(known)), last]
    gaps = len(anchors) - 1
    cuts: list[bytes] = []
    for number in range(1, partitions):
        gap, share = divmod(number * gaps, partitions)
        key = anchors[gap] if share == 0 else _interpolate(anchors[gap], anchors[gap + 1], share, partitions)
        if first < key < last and (not cuts or key > cuts[-1]):
            cuts.append(key)
    return cuts


def _interpolate(low: bytes, high: bytes, share: int, whole: int) -> bytes:
    """Return the key at `share`/`whole` of the way from `low` to `high`. A few bytes after the common prefix of the
    keys count, as fractions in base 256."""
    common = 0
    while common < min(len(low), len(high)) and low[common] == high[common]:
        common += 1
    size = 6
    begin = int.from_bytes(low[common : common + size].ljust(size, b"\0"), "big")
    end = int.from_bytes(high[common : common + size].ljust(size, b"\0"), "big")
    middle = begin + (end - begin) * share // whole
    return low[:common] + middle.to_bytes(size, "big").rstrip(b"\0")


def _wanted(columns: Sequence[Column] | None) -> _Columns:
    """Return the columns, the columns of their shadow cells, and those of family tombstones. An empty qualifier reads
    the whole family."""
    if columns is None:
        return ()
    whole = {column.family for column in columns if not column.qualifier}
    wanted: dict[bytes, list[bytes]] = {family: [] for family in whole}
    for family, qualifier in columns:
        if family in whole:
            continue
        qualifiers = wanted.setdefault(family, [b"", shadow_qualifier(b"")])
        qualifiers += [qualifier, shadow_qualifier(qualifier)]
    return tuple((family, tuple(qualifiers)) for family, qualifiers in wanted.items())


def _whole_families(columns: Sequence[Column]) -> frozenset[bytes]:
    """Return the families that are read as a whole."""
    return frozenset(column.family for column in columns if not column.qualifier)


def _is_requested(cell: Cell, whole: frozenset[bytes]) -> bool:
    """Return False for the cell of a column without qualifier if that column is read only for its tombstones."""
    return bool(cell.qualifier) or cell.value is None or cell.family in whole


def _requested(batches: Iterator[CellBatch], columns: Sequence[Column] | None) -> Iterator[CellBatch]:
    if columns is None:
        yield from batches
        return
    whole = _whole_families(columns)
    for batch in batches:
        only_tombstones = [not column.qualifier and column.family not in whole for column in batch.columns]
        if any(only_tombstones):
            gone = np.array(only_tombstones)[batch.cell_col] & (batch.cell_len >= 0)
            yield without_cells(batch, gone) if gone.any() else batch
        else:
            yield batch


def _check_not_shadow(column: Column) -> None:
    if is_shadow(column.qualifier):
        raise Misuse(f"the qualifier of {column} ends in the bytes C2 80, which are reserved for shadow cells")


def _check_not_tombstone(column: Column, value: bytes | None) -> None:
    if value == LEGACY_TOMBSTONE:
        raise Misuse(f"the value of {column} is {LEGACY_TOMBSTONE!r}, which is a tombstone of old Omid versions")


def _check_version(version: int) -> None:
    check_version(version)
    if version == LATEST:
        raise Misuse(f"version {version} is reserved: HBase replaces it with the server's time", version=version)


def _put_of(write: RowWrite, version: int) -> Mutation:
    row = write.row
    return puts(
        [KeyValue(row, column.family, column.qualifier, version, value or b"") for column, value in write.cells]
    )


def _failure_of_write(table: str, results: Results) -> Exception | None:
    """Return the error of one transaction's row writes, or None if all of them succeeded."""
    for result in results:
        if isinstance(result, RemoteFailure):
            return result.as_error(f"writing {len(results)} rows of {table}")
    lost = sum(result is INDETERMINATE for result in results)
    return _indeterminate(table, lost, len(results)) if lost else None


def _writing(table: str, batch: CellBatch) -> str:
    return f"writing {batch.rows} rows of {table}"


def _indeterminate(table: str, lost: int, whole: int) -> Unavailable:
    return Unavailable(
        f"the reply to {lost} of {whole} row writes to {table} was lost, so HBase may have stored them: roll "
        "back and rerun the transaction",
        table=table,
    )
