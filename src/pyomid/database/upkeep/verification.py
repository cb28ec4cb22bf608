"""Verification: counts stored cells, and reports violated invariants. It only reads.

A version that equals its shadow timestamp and is older than the table's generation was written without transactions and
adopted, so it belongs to no start. Every other cell belongs to a start, and all cells of a start have the same commit
timestamp, or none. So each part gathers the distinct pairs (start, shadow timestamp) of its region. All pairs together
are compared with the commit table:

    shadow cell, and an entry with another timestamp       violation (I6)
    two shadow timestamps of one start                     violation (I6)
    shadow timestamp not above its start                   violation; equal in small commits of a folder
    no shadow cell, and              another cell of the start has one, and no entry is left: half a commit (I5)
                                     an entry               missing shadow cell: readers look it up, compaction heals
                                     sealed, or start < H   orphan
                                     neither, start ≤ W     orphan
                                     neither, start > W     open: may still commit

    a timestamp that was never handed out                  violation: a start, a shadow cell or an entry of the future
    a table of HBase altered so that it may lose versions, or with a delete marker above all timestamps      violation
    a run's idempotency key names a branch that has neither entry nor shadow cells           torn

A commit that completes while the job runs can look torn: one of its cells was read before its shadow cells were
written, another cell after that, and the lookup came after the entry's deletion. So starts that look torn are read once
more, after the lookup. If the entry was gone by then, all shadow cells are durable (law 5), and the second read finds
them. Only a start that looks torn in both reads is torn. A start that looks torn only in the second read was written
during the job: its cells count as missing shadow cells, and the next run decides.

Some states may be permitted, or may be damage. Verification cannot tell which, and lists them as `doubts`:

    a start without an entry, above the start of a large commit and below its commit: an attempt that failed, another
        transaction, or a branch whose entry was lost. For a run under an id, the idempotency key names the branches and
        decides
    an orphan at or below the recorded watermark, although compaction leaves none: a late write of a dead client, or a
        cell whose only shadow cell was lost

A deleted cell leaves no trace: if all cells of a commit are lost, this is not detected.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pyomid.arrays import NDArray, np
from pyomid.cells import TOMBSTONE, CellBatch
from pyomid.database import idempotency
from pyomid.database.found_tables import check_markers
from pyomid.database.issued import drawn_start, last_issued
from pyomid.database.upkeep.jobs import (
    Partition,
    chosen_tables,
    count_text,
    counting,
    moment_text,
    number_text,
    partitions_of,
    table_text,
    unless_dropped,
)
from pyomid.errors import Misuse, UnknownTable
from pyomid.ports import Deployment
from pyomid.protocol.sanitize import covered_watermark
from pyomid.protocol.timestamps import dated
from pyomid.types import SEALED, KeyRange, Progress, TableInfo

Ints: TypeAlias = "NDArray[np.int64]"

VIOLATIONS_SHOWN_MAX: Final = 20


@dataclass(slots=True)
class TableReport:
    """Counts of a table's stored cells, tombstones included. `cleaned_to` is the lowest watermark of the table's
    regions, as recorded before they were read."""

    table: str
    rows: int = 0
    cells: int = 0
    tombstones: int = 0
    missing_shadow_cells: int = 0
    orphans: int = 0
    open: int = 0
    torn: int = 0
    cleaned_to: int = 0


@dataclass(slots=True)
class Verification:
    """The report of a verification, returned by `Database.verify`."""

    tables: list[TableReport]
    watermark: int
    horizon: int
    commit_table_entries: int
    commit_table_seals: int
    leases: int
    pending: int
    violations: list[str]
    torn_starts: list[int]
    orphan_starts: dict[int, int]
    """The starts that can never commit, each with its number of cells."""
    seconds: float
    doubts: list[str] = field(default_factory=list)
    """States that may be permitted or damage; the store does not show which."""
    is_folder: bool = False
    """Whether the database is a folder: its entries and seals are the records of committed and of dead branches. The
    report of a folder has neither leases nor pending commits."""

    @property
    def ok(self) -> bool:
        """Whether no invariant is broken. Orphans and missing shadow cells are permitted."""
        return not self.violations and not self.torn_starts

    @property
    def cells(self) -> int:
        return sum(table.cells for table in self.tables)

    @property
    def orphans(self) -> int:
        return sum(table.orphans for table in self.tables)

    @property
    def missing_shadow_cells(self) -> int:
        return sum(table.missing_shadow_cells for table in self.tables)

    def __str__(self) -> str:
        headings = (
            "table", "rows", "cells", "tombstones", "no shadow cell", "orphans", "open", "torn", "cleaned to",
        )  # fmt: skip
        rows = [
            (
                t.table,
                t.rows,
                t.cells,
                t.tombstones,
                t.missing_shadow_cells,
                t.orphans,
                t.open,
                t.torn,
                moment_text(t.cleaned_to),
            )
            for t in self.tables
        ]
        if self.is_folder:
            entries = f"branch records: {self.commit_table_entries} committed, {self.commit_table_seals} dead"
            held = ""
        else:
            entries = f"commit table: {count_text(self.commit_table_entries, 'entry', 'entries')}, "
            entries += count_text(self.commit_table_seals, "seal")
            held = f"{count_text(self.leases, 'lease')}, {count_text(self.pending, 'pending commit')}; "
        whole = f"{entries}; W {dated(self.watermark)}, H {dated(self.horizon)}; {held}{number_text(self.seconds)} s"
        torn = [f"torn commits: {', '.join(map(str, self.torn_starts[:VIOLATIONS_SHOWN_MAX]))}"]
        bad = [*torn * bool(self.torn_starts), *self.violations[:VIOLATIONS_SHOWN_MAX]]
        doubts = [f"cannot tell: {doubt}" for doubt in self.doubts[:VIOLATIONS_SHOWN_MAX]]
        return "\n".join([table_text(headings, rows), whole, *bad, *doubts, self.verdict])

    @property
    def verdict(self) -> str:
        """The result in one line, which is the last line of the report."""
        doubts = f"; {count_text(len(self.doubts), 'doubt')}, listed above" if self.doubts else ""
        if self.ok:
            read = f"{count_text(self.cells, 'cell')} of {count_text(len(self.tables), 'table')}"
            return f"ok: no violation in {read}{doubts}"
        found = f"{count_text(len(self.violations), 'violation')}, {count_text(len(self.torn_starts), 'torn commit')}"
        return f"NOT ok: {found}{doubts}"


@dataclass(slots=True)
class _Starts:
    """The distinct pairs of start and shadow timestamp (0: none) in a region or table, each with its number of
    cells."""

    starts: Ints
    commits: Ints
    cells: Ints

    @classmethod
    def merged(cls, parts: Iterable[_Starts]) -> _Starts:
        several = list(parts)
        if not several:
            return cls(*(np.empty(0, np.int64) for _ in range(3)))
        return cls.summed(
            np.concatenate([part.starts for part in several]),
            np.concatenate([part.commits for part in several]),
            np.concatenate([part.cells for part in several]),
        )

    @classmethod
    def summed(cls, starts: Ints, commits: Ints, cells: Ints) -> _Starts:
        order = np.lexsort((commits, starts))
        starts, commits, cells = starts[order], commits[order], cells[order]
        if not len(starts):
            return cls(starts, commits, cells)
        first = np.concatenate([[True], (starts[1:] != starts[:-1]) | (commits[1:] != commits[:-1])])
        places = np.flatnonzero(first)
        return cls(starts[places], commits[places], np.add.reduceat(cells, places))

    def unresolved(self) -> Ints:
        found: Ints = self.starts[self.commits == 0]
        return found


_Statuses = dict[int, str]
"""The states of unresolved starts: missing, torn, orphan or open."""


def _in_state(statuses: _Statuses, state: str) -> list[int]:
    return [start for start, found in statuses.items() if found == state]


def verify(
    deployment: Deployment, tables: str | Sequence[str] | None = None, progress: Progress | None = None
) -> Verification:
    """Read every stored cell and every commit-table entry, and return a report of violated invariants. The call only
    reads; concurrent writes count as open."""
    infos = chosen_tables(deployment.catalog, tables)

    def looked() -> Iterable[Seen]:
        for info in infos:
            seen = counting(progress, info.name)
            with unless_dropped(deployment.catalog, info.name, info.generation, tables):
                for partition in partitions_of(deployment, info):
                    yield look(deployment, partition, seen)

    return verified(deployment, infos, looked)


def verified(deployment: Deployment, infos: Sequence[TableInfo], looked: Callable[[], Iterable[Seen]]) -> Verification:
    """Return the report on the tables and the commit table. `looked` runs `look` on every part of the tables; it may be
    called twice."""
    began = time.monotonic()
    named = _named_branches(deployment)
    reports, starts = _gathered(deployment, infos, looked)
    statuses = _statuses_of(deployment, _Starts.merged(starts.values()), named)
    if torn := frozenset(_in_state(statuses, "torn")):
        reports, starts = _gathered(deployment, infos, looked)
        statuses = _statuses_of(deployment, _Starts.merged(starts.values()), named)
        for start in _in_state(statuses, "torn"):
            if start not in torn:
                statuses[start] = "missing"
    for info in infos:
        _count(reports[info.name], starts.get(info.name), statuses)
    return _result(deployment, infos, reports, starts, statuses, named, time.monotonic() - began)


def _gathered(
    deployment: Deployment, infos: Sequence[TableInfo], looked: Callable[[], Iterable[Seen]]
) -> tuple[dict[str, TableReport], dict[str, _Starts]]:
    """Return counts and starts of the tables. Recorded watermarks are read first, because a compaction that ends during
    the read says nothing about orphans that were read before."""
    reports = {info.name: TableReport(info.name, cleaned_to=_cleaned_to(deployment, info)) for info in infos}
    found: dict[str, list[_Starts]] = {}
    for seen in looked():
        table = reports[seen.table]
        table.rows += seen.rows
        table.cells += seen.cells
        table.tombstones += seen.tombstones
        found.setdefault(seen.table, []).append(seen.starts)
    return reports, {table: _Starts.merged(parts) for table, parts in found.items()}


def _cleaned_to(deployment: Deployment, info: TableInfo) -> int:
    records = [r for r in deployment.catalog.region_watermarks(info.name) if r.generation == info.generation]
    return covered_watermark(records)


def _named_branches(deployment: Deployment) -> frozenset[int]:
    """Return the branches of committed runs that idempotency keys name. The keys are read first, to exclude runs that
    commit later."""
    cells = [cell for batch in _scanned_manifests(deployment) for cell in batch.all_cells() if cell.value is not None]
    undecided = sorted({cell.version for cell in cells if not cell.commit_ts})
    states = deployment.commit_table.lookup(undecided) if undecided else []
    committed = {start for start, state in zip(undecided, states, strict=True) if state > 0}
    done = [cell for cell in cells if cell.commit_ts or cell.version in committed]
    return frozenset(branch for cell in done for branch in idempotency.branches_of(cell.value or b""))


def _scanned_manifests(deployment: Deployment) -> Iterator[CellBatch]:
    try:
        deployment.catalog.table(idempotency.KEYS_TABLE)
    except UnknownTable:
        return
    yield from deployment.store.scan(idempotency.KEYS_TABLE, KeyRange(), [idempotency.BRANCHES_COLUMN])


def _statuses_of(deployment: Deployment, whole: _Starts, named: frozenset[int]) -> _Statuses:
    unresolved = np.unique(whole.unresolved()).tolist()
    resolved = set(whole.starts[whole.commits > 0].tolist())
    unfinished = {branch for pending in deployment.leader_state.read().pending for branch in pending.branches}
    watermark, _ = deployment.leader_state.read_watermarks()
    states = deployment.commit_table.lookup(unresolved) if unresolved else []
    _, horizon = deployment.leader_state.read_watermarks()
    statuses: _Statuses = {}
    for start, state in zip(unresolved, states, strict=True):
        if state > 0 and start >= horizon:
            statuses[start] = "missing"
        elif start in resolved or (start in named and start not in unfinished):
            statuses[start] = "torn"
        elif state == SEALED or start < horizon or start <= watermark:
            statuses[start] = "orphan"
        else:
            statuses[start] = "open"
    return statuses


def _count(report: TableReport, starts: _Starts | None, statuses: _Statuses) -> None:
    if starts is None:
        return
    unresolved = starts.commits == 0
    for start, cells in zip(starts.starts[unresolved].tolist(), starts.cells[unresolved].tolist(), strict=True):
        state = statuses[start]
        if state == "missing":
            report.missing_shadow_cells += cells
        elif state == "orphan":
            report.orphans += cells
        elif state == "torn":
            report.torn += cells
        else:
            report.open += cells


def _result(
    deployment: Deployment,
    infos: Sequence[TableInfo],
    reports: dict[str, TableReport],
    starts: dict[str, _Starts],
    statuses: _Statuses,
    named: frozenset[int],
    seconds: float,
) -> Verification:
    whole = _Starts.merged(starts.values())
    epoch = deployment.leader_state.read()
    entries = list(deployment.commit_table.entries())
    commits = {start: commit for start, commit in entries if commit > 0}
    newest_ts = drawn_start(deployment)
    is_folder = deployment.store.capabilities.packs_commits
    future = _of_the_future(whole, commits, newest_ts)
    if future:
        future = _of_the_future(whole, commits, last_issued(deployment))
    return Verification(
        list(reports.values()),
        epoch.watermark,
        epoch.horizon,
        len(commits),
        len(entries) - len(commits),
        len(epoch.leases),
        len(epoch.pending),
        [
            *_violations(whole, commits, epoch.watermark, epoch.horizon, may_be_equal=is_folder),
            *future,
            *_altered(deployment, infos, newest_ts),
        ],
        sorted(_in_state(statuses, "torn")),
        _cells_of(whole, _in_state(statuses, "orphan")),
        seconds,
        [*_nameless_branches(whole, commits, statuses, named), *_left_by_compaction(reports, starts, statuses)],
        is_folder,
    )


def _cells_of(whole: _Starts, starts: Sequence[int]) -> dict[int, int]:
    wanted = (whole.commits == 0) & np.isin(whole.starts, np.array(starts, np.int64))
    return dict(zip(whole.starts[wanted].tolist(), whole.cells[wanted].tolist(), strict=True))


def _violations(
    whole: _Starts, commits: dict[int, int], watermark: int, horizon: int, *, may_be_equal: bool
) -> Iterable[str]:
    if horizon > watermark:
        yield f"H {dated(horizon)} is above W {dated(watermark)}"
    have = whole.commits > 0
    starts, shadows = whole.starts[have], whole.commits[have]
    for index in np.flatnonzero(shadows < starts if may_be_equal else shadows <= starts).tolist():
        yield f"start {starts[index]}: shadow timestamp {shadows[index]} is not above it"
    for index in np.flatnonzero(starts[1:] == starts[:-1]).tolist():
        yield f"start {starts[index]}: two shadow timestamps, {shadows[index]} and {shadows[index + 1]}"
    for start, shadow in zip(starts.tolist(), shadows.tolist(), strict=True):
        entry = commits.get(start, shadow)
        if entry != shadow and start >= horizon:
            yield f"start {start}: shadow timestamp {shadow}, commit table {entry}"
    for start, commit in commits.items():
        if commit <= start:
            yield f"commit table: start {start}, commit {commit} is not above it"


def _of_the_future(whole: _Starts, commits: dict[int, int], newest: int) -> list[str]:
    """Return a violation for each timestamp at or above `newest`, which was handed out after everything was read."""
    late = (whole.starts >= newest) | (whole.commits >= newest)
    found = []
    for start, shadow in zip(whole.starts[late].tolist(), whole.commits[late].tolist(), strict=True):
        what = "it" if start >= newest else f"shadow timestamp {shadow}"
        found.append(f"start {start}: {what} was never handed out; the newest timestamp is {newest}")
    for start, commit in commits.items():
        if max(start, commit) >= newest:
            found.append(
                f"commit table: start {start}, commit {commit} was never handed out; the newest timestamp is {newest}"
            )
    return found


def _altered(deployment: Deployment, infos: Sequence[TableInfo], newest_ts: int) -> Iterator[str]:
    """Yield a violation for each table that other programs altered or damaged although transactions use it."""
    for info in infos:
        with suppress(UnknownTable):  # dropped meanwhile
            try:
                deployment.store.check_table(info.name, info.families)
                check_markers(deployment, info.name, KeyRange(), newest_ts)
            except UnknownTable:
                raise
            except Misuse as error:
                yield error.message


def _nameless_branches(
    whole: _Starts, commits: dict[int, int], statuses: _Statuses, named: frozenset[int]
) -> Iterable[str]:
    """Yield doubts about starts without entry and shadow cell within the range of a large commit, which consists of
    several starts. If an idempotency key names the commit's branches, there is no doubt."""
    nameless = sorted([*_in_state(statuses, "orphan"), *_in_state(statuses, "open")])
    for members, commit in _large_commits(whole, commits):
        inside = nameless[bisect_right(nameless, members[0]) : bisect_right(nameless, commit)]
        if inside and named.isdisjoint(members):
            yield (
                f"{len(inside)} starts without an entry lie inside the large commit {members[0]} → {commit} of "
                f"{len(members)} starts: attempts that failed and transactions that did not commit, or branches "
                f"whose entry was lost ({_some(inside)})"
            )


def _large_commits(whole: _Starts, commits: dict[int, int]) -> Iterable[tuple[list[int], int]]:
    """Yield each commit that has several starts: its starts, ascending, and its commit timestamp."""
    have = whole.commits > 0
    entries = np.array(list(commits.items()), np.int64).reshape(-1, 2)
    pairs = np.unique(
        np.concatenate([np.column_stack([whole.commits[have], whole.starts[have]]), entries[:, ::-1]]), axis=0
    )
    distinct, first, counts = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    for commit, at, count in zip(distinct.tolist(), first.tolist(), counts.tolist(), strict=True):
        if count > 1:
            yield pairs[at : at + count, 1].tolist(), commit


def _some(starts: Sequence[int]) -> str:
    return ", ".join(map(str, starts[:VIOLATIONS_SHOWN_MAX]))


def _left_by_compaction(
    reports: dict[str, TableReport], starts: dict[str, _Starts], statuses: _Statuses
) -> Iterable[str]:
    for name, found in sorted(starts.items()):
        cleaned_to = reports[name].cleaned_to
        left = [s for s in np.unique(found.unresolved()).tolist() if s <= cleaned_to and statuses[s] == "orphan"]
        if left:
            yield (
                f"table {name}: cells of {len(left)} starts are orphans at or below {cleaned_to}, to which it was "
                f"compacted: writes that landed after it, or cells whose only shadow cell was lost ({_some(left)})"
            )


@dataclass(frozen=True, slots=True)
class Seen:
    """The counts and starts of a part of a table."""

    table: str
    rows: int
    cells: int
    tombstones: int
    starts: _Starts


def look(deployment: Deployment, partition: Partition, seen: Callable[[int], object] | None = None) -> Seen:
    """Return the counts and starts of a part. `seen` is called after each batch with the number of rows read."""
    rows = cells = tombstones = 0
    parts: list[_Starts] = []
    for batch in deployment.store.scan(partition.table, partition.key_range):
        rows += batch.rows
        cells += batch.cells
        tombstones += int((batch.cell_len == TOMBSTONE).sum())
        parts.append(_starts_of(batch, partition.generation))
        if len(parts) > 100:
            parts = [_Starts.merged(parts)]
        if seen is not None:
            seen(batch.rows)
    return Seen(partition.table, rows, cells, tombstones, _Starts.merged(parts))


def _starts_of(batch: CellBatch, generation: int) -> _Starts:
    of_starts = (batch.rec_commit != batch.rec_version) | (batch.rec_version >= generation)
    return _Starts.summed(batch.rec_start[of_starts], batch.rec_commit[of_starts], np.diff(batch.rec_cell)[of_starts])
