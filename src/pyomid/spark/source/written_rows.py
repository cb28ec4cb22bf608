"""Lookup in the store of what the tasks of one write wrote: duplicate keys, and ids that the tasks did not report.

Tasks report their keys and ids to the driver while these are few: all tasks together about `REPORTED_MAX`, whatever the
size of the write. Beyond that they are found in the store, in key order: two rows with one key are two versions of one
row, under two branches of this write. A reported key costs the driver 8 bytes; unreported ones cost one scan from the
first to the last written key, by tasks if there are any, one batch in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch
from pyomid.protocol.native import hashing
from pyomid.spark.databases import connection
from pyomid.types import ConflictLevel, KeyRange

REPORTED_MAX: Final = 1 << 21
"""About how many keys all tasks of one write report (16 MB in the driver), and as many ids."""

_NO_IDS: Final = np.empty(0, dtype=np.int64)


def reported_by_task(reported_max: int, number: int) -> int:
    """Return how many keys or ids task `number` may report; the number of tasks is unknown to it.

    If tasks are of equal size and have `reported_max` keys together, all are reported: the last of n tasks has a share
    of 1 / n. Tasks of any sizes report at most `reported_max` × (1 + ln n) together.
    """
    return reported_max // (number + 1)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A search among the rows of one write, for keys under two of `branches` and for ids of what `unreported` wrote."""

    url: str
    table: str
    database_id: bytes
    branches: tuple[int, ...]
    """Branches whose keys must be distinct; the branch of an overwrite's tombstones is not among them."""
    unreported: tuple[int, ...]
    levels: tuple[ConflictLevel, ...]
    start_ts: int
    """The transaction's start, whose lease is renewed."""


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a search. `doubled`: a duplicate key, or None."""

    doubled: bytes | None
    ids: NDArray[np.int64]


def look_up(lookup: Lookup, ranges: Iterable[KeyRange]) -> Found:
    """Scan these ranges, up to the first duplicate key: it makes the write fail."""
    conn = connection(lookup.url, lookup.database_id)
    ids = [_NO_IDS]
    for key_range in ranges:
        for batch in conn.deployment.store.scan(lookup.table, key_range):
            conn.renew((lookup.start_ts,))
            row = _doubled_row(batch, lookup.branches)
            if row is not None:
                return Found(batch.row_key(row), _NO_IDS)
            ids += _ids_of(lookup, batch)
    return Found(None, np.concatenate(ids))


def combined(seen: Sequence[Found]) -> Found:
    doubled = next((each.doubled for each in seen if each.doubled is not None), None)
    return Found(doubled, np.concatenate([_NO_IDS, *(each.ids for each in seen)]))


def _doubled_row(batch: CellBatch, branches: Sequence[int]) -> int | None:
    if not batch.rows or not branches:
        return None
    written = np.isin(batch.rec_version, branches)
    found = np.flatnonzero(np.add.reduceat(written.astype(np.int64), batch.row_rec[:-1]) > 1)
    return int(found[0]) if len(found) else None


def _ids_of(lookup: Lookup, batch: CellBatch) -> list[NDArray[np.int64]]:
    """Return one id for each row or cell that one of the branches wrote, as the tasks would have reported them."""
    if not batch.rows or not lookup.unreported:
        return []
    written, table = np.isin(batch.rec_version, lookup.unreported), lookup.table.encode()
    if not written.any():
        return []
    found = []
    for level in lookup.levels:
        if level is ConflictLevel.ROW:
            rows = np.add.reduceat(written.astype(np.int64), batch.row_rec[:-1]) > 0
            found.append(hashing.row_ids(table, batch)[rows])
        else:
            found.append(hashing.cell_ids(table, batch)[np.repeat(written, np.diff(batch.rec_cell))])
    return found
