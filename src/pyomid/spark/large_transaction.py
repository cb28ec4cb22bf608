"""A large transaction: one snapshot, branches that many tasks write, one commit. `transaction(…)` and `df.write` are
its front ends: the first holds it from begin to end, the second goes on with it in every process that Spark calls.

    start, lease → earlier run under its id? → table made or fitted → tasks write branches → `note` → `commit`

    commit   tables are those that were written → idempotency key durable under the start
             → request (start, branches, write set) → answer → lease ends, the key's shadow cell

After the answer only repair follows. Its failure is not raised: the caller would take it for a commit
that did not happen: readers look the key up in the commit table, and compaction writes the shadow cell.

level    by the ids of each table's own level, while the TSO takes so many; beyond that the written tables as a whole,
         unless a level was given: then the write is refused as soon as it is known (decision 0048)

A commit is decided once. One that lost is not decided again with the cells that its tasks wrote: the work begins anew
under a new snapshot (decision 0030).

The cells of the branches get their shadow cells from compaction. A reader resolves each branch once, whatever its
size, so an unhealed scan costs one look-up more than a healed one a branch and process (`docs/spark.md` has the
measurement); a follow-up job that wrote them at once would write every cell's record twice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.client import idempotency
from pyomid.client.admin.table_admin import ensure_keys_table
from pyomid.client.drive import Blocking
from pyomid.client.retry import cause_of
from pyomid.client.session.leases import Lease
from pyomid.client.transaction import Decided, State, TransactionBase
from pyomid.crashpoints import crash_point
from pyomid.errors import ConflictError, Misuse, OmidError
from pyomid.protocol.commit import WriteSet
from pyomid.protocol.effects import Steps, WriteCells, WriteShadowCells
from pyomid.protocol.expiry import seen_steps
from pyomid.protocol.hashing import table_id
from pyomid.protocol.reading import Snapshot
from pyomid.row_codec.encode import duplicate_key, shown_key
from pyomid.row_codec.row_key import key_layout
from pyomid.row_codec.schema import Field, schema_of
from pyomid.spark.databases import Connection
from pyomid.spark.run_outcome import find_run, is_committed
from pyomid.spark.schema import WriteOptions, extended, prepared_table, table_or_none
from pyomid.spark.source.options import AUTO_LEVEL, TABLE_LEVEL
from pyomid.spark.source.read_task import BATCH_ROWS, ReadPlan, sees_rows
from pyomid.spark.source.write_task import BranchReport, WritePlan, check_distinct, span_of, too_many_ids
from pyomid.spark.source.written_rows import TOLD_MAX, Look, Seen, look_at, together
from pyomid.types import (
    BeginReply,
    CellVersion,
    Column,
    CommitRequest,
    KeyRange,
    ShadowWrite,
    TableInfo,
    WriteSetLevel,
)

logger = logging.getLogger(__name__)

_CLAIMS: Final = (
    "transaction %d writes more than the %d conflict ids that this TSO takes in one commit, so it claims as a whole "
    "every table that it writes (%s): it commits only if no other transaction commits to them first, and whoever began "
    "before its commit and writes them loses; beside steady writers it may lose every time (the TSO counts that in "
    'pyomid_tso_aborts_total{reason="table"}). A write that needs fewer ids (fewer rows at once, or a larger '
    "conflictMapEntries) conflicts by row or cell again"
)

_NO_IDS: Final = np.empty(0, np.int64)
"""In place of what is needed no more: a part of an array would keep the whole."""


@dataclass(slots=True)
class TableWrites:
    """What a transaction wrote into one table: its branches in the order in which they were written."""

    info: TableInfo
    reports: list[BranchReport] = field(default_factory=list)


class BranchWrites:
    """What the tasks of a transaction wrote, and its idempotency key: what its commit is about."""

    def __init__(self, conn: Connection, start_ts: int, level: str, transaction_id: str | None) -> None:
        self.start_ts: Final = start_ts
        self.tables: Final[dict[str, TableWrites]] = {}
        self.claims_tables = False
        """The commit names no ids, but the written tables as a whole."""
        self.may_claim_tables = True
        """No level was given: more ids than the TSO takes make it claim the tables."""
        self.transaction_id = transaction_id
        self.is_torn = False
        """A write began and did not end."""
        self._conn = conn
        self._key_cells: tuple[CellVersion, ...] = ()
        self.note_level(level)

    def note_level(self, level: str) -> None:
        """Of the transaction, or of one write in it: the commit has one for all of them."""
        self.check_level(level)
        if level == TABLE_LEVEL:
            self.claims_tables = True
        elif level != AUTO_LEVEL:
            self.may_claim_tables = False

    def check_level(self, level: str) -> None:
        """`Misuse` where ids were asked for and the tables are claimed already."""
        if self.claims_tables and level not in (AUTO_LEVEL, TABLE_LEVEL):
            raise Misuse(
                f"conflict level {level!r} cannot be kept: an earlier write of this transaction claims the written "
                "tables as a whole, and a commit has one level; write this frame first, or in a transaction of its own"
            )

    @property
    def ids_count(self) -> int:
        """Of the ids that the commit would name, at least. The idempotency key's is one of them."""
        return (self.transaction_id is not None) + sum(report.ids_count for report in self.reports)

    @property
    def reports(self) -> list[BranchReport]:
        return [report for table in self.tables.values() for report in table.reports]

    @property
    def wrote(self) -> bool:
        return bool(self.transaction_id is not None or self.reports)

    def flush_steps(self) -> Steps[None]:
        """What the branches wrote is durable already; the tables are looked at, and the key is written."""
        for table in self._written():
            extended(self._conn, table.info, schema_of(table.info))
        if self.transaction_id is None:
            return
        ensure_keys_table(self._conn.deployment)
        write = idempotency.key_write(self.transaction_id, self.start_ts)
        branches = idempotency.branches_value([report.branch for report in self.reports])
        if 0 < len(branches) <= self._conn.deployment.store.limits.value_bytes_max:
            write = write._replace(cells=(*write.cells, (idempotency.BRANCHES_COLUMN, branches)))
        yield WriteCells(idempotency.KEYS_TABLE, self.start_ts, (write,))
        self._key_cells = tuple(CellVersion(write.row, *column, self.start_ts) for column, _ in write.cells)

    def commit_request(self) -> CommitRequest:
        """After the flush."""
        written = self._written()
        tables = [table_id(table.info.name.encode()) for table in written]
        ids: list[int] = []
        if not self.claims_tables:
            ids = _distinct([report.ids for report in self.reports]).tolist()
        if self.transaction_id is not None:
            ids.append(idempotency.key_cell_id(self.transaction_id))
            if not self.claims_tables:
                tables.append(idempotency.KEYS_TABLE_ID)
        return CommitRequest(
            self.start_ts,
            cell_ids=tuple(ids),
            table_ids=tuple(tables),
            branches=tuple(report.branch for report in self.reports),
            level=WriteSetLevel.TABLE if self.claims_tables and written else WriteSetLevel.IDS,
        )

    def write_set(self) -> WriteSet:
        """One cell of each branch, and the idempotency key."""
        evidence: dict[str, Sequence[CellVersion]] = {
            table.info.name: [report.witness for report in table.reports if report.witness is not None]
            for table in self._written()
        }
        return {**evidence, idempotency.KEYS_TABLE: self._key_cells} if self._key_cells else evidence

    def fix_level(self) -> None:
        """After a write: ids, or whole tables. A larger part of the conflict map in one commit would push everybody
        else's history out of it (`TsoSettings.write_set_fraction_max`). `Misuse` where the level was given."""
        most = self._conn.write_set_ids_max
        if not self.claims_tables and self.ids_count > most:
            if not self.may_claim_tables:
                raise too_many_ids(self.ids_count, most)
            self.claims_tables = True
            logger.warning(_CLAIMS, self.start_ts, most, ", ".join(table.info.name for table in self._written()))
        if self.claims_tables:
            for table in self.tables.values():
                table.reports = [replace(report, ids=_NO_IDS) for report in table.reports]

    def repair_key(self, commit_ts: int) -> None:
        """Runs after the answer: an error here is not the commit's."""
        if not self._key_cells:
            return
        shadows = tuple(ShadowWrite(cell, commit_ts) for cell in self._key_cells)
        try:
            self._conn.driver.perform(WriteShadowCells(idempotency.KEYS_TABLE, shadows))
        except Exception as error:
            logger.warning("the idempotency key of commit %d has no shadow cell yet: %s", commit_ts, error)

    def _written(self) -> list[TableWrites]:
        return [table for table in self.tables.values() if table.reports]


class LargeTransaction(TransactionBase[BranchWrites]):
    """The driver's side of a transaction whose cells Spark's tasks write.

    `lease`: None under a TSO that grants none; there it can only read. `level`: "table" claims the written tables as a
    whole; "auto" does so from the write on with which the ids become too many for the TSO; "cell" and "row" must be
    the tables' own, and are never given up for the table.
    """

    told_max: int = TOLD_MAX

    def __init__(
        self, conn: Connection, begun: BeginReply, *, level: str | None, transaction_id: str | None, lease: Lease | None
    ) -> None:
        self._level: Final = level or AUTO_LEVEL
        super().__init__(BranchWrites(conn, begun.start_ts, self._level, transaction_id), lease=lease)
        self.transaction_id: Final = transaction_id
        self._conn = conn
        self._begun = begun
        self._places: dict[str, dict[str, Column | None]] = {}

    @property
    def branches(self) -> tuple[int, ...]:
        """The starts under which its tasks wrote, as the commit will name them."""
        return tuple(report.branch for report in self.writes.reports)

    @property
    def claims_tables(self) -> bool:
        """Its commit will claim every table that it wrote as a whole, and name no rows or cells of them."""
        return self.writes.claims_tables

    # Before the tasks

    def snapshot(self, table: str) -> Snapshot:
        """What it sees of a table: all that was committed before its start, and what its tasks wrote there so far."""
        present = self.writes.tables.get(table)
        own = frozenset(report.branch for report in present.reports) if present is not None else frozenset()
        snapshot, info = Snapshot(self._begun.start_ts, self._begun.epoch, own), table_or_none(self._conn, table)
        return snapshot if info is None else self._conn.driver.run(seen_steps(info, snapshot, self._conn.cache))

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
        self, table: str, fields: Sequence[Field], options: WriteOptions, *, level: str | None = None
    ) -> WritePlan:
        """What the tasks of one write share. The table is made, or fitted; `level`: this write's, else the
        transaction's. `Misuse` where a table that is there has another one."""
        level = level or self._level
        self.writes.check_level(level)
        info = self.noticed(prepared_table(self._conn, table, fields, options, level))
        self.writes.note_level(level)
        return self.plan(info, tuple(each.name for each in fields), options)

    def noticed(self, info: TableInfo) -> TableInfo:
        """`ConflictError` where a name is another column's by now than when this transaction first looked: what was
        computed by the one schema would be written by the other."""
        places = {} if info.schema is None else {column.name: column.column for column in info.schema.columns}
        seen = self._places.setdefault(info.name, {})
        for name, place in seen.items():
            if places.get(name, place) != place:
                raise ConflictError(
                    f"table {info.name!r}: {name!r} is another column than when this transaction began; begin anew",
                    table=info.name,
                )
        seen.update(places)
        return info

    def plan(self, info: TableInfo, written: tuple[str, ...] = (), options: WriteOptions | None = None) -> WritePlan:
        """The same for a table that is there; `written`: the columns, none to delete rows."""
        options = options or WriteOptions()
        work = self.writes
        if info.indexes:
            raise Misuse(
                f"table {info.name!r} has the index {info.indexes[0].name!r}, which Spark's writes do not keep: write "
                "the table by pyomid.connect, or drop its indexes and build them anew after the write",
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
            self._conn.write_set_ids_max,
            work.ids_count,
            work.may_claim_tables,
            self._conn.database_id,
            self.told_max,
            options.whole,
        )

    def read_plan(self, info: TableInfo) -> ReadPlan:
        """How its tasks find the rows that they delete."""
        return ReadPlan(
            self._conn.task_url,
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
        reports = self._with_untold(plan, reports)
        present = self.writes.tables.setdefault(plan.info.name, TableWrites(plan.info))
        present.info = plan.info
        present.reports += [replace(report, keys=_NO_IDS) for report in reports]
        self.writes.fix_level()
        crash_point("spark.write.noted")

    def _with_untold(self, plan: WritePlan, reports: Sequence[BranchReport]) -> Sequence[BranchReport]:
        """What tasks had too much of to tell is looked up: keys, and the ids where the commit will name them."""
        keyed = [report for report in reports if report.keys_count]
        known = all(report.told_keys for report in keyed)
        ids_count = self.writes.ids_count + sum(report.ids_count for report in reports)
        named = not self.writes.claims_tables and ids_count <= self._conn.write_set_ids_max
        untold = [report for report in reports if named and not report.told_ids]
        if known and not untold:
            return reports
        branches, missing = (tuple(report.branch for report in each) for each in (() if known else keyed, untold))
        look = Look(plan.url, plan.info.name, plan.database_id, branches, missing, plan.ids, plan.start_ts)
        seen = together(self._look_up(look, span_of(untold if known else reports)))
        if seen.doubled is not None:
            raise duplicate_key(seen.doubled, key_layout(plan.schema), plan.duplicates)
        return [replace(each, ids=seen.ids) if each is untold[0] else each for each in reports] if untold else reports

    def _look_up(self, look: Look, span: KeyRange) -> list[Seen]:
        """In this process; where there are tasks, by those."""
        return [look_at(look, [span])]

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
            begun = self._conn.deployment.tso.begin(not_before=cause_of(error))
            found = find_run(self._conn, begun, self.transaction_id)
            self._conn.deployment.tso.note_ended(begun.start_ts)
            return found
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
            if self._state is State.ROLLBACK_ONLY:  # a table was dropped or made anew: nothing was asked
                yield from self.rollback_steps()
            raise
        crash_point("spark.commit.after")

    def _committed_steps(self, decided: Decided) -> Steps[None]:
        yield Blocking(partial(self.writes.repair_key, decided.reply.commit_ts))

    def shown_key(self, table: str, row: bytes) -> str:
        """The values of the key columns, where the table's schema tells them."""
        written = self.writes.tables.get(table)
        if written is None or written.info.schema is None:
            return super().shown_key(table, row)
        return shown_key(row, key_layout(written.info.schema))

    def _give_back(self, lease: Lease) -> None:
        """Where the outcome is unknown the lease is renewed no longer, but not ended: a commit may still be decided."""
        if self._state is State.UNKNOWN:
            self._conn.leases.abandon(lease)
        else:
            self._conn.leases.end(lease)


def is_there(conn: Connection, info: TableInfo | None, snapshot: Snapshot) -> bool:
    """What the modes `error` and `ignore` mean by a table that exists: one of which the snapshot sees a row.

    Not the catalog: a table is durable there before the transaction that made it commits, and stays when that one
    fails. Its next attempt would take its own table for another writer's and drop its rows (decision 0031).
    """
    return info is not None and sees_rows(conn, info.name, snapshot)


def _distinct(ids: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Ascending, so that the TSO walks its conflict map in order. (`np.unique` hashes: 100 times slower at 1 M.)"""
    together = np.sort(np.concatenate([_NO_IDS, *ids]))
    return together[np.concatenate([[True], together[1:] != together[:-1]])] if len(together) else together
