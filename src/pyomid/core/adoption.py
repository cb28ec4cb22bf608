"""An existing table becomes transactional: each of its cells counts as committed at its own version.

    its writers stop  →  N drawn: a start timestamp  →  the table is not in the catalogue
    →  every region: shadow cells beside all cells below N  →  the catalogue entry  →  the first transaction

The look at the catalogue comes behind N, so a second run may go on beside a first one that finished, or a task of it
that everybody took for dead: transactions begin behind the entry, so their starts are above N, and a cell that is not
below N is refused, never adopted. The order prevents

    run 1 adopts and registers; T writes x@120, undecided
                                                            run 2 finds x@120 bare and gives it a shadow cell: T is
                                                            committed although nobody decided it
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyomid.cells import CellBatch
from pyomid.core.effects import CleanBatch, ReadRange, Steps
from pyomid.errors import Misuse
from pyomid.types import KeyRange

BATCH_ROWS_MAX = 10_000
"""As compaction's."""


@dataclass(slots=True)
class RangeAdopted:
    """What adopting did to a range: `adopted` of its `records` had no shadow cell before."""

    rows: int = 0
    records: int = 0
    adopted: int = 0


def adopt_range_steps(
    table: str, key_range: KeyRange, newest_ts: int, *, rows_max: int = BATCH_ROWS_MAX
) -> Steps[RangeAdopted]:
    """Every cell of the range has its shadow cell, durably, on return; those that had one keep it. Idempotent.

    `newest_ts`: N above. `Misuse` where a cell is not below it, or where a transaction committed a cell.
    """
    done = RangeAdopted()
    start: bytes | None = key_range.start
    while start is not None:
        batch: CellBatch = yield ReadRange(table, KeyRange(start, key_range.stop), None, rows_max)
        start = batch.row_key(batch.rows - 1) + b"\0" if batch.rows else None
        if batch.rows:
            yield from _adopt_batch_steps(table, batch, newest_ts, done)
    return done


def _adopt_batch_steps(table: str, batch: CellBatch, newest_ts: int, done: RangeAdopted) -> Steps[None]:
    _check_untouched(table, batch, newest_ts)
    bare = np.flatnonzero(batch.rec_commit == 0)
    done.rows += batch.rows
    done.records += len(batch.rec_commit)
    done.adopted += len(bare)
    if len(bare):
        batch.rec_commit[bare] = batch.rec_version[bare]
        yield CleanBatch(table, batch, bare, np.empty(0, np.int64))


def _check_untouched(table: str, batch: CellBatch, newest_ts: int) -> None:
    newest = int(batch.rec_version.max())
    if newest >= newest_ts:
        raise Misuse(
            f"table {table} holds a cell of version {newest}, newer than the TSO's timestamp {newest_ts}: no "
            "transaction would see it; stop the table's writers, run the TSO with --timestamps world-time, or adopt "
            "a copy",
            table=table,
            version=newest,
        )
    of_transactions = np.flatnonzero((batch.rec_commit != 0) & (batch.rec_commit != batch.rec_version))
    if len(of_transactions):
        start, commit = (int(of[of_transactions[0]]) for of in (batch.rec_version, batch.rec_commit))
        raise Misuse(
            f"table {table} was written by transactions already (start {start}, committed at {commit}): adopting it "
            "would commit what they left undecided; register it with `pyomid tables URL register NAME FAMILY`",
            table=table,
            start_ts=start,
        )
