"""Reading a range of a table at a snapshot, as Arrow: what every reading task runs."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final, Protocol, runtime_checkable

import pyarrow as pa

from pyomid.cells import CellBatch
from pyomid.ports import DataStore
from pyomid.protocol.reading import Snapshot, bounds_of, read_batch_steps
from pyomid.protocol.visibility import VisibleCells
from pyomid.row_codec.decode import RowDecoder
from pyomid.spark.databases import Connection
from pyomid.types import KeyRange, TableSchema

BATCH_ROWS: Final = 10_000
"""Spark's own default of rows in one Arrow batch."""

FIRST_ROWS: Final = 100
"""Rows in one batch where only the first visible one is wanted."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What all partitions of one read share: the one snapshot (S5), the table, the columns."""

    url: str
    table: str
    schema: TableSchema
    wanted: tuple[str, ...]
    snapshot: Snapshot
    batch_rows: int
    leased: bool
    """Tasks renew the lease on the snapshot's start: it is a transaction's, or the caller's."""
    shared: bool = False
    """Tasks share a lease for the snapshot, which is a load's: nobody tells when it is over."""
    lease_s: float | None = None
    """The term for which a load is kept; None: the TSO's own."""
    database_id: bytes = b""
    """Whose snapshot it is; empty: not told."""


def keep_snapshot(conn: Connection, plan: ReadPlan) -> None:
    """Before a read and on its way. SnapshotTooOld: it was kept no longer."""
    if plan.shared:
        conn.share_lease(plan.snapshot.start_ts, plan.lease_s)
    elif plan.leased:
        conn.renew((plan.snapshot.start_ts,))


def read_range(conn: Connection, plan: ReadPlan, key_range: KeyRange, arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The visible rows of a range in key order. SnapshotTooOld where compaction may have passed the snapshot."""
    decoder = RowDecoder(plan.schema, plan.wanted, arrow)
    for batch, visible in visible_batches(conn, plan, key_range):
        yield decoder.decode(batch, visible)


def visible_batches(
    conn: Connection, plan: ReadPlan, key_range: KeyRange
) -> Generator[tuple[CellBatch, VisibleCells], None, None]:
    """Batches of a range with what the snapshot sees of them. The lease is kept after each.

    All columns are fetched, whatever is wanted: a row exists by any of its cells.
    """
    bounds = bounds_of(plan.snapshot)
    batches = conn.deployment.store.scan(plan.table, key_range, None, batch_rows_max=plan.batch_rows, bounds=bounds)
    for batch in chain(batches, (None,)):
        seen = conn.driver.run(read_batch_steps(plan.table, batch, None, plan.snapshot, conn.cache))
        if seen is not None:
            keep_snapshot(conn, plan)
            yield seen


def sees_rows(conn: Connection, table: str, snapshot: Snapshot) -> bool:
    """Whether the snapshot sees a row of the table; reads no further than the first. The snapshot's lease, where its
    TSO knows leases, is renewed on the way."""
    plan = ReadPlan(conn.url, table, TableSchema((), ()), (), snapshot, FIRST_ROWS, leased=conn.has_leases)
    with closing(visible_batches(conn, plan, KeyRange())) as batches:
        return any(len(visible.rows_present()) for _, visible in batches)


@runtime_checkable
class CutsEvenly(Protocol):
    """A store without servers, where it does not matter which task reads what: its regions need not be respected."""

    def even_parts(self, table: str, key_range: KeyRange, partitions: int) -> list[KeyRange]:
        """The range in up to `partitions` parts of about equal size, in key order."""


def divided(store: DataStore, table: str, key_range: KeyRange, partitions: int) -> list[KeyRange]:
    """The range in `partitions` even parts; by the store's regions where those lie on servers, each cut again until
    there are about `partitions` parts."""
    if isinstance(store, CutsEvenly):
        return store.even_parts(table, key_range, partitions)
    regions = [part for region in store.regions(table) if (part := intersection(region, key_range)) is not None]
    cuts_each = math.ceil(partitions / max(1, len(regions)))
    parts: list[KeyRange] = []
    for region in regions:
        cuts = store.split_points(table, region, cuts_each) if cuts_each > 1 else []
        parts += cut(region, cuts)
    return parts


def cut(key_range: KeyRange, cuts: Sequence[bytes]) -> list[KeyRange]:
    """The range divided at `cuts`, which ascend and lie inside it."""
    borders: list[bytes | None] = [key_range.start, *cuts, key_range.stop]
    return [KeyRange(start or b"", stop) for start, stop in pairwise(borders)]


def intersection(one: KeyRange, other: KeyRange) -> KeyRange | None:
    """The common keys; None where there are none."""
    start = max(one.start, other.start)
    stops = [stop for stop in (one.stop, other.stop) if stop is not None]
    stop = min(stops) if stops else None
    return None if stop is not None and stop <= start else KeyRange(start, stop)
