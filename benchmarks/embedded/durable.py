"""What one durable write costs on this disk, by each way to make it durable: why commits go to a log (decision 0013).

python -m benchmarks durable
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
from benchmarks._report import Report

from pyomid.storage.embedded import EmbeddedCommitTable

WRITES = 1_000
BLOCK = 4096
ROWS = 128


def main() -> int:
    report = Report("embedded: one durable write")
    with tempfile.TemporaryDirectory(prefix="pyomid-bench-") as name:
        folder = Path(name)
        report.latencies("fdatasync, blocks written before", timed(overwrites(folder / "a", 0)))
        report.latencies(
            "O_DIRECT | O_DSYNC, blocks written before", timed(overwrites(folder / "b", os.O_DIRECT | os.O_DSYNC))
        )
        report.latencies("fdatasync, blocks only reserved", timed(overwrites(folder / "c", 0, reserved=True)))
        report.latencies("LMDB commit of one record", timed(lmdb_commits(folder / "d")))
        report.latencies(f"commit table: flush of {ROWS} commits", timed(flushes(folder / "e", ROWS)))
        report.latencies("commit table: flush of one commit", timed(flushes(folder / "f", 1)))
    return report.finish()


def timed(write: Callable[[int], object]) -> list[float]:
    taken = []
    for number in range(WRITES):
        began = time.perf_counter()
        write(number)
        taken.append(time.perf_counter() - began)
    return taken


def overwrites(path: Path, flags: int, *, reserved: bool = False) -> Callable[[int], object]:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    if reserved:
        os.posix_fallocate(file, 0, WRITES * BLOCK)
    else:
        os.write(file, bytes(WRITES * BLOCK))
    os.fsync(file)
    os.close(file)
    file, block = os.open(path, os.O_RDWR | flags), mmap.mmap(-1, BLOCK)

    def write(number: int) -> None:
        os.pwrite(file, block, number * BLOCK)
        if not flags:
            os.fdatasync(file)

    return write


def lmdb_commits(folder: Path) -> Callable[[int], object]:
    environment = lmdb.open(str(folder), map_size=1 << 30)

    def write(number: int) -> None:
        with environment.begin(write=True) as transaction:
            transaction.put(b"%016d" % number, b"v" * 100)

    return write


def flushes(folder: Path, rows: int) -> Callable[[int], object]:
    table = EmbeddedCommitTable(folder, writable=True)
    table.prepare()
    offsets = 50 * np.arange(1, rows + 1, dtype=np.int64)

    def write(number: int) -> None:
        starts = offsets + number * rows * 100
        table.flush(np.stack([starts, starts + rows * 50], axis=1))

    return write


if __name__ == "__main__":
    sys.exit(main())
