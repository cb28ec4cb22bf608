"""The work of a reading task: the visible rows of a key range at a snapshot, as Arrow batches."""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyomid.cells import CellBatch, batch_of_rows
from pyomid.errors import Misuse
from pyomid.ports import DataStore
from pyomid.protocol.reading import Snapshot, SnapshotScan, VisibleRow, read_rows
from pyomid.protocol.timestamps import dated
from pyomid.protocol.visibility import VisibleCells
from pyomid.rows.arrow_arrays import bool_array, booleans, int64_array, no_rows, places_array
from pyomid.rows.decode import RowDecoder, arrow_schema
from pyomid.rows.encode import RowEncoder
from pyomid.rows.row_key import KeyLayout
from pyomid.spark.coded_errors import coded_errors
from pyomid.spark.connections import Connection, TaskUrl, connection
from pyomid.spark.held_start import UNHELD, HeldStart
from pyomid.types import KeyRange, LifeOf, TableSchema

if TYPE_CHECKING:
    from pyomid.spark.source.key_ranges import Where

BATCH_ROWS: Final = 10_000
"""Spark's own default of rows in one Arrow batch."""

FIRST_ROWS: Final = 100
"""Rows per batch of a scan that stops at the first visible row."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The part of a read that all its partitions share: the snapshot (S5), the table, the columns."""

    url: TaskUrl
    table: LifeOf
    schema: TableSchema
    wanted: tuple[str, ...]
    snapshot: Snapshot
    batch_rows: int
    held: HeldStart = UNHELD
    """The snapshot's start timestamp; tasks renew its lease."""
    where: Where | None = None
    """Comparisons that a returned row must meet; None returns all rows."""


def read_range(conn: Connection, plan: ReadPlan, key_range: KeyRange, arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the visible rows of a range in key order. Raises `SnapshotTooOld` if compaction may have passed the
    snapshot, or if the table was dropped."""
    compared = () if plan.where is None else plan.where.columns
    beside = [name for name in compared if name not in plan.wanted]
    decoder = RowDecoder(
        plan.table.name, plan.schema, (*plan.wanted, *beside), pa.schema([*arrow, *arrow_schema(plan.schema, beside)])
    )
    for batch, visible in visible_batches(conn, plan, key_range):
        rows = decoder.decode(batch, visible)
        yield rows if plan.where is None else plan.where.met(rows).select(arrow.names)


def visible_batches(
    conn: Connection, plan: ReadPlan, key_range: KeyRange
) -> Generator[tuple[CellBatch, VisibleCells], None, None]:
    """Yield batches of cells of a range, each with the cells that the snapshot sees; renew the lease after each batch.

    All columns are fetched, even unwanted ones, because any cell makes a row exist.
    """
    if plan.snapshot.own:  # which end with their transaction, even if Spark made the plan before
        plan.held.renew(conn, at_once=True)
    scan = SnapshotScan(plan.table, key_range, None, plan.snapshot, conn.cache, rows_max=plan.batch_rows)
    while (seen := conn.driver.run(scan.next())) is not None:
        plan.held.renew(conn)
        yield seen


def pair_rows(
    plan: ReadPlan, keys: Sequence[int], arrow: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield each row joined with the table's row of the same key: the batch's columns (s0, s1, …), then those of
    `plan.wanted` (t0, t1, …; null if the table has no such row), then `in_target`. `keys`: the positions of the row
    key's columns, in key order; `arrow`: the schema of the table's columns.

    A key that is empty or has a null matches nothing. Rows are looked up one by one, so use this only for so few rows
    that the lookups are cheaper than a scan.
    """
    with coded_errors():
        conn = connection(plan.url)
        decoder = RowDecoder(plan.table.name, plan.schema, plan.wanted, arrow)
        encoder = RowEncoder(plan.schema, (b"",), written=())
        for batch in batches:
            plan.held.renew(conn)
            parts = [batch.column(place) for place in keys]
            whole = np.flatnonzero(_has_key(encoder.layout, parts))
            some = pa.RecordBatch.from_arrays([part.take(int64_array(whole)) for part in parts], encoder.layout.names)
            encoded = encoder.encode_keys(some)
            of_row = [encoded.key(row) for row in range(len(whole))]
            asked = sorted(set(of_row))
            rows = conn.driver.run(read_rows(plan.table, asked, None, plan.snapshot, conn.cache))
            present = {key: row for key, row in zip(asked, rows, strict=True) if row}
            place_of = {key: place for place, key in enumerate(present)}
            places: list[int | None] = [None] * batch.num_rows
            for row, key in zip(whole.tolist(), of_row, strict=True):
                places[row] = place_of.get(key)
            found = _decoded(decoder, present).take(places_array(places))
            there = bool_array([place is not None for place in places])
            names = [f"s{n}" for n in range(batch.num_columns)] + [f"t{n}" for n in range(found.num_columns)]
            yield pa.RecordBatch.from_arrays([*batch.columns, *found.columns, there], names=[*names, "in_target"])


def _has_key(layout: KeyLayout, parts: Sequence[pa.Array]) -> NDArray[np.bool_]:
    """Return a mask of the rows with a valid key."""
    nulls = [booleans(part.is_null()) for part in parts]
    if len(parts) == 1 and layout.parts[0].is_raw:  # any other key is never empty
        nulls.append(pc.equal(pc.binary_length(parts[0]), 0).fill_null(True).to_numpy(False))
    found: NDArray[np.bool_] = ~np.logical_or.reduce(nulls)
    return found


def _decoded(decoder: RowDecoder, rows: Mapping[bytes, VisibleRow]) -> pa.RecordBatch:
    """Return visible rows as a record batch; `rows` must be in ascending key order."""
    return decoded_batch(decoder, batch_of_rows(rows)) if rows else no_rows(decoder.schema)


def decoded_batch(decoder: RowDecoder, batch: CellBatch) -> pa.RecordBatch:
    """Return a batch of cells as a record batch; all its cells must be visible."""
    row_cell = batch.rec_cell[batch.row_rec]
    of_row = np.repeat(np.arange(batch.rows), np.diff(row_cell))
    return decoder.decode(batch, VisibleCells(np.lexsort((batch.cell_col, of_row)), row_cell))


def sees_rows(conn: Connection, table: LifeOf, snapshot: Snapshot, held: HeldStart) -> bool:
    """Whether the snapshot sees a row of the table. The scan stops at the first row. Renews the snapshot's lease."""
    plan = ReadPlan(conn.task_url, table, TableSchema((), ()), (), snapshot, FIRST_ROWS, held)
    with closing(visible_batches(conn, plan, KeyRange())) as batches:
        return any(len(visible.rows_present()) for _, visible in batches)


@runtime_checkable
class CutsEvenly(Protocol):
    """A store without servers, whose tables may be divided anywhere: any task reads any part at the same cost."""

    def even_parts(self, table: str, key_range: KeyRange, partitions: int) -> list[KeyRange]:
        """Return the range divided into up to `partitions` parts of about equal size, in key order."""


def divided(store: DataStore, table: str, key_range: KeyRange, partitions: int) -> list[KeyRange]:
    """Return the range divided into up to `partitions` even parts. If the store has region servers, the range is
    divided at the regions, and each region again until there are about `partitions` parts."""
    if intersection(key_range, KeyRange()) is None:
        return []
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
    """Return the range divided at `cuts`, which ascend and lie inside it."""
    borders: list[bytes | None] = [key_range.start, *cuts, key_range.stop]
    return [KeyRange(start or b"", stop) for start, stop in pairwise(borders)]


def intersection(one: KeyRange, other: KeyRange) -> KeyRange | None:
    """Return the keys that both ranges contain, or None."""
    start = max(one.start, other.start)
    stops = [stop for stop in (one.stop, other.stop) if stop is not None]
    stop = min(stops) if stops else None
    return None if stop is not None and stop <= start else KeyRange(start, stop)


# Stale reads. A write computed from the same table at another snapshot would silently lose the commits in between:
#
#     df = spark.read.format("omid")…load()       snapshot 100
#                                                 others change the table
#     tx.write(df.withColumn(…), table)           snapshot 200: no conflict with them, and their changes are gone
#
# A plan shows only the data source's name, not the table that it reads; but its tasks know the table. The jobs of a
# write carry a local property with table and snapshot, and a task inside such a job refuses to read the same table at
# another snapshot. The property belongs to the thread, so it reaches the jobs of every session; a job tag would belong
# to one session, and a frame's jobs run in the frame's session. Spark Connect has no local properties, so a tag is used
# there, and a frame of another session is refused (`local_frames`). Rows that were collected, cached or stored
# elsewhere have an unknown origin and are written.

JOB_TAGS: Final = "spark.job.tags"
"""Local property in which Spark keeps a job's tags; tags set over Connect have a prefix there."""

WRITES: Final = "pyomid.writes"
_WRITES: Final = re.compile(r"(\d+)-([0-9a-f]*)-([0-9a-f]*)")
_TAGGED: Final = re.compile(rf"{re.escape(WRITES)}={_WRITES.pattern}(?=,|$)")
"""Start timestamp, database and table of the write to which a job belongs."""


def write_text(start_ts: int, database_id: bytes, table: str) -> str:
    """Return the value of the property `WRITES` for the jobs of a write (`sessions.writes_by`)."""
    return f"{start_ts}-{database_id.hex()}-{table.encode().hex()}"


def check_read(plan: ReadPlan) -> None:
    """Raise `Misuse` in a reading task if its job writes the same table by a transaction at another snapshot."""
    from pyspark import TaskContext

    task = TaskContext.get()
    written, tags = ("", "") if task is None else (task.getLocalProperty(name) or "" for name in (WRITES, JOB_TAGS))
    writes = _WRITES.fullmatch(written) or _TAGGED.search(tags)
    table = plan.table.name
    if writes is not None and writes.groups()[1:] == (plan.url.database_id.hex(), table.encode().hex()):
        start_ts = int(writes[1])
        if start_ts != plan.snapshot.start_ts:
            raise Misuse(
                f"the write to {table!r} by transaction {dated(start_ts)} reads the same table at another snapshot, "
                f"{dated(plan.snapshot.start_ts)}, so commits between the two snapshots would be lost; read with "
                "tx.read(…) of the transaction that writes, or give stale_read='allow'",
                table=table,
            )
