"""Two rows with one key in different batches or tasks of one write: found by the 64-bit ids of their row keys.

Each task returns the ids of its rows, eight bytes a row; an id that comes twice is a suspicion, which a scan of the
written branches settles: equal ids of different keys are no duplicates. The alternative, ordering the frame by its
row key, costs a shuffle of all its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pyomid.protocol.native.hashing import row_ids
from pyomid.spark.databases import Connection
from pyomid.spark.row_codec.encode import duplicate_key
from pyomid.spark.row_codec.row_key import key_layout
from pyomid.spark.write_task import BranchReport, WritePlan
from pyomid.types import KeyRange


def check_distinct(conn: Connection, plan: WritePlan, reports: Sequence[BranchReport]) -> None:
    """Misuse naming the key where two rows of the write have one; nothing where `duplicates=last`."""
    keys = np.concatenate([np.empty(0, np.int64), *(report.keys for report in reports)])
    distinct, counts = np.unique(keys, return_counts=True)
    suspected = distinct[counts > 1]
    if not len(suspected):
        return
    branches = np.array([report.branch for report in reports], np.int64)
    found: dict[int, list[bytes]] = {}
    for row_id, key in _rows_written(conn, plan.info.name, branches, suspected):
        found.setdefault(row_id, []).append(key)
    for row_id, count in zip(suspected.tolist(), counts[counts > 1].tolist(), strict=True):
        written = found.get(row_id, [])
        if len(written) < count:
            raise duplicate_key(written[0], key_layout(plan.schema))


def _rows_written(
    conn: Connection, table: str, branches: NDArray[np.int64], suspected: NDArray[np.int64]
) -> Iterator[tuple[int, bytes]]:
    """The suspected rows among those written under the branches, each once."""
    for batch in conn.parts.store.scan(table, KeyRange()):
        ids = row_ids(table.encode(), batch)
        for row in np.flatnonzero(np.isin(ids, suspected)).tolist():
            versions = batch.rec_version[batch.row_rec[row] : batch.row_rec[row + 1]]
            if np.isin(versions, branches).any():
                yield int(ids[row]), batch.row_key(row)
