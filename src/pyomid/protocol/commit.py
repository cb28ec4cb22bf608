"""The end of a transaction: commit, completion, rollback.

The order is laws 1, 2 and 5: data durable → commit request → "committed" → shadow cells of the whole write set
durable → commit-table entry deleted. Whoever dies on the way leaves a state that readers and compaction repair;
nothing here needs to run twice, and nothing needs a journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
from pyomid.types import CellVersion, CommitReply, CommitRequest, ShadowWrite

WriteSet = Mapping[str, Sequence[CellVersion]]
"""Table → the exact versions a transaction wrote there; as `CellNames` where they went in batches."""

SHADOWS_MAX = 5_000
"""Shadow cells in one write: bounded, so that other writers get their turn."""


def commit_steps(request: CommitRequest, written: WriteSet) -> Steps[CommitReply]:
    """The outcome, known for certain; OutcomeUnknown where it cannot be known.

    Obligation of the caller (law 1): every cell of `written`, and of the branches, is durable.
    """
    try:
        reply: CommitReply = yield SendCommit(request)
    except OutcomeUnknown:
        outcome = yield from _look_up_steps(request, written)
        return CommitReply(request.start_ts, commit_ts=outcome.commit_ts)
    return reply


def _look_up_steps(request: CommitRequest, written: WriteSet) -> Steps[Outcome]:
    """An error of the looking up says nothing about the commit, whatever it is (a table of the transaction was
    dropped meanwhile): it must not pass for one that took no effect, after which the cells would be deleted (C3)."""
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
    """Shadow cells of the whole write set, then the commit-table entry goes (law 5, C4).

    May run later, or never; an error leaves the entry for the healers. Only for a transaction without branches:
    the cells of branches are known to their tasks alone, compaction completes those.
    """
    for table, cells in written.items():
        if isinstance(cells, CellNames):
            yield WriteShadowBatches(table, cells.version, cells.batches, commit_ts)
            continue
        for piece in _pieces(cells):
            yield WriteShadowCells(table, tuple(ShadowWrite(cell, commit_ts) for cell in piece))
    yield DeleteCommitEntries((start_ts,))


def rollback_steps(written: WriteSet) -> Steps[None]:
    """Exactly the own versions go. Only where "not committed" is certain: an abort was answered, or no commit
    request ever left (C3). May run later, or never: what is left are orphans."""
    for table, cells in written.items():
        for piece in _pieces(tuple(cells)):
            yield DeleteVersions(table, tuple(piece))


def _pieces(cells: Sequence[CellVersion]) -> Iterable[Sequence[CellVersion]]:
    for first in range(0, len(cells), SHADOWS_MAX):
        yield cells[first : first + SHADOWS_MAX]
