"""One attempt of a writing task: draw a branch, write the task's rows under the branch, and report to the driver.

The attempt decides nothing (S1, S2): the driver's commit names the branches that count. A branch that no commit names
is an orphan: it is invisible, and compaction deletes it later. A data write whose outcome is unknown is never repeated
under the same branch: the attempt fails, and the next attempt draws its own branch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from pyomid.cells import TOMBSTONE, CellBatch, batch_of
from pyomid.crashpoints import crash_point
from pyomid.errors import ConflictError, Misuse, MisuseType, Unavailable
from pyomid.protocol.hashing import table_id
from pyomid.protocol.native import hashing
from pyomid.protocol.reading import read_rows
from pyomid.protocol.visibility import VisibleCells
from pyomid.rows.arrow_arrays import int64_array
from pyomid.rows.arrow_gate import Misfit, conversion
from pyomid.rows.column_types import column_type
from pyomid.rows.encode import Duplicates, Nulls, RowEncoder, duplicate_key
from pyomid.rows.row_key import key_layout, shown_key
from pyomid.rows.schema import sentinel_column
from pyomid.spark.connections import Connection, TaskUrl, connection
from pyomid.spark.source.read_task import BATCH_ROWS, ReadPlan, visible_batches
from pyomid.types import Cell, CellVersion, Column, ConflictLevel, KeyRange, TableInfo, TableSchema

REPORTED_MAX: Final = 1 << 21
"""Approximate maximum of keys that all tasks of one write report together (16 MB in the driver)."""

NO_IDS: Final = np.empty(0, np.int64)
"""Empty array that replaces arrays no longer needed; an empty slice of an array would keep the whole array alive."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The part of a write that all its tasks share."""

    url: TaskUrl
    info: TableInfo
    schema: TableSchema
    written: tuple[str, ...]
    start_ts: int
    """The transaction's start timestamp; branches lie above it, and tasks renew its lease."""
    duplicates: Duplicates = Duplicates.ERROR
    nulls: Nulls = Nulls.TOMBSTONE
    ids: tuple[ConflictLevel, ...] = ()
    """Levels of the conflict ids that tasks report to the TSO; none if the commit claims the tables, two while a
    table's level changes."""
    may_claim_tables: bool = True
    """Whether the write goes on if the TSO has no room for the ids. If False, the caller gave a level, and the write
    fails."""
    reported_max: int = REPORTED_MAX
    """Approximate maximum of keys that all tasks together report to the driver."""
    whole: bool = False
    """Whether a commit that names cells also writes the rows' existence."""
    absent_from: ReadPlan | None = None
    """The snapshot in which no written key may have a row; None to overwrite existing rows."""
    ends_early: bool = True
    """Whether a task fails as soon as the TSO knows of a conflict. It is False if only the commit can find out whether
    the winner is a run under the same id."""

    @property
    def existence(self) -> tuple[Column, ...]:
        """The column on which writers of whole rows conflict with those that create or delete a row without values."""
        if ConflictLevel.CELL not in self.info.id_levels:
            return ()
        return (sentinel_column(self.schema, self.info.families),)


@dataclass(frozen=True, slots=True)
class BranchReport:
    """An attempt's report of its writes. `witness` is one of its cells, by which a lost commit reply can be settled. It
    is None if another attempt may write all the cells again after compaction: then a missing shadow cell proves
    nothing.

    `ids_count`: how many conflict ids the attempt reported to the TSO; None if the TSO had no room for them.
    """

    branch: int
    rows: int
    cells: int
    bytes: int
    ids_count: int | None
    keys_count: int
    """Number of written rows if their keys must be distinct (`duplicates`); else 0."""
    keys: NDArray[np.int64]
    """Ids of the written row keys. If they are too many to report: only some keys that this task wrote twice, each as
    often as it was written."""
    span: KeyRange
    """A range that holds all rows that the attempt wrote."""
    witness: CellVersion | None
    inserted: int = 0
    deleted: int = 0
    """How many of `rows` a merge inserted and deleted. For a task of an overwrite, `deleted` counts the deleted rows,
    which are not in `rows`."""
    claimed: int = 0
    """How many of `rows` are missing rows whose keys a merge claimed."""

    @property
    def all_keys_reported(self) -> bool:
        return len(self.keys) == self.keys_count


@dataclass(frozen=True, slots=True)
class ReplacePlan:
    """The old rows that the tasks of an overwrite delete. Task n deletes the rows of `parts[n]`, if there is such a
    part.

    All tombstones lie under one branch, which is older than the branches of the tasks. Attempts may write the same
    tombstones again, because they read the same snapshot (decision 0118).
    """

    read: ReadPlan
    branch: int
    parts: tuple[KeyRange, ...]

    def tombstones(self, conn: Connection, parts: Iterable[KeyRange]) -> Iterator[CellBatch]:
        return chain.from_iterable(map(partial(_range_deletes, conn, self.read), parts))


def write_rows(
    plan: WritePlan, batches: Iterable[pa.RecordBatch], *, replaced: ReplacePlan | None = None, task: int = 0
) -> BranchReport | None:
    """Upsert rows by key, after deleting this task's share of the old rows. Return the report, or None if there were no
    rows, for which no branch is drawn."""
    encoder = RowEncoder(
        plan.schema,
        plan.info.families,
        written=plan.written,
        duplicates=plan.duplicates,
        nulls=plan.nulls,
        with_existence=plan.whole and bool(plan.existence),
    )
    filled = (batch for batch in _kept(plan, batches) if batch.num_rows)
    cells: Iterable[CellBatch] = (encoder.encode(batch) for batch in in_runs(encoder, filled, BATCH_ROWS))
    if plan.absent_from is not None:
        cells = _absent(plan, plan.absent_from, cells)
    old: Iterable[CellBatch] = ()
    if replaced is not None:
        old = replaced.tombstones(connection(plan.url), replaced.parts[task : task + 1])
    return _write_branch(
        plan,
        cells,
        old=old,
        old_branch=replaced.branch if replaced is not None else 0,
        with_keys=plan.duplicates is not Duplicates.LAST,
    )


def _absent(plan: WritePlan, read: ReadPlan, batches: Iterable[CellBatch]) -> Iterator[CellBatch]:
    """Yield the batches, after checking that the snapshot sees none of their rows."""
    conn, layout = connection(plan.url), key_layout(plan.schema)
    for batch in batches:
        present = _present(conn, read, batch)
        if present is not None:
            raise Misuse(
                f"mode 'insert': the row {shown_key(present, layout)} already exists in table {read.table.name!r}; "
                "omit the row, or overwrite it with mode 'append'",
                row=present,
            )
        yield batch


def _kept(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with numbers converted to the types of their columns. Renew the lease meanwhile, because the
    frame may be slow and nothing is written before a run is full."""
    conn = connection(plan.url)
    wanted = {column.name: column_type(column.spark_type, column.name).arrow for column in plan.schema.columns}
    for batch in batches:
        conn.renew(plan.start_ts)
        for place, field in enumerate(batch.schema):
            if _is_number(field.type) and wanted.get(field.name, field.type) != field.type:
                numbers = _converted(plan, field.name, batch.column(place), wanted[field.name])
                batch = batch.set_column(place, field.name, numbers)
        yield batch


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _converted(plan: WritePlan, name: str, column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return numbers converted to a column's type. Raises `MisuseType` if the type cannot hold one of them."""
    try:
        convert = conversion(column.type, wanted)
        return column if convert is None else convert(column)
    except Misfit as misfit:
        raise MisuseType(
            f"table {plan.info.name!r}: column {name!r} has type {wanted}, which cannot store a number of the frame: "
            f"{misfit.reason}",
            column=name,
        ) from None


def delete_rows(
    plan: WritePlan, read: ReadPlan, batches: Iterable[pa.RecordBatch], *, whole: bool = False
) -> BranchReport | None:
    """Delete the rows with these keys, and return the report. Writes a tombstone on every column that the snapshot sees
    in them, as Java Omid does, and at cell level also on their sentinel column.

    At cell level a column that another transaction adds to the row meanwhile survives; to delete whole rows, use level
    row. `whole`: also write a tombstone on the schema's other columns, to conflict with their writers, because the
    decision to delete depends on all values of the row, nulls included.
    """
    encoder = RowEncoder(plan.schema, plan.info.families, written=(), duplicates=Duplicates.LAST)
    conn = connection(plan.url)
    columns = (*(_stored(plan.schema) if whole else ()), *plan.existence)
    return _write_branch(
        plan, (_key_deletes(conn, read, encoder, batch, columns) for batch in _kept(plan, batches) if batch.num_rows)
    )


def delete_range(plan: WritePlan, read: ReadPlan, key_range: KeyRange, *, whole: bool = False) -> BranchReport | None:
    """Delete every row that the snapshot sees in a range, and return the report. `whole`: see `delete_rows`."""
    conn = connection(plan.url)
    columns = (*_stored(plan.schema), *plan.existence) if whole else ()
    return _write_branch(plan, _range_deletes(conn, read, key_range, columns))


def delete_rest(
    plan: WritePlan, replaced: ReplacePlan, reports: Sequence[BranchReport], done: set[int]
) -> list[BranchReport]:
    """Delete the old rows of an overwrite that no task deleted. `reports`: the reports of the tasks; `done`: the task
    numbers. Return the report of the tombstones' branch, if it has tombstones."""
    conn = connection(plan.url)
    rest = [part for task, part in enumerate(replaced.parts) if task not in done]
    report = _write_branch(plan, replaced.tombstones(conn, rest), branch=replaced.branch)
    if report is not None:
        return [report]
    some = next((report for report in reports if report.deleted), None)
    return [] if some is None else [BranchReport(replaced.branch, 0, 0, 0, 0, 0, NO_IDS, some.span, None)]


def _range_deletes(
    conn: Connection, read: ReadPlan, key_range: KeyRange, columns: Sequence[Column] = ()
) -> Iterator[CellBatch]:
    """Yield tombstones for the rows that the snapshot sees in a range, and for their `columns`."""
    return (_tombstones(batch, visible, columns) for batch, visible in visible_batches(conn, read, key_range))


UPDATE: Final = 1
INSERT: Final = 2
DELETE: Final = 3
CLAIM: Final = 4
"""Action that claims the key of a missing row: of this merge and a concurrent insert of the row, only one commits."""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The part of a merge that its tasks share, besides the `WritePlan`."""

    read: ReadPlan
    updated: tuple[str, ...]
    """The columns that an update writes: the columns that a clause sets; at level cell all columns, so that the update
    conflicts with writers of any column."""
    new_keys: bool
    """Whether inserts may have keys that exist in the snapshot, so that they must be looked up."""


def merge_rows(plan: WritePlan, merge: MergePlan, batches: Iterable[pa.RecordBatch]) -> BranchReport | None:
    """Update, insert and delete rows, and return the report. The first column of each batch is the action; the key
    columns and `plan.written` follow."""
    counts = {UPDATE: 0, INSERT: 0, DELETE: 0, CLAIM: 0}
    conn = connection(plan.url)
    updates, inserts, deletes = (
        RowEncoder(
            plan.schema,
            plan.info.families,
            written=written,
            duplicates=Duplicates.MERGE,
            with_existence=bool(plan.existence),
        )
        for written in (merge.updated, plan.written, ())
    )
    columns = (*_stored(plan.schema), *plan.existence)

    def changes() -> Iterator[CellBatch]:
        for batch in batches:
            rows = pa.RecordBatch.from_arrays(batch.columns[1:], names=batch.schema.names[1:])
            for action in counts:
                some = rows.filter(pc.equal(batch.column(0), action))
                if not some.num_rows:
                    continue
                if action in (DELETE, CLAIM):
                    deletes.encode_keys(some).ascending(Duplicates.MERGE, deletes.layout)
                    of_row = columns if action == DELETE else (sentinel_column(plan.schema, plan.info.families),)
                    made = _key_deletes(conn, merge.read, deletes, some, of_row, absent=action == CLAIM)
                else:
                    made = (updates if action == UPDATE else inserts).encode(some)
                    present = _present(conn, merge.read, made) if action == INSERT and merge.new_keys else None
                    if present is not None:
                        raise Misuse(
                            f"the merge would insert the row {shown_key(present, key_layout(plan.schema))}, which "
                            f"already exists in table {plan.info.name!r}; name the row key in on=[…], or exclude "
                            "the row with a condition",
                            row=present,
                        )
                counts[action] += made.rows
                yield made

    report = _write_branch(plan, changes(), with_keys=True)
    if report is None:
        return None
    return replace(report, inserted=counts[INSERT], deleted=counts[DELETE], claimed=counts[CLAIM])


def _present(conn: Connection, read: ReadPlan, written: CellBatch) -> bytes | None:
    """Return the first key of the batch that has a row in the snapshot, or None."""
    keys = [written.row_key(row) for row in range(written.rows)]
    rows = conn.driver.run(read_rows(read.table, keys, None, read.snapshot, conn.cache))
    return next((key for key, row in zip(keys, rows, strict=True) if row), None)


def reporting(
    work: Callable[[Iterator[pa.RecordBatch]], BranchReport | None],
    names: Sequence[str],
    batches: Iterator[pa.RecordBatch],
) -> list[BranchReport]:
    """Run a writing task on record batches, whose columns get these names. Return its report, if it wrote anything."""
    report = work(named_batches(names, batches))
    crash_point("spark.task.written")
    return reported(report)


def reported(report: BranchReport | None) -> list[BranchReport]:
    return [] if report is None else [report]


def named_batches(names: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the batches with these names instead of Spark's."""
    return (pa.RecordBatch.from_arrays(batch.columns, names=list(names)) for batch in batches)


def _write_branch(
    plan: WritePlan,
    batches: Iterable[CellBatch],
    *,
    branch: int = 0,
    with_keys: bool = False,
    old: Iterable[CellBatch] = (),
    old_branch: int = 0,
) -> BranchReport | None:
    """Write `old` under `old_branch`, then the batches under `branch`, by default a new branch. Report the conflict ids
    of both under `branch`."""
    conn = connection(plan.url)
    rows = cells = size = deleted = 0
    ids, keys = _ConflictIds(conn, plan), [NO_IDS]
    first, last = b"", b""
    witness: CellVersion | None = None
    for under, batch in chain(((old_branch, batch) for batch in old), ((0, batch) for batch in batches)):
        if not batch.rows:
            continue
        branch = branch or draw_branch(conn, plan)
        ids.add(branch, batch)
        crash_point("spark.task.before_write")
        conn.deployment.store.write_batch(plan.info.name, under or branch, batch)
        crash_point("spark.task.after_write")
        conn.renew(plan.start_ts)
        if under:
            deleted += batch.rows
        else:
            rows, cells, size = rows + batch.rows, cells + batch.cells, size + _value_bytes(batch)
            if with_keys:
                keys.append(hashing.row_ids(plan.info.name.encode(), batch))
            witness = witness or batch.cell_version(0)._replace(version=branch)
        lowest, highest = batch.row_key(0), batch.row_key(batch.rows - 1)
        first, last = min(first or lowest, lowest), max(last, highest)
    if not rows and not deleted:
        return None
    all_keys, span = np.concatenate(keys), KeyRange(first, last + b"\0")
    reported, count = _reported_keys(plan, all_keys), len(all_keys)
    report = BranchReport(branch, rows, cells, size, ids.report(branch), count, reported, span, witness)
    return replace(report, deleted=deleted)


IDS_A_PART: Final = 1 << 19
"""Maximum number of ids in one report to the TSO: 4 MB."""


class _ConflictIds:
    """Reports the conflict ids of a task's writes to the TSO in parts, and raises a conflict that the TSO finds.

    The first batch is reported before it is written. Each later part is as large as all earlier parts together, up to
    `IDS_A_PART`, because the TSO compares few large arrays faster than many small ones. A task that claims its table
    asks before each batch.
    """

    def __init__(self, conn: Connection, plan: WritePlan) -> None:
        self._conn, self._plan = conn, plan
        self._table_id = table_id(plan.info.name.encode())
        self._held: list[NDArray[np.int64]] = []
        self._parts = self._reported = 0
        self._no_room = ""
        """The reason why the table is claimed instead; empty if the TSO has room for the ids."""

    def add(self, branch: int, batch: CellBatch) -> None:
        """Add the ids of a batch that is written next."""
        if self._no_room or not self._plan.ids:
            self._ask(branch, NO_IDS)
            return
        self._held += [_conflict_ids(self._plan.info.name, level, batch) for level in self._plan.ids]
        if sum(map(len, self._held)) >= min(self._reported, IDS_A_PART):
            self.report(branch)

    def report(self, branch: int) -> int | None:
        """Report the remaining ids. Return how many ids were reported in all; None if the TSO had no room for them and
        the tables may be claimed instead."""
        ids = np.sort(np.concatenate([NO_IDS, *self._held]))
        self._held = []
        if not len(ids) and self._conn.deployment.store.capabilities.packs_commits:  # that store compares written rows
            self._ask(branch, NO_IDS)
        for at in range(0, len(ids), IDS_A_PART):
            part = ids[at : at + IDS_A_PART]
            try:
                self._ask(branch, part)
            except Unavailable as error:
                if not self._plan.may_claim_tables or "reported_ids_max" not in error.values:
                    raise
                self._no_room = error.message
                break
            self._parts += 1
            self._reported += len(part)
        return None if self._no_room else self._reported

    def _ask(self, branch: int, ids: NDArray[np.int64]) -> None:
        start_ts = self._plan.start_ts
        try:
            self._conn.deployment.tso.report_ids(start_ts, self._table_id, branch, self._parts, ids.tobytes())
        except ConflictError as error:
            if not self._plan.ends_early:
                return
            if not self._no_room:
                raise
            text = f"{error.message}; the task had claimed the whole table because {self._no_room}"
            raise type(error)(text, **error.values) from error


def draw_branch(conn: Connection, plan: WritePlan) -> int:
    """Return a new branch, above the transaction's start timestamp and above every branch drawn before, so that its
    cells hide cells under earlier branches."""
    branch = conn.deployment.tso.branch(plan.start_ts)  # the lease on the transaction's start holds it
    assert branch > plan.start_ts, f"branch {branch} is not above its transaction {plan.start_ts}"
    return branch


def _conflict_ids(table: str, level: ConflictLevel, batch: CellBatch) -> NDArray[np.int64]:
    return (hashing.row_ids if level is ConflictLevel.ROW else hashing.cell_ids)(table.encode(), batch)


def _value_bytes(batch: CellBatch) -> int:
    return int(batch.row_len.sum()) + int(np.maximum(batch.cell_len, 0).sum())


def _key_deletes(
    conn: Connection,
    read: ReadPlan,
    encoder: RowEncoder,
    batch: pa.RecordBatch,
    columns: Sequence[Column] = (),
    *,
    absent: bool = False,
) -> CellBatch:
    """Return tombstones for every visible cell of the rows with these keys, and for the rows' `columns`. Keys without a
    row are ignored, or with `absent` get only the tombstones of `columns`."""
    encoded = encoder.encode_keys(batch)
    keys = sorted({encoded.key(row) for row in range(batch.num_rows)})
    rows = conn.driver.run(read_rows(read.table, keys, None, read.snapshot, conn.cache))
    return batch_of(
        [
            [Cell(key, *column, 0, None) for column in dict.fromkeys((*row, *columns))]
            for key, row in zip(keys, rows, strict=True)
            if row or absent
        ]
    )


def _stored(schema: TableSchema) -> list[Column]:
    """Return every column whose cell can make a row exist, except the sentinel's."""
    return [*(column.column for column in schema.columns if column.column is not None), *schema.retired]


def _tombstones(batch: CellBatch, visible: VisibleCells, columns: Sequence[Column]) -> CellBatch:
    """Return tombstones for the visible rows and columns of a batch, and for their `columns`; one record per row."""
    rows = visible.rows_present()
    if columns:
        return batch_of(
            [
                [
                    Cell(batch.row_key(row), *column, 0, None)
                    for column in dict.fromkeys((*_columns(batch, visible, row), *columns))
                ]
                for row in rows.tolist()
            ]
        )
    counts: NDArray[np.int64] = (visible.row_cell[1:] - visible.row_cell[:-1])[rows]
    cells = len(visible.cells)
    return CellBatch(
        buffer=batch.buffer,
        columns=batch.columns,
        row_off=batch.row_off[rows],
        row_len=batch.row_len[rows],
        row_rec=np.arange(len(rows) + 1, dtype=np.int64),
        rec_version=np.zeros(len(rows), dtype=np.int64),
        rec_commit=np.zeros(len(rows), dtype=np.int64),
        rec_cell=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        cell_col=batch.cell_col[visible.cells],
        cell_off=np.zeros(cells, dtype=np.int64),
        cell_len=np.full(cells, TOMBSTONE, dtype=np.int32),
    )


def _columns(batch: CellBatch, visible: VisibleCells, row: int) -> list[Column]:
    """Return the columns that are visible in a row of a batch."""
    cells = visible.cells[visible.row_cell[row] : visible.row_cell[row + 1]]
    return [batch.columns[place] for place in batch.cell_col[cells].tolist()]


# Duplicate keys among the rows of one write
#
# Tasks report their keys to the driver while the keys are few: all tasks together report about `REPORTED_MAX`, whatever
# the size of the write. Duplicates among the other keys are found in the store: two rows with one key are two versions
# of one row, under two branches of this write. A reported key costs the driver 8 bytes; unreported keys cost one scan
# from the first to the last written key, by tasks if there are any, with one batch in memory at a time.

_DOUBLED_MAX: Final = 1_000
"""Maximum of reported duplicates. One is enough for the error; the first ones may be different keys with equal ids."""


def _reported_keys(plan: WritePlan, keys: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(keys) <= _reported_max(plan):
        return keys
    keys.sort()
    doubled = np.flatnonzero(keys[1:] == keys[:-1])[:_DOUBLED_MAX]
    return keys[np.isin(keys, keys[doubled])] if len(doubled) else NO_IDS


def _reported_max(plan: WritePlan) -> int:
    """Return how many keys this task may report."""
    pyspark = sys.modules.get("pyspark")
    task = None if pyspark is None else pyspark.TaskContext.get()
    return reported_by_task(plan.reported_max, 0 if task is None else task.partitionId())


def reported_by_task(reported_max: int, number: int) -> int:
    """Return how many keys task `number` may report, without knowing the number of tasks.

    If n tasks of equal size have `reported_max` keys together, all keys are reported: the last task has a share of
    1 / n. Tasks of any sizes report at most `reported_max` × (1 + ln n) keys together.
    """
    return reported_max // (number + 1)


def check_distinct_keys(conn: Connection, plan: WritePlan, reports: Sequence[BranchReport]) -> None:
    """Raise a `Misuse` that names the key if two rows of the write have the same key, among the keys that tasks
    reported; never with `duplicates=last`.

    Keys are reported as 64-bit ids. An id that occurs twice may belong to two different keys; a scan of the written
    branches decides. The alternative, sorting the frame by its row key, would shuffle all its bytes.
    """
    keys = np.concatenate([NO_IDS, *(report.keys for report in reports)])
    distinct, counts = np.unique(keys, return_counts=True)
    suspected = distinct[counts > 1]
    if not len(suspected):
        return
    branches = np.array([report.branch for report in reports if len(report.keys)], np.int64)
    found: dict[int, list[bytes]] = {}
    for row_id, key in _rows_written(conn, plan.info.name, span_of(reports), branches, suspected):
        found.setdefault(row_id, []).append(key)
    for row_id, count in zip(suspected.tolist(), counts[counts > 1].tolist(), strict=True):
        written = found.get(row_id, [])
        if 0 < len(written) < count:  # none: the table was dropped, and the commit will be refused
            raise duplicate_key(written[0], key_layout(plan.schema), plan.duplicates)


def _rows_written(
    conn: Connection, table: str, span: KeyRange, branches: NDArray[np.int64], suspected: NDArray[np.int64]
) -> Iterator[tuple[int, bytes]]:
    """Yield each row under the branches whose key id is among `suspected`, once per row."""
    for batch in conn.deployment.store.scan(table, span):
        ids = hashing.row_ids(table.encode(), batch)
        for row in np.flatnonzero(np.isin(ids, suspected)).tolist():
            versions = batch.rec_version[batch.row_rec[row] : batch.row_rec[row + 1]]
            if np.isin(versions, branches).any():
                yield int(ids[row]), batch.row_key(row)


def span_of(reports: Iterable[BranchReport]) -> KeyRange:
    """Return a key range that holds all rows of these reports."""
    spans = [report.span for report in reports]
    return KeyRange(min(span.start for span in spans), max(span.stop for span in spans if span.stop is not None))


def look_up(plan: WritePlan, branches: Sequence[int], key_range: KeyRange) -> bytes | None:
    """Scan a range for a key that was written under two of the branches, which makes the write fail. Return the first
    such key, or None."""
    conn = connection(plan.url)
    for batch in conn.deployment.store.scan(plan.info.name, key_range):
        conn.renew(plan.start_ts)
        if batch.rows:
            written = np.isin(batch.rec_version, branches).astype(np.int64)
            doubled = np.flatnonzero(np.add.reduceat(written, batch.row_rec[:-1]) > 1)
            if len(doubled):
                return batch.row_key(int(doubled[0]))
    return None


# Rows in runs
#
# Batches come in the frame's order. If each were sorted alone, its ten thousand keys from all over the table would
# touch nearly every page, and the next batch would do the same. In one sorted run, two thousand neighbouring keys touch
# a few dozen pages.

RUN_VARIABLE: Final = "PYOMID_RUN_BYTES"
"""Environment variable of Spark's Python processes (`spark.executorEnv`) with the size of a run; 0 sorts each batch
alone."""

RUN_BYTES: Final = 48 << 20
"""Approximate number of bytes of a frame that a task buffers before it writes: half a million rows of flights data."""


def in_runs(encoder: RowEncoder, batches: Iterable[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all batches in batches of up to `batch_rows`, in runs of ascending keys. Rows with equal keys
    keep their order."""
    run_bytes, held = _run_bytes(), list[pa.RecordBatch]()
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= run_bytes:
            yield from _run(encoder, held, batch_rows)
            size = 0
    yield from _run(encoder, held, batch_rows)


def _run_bytes() -> int:
    text = os.environ.get(RUN_VARIABLE, "")
    if text and not text.isdecimal():
        raise Misuse(f"{RUN_VARIABLE}={text!r} is not a number of bytes, such as 50000000", value=text)
    return int(text) if text else RUN_BYTES


def _run(encoder: RowEncoder, held: list[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one run, sorted; empties `held`."""
    if len(held) < 2:  # the encoder sorts each batch
        yield from held
        held.clear()
        return
    together = pa.Table.from_batches(held).combine_chunks()
    held.clear()
    for rows in together.to_batches():
        order = encoder.encode_keys(rows).order()
        for first in range(0, rows.num_rows, batch_rows):
            yield rows.take(int64_array(order[first : first + batch_rows]))
