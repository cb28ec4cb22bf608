"""What one attempt of one writing task does: draws a branch, writes its rows under it, reports.

The attempt decides nothing (S1, S2): the driver's commit names the branches of the attempts that count. Whatever
happens to an attempt, a branch that nobody names is an orphan, invisible now and cleaned later. A data write whose
fate is unsure is not repeated under the same branch: the attempt fails, and the next one draws its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyomid.cells import CellBatch
from pyomid.crashpoints import crash_point
from pyomid.protocol.native.hashing import cell_ids, row_ids
from pyomid.spark.databases import Connection, connection
from pyomid.spark.delete_rows import delete_keys, delete_range
from pyomid.spark.errors import coded_errors
from pyomid.spark.read_task import ReadPlan
from pyomid.spark.row_codec.encode import Duplicates, Nulls, RowEncoder
from pyomid.types import CellVersion, ConflictLevel, KeyRange, TableInfo, TableSchema


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What all tasks of one write share."""

    url: str
    info: TableInfo
    schema: TableSchema
    written: tuple[str, ...]
    start_ts: int
    """The transaction's start: branches are above it, its lease is renewed."""
    duplicates: Duplicates = Duplicates.ERROR
    nulls: Nulls = Nulls.TOMBSTONE
    ids: ConflictLevel | None = None
    """Which ids the commit will name; None at table level, where it names none."""
    database_id: bytes = b""
    """Whose timestamps these are; empty: not told."""


@dataclass(frozen=True, slots=True)
class BranchReport:
    """What an attempt wrote. `witness` is one of its cells: evidence, should the commit's answer be lost."""

    branch: int
    rows: int
    cells: int
    bytes: int
    ids: NDArray[np.int64]
    keys: NDArray[np.int64]
    """Row ids, where the write must see that no two rows have one key (`duplicates`)."""
    witness: CellVersion | None


REPORT_SCHEMA: Final = pa.schema(
    [
        ("branch", pa.int64()),
        ("rows", pa.int64()),
        ("cells", pa.int64()),
        ("bytes", pa.int64()),
        ("ids", pa.binary()),
        ("keys", pa.binary()),
        ("row", pa.binary()),
        ("family", pa.binary()),
        ("qualifier", pa.binary()),
    ]
)
REPORT_DDL: Final = (
    "branch long, rows long, cells long, bytes long, "
    "ids binary, keys binary, row binary, family binary, qualifier binary"
)


def write_rows(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> BranchReport | None:
    """Upserts rows by key. None, and no branch drawn, where there are no rows."""
    encoder = RowEncoder(
        plan.schema, plan.info.families, written=plan.written, duplicates=plan.duplicates, nulls=plan.nulls
    )
    cells = (encoder.encode(batch) for batch in batches if batch.num_rows)
    return _write_branch(plan, cells, with_keys=plan.duplicates is Duplicates.ERROR)


def delete_rows(plan: WritePlan, read: ReadPlan, batches: Iterable[pa.RecordBatch]) -> BranchReport | None:
    """Deletes the rows with these keys: every column that the snapshot sees in them."""
    encoder = RowEncoder(plan.schema, plan.info.families, written=(), duplicates=Duplicates.LAST)
    conn = connection(plan.url, plan.database_id)
    return _write_branch(plan, (delete_keys(conn, read, encoder, batch) for batch in batches if batch.num_rows))


def delete_ranges(
    plan: WritePlan, read: ReadPlan, ranges: Iterable[KeyRange], *, branch: int = 0
) -> BranchReport | None:
    """Deletes every row that the snapshot sees in these ranges; under `branch`, where one was drawn for it."""
    conn = connection(plan.url, plan.database_id)
    return _write_branch(plan, (batch for each in ranges for batch in delete_range(conn, read, each)), branch=branch)


def reporting(
    work: Callable[[Iterator[pa.RecordBatch]], BranchReport | None], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A writing task as `mapInArrow` wants it: record batches in, one row of REPORT_SCHEMA out, errors coded."""
    with coded_errors():
        report = work(batches)
    crash_point("spark.task.written")
    if report is not None:
        yield _as_row(report)


def _write_branch(
    plan: WritePlan, batches: Iterable[CellBatch], *, branch: int = 0, with_keys: bool = False
) -> BranchReport | None:
    conn = connection(plan.url, plan.database_id)
    rows = cells = size = 0
    ids, keys = [_NO_IDS], [_NO_IDS]
    witness: CellVersion | None = None
    for batch in batches:
        if not batch.rows:
            continue
        branch = branch or _draw_branch(conn, plan)
        crash_point("spark.task.before_write")
        conn.parts.store.write_batch(plan.info.name, branch, batch)
        crash_point("spark.task.after_write")
        conn.renew((plan.start_ts,))
        rows, cells, size = rows + batch.rows, cells + batch.cells, size + _value_bytes(batch)
        if plan.ids is not None:
            ids.append(_conflict_ids(plan.info.name, plan.ids, batch))
        if with_keys:
            keys.append(row_ids(plan.info.name.encode(), batch))
        witness = witness or batch.cell_version(0)._replace(version=branch)
    if not rows:
        return None
    return BranchReport(branch, rows, cells, size, np.concatenate(ids), np.concatenate(keys), witness)


_NO_IDS: Final = np.empty(0, dtype=np.int64)


def _draw_branch(conn: Connection, plan: WritePlan) -> int:
    branch = conn.parts.tso.begin(not_before=plan.start_ts).start_ts
    assert branch > plan.start_ts, f"branch {branch} is not above its transaction {plan.start_ts}"
    return branch


def _conflict_ids(table: str, level: ConflictLevel, batch: CellBatch) -> NDArray[np.int64]:
    return (row_ids if level is ConflictLevel.ROW else cell_ids)(table.encode(), batch)


def _value_bytes(batch: CellBatch) -> int:
    return int(batch.row_len.sum()) + int(np.maximum(batch.cell_len, 0).sum())


def _as_row(report: BranchReport) -> pa.RecordBatch:
    witness = report.witness or CellVersion(b"", b"", b"", 0)
    counts = [report.branch, report.rows, report.cells, report.bytes]
    values = [*counts, report.ids.tobytes(), report.keys.tobytes(), *witness[:3]]
    return pa.RecordBatch.from_arrays(
        [pa.array([value], type=field.type) for value, field in zip(values, REPORT_SCHEMA, strict=True)],
        schema=REPORT_SCHEMA,
    )


def report_of(row: Sequence[Any]) -> BranchReport:
    """A collected row of REPORT_SCHEMA."""
    branch, rows, cells, size, ids, keys, key, family, qualifier = row
    witness = CellVersion(bytes(key), bytes(family), bytes(qualifier), branch) if key else None
    return BranchReport(branch, rows, cells, size, _ids(ids), _ids(keys), witness)


def _ids(stored: bytes) -> NDArray[np.int64]:
    return np.frombuffer(bytes(stored), dtype=np.int64)
