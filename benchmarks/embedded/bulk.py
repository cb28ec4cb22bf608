"""Bulk work of the embedded store: load, scan, visibility, compaction's writes, the commit table."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import lmdb
import numpy as np
from benchmarks._report import Report

from pyomid.cells import CellBatch
from pyomid.folder import EmbeddedStore
from pyomid.protocol.visibility import unresolved_starts, visible_cells
from pyomid.types import Column, KeyRange, TableInfo

ROWS = 100_000
COLUMNS = 19


def flights(rows: int) -> CellBatch:
    """Rows like those of the flights table: a key of 28 bytes, 19 columns of 4 and 8 bytes."""
    lengths = np.tile(np.where(np.arange(COLUMNS) % 3 == 0, 4, 8), rows).astype(np.int32)
    keys = b"".join(b"EWR\x00%016d\x00UA\x0012345" % number for number in range(rows))
    values = np.random.default_rng(1).integers(0, 255, int(lengths.sum()), dtype=np.uint8)
    buffer = np.concatenate((np.frombuffer(keys, dtype=np.uint8), values))
    key_bytes = len(keys) // rows
    return CellBatch(
        buffer=buffer,
        columns=[Column(b"d", b"column%02d" % index) for index in range(COLUMNS)],
        row_off=np.arange(rows, dtype=np.int64) * key_bytes,
        row_len=np.full(rows, key_bytes, dtype=np.int32),
        row_rec=np.arange(rows + 1, dtype=np.int64),
        rec_version=np.zeros(rows, dtype=np.int64),
        rec_commit=np.zeros(rows, dtype=np.int64),
        rec_cell=np.arange(rows + 1, dtype=np.int64) * COLUMNS,
        cell_col=np.tile(np.arange(COLUMNS, dtype=np.int32), rows),
        cell_off=len(keys) + np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64),
        cell_len=lengths,
    )


def main() -> int:
    report = Report("embedded: bulk work, one thread")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        store = EmbeddedStore(f"{folder}/ours")
        store.create_table(TableInfo("t", (b"d",)))
        raw = lmdb.open(f"{folder}/raw", map_size=1 << 40)
        load(report, store, raw)
        scan(report, store, raw)
        compact(report, store)
        store.close()
    return report.finish()


def load(report: Report, store: EmbeddedStore, raw: lmdb.Environment) -> None:
    batch, versions = flights(ROWS), iter(range(50, 10**9, 50))
    store.write_batch("t", next(versions), batch)
    records = raw_records(store)

    def put_raw() -> None:
        with raw.begin(write=True) as transaction:
            transaction.drop(raw.open_db(txn=transaction), delete=False)
        for first in range(0, ROWS, 2000):
            with raw.begin(write=True) as transaction, transaction.cursor() as cursor:
                cursor.putmulti(records[first : first + 2000], append=True)

    def put_ours() -> None:
        store.drop_table("t")
        store.create_table(TableInfo("t", (b"d",)))
        store.write_batch("t", next(versions), batch)

    def drop_ours() -> None:
        store.drop_table("t")
        store.create_table(TableInfo("t", (b"d",)))

    theirs, _, ours = report.measure_together(
        {
            "raw LMDB, ready records, 2000 a durable commit": put_raw,
            "dropping an empty table": drop_ours,
            "write_batch (19 columns), drop included": put_ours,
        },
        items=ROWS,
        unit="rows",
        runs=3,
    )
    report.ratio("write_batch ÷ raw LMDB with ready records", ours, theirs)


def raw_records(store: EmbeddedStore) -> list[tuple[bytes, bytes]]:
    def read(transaction: Any) -> list[tuple[bytes, bytes]]:
        with transaction.cursor(store._environment.databases[b"cells"]) as cursor:
            return list(cursor)

    return store._environment.read(read)


def scan(report: Report, store: EmbeddedStore, raw: lmdb.Environment) -> None:
    def iterate_raw() -> None:
        with raw.begin() as transaction, transaction.cursor() as cursor:
            for _ in cursor:
                pass

    def decode() -> None:
        for _ in store.scan("t", KeyRange()):
            pass

    def snapshot(own: frozenset[int]) -> None:
        for batch in store.scan("t", KeyRange()):
            unresolved_starts(batch, 1 << 60, own)
            visible_cells(batch, 1 << 60, own)

    (start,) = {int(batch.rec_version[0]) for batch in store.scan("t", KeyRange(), batch_rows_max=ROWS)}
    theirs, ours, seen = report.measure_together(
        {
            "raw LMDB iteration, key and value as bytes": iterate_raw,
            "scan into cell batches": decode,
            "scan and visibility": lambda: snapshot(frozenset({start})),
        },
        items=ROWS,
        unit="rows",
    )
    report.ratio("scan into cell batches ÷ raw iteration", ours, theirs)
    report.ratio("scan and visibility ÷ the same decoder without", seen, ours, at_least=0.8)
    report.note("limit: Python's LMDB makes two bytes objects and a tuple a record; the decoder is half of the rest.")


def compact(report: Report, store: EmbeddedStore) -> None:
    def heal() -> None:
        for batch in store.scan("t", KeyRange()):
            batch.rec_commit += 1
            store.clean_batch("t", batch, np.arange(batch.records), np.array([], dtype=np.int64))

    def drop_one_column(column: int) -> None:
        for batch in store.scan("t", KeyRange()):
            store.clean_batch("t", batch, np.array([], dtype=np.int64), np.flatnonzero(batch.cell_col == column))

    report.measure("heal of every record: scan and clean_batch", heal, items=ROWS * COLUMNS, unit="cells", runs=3)
    columns = iter(range(COLUMNS))
    report.measure(
        "one cell of each record dropped: scan and clean_batch",
        lambda: drop_one_column(next(columns)),
        items=ROWS * COLUMNS,
        unit="cells",
        runs=3,
    )


if __name__ == "__main__":
    sys.exit(main())
