"""The end of a large transaction, the same for `transaction(…)` and for `df.write`: one commit names the branches.

    marker durable under the start  →  commit request (start, branches, write set)  →  answer  →  marker's shadow cell

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pyomid.client import idempotency
from pyomid.client.idempotency import AlreadyDone
from pyomid.client.retry import cause_of
from pyomid.client.table_admin import ensure_markers_table
from pyomid.client.transaction_base import refusal
from pyomid.errors import ConflictError, Misuse, OmidError
from pyomid.protocol.commit import commit_steps
from pyomid.protocol.effects import WriteCells, WriteShadowCells
from pyomid.protocol.hashing import table_id
from pyomid.protocol.reading import Snapshot, read_rows_steps
from pyomid.spark.databases import Connection
from pyomid.spark.options import LEVELS, TABLE_LEVEL
from pyomid.spark.prepare_write import extended
from pyomid.spark.schema import schema_of
from pyomid.spark.write_task import BranchReport
from pyomid.types import (
    BeginReply,
    CellVersion,
    CommitReply,
    CommitRequest,
    ConflictLevel,
    ShadowWrite,
    TableInfo,
    WriteSetLevel,
)

__all__ = [
    "LEVELS",
    "TABLE_LEVEL",
    "TableWrites",
    "check_ids_count",
    "commit",
    "end_lease",
    "find_run",
    "ids_for",
    "lost_to_its_own_id",
]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class TableWrites:
    """What a transaction wrote into one table: its branches in the order in which they were written."""

    info: TableInfo
    reports: list[BranchReport] = field(default_factory=list)


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


def find_run(conn: Connection, begun: BeginReply, transaction_id: str) -> AlreadyDone | None:
    """The run under this id that this snapshot sees committed."""
    ensure_markers_table(conn.parts)
    snapshot = Snapshot(begun.start_ts, begun.epoch)
    rows = [idempotency.marker_row(transaction_id)]
    (row,) = conn.driver.run(read_rows_steps(idempotency.MARKERS_TABLE, rows, None, snapshot, conn.cache))
    return idempotency.found_marker(transaction_id, row)


def commit(
    conn: Connection,
    begun: BeginReply,
    writes: Iterable[TableWrites],
    *,
    level: str | None,
    transaction_id: str | None,
) -> int:
    """The commit timestamp; 0 where nothing was written and nothing had to be decided.

    ConflictError: another transaction won. OutcomeUnknown only without a transaction id and when no cell is left.
    """
    written = [table for table in writes if table.reports]
    if not written and transaction_id is None:
        return 0
    for table in written:
        extended(conn, table.info, schema_of(table.info))
    evidence = {table.info.name: _witnesses(table.reports) for table in written}
    own_marker = _write_marker(conn, begun.start_ts, transaction_id, written)
    if own_marker:
        evidence[idempotency.MARKERS_TABLE] = own_marker
    request = _request(conn, begun.start_ts, written, level, transaction_id)
    reply: CommitReply = conn.driver.run(commit_steps(request, evidence))
    if not reply.committed:
        raise refusal(reply)
    if own_marker:
        _repair_marker(conn, own_marker, reply.commit_ts)
    return reply.commit_ts


def lost_to_its_own_id(conn: Connection, transaction_id: str | None, error: ConflictError) -> AlreadyDone | None:
    """The run under the same id that won, where it was one: then the work is done, and there is nothing to repeat."""
    if transaction_id is None:
        return None
    try:
        return find_run(conn, conn.parts.tso.begin(not_before=cause_of(error)), transaction_id)
    except OmidError as failed:
        logger.warning("who won against a run under %r cannot be looked up: %s", transaction_id, failed)
        return None


def end_lease(conn: Connection, start_ts: int) -> None:
    """The watermark may pass it. An error is no matter: the lease expires by its term."""
    try:
        conn.parts.tso.end_lease(start_ts)
    except Exception as error:
        logger.warning("lease %d was not ended, its term will: %s", start_ts, error)


def _repair_marker(conn: Connection, own_marker: Sequence[CellVersion], commit_ts: int) -> None:
    shadows = tuple(ShadowWrite(cell, commit_ts) for cell in own_marker)
    try:
        conn.driver.perform(WriteShadowCells(idempotency.MARKERS_TABLE, shadows))
    except Exception as error:
        logger.warning("the marker of commit %d has no shadow cell yet: %s", commit_ts, error)


def check_ids_count(conn: Connection, reports: Sequence[BranchReport]) -> None:
    """A larger part of the conflict map in one commit would push everybody else's history out of it: the TSO's rule
    (`TsoSettings.write_set_fraction_max`), told before the ids travel."""
    most = conn.parts.settings.conflict_map_entries // 4
    count = sum(len(report.ids) for report in reports)
    if count > most:
        raise Misuse(
            f"the write set has {count} ids, over {most} (a quarter of conflictMapEntries): "
            "write at conflict level 'table', or at 'row' into a table of level row",
            ids=count,
        )


def _write_marker(
    conn: Connection, start_ts: int, transaction_id: str | None, written: Sequence[TableWrites]
) -> list[CellVersion]:
    """The marker, and beside it the branches that the commit will name, where a cell has room for them."""
    if transaction_id is None:
        return []
    ensure_markers_table(conn.parts)
    write = idempotency.marker_write(transaction_id, start_ts)
    branches = idempotency.branches_value([report.branch for table in written for report in table.reports])
    if 0 < len(branches) <= conn.parts.store.limits.value_bytes_max:
        write = write._replace(cells=(*write.cells, (idempotency.BRANCHES_COLUMN, branches)))
    conn.driver.perform(WriteCells(idempotency.MARKERS_TABLE, start_ts, (write,)))
    return [CellVersion(write.row, *column, start_ts) for column, _ in write.cells]


def _request(
    conn: Connection, start_ts: int, written: Sequence[TableWrites], level: str | None, transaction_id: str | None
) -> CommitRequest:
    at_table_level = level == TABLE_LEVEL
    reports = [report for table in written for report in table.reports]
    tables = [table_id(table.info.name.encode()) for table in written]
    ids: list[int] = []
    if not at_table_level:
        check_ids_count(conn, reports)
        ids = _distinct([report.ids for report in reports]).tolist()
    if transaction_id is not None:
        ids.append(idempotency.marker_cell_id(transaction_id))
        if not at_table_level:
            tables.append(idempotency.MARKERS_TABLE_ID)
    return CommitRequest(
        start_ts,
        cell_ids=tuple(ids),
        table_ids=tuple(tables),
        branches=tuple(report.branch for report in reports),
        level=WriteSetLevel.TABLE if at_table_level and written else WriteSetLevel.IDS,
    )


def _distinct(ids: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Ascending, so that the TSO walks its conflict map in order. (`np.unique` hashes: 100 times slower at 1 M.)"""
    together = np.sort(np.concatenate([np.empty(0, np.int64), *ids]))
    return together[np.concatenate([[True], together[1:] != together[:-1]])] if len(together) else together


def _witnesses(reports: Iterable[BranchReport]) -> list[CellVersion]:
    return [report.witness for report in reports if report.witness is not None]
