"""A large transaction: one snapshot, branches that many tasks write, one commit. It has two front ends: `begin` holds
the transaction in one process, and `df.write` continues it in every process that Spark calls.

    start, lease → earlier run under its id? → table created or fitted → tasks write branches → `note` → `commit`

    commit   the written tables still exist → idempotency key durable under the start
             → request (start, branches, how many ids they reported) → reply → lease ends, the key's shadow cell

After the reply only repair follows. A failed repair is not raised, because the caller would take it for a failed
commit: readers find the key's commit in the commit table, and compaction writes the shadow cell.

level    tasks report conflict ids of each table's own level to the TSO. If the TSO has no room for the ids, the commit
         claims the written tables as a whole; if the caller gave a level, the write fails (decision 0048)

A commit is decided once. A transaction that lost cannot commit later with the cells that its tasks wrote: the work
starts again under a new snapshot (S6; decision 0030).

Compaction writes the shadow cells of the branches. A reader resolves each branch once, whatever its size, so scanning
an unhealed table costs one more lookup per branch and process. A follow-up job that wrote the shadow cells at once
would write every cell's record twice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from pyomid.coroutines import Blocking
from pyomid.crashpoints import crash_point
from pyomid.database import idempotency
from pyomid.database.lease_keeper import Lease
from pyomid.database.retry import cause_of
from pyomid.database.table_admin import ensure_keys_table
from pyomid.database.transaction import State, TransactionBase
from pyomid.errors import ConflictError, Misuse, OmidError
from pyomid.protocol.commit import WriteSet
from pyomid.protocol.effects import PackCommit, WriteCells, WriteShadowCells
from pyomid.protocol.expiry import expiring
from pyomid.protocol.hashing import table_id
from pyomid.protocol.reading import Snapshot, read_rows
from pyomid.rows.encode import duplicate_key
from pyomid.rows.row_key import key_layout
from pyomid.rows.schema import Field, schema_of
from pyomid.spark.connections import Connection
from pyomid.spark.frame_schema import WriteOptions, extended, prepared_table, table_or_none
from pyomid.spark.held_start import HeldStart, Keeper
from pyomid.spark.run_outcome import find_run, is_committed
from pyomid.spark.source.options import AUTO_LEVEL, TABLE_LEVEL
from pyomid.spark.source.read_task import BATCH_ROWS, ReadPlan, sees_rows
from pyomid.spark.source.write_task import (
    NO_IDS,
    REPORTED_MAX,
    BranchReport,
    WritePlan,
    check_distinct_keys,
    look_up,
    span_of,
)
from pyomid.types import (
    BeginReply,
    CellVersion,
    Column,
    CommitRequest,
    KeyRange,
    LifeOf,
    RowWrite,
    ShadowWrite,
    TableChanges,
    TableInfo,
    WriteSetLevel,
    life_of,
)

logger = logging.getLogger(__name__)

_CLAIMS: Final = (
    "the TSO has no room for the conflict ids of transaction %d, so the transaction claims every table that it writes "
    "(%s) as a whole: it commits only if no other transaction commits to these tables first, and every other writer "
    "that began before its commit aborts. Against steady writers it may abort every time (the TSO counts these aborts "
    'in pyomid_tso_aborts_total{reason="table"}). To conflict by row or cell, write fewer rows at once or set a larger '
    "reportedIdsMax"
)


@dataclass(slots=True)
class TableWrites:
    """A transaction's writes to one table: its branches, in the order in which they were written."""

    info: TableInfo
    reports: list[BranchReport] = field(default_factory=list)
    is_claimed: bool = False
    """Whether a commit that claims tables also claims this table if nothing was written to it."""


class BranchWrites:
    """The writes that a commit covers: the writes of the transaction's tasks, and its idempotency key."""

    def __init__(self, conn: Connection, start_ts: int, level: str, run_id: str | None) -> None:
        self.start_ts: Final = start_ts
        self.tables: Final[dict[str, TableWrites]] = {}
        self.claims_tables = False
        """Whether the commit claims the written tables as a whole instead of naming conflict ids."""
        self.may_claim_tables = True
        """Whether the commit claims the tables if the TSO has no room for the ids; False if a level was given."""
        self.run_id = run_id
        self.checkpoint: RowWrite | None = None
        """The checkpoint that owns a stream's sink from this commit on; written with the idempotency key."""
        self.result: bytes | None = None
        """The `kept_result` of the run's function; written with the idempotency key."""
        self.is_torn = False
        """Whether a write began and has not ended."""
        self._conn = conn
        self._key_cells: tuple[CellVersion, ...] = ()
        self._packed = b""
        self.note_level(level)

    def note_level(self, level: str) -> None:
        """Apply the conflict level of the transaction or of one of its writes: all writes of a commit share one
        level."""
        self.check_level(level)
        if level == TABLE_LEVEL:
            self.claims_tables = True
        elif level != AUTO_LEVEL:
            self.may_claim_tables = False

    def check_level(self, level: str) -> None:
        """Raise `Misuse` if the level needs conflict ids but the transaction already claims its tables."""
        if self.claims_tables and level not in (AUTO_LEVEL, TABLE_LEVEL):
            raise Misuse(
                f"conflict level {level!r} is not possible, because an earlier write of this transaction claims whole "
                "tables, and all writes of a commit share one level; write this frame first, or in a separate "
                "transaction"
            )

    @property
    def reports(self) -> list[BranchReport]:
        return [report for table in self.tables.values() for report in table.reports]

    @property
    def wrote(self) -> bool:
        return bool(self.run_id is not None or self.checkpoint is not None or self.reports)

    async def settle(self) -> None:
        """Check the written tables and write the idempotency key; the cells of the branches are already durable."""
        for table in self._written():
            extended(self._conn, table.info, schema_of(table.info))
        writes = [] if self.checkpoint is None else [self.checkpoint]
        if self.run_id is not None:
            write = idempotency.key_write(self.run_id, self.start_ts)
            branches = idempotency.branches_value([report.branch for report in self.reports])
            if 0 < len(branches) <= self._conn.deployment.store.limits.value_bytes_max:
                write = write._replace(cells=(*write.cells, (idempotency.BRANCHES_COLUMN, branches)))
            if self.result is not None:
                write = write._replace(cells=(*write.cells, (idempotency.RESULT_COLUMN, self.result)))
            writes.append(write)
        if writes:
            await self._write_key(writes)
        if self._conn.deployment.store.capabilities.packs_commits:
            await self._pack()

    async def _pack(self) -> None:
        """Pack the commit request for a folder: the branches, the written tables, and whether the commit claims
        them."""
        changes = [TableChanges(each.info.name, each.info.id_levels) for each in self._written()]
        branches = [report.branch for report in self.reports]
        if self._key_cells:
            branches.append(self.start_ts)
            if not self.claims_tables:
                changes.append(TableChanges(idempotency.KEYS_TABLE, ()))
        claims_tables = self.claims_tables and bool(self._written())
        self._packed = await PackCommit(self.start_ts, tuple(branches), changes, claims_tables=claims_tables)

    async def _write_key(self, writes: list[RowWrite]) -> None:
        ensure_keys_table(self._conn.deployment)
        await WriteCells(idempotency.KEYS_TABLE, self.start_ts, tuple(writes))
        self._key_cells = tuple(
            CellVersion(write.row, *column, self.start_ts) for write in writes for column, _ in write.cells
        )

    def commit_request(self) -> CommitRequest:
        """Return the commit request, which names the job's idempotency key (S3). Call `settle` first."""
        if self._packed:
            return CommitRequest(self.start_ts, packed=self._packed)
        written = self._written()
        tables = [table_id(table.info.name.encode()) for table in written]
        key_ids = [] if self.run_id is None else [idempotency.key_cell_id(self.run_id)]
        if self.checkpoint is not None:
            key_ids.append(idempotency.checkpoint_cell_id(self.checkpoint.row))
        if key_ids and not self.claims_tables:
            tables.append(idempotency.KEYS_TABLE_ID)
        return CommitRequest(
            self.start_ts,
            cell_ids=tuple(key_ids),
            table_ids=tuple(tables),
            branches=tuple(report.branch for report in self.reports),
            level=WriteSetLevel.TABLE if self.claims_tables and written else WriteSetLevel.IDS,
            reported_ids=0 if self.claims_tables else sum(report.ids_count or 0 for report in self.reports),
        )

    def write_set(self) -> WriteSet:
        """Return the cells by which a lost outcome is looked up: one cell of each branch, and the idempotency key."""
        evidence: dict[str, Sequence[CellVersion]] = {
            table.info.name: [report.witness for report in table.reports if report.witness is not None]
            for table in self._written()
            if table.reports
        }
        return {**evidence, idempotency.KEYS_TABLE: self._key_cells} if self._key_cells else evidence

    def shown_writes(self) -> WriteSet:
        return self.write_set()

    def fix_level(self) -> None:
        """After a write, claim the tables if the TSO had no room for the ids."""
        if not self.claims_tables and any(report.ids_count is None for report in self.reports):
            self.claims_tables = True
            logger.warning(_CLAIMS, self.start_ts, ", ".join(table.info.name for table in self._written()))

    def repair_key(self, commit_ts: int) -> None:
        """Write the idempotency key's shadow cells after the reply (S8). An error is only logged, because the commit
        has succeeded."""
        if not self._key_cells:
            return
        shadows = tuple(ShadowWrite(cell, commit_ts) for cell in self._key_cells)
        try:
            self._conn.driver.perform(WriteShadowCells(idempotency.KEYS_TABLE, shadows))
        except Exception as error:
            logger.warning(
                "commit %d succeeded, but the shadow cell of its idempotency key could not be written; compaction will "
                "write the shadow cell. The error: %s",
                commit_ts,
                error,
            )

    def _written(self) -> list[TableWrites]:
        return [table for table in self.tables.values() if table.reports or table.is_claimed]


class LargeTransaction(TransactionBase[BranchWrites]):
    """The driver's side of a transaction whose cells Spark's tasks write.

    `lease`: None under a TSO that grants no leases; there the transaction can only read. `level`: "table" claims the
    written tables as a whole; "auto" claims them if the TSO has no room for the conflict ids; "cell" and "row" must
    equal the tables' level, and the transaction then never claims whole tables.
    """

    reported_max: int = REPORTED_MAX

    def __init__(
        self, conn: Connection, begun: BeginReply, *, level: str | None, run_id: str | None, lease: Lease | None
    ) -> None:
        self._level: Final = level or AUTO_LEVEL
        super().__init__(BranchWrites(conn, begun.start_ts, self._level, run_id), begun, lease=lease)
        self.run_id: Final = run_id
        self._conn = conn
        self._begun = begun
        self._held = HeldStart(begun, Keeper.OWN)
        self._places: dict[str, dict[str, Column | None]] = {}

    @property
    def branches(self) -> tuple[int, ...]:
        """The branches under which the transaction's tasks wrote; the commit request will name these branches."""
        return tuple(report.branch for report in self.writes.reports)

    @property
    def claims_tables(self) -> bool:
        """Whether the commit will claim every written table as a whole, instead of naming rows or cells."""
        return self.writes.claims_tables

    def claim_table(self, info: TableInfo, why: str) -> None:
        """Make the commit claim this table and every written table as a whole, if the transaction writes anything.
        Raises `Misuse` if the caller chose the conflict level "cell" or "row"."""
        if not self.writes.may_claim_tables:
            raise Misuse(
                f"{why} claims whole tables, but this transaction or one of its earlier writes has conflict_level "
                "'cell' or 'row'; omit that conflict_level"
            )
        self.writes.note_level(TABLE_LEVEL)
        self.writes.tables.setdefault(info.name, TableWrites(info)).is_claimed = True

    def belong_to(self, checkpoint: str, row: bytes, *, adopts: str | None) -> str:
        """Assign a stream's sink (`idempotency.checkpoint_row`) to this checkpoint if the sink has no owner or the
        owner is `adopts`. The assignment takes effect at the commit. Return the previous owner, or an empty string if
        the sink had no owner."""
        snapshot = Snapshot(self._begun.start_ts, self._begun.epoch)
        (found,) = self._conn.driver.run(
            read_rows(LifeOf(idempotency.KEYS_TABLE), [row], None, snapshot, self._conn.cache)
        )
        owner = found.get(idempotency.CHECKPOINT_COLUMN, b"").decode()
        if owner != checkpoint and owner in ("", adopts):
            self.writes.checkpoint = RowWrite(row, ((idempotency.CHECKPOINT_COLUMN, checkpoint.encode()),))
        return owner

    # Before the tasks

    def snapshot(self, table: str) -> Snapshot:
        """Return the transaction's snapshot of a table: all commits before the start timestamp, and the transaction's
        own writes so far."""
        present = self.writes.tables.get(table)
        own = frozenset(report.branch for report in present.reports) if present is not None else frozenset()
        return expiring(Snapshot(self._begun.start_ts, self._begun.epoch, own), table_or_none(self._conn, table))

    def writes_into(self, table: str, mode: str, *, option: str) -> bool:
        """Whether a write with `mode` proceeds; False if the mode ignores the write. Raises a `Misuse` that names
        `option` if the mode refuses the write."""
        if mode not in ("error", "errorifexists", "ignore"):
            return True
        if not is_there(self._conn, table_or_none(self._conn, table), self.snapshot(table), self._held):
            return True
        if mode == "ignore":
            return False
        raise Misuse(f"table {table!r} has rows, and {option} allows a write only to a table without rows", table=table)

    def prepared(
        self, table: str, fields: Sequence[Field], options: WriteOptions, *, level: str | None = None
    ) -> WritePlan:
        """Create the table, or fit an existing table to the frame, and return the plan that the tasks of one write
        share. `level` is the conflict level of this write; if `level` is None, the transaction's level applies. Raises
        `Misuse` if an existing table has another conflict level."""
        level = level or self._level
        self.writes.check_level(level)
        info = self.noticed(prepared_table(self._conn, table, fields, options, level))
        self.writes.note_level(level)
        return self.plan(info, tuple(each.name for each in fields), options)

    def noticed(self, info: TableInfo) -> TableInfo:
        """Return `info`. Raises `ConflictError` if a column name refers to a different column now than at this
        transaction's first read of the table. Without this error, values computed for one column would be written to
        the other column."""
        places = {} if info.schema is None else {column.name: column.column for column in info.schema.columns}
        seen = self._places.setdefault(info.name, {})
        for name, place in seen.items():
            if places.get(name, place) != place:
                raise ConflictError(
                    f"table {info.name!r}: another column got the name {name!r} after this transaction first read the "
                    "table; begin the transaction again",
                    table=info.name,
                )
        seen.update(places)
        return info

    def plan(self, info: TableInfo, written: tuple[str, ...] = (), options: WriteOptions | None = None) -> WritePlan:
        """Return the plan of a write to an existing table. `written` names the written columns; it is empty for a
        delete of rows."""
        options = options or WriteOptions()
        work = self.writes
        if info.indexes:
            raise Misuse(
                f"table {info.name!r} has the index {info.indexes[0].name!r}, which Spark's writes do not maintain; "
                "write to the table with pyomid.connect, or drop the table's indexes and rebuild them after the write",
                table=info.name,
            )
        return WritePlan(
            self._conn.task_url,
            info,
            schema_of(info),
            written,
            self.start_ts,
            options.duplicates,
            options.nulls,
            () if work.claims_tables else info.id_levels,
            work.may_claim_tables,
            self.reported_max,
            options.whole or options.new_keys,
            self.read_plan(info) if options.new_keys else None,
        )

    def read_plan(self, info: TableInfo) -> ReadPlan:
        """Return the read plan that the transaction's tasks use to find stored rows, for example the rows to delete."""
        return ReadPlan(
            self._conn.task_url,
            life_of(info),
            schema_of(info),
            (),
            self.snapshot(info.name),
            BATCH_ROWS,
            self._held,
        )

    # After the tasks

    def note(self, plan: WritePlan, reports: Sequence[BranchReport]) -> None:
        """Add the branches of these reports to the commit; each task sent one report. Raises `Misuse` if two rows have
        the same key."""
        check_distinct_keys(self._conn, plan, reports)
        self._check_unreported_keys(plan, reports)
        present = self.writes.tables.setdefault(plan.info.name, TableWrites(plan.info))
        present.info = plan.info
        present.reports += [replace(report, keys=NO_IDS) for report in reports]
        self.writes.fix_level()
        crash_point("spark.write.noted")

    def _check_unreported_keys(self, plan: WritePlan, reports: Sequence[BranchReport]) -> None:
        keyed = [report for report in reports if report.keys_count]
        if all(report.all_keys_reported for report in keyed):
            return
        # without the branch of an overwrite's tombstones, because their keys are written again
        branches = [report.branch for report in keyed]
        for doubled in self._look_up(plan, branches, span_of(reports)):
            if doubled is not None:
                raise duplicate_key(doubled, key_layout(plan.schema), plan.duplicates)

    def _look_up(self, plan: WritePlan, branches: Sequence[int], span: KeyRange) -> list[bytes | None]:
        """Return, for each part of the span, a key under two of the branches, or None. Scans in this process;
        `SparkTransaction` scans in tasks."""
        return [look_up(plan, branches, span)]

    def commit(self) -> None:
        """Commit the transaction. When the call returns, the commit is durable and every later transaction sees the
        writes. The call raises the same errors as `pyomid.Transaction.commit`."""
        self._conn.driver.run(self.committing())

    def commit_or_find(self) -> None:
        """Commit for a caller that cannot begin again. If the commit loses a conflict to a transaction with the same
        run id, the call counts as successful."""
        try:
            self.commit()
        except ConflictError as error:
            if self._winner_under_its_id(error) is None:
                raise

    def _winner_under_its_id(self, error: ConflictError) -> idempotency.AlreadyDone | None:
        if self.run_id is None:
            return None
        try:
            with self._conn.begun(not_before=cause_of(error)) as begun:
                return find_run(self._conn, begun, self.run_id)
        except OmidError as failed:
            logger.warning(
                "a transaction with run id %r lost a conflict, and pyomid could not look up the winner; the conflict "
                "is raised. The error of the lookup: %s",
                self.run_id,
                failed,
            )
            return None

    def rollback(self) -> None:
        """Roll the transaction back. The writes of the transaction never become visible, and compaction deletes the
        writes."""
        self._conn.driver.run(self.rolling_back())

    def abort(self, branches: Sequence[int]) -> None:
        """End a transaction whose progress in another process is unknown. If the transaction has committed, nothing
        changes. Otherwise, the transaction's lease ends and compaction deletes the transaction's cells."""
        if not is_committed(self._conn, (self.start_ts, *branches)):
            self.rollback()

    async def _commit(self) -> None:
        crash_point("spark.commit.before")
        try:
            await super()._commit()
        except ConflictError:
            if self._state is State.ROLLBACK_ONLY:  # a table was dropped or recreated: no request was sent
                await self.rolling_back()
            raise
        crash_point("spark.commit.after")

    async def _committed(self, commit_ts: int, written: WriteSet) -> None:
        await Blocking(partial(self.writes.repair_key, commit_ts))

    def info_of(self, table: str) -> TableInfo | None:
        written = self.writes.tables.get(table)
        return None if written is None else written.info

    def _give_back(self, lease: Lease) -> None:
        """End the lease. If the outcome is unknown, only stop renewing it, because the commit may still be decided."""
        if self._state is State.UNKNOWN:
            self._conn.leases.abandon(lease)
        else:
            self._conn.leases.end(lease)


def is_there(conn: Connection, info: TableInfo | None, snapshot: Snapshot, held: HeldStart) -> bool:
    """Whether a table exists for the modes `error` and `ignore`: True if the snapshot sees a row of the table.

    The catalog cannot decide this: an entry is durable before the transaction that created it commits, and stays if
    the commit fails. The next attempt would take its own table for another writer's and drop its rows (S7; decision
    0031).
    """
    return info is not None and sees_rows(conn, life_of(info), snapshot, held)
