"""What the tasks of one write wrote together, looked up in the store: keys that came twice, and ids that were not told.

Tasks tell the driver their keys and ids while these are few, all tasks together about `TOLD_MAX`, whatever the write's
size. Beyond that the store knows them in key order: two rows with one key are two versions of one row, under two
branches of this write. What was told costs the driver 8 bytes a key; what was not is one scan of the keys between the
first and the last one that were written, by tasks where there are some, without holding more than a batch of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch
from pyomid.protocol.native.hashing import cell_ids, row_ids
from pyomid.spark.databases import connection
from pyomid.types import ConflictLevel, KeyRange

TOLD_MAX: Final = 1 << 21
"""Keys that the tasks of one write tell, about: 16 MB in the driver; the same number of ids."""

_NO_IDS: Final = np.empty(0, dtype=np.int64)


def told_by_task(told_max: int, number: int) -> int:
    """How many keys or ids task `number` tells; how many tasks there are, it does not know.

    Tasks of equal size tell all if they have `told_max` together: of n tasks the last one has a share of 1 / n. And
    tasks of any size tell no more than `told_max` × (1 + ln n) together.
    """
    return told_max // (number + 1)


@dataclass(frozen=True, slots=True)
class Look:
    """What is looked for among the rows of one write: keys under two of `branches`, and ids of what `untold` wrote."""

    url: str
    table: str
    database_id: bytes
    branches: tuple[int, ...]
    """Those of rows with keys: tombstones of an overwrite hide their rows, and are none."""
    untold: tuple[int, ...]
    levels: tuple[ConflictLevel, ...]
    start_ts: int
    """The transaction's, whose lease is renewed."""


@dataclass(frozen=True, slots=True)
class Seen:
    """`doubled`: a key that came twice, if there is one."""

    doubled: bytes | None
    ids: NDArray[np.int64]


def look_at(look: Look, ranges: Iterable[KeyRange]) -> Seen:
    """Scans these ranges. Ends at the first key that came twice: the write fails."""
    conn = connection(look.url, look.database_id)
    ids = [_NO_IDS]
    for key_range in ranges:
        for batch in conn.deployment.store.scan(look.table, key_range):
            conn.renew((look.start_ts,))
            row = _doubled_row(batch, look.branches)
            if row is not None:
                return Seen(batch.row_key(row), _NO_IDS)
            ids += _ids_of(look, batch)
    return Seen(None, np.concatenate(ids))


def together(seen: Sequence[Seen]) -> Seen:
    doubled = next((each.doubled for each in seen if each.doubled is not None), None)
    return Seen(doubled, np.concatenate([_NO_IDS, *(each.ids for each in seen)]))


def _doubled_row(batch: CellBatch, branches: Sequence[int]) -> int | None:
    if not batch.rows or not branches:
        return None
    written = np.isin(batch.rec_version, branches)
    found = np.flatnonzero(np.add.reduceat(written.astype(np.int64), batch.row_rec[:-1]) > 1)
    return int(found[0]) if len(found) else None


def _ids_of(look: Look, batch: CellBatch) -> list[NDArray[np.int64]]:
    """As the tasks would have told them: an id for each row or cell that one of the branches wrote."""
    if not batch.rows or not look.untold:
        return []
    written, table = np.isin(batch.rec_version, look.untold), look.table.encode()
    if not written.any():
        return []
    found = []
    for level in look.levels:
        if level is ConflictLevel.ROW:
            rows = np.add.reduceat(written.astype(np.int64), batch.row_rec[:-1]) > 0
            found.append(row_ids(table, batch)[rows])
        else:
            found.append(cell_ids(table, batch)[np.repeat(written, np.diff(batch.rec_cell))])
    return found
