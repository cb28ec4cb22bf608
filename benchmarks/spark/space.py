"""Where a folder's bytes are: from the values themselves to what the disk holds, step by step.

    python -m benchmarks.spark.space [upserts=9] [tasks=2] [by=rows|key]

The flights (336 776 rows of 19 columns) are loaded by so many tasks, each of which has rows from all over the table, or
a range of keys of its own; then rows from all over them are upserted, 1 000 at a time, and compacted and sanitized once
the watermark has passed them. Each step is counted in the folder itself; the last one is its blocks on the disk. For
comparison the same rows as Parquet, written by PyArrow.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lmdb
import pyarrow.parquet as pq
from benchmarks._report import Report
from benchmarks.spark._setting import KEY, ROWS, Setting, setting
from benchmarks.spark.reads import settle, write
from pyspark.sql import functions as f

from pyomid.folder.layout import CELLS, DATABASES
from pyomid.folder.records import HEADER_BYTES, VERSION_BYTES, decode_cells, key_row
from pyomid.spark.connections import close_connections

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

UPSERT_ROWS: Final = 1_000
PAGE_HEADER_BYTES: Final = 16
NODE_BYTES: Final = 8 + 2
"""A node's header, and its place in its page's list."""
META_PAGES: Final = 2


@dataclass(slots=True)
class Space:
    """Bytes that each step adds."""

    values: int = 0
    """Of cells, in their newest version."""
    row_keys: int = 0
    cell_heads: int = 0
    """Which columns a record has, and the length of each value."""
    record_heads: int = 0
    """In the key the table, the row's end and the version; commit timestamp, which is the shadow cell, and checksum."""
    old_versions: int = 0
    """The same of records that are not the newest of their row."""
    nodes: int = 0
    leaf_room: int = 0
    """Headers of leaves, and what is not filled."""
    branches: int = 0
    other_databases: int = 0
    free: int = 0
    """Pages that later writes take, and the list of them."""
    other_files: int = 0
    """The shared file, LMDB's lock file, and less the holes in the data's file."""

    def total(self) -> int:
        return sum(getattr(self, each.name) for each in fields(self))


TITLES: Final = {
    "values": "values of the 15 columns that are not of the key, as cells",
    "row_keys": "+ row keys: the 4 columns of the key",
    "cell_heads": "+ each cell's column and length",
    "record_heads": "+ each record's version, table, commit timestamp and checksum",
    "old_versions": "+ records that are not their row's newest",
    "nodes": "+ LMDB's header and place of each record",
    "leaf_room": "+ what its leaf pages leave empty",
    "branches": "+ its branch pages",
    "other_databases": "+ samples, names, catalogue, commits",
    "free": "+ free pages, for later writes",
    "other_files": "+ other files",
}


def main() -> int:
    asked = dict(text.split("=", 1) for text in sys.argv[1:])
    report = Report("Spark: where the bytes of the flights are")
    found: dict[str, Space] = {}
    with setting("maxTransactionAgeSeconds=1&leaseSeconds=60&upkeepShare=0") as at:
        table = at.flights.toArrow()
        plain = as_files(table, at.folder)
        tasks = int(asked.get("tasks", "2"))
        by_key = asked.get("by") == "key"
        write(at, at.flights.repartitionByRange(tasks, *KEY) if by_key else at.flights.repartition(tasks))
        found["loaded"] = of_folder(at)
        for _ in range(int(asked.get("upserts", "9"))):
            write(at, at.flights.orderBy(f.xxhash64(*KEY)).limit(UPSERT_ROWS))
        found["upserted"] = of_folder(at)
        settle(at)
        at.db.sanitize()
        found["after upkeep"] = of_folder(at)
    for name, size in plain.items():
        report.note(f"{name:<70} {size / 1e6:>7.1f} MB")
    print(f"\n| step | {' | '.join(found)} |\n| --- |{' --- |' * len(found)}")
    for name, title in TITLES.items():
        print(f"| {title} | {' | '.join(f'{getattr(each, name) / 1e6:.1f}' for each in found.values())} |")
    print(f"| the folder | {' | '.join(f'{each.total() / 1e6:.1f}' for each in found.values())} |")
    return report.finish()


def as_files(table: pa.Table, folder: Path) -> dict[str, int]:
    """The same rows without a database."""
    sizes = {}
    ways: dict[str, dict[str, Any]] = {
        "Parquet with dictionaries, compressed": {"compression": "snappy"},
        "Parquet with dictionaries, not compressed": {"compression": "none"},
        "Parquet without either": {"compression": "none", "use_dictionary": False},
    }
    for name, how in ways.items():
        path = folder / "flights.parquet"
        pq.write_table(table.sort_by([(each, "ascending") for each in KEY]), path, **how)
        sizes[name] = path.stat().st_size
    return {**sizes, "Arrow's buffers": table.nbytes}


def of_folder(at: Setting) -> Space:
    """Of one state, by a reader of its own."""
    close_connections()
    folder = at.folder / "db"
    found = Space()
    with lmdb.open(os.fspath(folder / "data"), readonly=True, max_dbs=len(DATABASES)) as opened:
        databases = {name: opened.open_db(name, create=False) for name in DATABASES}
        with opened.begin() as reader:
            node_bytes = _count_records(reader.cursor(databases[CELLS]), found)
            stats = {name: reader.stat(database) for name, database in databases.items()}
            page = stats[CELLS]["psize"]
            pages = {name: _pages(stat) for name, stat in stats.items()}
            main_pages = _pages(opened.stat())
            last = opened.info()["last_pgno"] + 1
    leaves = stats[CELLS]["leaf_pages"]
    assert not stats[CELLS]["overflow_pages"]
    found.leaf_room = leaves * page - node_bytes
    found.branches = stats[CELLS]["branch_pages"] * page
    found.other_databases = (sum(pages.values()) - pages[CELLS] + main_pages + META_PAGES) * page
    found.free = (last - sum(pages.values()) - main_pages - META_PAGES) * page
    on_disk = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    found.other_files = on_disk - last * page
    assert found.total() == on_disk
    return found


def _pages(stat: Mapping[str, Any]) -> int:
    return sum(int(stat[name]) for name in ("branch_pages", "leaf_pages", "overflow_pages"))


def _count_records(cursor: lmdb.Cursor, found: Space) -> int:
    """Returns what they take in their pages, header and place included."""
    taken, rows, row_before = 0, 0, b""
    for key, value in cursor:
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        size = len(key) + len(value)
        node = NODE_BYTES + size + size % 2
        taken += node
        found.nodes += node - size
        row = key[:-VERSION_BYTES]
        if row == row_before:
            found.old_versions += size
            continue
        row_before, rows = row, rows + 1
        _, cells = decode_cells(key, value)
        values = sum(len(each) for each in cells.values() if each is not None)
        row_bytes = len(key_row(key))
        found.values += values
        found.row_keys += row_bytes
        found.cell_heads += len(value) - HEADER_BYTES - values
        found.record_heads += HEADER_BYTES + len(key) - row_bytes
    assert rows == ROWS
    return taken


if __name__ == "__main__":
    sys.exit(main())
