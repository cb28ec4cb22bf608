"""The end of a transaction: commit, completion, rollback.

The order is that of laws 1, 2 and 5: data durable → commit request → "committed" → shadow cells of the whole write set
durable → commit-table entry deleted. If a client dies in between, readers and compaction repair the state that it
leaves; no step needs to run twice, and no journal is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyomid.cells import CellNames
from pyomid.errors import OutcomeUnknown
from pyomid.protocol.effects import (
    DeleteCommitEntries,
    DeleteVersions,
    SendCommit,
    Steps,
    WriteShadowBatches,
    WriteShadowCells,
)
from pyomid.protocol.outcome import Outcome, outcome_steps
from pyomid.types import BeginReply, CellVersion, CommitReply, CommitRequest, IndexState, ShadowWrite, TableInfo

WriteSet = Mapping[str, Sequence[CellVersion]]
"""Table → the exact versions that a transaction wrote there; `CellNames` if it wrote batches."""

CELLS_AT_ONCE: Final = 5_000
"""Cells in one write of shadow cells or deletes; bounded, so that other writers need not wait long."""


def commit_steps(request: CommitRequest, written: WriteSet) -> Steps[CommitReply]:
    """Commit, and return the certain outcome. OutcomeUnknown if it cannot be known.

    Law 1 is the caller's obligation: every cell of `written`, and of the branches, is durable.
    """
    try:
        reply: CommitReply = yield SendCommit(request)
    except OutcomeUnknown:
        outcome = yield from _look_up_steps(request, written)
        return CommitReply(request.start_ts, commit_ts=outcome.commit_ts)
    return reply


def _look_up_steps(request: CommitRequest, written: WriteSet) -> Steps[Outcome]:
    """Look the outcome up after the answer was lost. An error of the lookup (for example, a table of the transaction
    was dropped meanwhile) is no evidence about the commit: it must not look like "not committed", after which the
    cells would be deleted (C3)."""
    try:
        outcome = yield from outcome_steps(request.start_ts, request.branches, written)
    except OutcomeUnknown:
        raise
    except Exception as error:
        raise OutcomeUnknown(
            f"the answer to the commit of transaction {request.start_ts} was lost, and its outcome cannot be looked "
            f"up now: {error}",
            start_ts=request.start_ts,
        ) from error
    return outcome


def complete_steps(start_ts: int, commit_ts: int, written: WriteSet) -> Steps[None]:
    """Completion: write the shadow cells of the whole write set, then delete the commit-table entry (law 5, C4).

    It may run later, or never; after an error readers and compaction repair the rest. Only for a transaction without
    branches: only the tasks know the cells of branches, and compaction completes those.
    """
    for table, cells in written.items():
        if isinstance(cells, CellNames):
            yield WriteShadowBatches(table, cells.version, cells.batches, commit_ts)
            continue
        for chunk in _chunks(cells):
            yield WriteShadowCells(table, tuple(ShadowWrite(cell, commit_ts) for cell in chunk))
    yield DeleteCommitEntries((start_ts,))


def rollback_steps(written: WriteSet) -> Steps[None]:
    """Delete exactly the own versions. Only if "not committed" is certain: the answer was an abort, or no commit
    request was ever sent (C3). It may run later, or never: remaining cells are orphans."""
    for table, cells in written.items():
        for chunk in _chunks(tuple(cells)):
            yield DeleteVersions(table, tuple(chunk))


def _chunks(cells: Sequence[CellVersion]) -> Iterable[Sequence[CellVersion]]:
    for first in range(0, len(cells), CELLS_AT_ONCE):
        yield cells[first : first + CELLS_AT_ONCE]


def may_keep(info: TableInfo) -> bool:
    """Whether a client may cache a table's rules for later transactions. Not while columns change, so that after the
    fence of the change every client reads the new entry (X2). Nor while an index is being built, because no fence is
    drawn when it becomes ready."""
    return not info.is_changing and not any(index.state is IndexState.BUILDING for index in info.indexes)


def may_go_by(read_after: int, begun: BeginReply) -> bool:
    """Whether a transaction may choose its ids by table rules that were read after the start `read_after` was handed
    out. If True, they are still the rules of its table, or its commit aborts (T9).

    A table may be dropped and created again, perhaps with another conflict level. A fence f lies between the two lives
    of its name (protocol.md, Catalog). With each start a TSO sends the newest fence that it has drawn on any table, and
    its epoch, which lies above all fences of earlier TSOs:

        fence f drawn before s was answered       after it
        read a ──► f ──► begin s, with f          read a ──► begin s, with an older fence ──► f
                   a < f: read again                         s < f: its commit aborts, on any TSO

    If the rules were read after a start at or above the transaction's own, only the second case is possible.
    """
    return read_after >= begun.start_ts or read_after >= max(begun.fenced_ts, begun.epoch)
