"""Verification: what is in the store, and whether it may be there. Reads only.

Every cell belongs to a start. Of a start the truth is one: its cells carry one commit timestamp, or none. So per
region the distinct pairs (start, shadow timestamp) are gathered, and over all of them, with the commit table:

    shadow cell, and an entry that says otherwise          violation (I6)
    two shadow timestamps of one start                     violation (I6)
    shadow timestamp not above its start                   violation
    no shadow cell, entry or seal    another cell of the start has one, or the entry is gone: *torn*, half a commit
                                     entry                  missing shadow cell: readers look it up, compaction heals
                                     seal, or start < H     orphan
                                     nothing, start ≤ W     orphan
                                     nothing, start > W     open: may still commit

A commit that completes while the job runs looks torn for a moment; what looks torn is looked at again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyomid.cells import TOMBSTONE, CellBatch
from pyomid.core.sanitising import covered_watermark
from pyomid.spark.connection import Connection, connection
from pyomid.spark.figures import table_text
from pyomid.spark.pieces import Piece, chosen_tables, pieces_of, run_pieces
from pyomid.types import SEALED, TIMESTAMP_STEP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Ints = NDArray[np.int64]

VIOLATIONS_SHOWN_MAX: Final = 20


@dataclass(slots=True)
class TableFigures:
    """Counts of stored cells, tombstones included. `cleaned_to`: the lowest recorded watermark of its regions."""

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
    tables: list[TableFigures]
    watermark: int
    horizon: int
    commit_table_entries: int
    commit_table_seals: int
    leases: int
    pending: int
    violations: list[str]
    torn_starts: list[int]
    orphan_starts: dict[int, int]
    """Starts that can never commit → their cells."""
    seconds: float

    @property
    def ok(self) -> bool:
        """Nothing that may not be. Orphans and missing shadow cells may."""
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
            (t.table, t.rows, t.cells, t.tombstones, t.missing_shadow_cells, t.orphans, t.open, t.torn, t.cleaned_to)
            for t in self.tables
        ]
        whole = (
            f"commit table: {self.commit_table_entries} entries, {self.commit_table_seals} seals; W {self.watermark}, "
            f"H {self.horizon}; {self.leases} leases, {self.pending} pending commits; {self.seconds:.1f} s"
        )
        bad = [f"torn commits: {', '.join(map(str, self.torn_starts[:VIOLATIONS_SHOWN_MAX]))}"] * bool(self.torn_starts)
        return "\n".join([table_text(headings, rows), whole, *bad, *self.violations[:VIOLATIONS_SHOWN_MAX]])


@dataclass(slots=True)
class _Starts:
    """Of one region or table: starts with their shadow timestamps (0: none), each pair once, and their cells."""

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
        bare: Ints = self.starts[self.commits == 0]
        return bare


@dataclass(slots=True)
class _Judged:
    """Unresolved starts by what they are."""

    states: dict[int, str] = field(default_factory=dict)

    def starts(self, state: str) -> list[int]:
        return [start for start, found in self.states.items() if found == state]


def verify(spark: SparkSession, url: str, tables: Sequence[str] | None = None) -> Verification:
    """Looks at every stored cell and every commit-table entry: one task a region.

    May run beside writers; what they do meanwhile counts as open.
    """
    conn = connection(url)
    began = time.monotonic()
    infos = chosen_tables(conn, tables)
    parallelism = spark.sparkContext.defaultParallelism
    pieces = [piece for info in infos for piece in pieces_of(conn, info, parallelism)]
    figures = {info.name: TableFigures(info.name) for info in infos}
    starts = _gather(spark, url, pieces, figures)
    whole = _Starts.merged(starts.values())
    judged = _judge(conn, whole)
    if judged.starts("torn"):
        again = {info.name: TableFigures(info.name) for info in infos}
        starts = _gather(spark, url, pieces, again)
        figures, whole = again, _Starts.merged(starts.values())
        judged = _judge(conn, whole)
    for info in infos:
        _count(figures[info.name], starts.get(info.name), judged)
        records = [r for r in conn.parts.catalogue.region_watermarks(info.name) if r.generation == info.generation]
        figures[info.name].cleaned_to = covered_watermark(records)
    return _result(conn, list(figures.values()), whole, judged, time.monotonic() - began)


def _gather(
    spark: SparkSession, url: str, pieces: Sequence[Piece], figures: dict[str, TableFigures]
) -> dict[str, _Starts]:
    found: dict[str, list[_Starts]] = {}
    for row in run_pieces(spark, url, pieces, _look, _LOOKED_DDL, _LOOKED):
        table = figures[row["table"]]
        table.rows += row["rows"]
        table.cells += row["cells"]
        table.tombstones += row["tombstones"]
        part = _Starts(*(np.frombuffer(bytes(row[name]), np.int64) for name in ("starts", "commits", "counts")))
        found.setdefault(row["table"], []).append(part)
    return {table: _Starts.merged(parts) for table, parts in found.items()}


def _judge(conn: Connection, whole: _Starts) -> _Judged:
    unresolved = np.unique(whole.unresolved()).tolist()
    resolved = set(whole.starts[whole.commits > 0].tolist())
    watermark, _ = conn.parts.epoch_row.read_watermarks()
    states = conn.parts.commit_table.lookup(unresolved) if unresolved else []
    _, horizon = conn.parts.epoch_row.read_watermarks()
    judged = _Judged()
    for start, state in zip(unresolved, states, strict=True):
        if state > 0 and start >= horizon:
            judged.states[start] = "missing"
        elif start in resolved:
            judged.states[start] = "torn"
        elif state == SEALED or start < horizon or start <= watermark:
            judged.states[start] = "orphan"
        else:
            judged.states[start] = "open"
    return judged


def _count(figures: TableFigures, starts: _Starts | None, judged: _Judged) -> None:
    if starts is None:
        return
    bare = starts.commits == 0
    for start, cells in zip(starts.starts[bare].tolist(), starts.cells[bare].tolist(), strict=True):
        state = judged.states[start]
        if state == "missing":
            figures.missing_shadow_cells += cells
        elif state == "orphan":
            figures.orphans += cells
        elif state == "torn":
            figures.torn += cells
        else:
            figures.open += cells


def _result(
    conn: Connection, figures: list[TableFigures], whole: _Starts, judged: _Judged, seconds: float
) -> Verification:
    epoch = conn.parts.epoch_row.read()
    entries = list(conn.parts.commit_table.entries())
    commits = {start: commit for start, commit in entries if commit > 0}
    return Verification(
        figures,
        epoch.watermark,
        epoch.horizon,
        len(commits),
        len(entries) - len(commits),
        len(epoch.leases),
        len(epoch.pending),
        list(_violations(whole, commits, epoch.watermark, epoch.horizon)),
        sorted(judged.starts("torn")),
        _cells_of(whole, judged.starts("orphan")),
        seconds,
    )


def _cells_of(whole: _Starts, starts: Sequence[int]) -> dict[int, int]:
    wanted = (whole.commits == 0) & np.isin(whole.starts, np.array(starts, np.int64))
    return dict(zip(whole.starts[wanted].tolist(), whole.cells[wanted].tolist(), strict=True))


def _violations(whole: _Starts, commits: dict[int, int], watermark: int, horizon: int) -> Iterable[str]:
    if horizon > watermark:
        yield f"H {horizon} is above W {watermark}"
    have = whole.commits > 0
    starts, shadows = whole.starts[have], whole.commits[have]
    for index in np.flatnonzero(shadows <= starts).tolist():
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


_LOOKED: Final = pa.schema(
    [
        ("table", pa.string()),
        ("rows", pa.int64()),
        ("cells", pa.int64()),
        ("tombstones", pa.int64()),
        ("starts", pa.binary()),
        ("commits", pa.binary()),
        ("counts", pa.binary()),
    ]
)
_LOOKED_DDL: Final = (
    "table string, rows long, cells long, tombstones long, starts binary, commits binary, counts binary"
)


def _look(url: str, piece: Piece) -> dict[str, Any]:
    rows = cells = tombstones = 0
    parts: list[_Starts] = []
    for batch in connection(url).parts.store.scan(piece.table, piece.key_range):
        rows += batch.rows
        cells += batch.cells
        tombstones += int((batch.cell_len == TOMBSTONE).sum())
        parts.append(_starts_of(batch))
        if len(parts) > 100:
            parts = [_Starts.merged(parts)]
    whole = _Starts.merged(parts)
    return {
        "table": piece.table,
        "rows": rows,
        "cells": cells,
        "tombstones": tombstones,
        "starts": whole.starts.tobytes(),
        "commits": whole.commits.tobytes(),
        "counts": whole.cells.tobytes(),
    }


def _starts_of(batch: CellBatch) -> _Starts:
    starts = batch.rec_version - batch.rec_version % TIMESTAMP_STEP
    return _Starts.summed(starts, batch.rec_commit, np.diff(batch.rec_cell))
