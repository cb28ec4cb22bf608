"""Point work of the embedded store beside LMDB itself: get, seek, put, durable commit."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from functools import partial
from pathlib import Path

import lmdb
from benchmarks._report import Report

from pyomid.cells import batch_of_rows
from pyomid.folder import EmbeddedStore
from pyomid.types import CellVersion, Column, KeyRange, ReadBounds, RowWrite, ShadowWrite, TableInfo

ROWS = 50_000
GETS = 5_000
VERSIONS = 10_000
UNCOMPACTED = 12
"""Versions that background compaction leaves of a row that is written all the time."""
SCAN_ROWS, SCAN_VERSIONS = 1_000, 200
COMMITS = 200
COLUMN = Column(b"f", b"balance")


def keys() -> list[bytes]:
    return [b"account-%08d" % number for number in range(ROWS)]


def main() -> int:
    report = Report("embedded: point work beside LMDB itself")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        raw = lmdb.open(f"{folder}/raw", map_size=1 << 40)
        store = EmbeddedStore(f"{folder}/ours")
        store.create_table(TableInfo("t", (b"f",)))
        load(raw, store)
        compare_reads(report, raw, store)
        compare_ages(report, store)
        compare_commits(report, raw, store, Path(folder))
        store.close()
    return report.finish()


def load(raw: lmdb.Environment, store: EmbeddedStore) -> None:
    with raw.begin(write=True) as transaction, transaction.cursor() as cursor:
        cursor.putmulti([(key, b"100") for key in keys()], append=True)
    store.write_batch("t", 50, batch_of_rows({key: {COLUMN: b"100"} for key in keys()}))


def compare_reads(report: Report, raw: lmdb.Environment, store: EmbeddedStore) -> None:
    chosen = random.Random(1).sample(keys(), GETS)

    def get_fresh() -> None:
        for key in chosen:
            with raw.begin() as transaction:
                transaction.get(key)

    def get_in_one() -> None:
        with raw.begin() as transaction:
            for key in chosen:
                transaction.get(key)

    def seek() -> None:
        with raw.begin() as transaction, transaction.cursor() as cursor:
            for key in chosen:
                cursor.set_range(key)

    def ours() -> None:
        for key in chosen:
            store.read_rows("t", [key])

    def ours_many() -> None:
        for first in range(0, GETS, 100):
            store.read_rows("t", chosen[first : first + 100])

    fresh, together, _, single, multi = report.measure_together(
        {
            "raw LMDB get, a read transaction each": get_fresh,
            "raw LMDB get, one read transaction": get_in_one,
            "raw LMDB seek, one read transaction": seek,
            "point get (all versions, checked, as cells)": ours,
            "multi-get of 100 rows": ours_many,
        },
        items=GETS,
        unit="gets",
    )
    report.ratio("point get ÷ raw LMDB get with its transaction", single, fresh)
    report.ratio("multi-get ÷ raw LMDB get in one transaction", multi, together)


def compare_ages(report: Report, store: EmbeddedStore) -> None:
    """One row that was raised 10 000 times beside one that was written once; nothing was compacted."""
    versions = range(50, 50 * VERSIONS + 1, 50)
    store.create_table(TableInfo("aged", (b"f",)))
    for key, written in ((b"young", versions[-1:]), (b"old", versions)):
        for version in written:
            store.write_cells("aged", version, [RowWrite(key, ((COLUMN, b"100"),))])
        names = (CellVersion(key, *COLUMN, version) for version in written)
        store.write_shadow_cells("aged", [ShadowWrite(name, name.version + 1) for name in names])
    bounds = ReadBounds(below=versions[-1] + 50, committed_below=versions[-1] + 50)
    few = versions[-UNCOMPACTED:]
    store.write_cells("aged", 50, [RowWrite(b"other", ((Column(b"f", b"more"), b"1"),))])
    for version in few:
        store.write_cells("aged", version, [RowWrite(b"partial", ((COLUMN, b"100"),))])
    names = (CellVersion(b"partial", *COLUMN, version) for version in few)
    store.write_shadow_cells("aged", [ShadowWrite(name, name.version + 1) for name in names])

    def read(key: bytes, columns: tuple[Column, ...] | None = (COLUMN,)) -> None:
        for _ in range(GETS):
            store.read_rows("aged", [key], columns, bounds=bounds)

    young, old = report.measure_together(
        {
            "point get of a row of one version": partial(read, b"young"),
            f"point get of a row of {VERSIONS} versions": partial(read, b"old"),
        },
        items=GETS,
        unit="gets",
    )
    report.ratio("row of one version ÷ row of many", young, old, at_most=2)
    young, partly = report.measure_together(
        {
            "get of a whole row of one version that lacks a column of its table": partial(read, b"young", None),
            f"the same of {UNCOMPACTED} versions": partial(read, b"partial", None),
        },
        items=GETS,
        unit="gets",
    )
    report.ratio("row of one version ÷ row of some that lacks a column", young, partly, at_most=3)
    compare_scans(report, store)


def compare_scans(report: Report, store: EmbeddedStore) -> None:
    """1 000 rows of 200 versions each beside 1 000 of one, as batches; nothing was compacted. As Python objects, which
    cost both the same 3 µs a row, the ratio is below 2 (`ageing --share 0`)."""
    newest = 50 * SCAN_VERSIONS
    for table, written in (("young-rows", [newest]), ("old-rows", range(50, newest + 1, 50))):
        store.create_table(TableInfo(table, (b"f",)))
        for version in written:
            rows = [RowWrite(key, ((COLUMN, b"100"),)) for key in keys()[:SCAN_ROWS]]
            store.write_cells(table, version, rows)
            names = (CellVersion(row.row, *COLUMN, version) for row in rows)
            store.write_shadow_cells(table, [ShadowWrite(name, name.version + 1) for name in names])
    bounds = ReadBounds(below=newest + 50, committed_below=newest + 50)

    def scan(table: str) -> None:
        assert sum(batch.rows for batch in store.scan(table, KeyRange(), bounds=bounds)) == SCAN_ROWS

    young, old = report.measure_together(
        {
            "scan of rows of one version": partial(scan, "young-rows"),
            f"scan of rows of {SCAN_VERSIONS} versions": partial(scan, "old-rows"),
        },
        items=SCAN_ROWS,
        unit="rows",
    )
    report.ratio("scan: rows of one version ÷ rows of many", young, old, at_most=3)


def compare_commits(report: Report, raw: lmdb.Environment, store: EmbeddedStore, folder: Path) -> None:
    number = iter(range(10**9))

    def sync() -> None:
        with open(folder / "file", "r+b") as file:
            for _ in range(COMMITS):
                file.write(b"x" * 4096)
                file.flush()
                os.fdatasync(file.fileno())

    def commit() -> None:
        for _ in range(COMMITS):
            with raw.begin(write=True) as transaction:
                transaction.put(b"account-%08d" % (next(number) % ROWS), b"101")

    def ours() -> None:
        for _ in range(COMMITS):
            each = next(number)
            store.write_cells("t", 100 + each, [RowWrite(b"account-%08d" % (each % ROWS), ((COLUMN, b"101"),))])

    (folder / "file").write_bytes(bytes(4096 * COMMITS))
    synced, durable, written = report.measure_together(
        {"write and fdatasync of 4 KiB": sync, "raw LMDB durable commit": commit, "write_cells of one row": ours},
        items=COMMITS,
        unit="commits",
    )
    report.ratio("raw LMDB durable commit ÷ fdatasync", durable, synced)
    report.ratio("write_cells ÷ raw LMDB durable commit", written, durable)
    report.note("limit: a durable LMDB commit is one fdatasync of its pages and one synchronous write of the root.")


if __name__ == "__main__":
    sys.exit(main())
