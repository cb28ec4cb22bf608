"""What upkeep over HBase costs, one process without Spark: cells and bytes a second, and what each region costs alone.

python -m benchmarks.hbase.upkeep [--rows 100000] [--regions 128] [--dir D]

healed    every version is the only one of its cell and has its shadow cell: read, nothing written
replaced  every cell has two versions: one of them goes
regions   empty ones: a flush, a look and a record each
backup    of all of these tables, and the restore of the largest
entries   of the commit table, deleted by sanitizing
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks._report import machine_lines
from benchmarks.hbase._server import started_hbase

import pyomid
from pyomid.database.database import Database
from pyomid.omid.hbase.deployment import create_database

VALUE = b"v" * 100
COLUMNS = [b"f:c%d" % number for number in range(5)]
ROWS_AT_ONCE = 2_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--regions", type=int, default=128)
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server, cluster = started_hbase(stack, folder)
        create_database(cluster)
        url = f"omid+hbase://{server.quorum}/hbase"
        command = [
            sys.executable,
            "-m",
            "pyomid",
            "tso",
            "--listen",
            "127.0.0.1:0",
            "--store",
            f"{url}?conflictMapEntries=1000000",
        ]
        tso = subprocess.Popen(
            [*command, "--leader-lease", "5"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(tso.wait)
        stack.callback(tso.terminate)
        assert tso.stdout is not None
        tso.stdout.readline()
        database = stack.enter_context(pyomid.connect(url))
        for line in machine_lines():
            print(line)
        run(database, url, options.rows, options.regions)


def run(database: Database, url: str, rows: int, regions: int) -> None:
    suffix = f"{int(time.time())}"
    table, empty = f"upkeep{suffix}", f"regions{suffix}"
    splits = [b"%08d" % (rows * part // 4) for part in range(1, 4)]
    database.create_table(table, ["f"], split_keys=splits)
    load(database, table, rows)
    # Bytes of keys, column names and values, as a user counts them; HBase stores some more, and shadow cells.
    cells, size = rows * len(COLUMNS), rows * len(COLUMNS) * (len(VALUE) + 8 + 4)
    watermark_passes(database)
    database.compact(table)  # the first one loads compiled code
    for what, stored in (("healed", 1), ("replaced", 2), ("behind deletes", 1)):
        if what == "replaced":
            load(database, table, rows)
        watermark_passes(database)
        seconds = timed(lambda: database.compact(table))
        read = stored * cells
        print(f"compact, {what:14} {read / seconds / 1e3:8.0f} k cells/s {stored * size / seconds / 1e6:8.1f} MB/s")
    database.create_table(empty, ["f"], split_keys=[b"%06d" % number for number in range(1, regions)])
    seconds = timed(lambda: database.compact(empty))
    print(f"compact, an empty region {1000 * seconds / regions:6.1f} ms")
    name = f"bench{suffix}"
    print(f"backup, {len(database.tables())} tables {timed(lambda: database.backup(name)):6.1f} s")
    restored = f"{table}r"
    seconds = timed(lambda: pyomid.restore(name, url, tables={table: restored}))
    print(f"restore            {cells / seconds / 1e3:8.0f} k cells/s {size / seconds / 1e6:8.1f} MB/s")


def load(database: Database, table: str, rows: int) -> None:
    for first in range(0, rows, ROWS_AT_ONCE):
        with database.begin() as tx:
            target = tx.table(table)
            for number in range(first, min(first + ROWS_AT_ONCE, rows)):
                target.put(b"%08d" % number, dict.fromkeys(COLUMNS, VALUE))
    database.drain(60)


def watermark_passes(database: Database) -> None:
    """Waits until W has passed everything so far: who wrote it tells its oldest open start every two seconds."""
    with database.snapshot() as now:
        newest = now.start_ts
    while database._core.deployment.leader_state.read_watermarks()[0] < newest:
        time.sleep(0.5)
        with database.begin() as tx:
            tx.rollback()


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
