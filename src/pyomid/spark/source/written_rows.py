"""Duplicate keys among the rows of one write.

Tasks report their keys to the driver while these are few: all tasks together about `REPORTED_MAX`, whatever the
size of the write. Duplicates among the other keys are found in the store: two rows with one key are two versions of one
row, under two branches of this write. A reported key costs the driver 8 bytes; unreported ones cost one scan from the
first to the last written key, by tasks if there are any, one batch in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch
from pyomid.protocol.native import hashing
from pyomid.row_codec.encode import duplicate_key
from pyomid.row_codec.row_key import key_layout
from pyomid.spark.connections import Connection, connection
from pyomid.spark.source.write_task import NO_IDS, BranchReport, WritePlan
from pyomid.types import KeyRange


def check_distinct_keys(conn: Connection, plan: WritePlan, reports: Sequence[BranchReport]) -> None:
    """`Misuse`, which names the key, if two rows of the write have one key, among the keys that tasks reported; never
    with `duplicates=last`.

    Keys are reported as 64-bit ids. An id that occurs twice may belong to two different keys; a scan of the written
    branches decides. The alternative, ordering the frame by its row key, would shuffle all its bytes.
    """
    keys = np.concatenate([NO_IDS, *(report.keys for report in reports)])
    distinct, counts = np.unique(keys, return_counts=True)
    suspected = distinct[counts > 1]
    if not len(suspected):
        return
    branches = np.array([report.branch for report in reports if len(report.keys)], np.int64)
    found: dict[int, list[bytes]] = {}
    for row_id, key in _rows_written(conn, plan.info.name, span_of(reports), branches, suspected):
        found.setdefault(row_id, []).append(key)
    for row_id, count in zip(suspected.tolist(), counts[counts > 1].tolist(), strict=True):
        written = found.get(row_id, [])
        if len(written) < count:
            raise duplicate_key(written[0], key_layout(plan.schema), plan.duplicates)


def _rows_written(
    conn: Connection, table: str, span: KeyRange, branches: NDArray[np.int64], suspected: NDArray[np.int64]
) -> Iterator[tuple[int, bytes]]:
    """Yield the rows under the branches whose ids are suspected, each once."""
    for batch in conn.deployment.store.scan(table, span):
        ids = hashing.row_ids(table.encode(), batch)
        for row in np.flatnonzero(np.isin(ids, suspected)).tolist():
            versions = batch.rec_version[batch.row_rec[row] : batch.row_rec[row + 1]]
            if np.isin(versions, branches).any():
                yield int(ids[row]), batch.row_key(row)


def span_of(reports: Iterable[BranchReport]) -> KeyRange:
    """Return a range that holds all rows of these reports."""
    spans = [report.span for report in reports]
    stops = [span.stop for span in spans if span.stop is not None]
    return KeyRange(min(span.start for span in spans), max(stops) if len(stops) == len(spans) else None)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A search among the rows of one write, for keys under two of `branches`."""

    url: str
    table: str
    database_id: bytes
    branches: tuple[int, ...]
    """Branches whose keys must be distinct; the branch of an overwrite's tombstones is not among them."""
    start_ts: int
    """The transaction's start, whose lease is renewed."""


def look_up(lookup: Lookup, key_range: KeyRange) -> bytes | None:
    """Scan a range up to the first duplicate key, and return it: it makes the write fail. None: there is none."""
    conn = connection(lookup.url, lookup.database_id)
    for batch in conn.deployment.store.scan(lookup.table, key_range):
        conn.renew(lookup.start_ts)
        row = _doubled_row(batch, lookup.branches)
        if row is not None:
            return batch.row_key(row)
    return None


def _doubled_row(batch: CellBatch, branches: Sequence[int]) -> int | None:
    if not batch.rows:
        return None
    written = np.isin(batch.rec_version, branches)
    found = np.flatnonzero(np.add.reduceat(written.astype(np.int64), batch.row_rec[:-1]) > 1)
    return int(found[0]) if len(found) else None
