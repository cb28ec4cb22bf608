"""The end of a transaction: commit, completion, rollback, and the outcome of a commit whose reply was lost.

Laws 1, 2 and 5 fix the order: data durable → commit request → "committed" → shadow cells of the whole write set durable
→ commit-table entry deleted. If a client dies in between, readers and compaction repair the state that it leaves.

The outcome (protocol.md, "Outcome of a commit whose answer was lost") is read in this order (R1–R4, C3): own shadow
cells, commit table and then H, seal, own cells again. "Rolled back" needs evidence: an own cell that still exists,
without a shadow cell, and whose start can never commit. A missing own cell proves nothing: it may have been deleted, or
superseded and compacted. A transaction that only claimed has no cells to pass here. But only its own client, which asks
here, deletes its entry at or above H. So if its start can be sealed, it did not commit. "Committed" is reported once
the TSO begins transactions above the commit (C10).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyomid.cells import CellNames
from pyomid.errors import ConflictError, OutcomeUnknown, SnapshotTooOld
from pyomid.protocol.effects import (
    Begin,
    DeleteCommitEntries,
    DeleteVersions,
    ReadRows,
    ReadWatermarks,
    SealStarts,
    SendCommit,
    WriteShadowBatches,
    WriteShadowCells,
)
from pyomid.protocol.reading import look_up
from pyomid.protocol.timestamps import dated
from pyomid.types import (
    AbortReason,
    BeginReply,
    Cell,
    CellVersion,
    Column,
    CommitReply,
    CommitRequest,
    IndexState,
    ReadBounds,
    ShadowWrite,
    TableInfo,
    start_of,
)

WriteSet = Mapping[str, Sequence[CellVersion]]
"""Table → the exact versions that a transaction wrote there, as `CellNames` if it wrote batches."""

CELLS_AT_ONCE: Final = 5_000
"""The maximum number of cells in one write of shadow cells or deletes, so that other writers need not wait long."""


async def request_commit(request: CommitRequest, written: WriteSet) -> CommitReply:
    """Commit, and return the certain outcome. Raises OutcomeUnknown if the outcome cannot be known.

    The caller must ensure law 1: every cell of `written`, and of the branches, is durable before this call.
    """
    try:
        reply: CommitReply = await SendCommit(request)
    except OutcomeUnknown as error:
        if request.packed:  # whoever received the packed request may still perform it; no seal prevents that
            raise OutcomeUnknown(
                f"the outcome of transaction {dated(request.start_ts)} is unknown: {error}", start_ts=request.start_ts
            ) from error
        outcome = await _look_up(request, written)
        return CommitReply(request.start_ts, commit_ts=outcome.commit_ts)
    return reply


async def _look_up(request: CommitRequest, written: WriteSet) -> Outcome:
    """Look up the outcome after the answer was lost. If the lookup fails (for example, because a table of the
    transaction was dropped), that is no evidence about the commit. It must not look like "not committed", or the cells
    would be deleted (C3)."""
    try:
        outcome = await find_outcome(request.start_ts, request.branches, written)
    except OutcomeUnknown:
        raise
    except Exception as error:
        raise OutcomeUnknown(
            f"the reply to the commit of transaction {dated(request.start_ts)} was lost, and its outcome cannot be "
            f"looked up now: {error}",
            start_ts=request.start_ts,
        ) from error
    return outcome


async def complete(start_ts: int, commit_ts: int, written: WriteSet) -> None:
    """Complete a commit: write the shadow cells of the whole write set, then delete the commit-table entry (law 5, C4).

    This may run later, or never; after an error, readers and compaction repair the rest. Use it only for a transaction
    without branches: only the tasks know the cells of branches, and compaction completes those.
    """
    for table, cells in written.items():
        if isinstance(cells, CellNames):
            await WriteShadowBatches(table, cells.version, cells.batches, commit_ts)
            continue
        for chunk in _chunks(cells):
            await WriteShadowCells(table, tuple(ShadowWrite(cell, commit_ts) for cell in chunk))
    await DeleteCommitEntries((start_ts,))


async def delete_writes(written: WriteSet) -> None:
    """Delete exactly the transaction's own versions. Call it only if "not committed" is certain: the answer was an
    abort, or no commit request was ever sent (C3). It may run later, or never; cells that remain are orphans."""
    for table, cells in written.items():
        for chunk in _chunks(tuple(cells)):
            await DeleteVersions(table, tuple(chunk))


def _chunks(cells: Sequence[CellVersion]) -> Iterable[Sequence[CellVersion]]:
    for first in range(0, len(cells), CELLS_AT_ONCE):
        yield cells[first : first + CELLS_AT_ONCE]


def may_cache_rules(info: TableInfo) -> bool:
    """Return whether a client may cache a table's rules for later transactions. It may not while columns change,
    because after the fence of the change every client must read the new entry (X2). It may not while an index is being
    built, because no fence is drawn when the index becomes ready."""
    return not info.is_changing and not any(index.state is IndexState.BUILDING for index in info.indexes)


def may_use_rules(read_after: int, begun: BeginReply) -> bool:
    """Return whether a transaction may use table rules that were read after the start `read_after` was handed out. If
    True, then either these rules still apply to the table, or the commit of the transaction aborts (T9).

    A table may be dropped and created again, perhaps with another conflict level. A fence f lies between the two lives
    of its name (protocol.md, Catalog). With each start a TSO sends the newest fence that it has drawn on any table, and
    its epoch, which lies above all fences of earlier TSOs:

        fence f drawn before s was answered       after it
        read a ──► f ──► begin s, with f          read a ──► begin s, with an older fence ──► f
                   a < f: read again                         s < f: its commit aborts, on any TSO

    If the rules were read after a start at or above the transaction's own start, only the second case is possible.
    """
    return read_after >= begun.start_ts or read_after >= max(begun.fenced_ts, begun.epoch)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a transaction: committed at `commit_ts`, or, if that is 0, it can never commit."""

    commit_ts: int


ROLLED_BACK = Outcome(0)

OwnCells = Mapping[str, Sequence[CellVersion]]


async def find_outcome(start_ts: int, branches: Sequence[int], own: OwnCells) -> Outcome:
    """Return the outcome of the transaction `start_ts`. If it was still open, a seal makes the outcome final.

    `own` holds some or all cells that the transaction wrote, under its start or its branches; each is evidence. It is
    empty if the transaction only claimed. Raises OutcomeUnknown, with the start, if no evidence is left. Any other
    error, for example of the TSO, says nothing about the outcome.
    """
    outcome = await _find(start_ts, branches, own)
    if outcome.commit_ts:
        # An entry is durable before its batch is released. Until the release, begins are answered from below that
        # batch.
        await Begin(outcome.commit_ts, is_held=False)
    return outcome


async def _find(start_ts: int, branches: Sequence[int], own: OwnCells) -> Outcome:
    while True:
        commit_ts = _committed(await _read_own(own))
        if commit_ts:
            return Outcome(commit_ts)
        starts = (start_ts, *branches)
        states, _, horizon = await look_up(starts)
        commit_ts = _vouched_commit(starts, states, horizon)
        if commit_ts:
            return Outcome(commit_ts)
        sealed = await _seal(start_ts, branches)
        if sealed is None:
            continue
        cells: list[Cell] = await _read_own(own)
        commit_ts = _committed(cells)
        if commit_ts:
            return Outcome(commit_ts)
        if _proves_rollback(cells, start_ts, sealed) or (not own and start_ts in sealed.starts):
            return ROLLED_BACK
        raise OutcomeUnknown(
            f"the outcome of transaction {dated(start_ts)} cannot be known: its cells are gone (later writes may "
            f"have replaced them), and commit-table entries below {dated(sealed.horizon)} were sanitized",
            start_ts=start_ts,
        )


@dataclass(frozen=True, slots=True)
class _Sealed:
    """The starts sealed just now, and the H read after that."""

    starts: frozenset[int]
    horizon: int


async def _seal(start_ts: int, branches: Sequence[int]) -> _Sealed | None:
    """Seal what is still open. Returns None if a seal was refused, or H passed a sealed start meanwhile; then look up
    again."""
    _, horizon = await ReadWatermarks()
    wanted = (start_ts,) if start_ts >= horizon else tuple(b for b in branches if b >= horizon)
    if wanted:
        outcomes = await SealStarts(wanted)
        if not all(outcome.placed for outcome in outcomes):
            return None
        _, after = await ReadWatermarks()
        if any(start < after for start in wanted):
            return None
        horizon = after
    return _Sealed(frozenset(wanted), horizon)


def _vouched_commit(starts: Sequence[int], states: Sequence[int], horizon: int) -> int:
    """R4: return the commit timestamp of the first entry that counts, or 0. Below H no entry counts."""
    found = (state for start, state in zip(starts, states, strict=True) if state > 0 and start >= horizon)
    return next(found, 0)


def _proves_rollback(cells: Iterable[Cell], start_ts: int, sealed: _Sealed) -> bool:
    """C3: whether a cell proves that the transaction rolled back. The cells were read after the seal; none has a shadow
    cell."""
    return any(_is_evidence(start_of(cell.version), start_ts, sealed) for cell in cells)


def _is_evidence(cell_start: int, start_ts: int, sealed: _Sealed) -> bool:
    """Return whether a cell without a shadow cell proves "rolled back". If the transaction's own start was sealed just
    now, a cell of any version proves it. Otherwise only a cell proves it whose start is below H, or is a branch that
    was sealed just now."""
    return start_ts in sealed.starts or cell_start < sealed.horizon or cell_start in sealed.starts


async def _read_own(own: OwnCells) -> list[Cell]:
    found: list[Cell] = []
    for table, wanted in own.items():
        if not wanted:
            continue
        names = set(wanted)
        rows = list(dict.fromkeys(cell.row for cell in wanted))
        columns = sorted({Column(cell.family, cell.qualifier) for cell in wanted})
        versions = [cell.version for cell in wanted]
        bounds = ReadBounds(at_least=min(versions), below=max(versions) + 1)
        lists: list[list[Cell]] = await ReadRows(table, rows, columns, bounds)
        found.extend(cell for cells in lists for cell in cells if cell.name in names)
    return found


def _committed(cells: Iterable[Cell]) -> int:
    return next((cell.commit_ts for cell in cells if cell.commit_ts), 0)


def abort_error(reply: CommitReply, shown: str = "", *, lost: str = "a row or cell", **values: object) -> ConflictError:
    """Return the error for an aborted commit; it names the commit that caused the abort, if known. `lost` says what two
    transactions both committed, and `shown` is appended to the text."""
    kind = SnapshotTooOld if reply.reason is AbortReason.LEASE_LOST else ConflictError
    because = _REASONS.get(reply.reason, "another transaction won") if reply.reason else "another transaction won"
    because = because.format(lost=lost)
    by = f", commit {dated(reply.conflict_ts)}" if reply.conflict_ts else ""
    if reply.conflict_ts:
        values = {"commit_ts": reply.conflict_ts, **values}
    return kind(f"transaction {dated(reply.start_ts)} aborted: {because}{by}{shown}", start_ts=reply.start_ts, **values)


_REASONS: Final = {
    AbortReason.CONFLICT: "another transaction committed {lost} that it wrote or claimed",
    AbortReason.LOW_WATERMARK: "it is older than the commits that the TSO remembers",
    AbortReason.FENCE: "a table that it wrote was fenced",
    AbortReason.TABLE: "another transaction committed to a table that it claimed as a whole",
    AbortReason.SEALED: "it was sealed as dead by a reader",
    AbortReason.LEASE_LOST: "its lease expired",
    AbortReason.RETRY_UNKNOWN: "its first commit request was never decided",
}
