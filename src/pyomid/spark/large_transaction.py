"""A large transaction: one snapshot, branches that many tasks write, one commit. `transaction(…)` and `df.write` are
its front ends: the first holds it from begin to end, the second goes on with it in every process that Spark calls.

    start, lease → earlier run under its id? → table made or fitted → tasks write branches → `note` → `commit`

    commit   tables are those that were written → marker durable under the start → request (start, branches, write set)
             → answer → lease ends, marker's shadow cell

What stands behind the answer is repair. It fails without a word to the caller, who would take its error for a commit
that did not happen: readers look the marker up in the commit table, and compaction writes the shadow cell.

A commit is decided once. One that lost is not decided again with the cells that its tasks wrote: the work begins anew
under a new snapshot (decision 0030).

The cells of the branches get their shadow cells from compaction. A reader resolves each branch once, whatever its
size, so an unhealed scan costs one look-up more than a healed one a branch and process (`docs/spark.md` has the
measurement); a follow-up job that wrote them at once would write every cell's record twice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.client import idempotency
from pyomid.client.drive import Blocking
from pyomid.client.retry import cause_of
from pyomid.client.session.leases import Lease
from pyomid.client.table_admin import ensure_markers_table
from pyomid.client.transaction_base import Decided, State, TransactionBase
from pyomid.crashpoints import crash_point
from pyomid.errors import ConflictError, Misuse, OmidError
from pyomid.protocol.commit import WriteSet
from pyomid.protocol.effects import Steps, WriteCells, WriteShadowCells
from pyomid.protocol.hashing import table_id
from pyomid.protocol.reading import Snapshot
from pyomid.spark.databases import Connection
from pyomid.spark.options import TABLE_LEVEL
from pyomid.spark.read_task import BATCH_ROWS, ReadPlan, sees_rows
from pyomid.spark.run_outcome import find_run, is_committed
from pyomid.spark.schema import Field, WriteOptions, extended, prepared_table, schema_of, table_or_none
from pyomid.spark.write_task import BranchReport, WritePlan, check_distinct
from pyomid.types import (
    BeginReply,
    CellVersion,
    CommitRequest,
    ConflictLevel,
    ShadowWrite,
    TableInfo,
    WriteSetLevel,
)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class TableWrites:
    """What a transaction wrote into one table: its branches in the order in which they were written."""

    info: TableInfo
    reports: list[BranchReport] = field(default_factory=list)


class BranchWrites:
    """What the tasks of a transaction wrote, and the marker of its durable id: what its commit is about."""

    def __init__(self, conn: Connection, start_ts: int, level: str | None, transaction_id: str | None) -> None:
        self.start_ts: Final = start_ts
        self.tables: Final[dict[str, TableWrites]] = {}
        self.level: Final = level
        self.transaction_id = transaction_id
        self.is_torn = False
        """A write began and did not end."""
        self._conn = conn
        self._marker: tuple[CellVersion, ...] = ()

    @property
    def reports(self) -> list[BranchReport]:
        return [report for table in self.tables.values() for report in table.reports]

    @property
    def wrote(self) -> bool:
        return bool(self.transaction_id is not None or self.reports)

    def flush_steps(self) -> Steps[None]:
        """What the branches wrote is durable already; the tables are looked at, and the marker is written."""
        for table in self._written():
            extended(self._conn, table.info, schema_of(table.info))
        if self.transaction_id is None:
            return
        ensure_markers_table(self._conn.parts)
        write = idempotency.marker_write(self.transaction_id, self.start_ts)
        branches = idempotency.branches_value([report.branch for report in self.reports])
        if 0 < len(branches) <= self._conn.parts.store.limits.value_bytes_max:
            write = write._replace(cells=(*write.cells, (idempotency.BRANCHES_COLUMN, branches)))
        yield WriteCells(idempotency.MARKERS_TABLE, self.start_ts, (write,))
        self._marker = tuple(CellVersion(write.row, *column, self.start_ts) for column, _ in write.cells)

    def commit_request(self) -> CommitRequest:
        """After the flush. `Misuse` where it would name more ids than the TSO takes."""
        at_table_level = self.level == TABLE_LEVEL
        written = self._written()
        tables = [table_id(table.info.name.encode()) for table in written]
        ids: list[int] = []
        if not at_table_level:
            self.check_ids_count()
            ids = _distinct([report.ids for report in self.reports]).tolist()
        if self.transaction_id is not None:
            ids.append(idempotency.marker_cell_id(self.transaction_id))
            if not at_table_level:
                tables.append(idempotency.MARKERS_TABLE_ID)
        return CommitRequest(
            self.start_ts,
            cell_ids=tuple(ids),
            table_ids=tuple(tables),
            branches=tuple(report.branch for report in self.reports),
            level=WriteSetLevel.TABLE if at_table_level and written else WriteSetLevel.IDS,
        )

    def write_set(self) -> WriteSet:
        """One cell of each branch, and the marker."""
        evidence: dict[str, Sequence[CellVersion]] = {
            table.info.name: [report.witness for report in table.reports if report.witness is not None]
            for table in self._written()
        }
        return {**evidence, idempotency.MARKERS_TABLE: self._marker} if self._marker else evidence

    def check_ids_count(self) -> None:
        """A larger part of the conflict map in one commit would push everybody else's history out of it: the TSO's rule
        (`TsoSettings.write_set_fraction_max`), told before the ids travel."""
        most = self._conn.parts.settings.conflict_map_entries // 4
        count = sum(len(report.ids) for report in self.reports)
        if self.level != TABLE_LEVEL and count > most:
            raise Misuse(
                f"the write set has {count} ids, over {most} (a quarter of conflictMapEntries): "
                "write at conflict level 'table', or at 'row' into a table of level row",
                ids=count,
            )

    def repair_marker(self, commit_ts: int) -> None:
        """Behind the answer: no error of it is the commit's."""
        if not self._marker:
            return
        shadows = tuple(ShadowWrite(cell, commit_ts) for cell in self._marker)
        try:
            self._conn.driver.perform(WriteShadowCells(idempotency.MARKERS_TABLE, shadows))
        except Exception as error:
            logger.warning("the marker of commit %d has no shadow cell yet: %s", commit_ts, error)

    def _written(self) -> list[TableWrites]:
        return [table for table in self.tables.values() if table.reports]


class LargeTransaction(TransactionBase[BranchWrites]):
    """The driver's side of a transaction whose cells Spark's tasks write.

    `lease`: None under a TSO that grants none; there it can only read. `level`: "table" claims the written tables as a
    whole; None: each table's own.
    """

    def __init__(
        self, conn: Connection, begun: BeginReply, *, level: str | None, transaction_id: str | None, lease: Lease | None
    ) -> None:
        super().__init__(BranchWrites(conn, begun.start_ts, level, transaction_id), lease=lease)
        self.transaction_id: Final = transaction_id
        self._conn = conn
        self._begun = begun
        self._level = level

    @property
    def branches(self) -> tuple[int, ...]:
        """The starts under which its tasks wrote, as the commit will name them."""
        return tuple(report.branch for report in self.workspace.reports)

    # Before the tasks

    def snapshot(self, table: str) -> Snapshot:
        """What it sees of a table: all that was committed before its start, and what its tasks wrote there so far."""
        present = self.workspace.tables.get(table)
        own = frozenset(report.branch for report in present.reports) if present is not None else frozenset()
        return Snapshot(self._begun.start_ts, self._begun.epoch, own)

    def writes_into(self, table: str, mode: str, *, told: str) -> bool:
        """Whether `mode` has anything written into the table. False: ignored. `Misuse` with `told`: refused."""
        if mode not in ("error", "errorifexists", "ignore"):
            return True
        if not is_there(self._conn, table_or_none(self._conn, table), self.snapshot(table)):
            return True
        if mode == "ignore":
            return False
        raise Misuse(f"table {table!r} has rows, and {told}", table=table)

    def prepared(
        self, table: str, fields: Sequence[Field], options: WriteOptions, *, new_level: str | None = None
    ) -> WritePlan:
        """What the tasks of one write share. The table is made, or fitted; `new_level`: of one that is made."""
        info = prepared_table(self._conn, table, fields, options, new_level or self._level)
        return self.plan(info, tuple(each.name for each in fields), options)

    def plan(self, info: TableInfo, written: tuple[str, ...] = (), options: WriteOptions | None = None) -> WritePlan:
        """The same for a table that is there; `written`: the columns, none to delete rows."""
        options = options or WriteOptions()
        return WritePlan(
            self._conn.url,
            info,
            schema_of(info),
            written,
            self.start_ts,
            options.duplicates,
            options.nulls,
            ids_for(info, self._level),
            self._conn.database_id,
        )

    def read_plan(self, info: TableInfo) -> ReadPlan:
        """How its tasks find the rows that they delete."""
        return ReadPlan(
            self._conn.url,
            info.name,
            schema_of(info),
            (),
            self.snapshot(info.name),
            BATCH_ROWS,
            leased=True,
            database_id=self._conn.database_id,
        )

    # When they are done

    def note(self, plan: WritePlan, reports: Sequence[BranchReport]) -> None:
        """These branches count: of each task that of one attempt. `Misuse` where two rows have one key, or the write
        set becomes too large for its level."""
        check_distinct(self._conn, plan, reports)
        present = self.workspace.tables.setdefault(plan.info.name, TableWrites(plan.info))
        present.info = plan.info
        present.reports += reports
        self.workspace.check_ids_count()
        crash_point("spark.write.noted")

    def commit(self) -> None:
        """Durable, and visible to every later begin, on return. Errors as `pyomid.Transaction.commit`."""
        self._conn.driver.run(self.commit_steps())

    def commit_or_find(self) -> None:
        """`commit`, for a caller that cannot begin anew: one that lost to a run under its own id is done."""
        try:
            self.commit()
        except ConflictError as error:
            if self._winner_under_its_id(error) is None:
                raise

    def _winner_under_its_id(self, error: ConflictError) -> idempotency.AlreadyDone | None:
        if self.transaction_id is None:
            return None
        try:
            return find_run(self._conn, self._conn.parts.tso.begin(not_before=cause_of(error)), self.transaction_id)
        except OmidError as failed:
            logger.warning("who won against a run under %r cannot be looked up: %s", self.transaction_id, failed)
            return None

    def rollback(self) -> None:
        """Ends the transaction; none of its writes is ever visible, and compaction deletes them."""
        self._conn.driver.run(self.rollback_steps())

    def abort(self, branches: Sequence[int]) -> None:
        """For a caller that does not know how far the transaction came in another process. What was committed stays;
        what was not is left to compaction, and its lease ends."""
        if not is_committed(self._conn, (self.start_ts, *branches)):
            self.rollback()

    def _commit_steps(self) -> Steps[None]:
        crash_point("spark.commit.before")
        try:
            yield from super()._commit_steps()
        except ConflictError:
            if self._state is State.DOOMED:  # a table was dropped or made anew: nothing was asked
                yield from self.rollback_steps()
            raise
        crash_point("spark.commit.after")

    def _committed_steps(self, decided: Decided) -> Steps[None]:
        yield Blocking(partial(self.workspace.repair_marker, decided.reply.commit_ts))

    def _give_back(self, lease: Lease) -> None:
        """Where the outcome is unknown the lease is renewed no longer, but not ended: a commit may still be decided."""
        if self._state is State.UNKNOWN:
            self._conn.leases.abandon(lease)
        else:
            self._conn.leases.end(lease)


def is_there(conn: Connection, info: TableInfo | None, snapshot: Snapshot) -> bool:
    """What the modes `error` and `ignore` mean by a table that exists: one of which the snapshot sees a row.

    Not the catalog: a table is durable there before the transaction that made it commits, and stays when that one
    fails. Its next try would take its own table for somebody else's and drop its rows (decision 0031).
    """
    return info is not None and sees_rows(conn, info.name, snapshot)


def ids_for(info: TableInfo, level: str | None) -> ConflictLevel | None:
    """Which ids a write into this table reports; Misuse where the level asked for is not the table's (T9)."""
    if level == TABLE_LEVEL:
        return None
    if level is not None and level != info.conflict_level.value:
        raise Misuse(
            f"table {info.name!r} has conflict level {info.conflict_level.value!r}, not {level!r}: transactions of "
            "two levels would not see each other's writes; use the table's, or 'table'",
            table=info.name,
        )
    return info.conflict_level


def _distinct(ids: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Ascending, so that the TSO walks its conflict map in order. (`np.unique` hashes: 100 times slower at 1 M.)"""
    together = np.sort(np.concatenate([np.empty(0, np.int64), *ids]))
    return together[np.concatenate([[True], together[1:] != together[:-1]])] if len(together) else together
