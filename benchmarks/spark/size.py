"""What a large write costs the driver and its workers in memory: many rows, many tables, many partitions.

    python -m benchmarks.spark.size [rows=20000000] [tables=200] [partitions=10000]

A table has 1 000 rows, a partition 200.

Each figure is the most memory (VmHWM, in MB) that a process of its kind had since the work began: the driver's Python,
its JVM, the largest of Spark's Python workers; of the Python processes a part is pages of the store's file, which they
map. "told" is what the tasks' reports brought to the driver. Beside the large write stand a tenth of it, and the one
that asks least of the driver: `duplicates=last`, which looks at no keys.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from benchmarks._report import Report
from benchmarks.spark._setting import PARTS, Setting, setting

from pyomid.spark.source.write_task import BranchReport, WritePlan
from pyomid.spark.transactions import SparkTransaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = 8
MB = 1 << 20


def main() -> int:
    asked = dict(text.split("=", 1) for text in sys.argv[1:])
    rows, tables, partitions = (int(asked.pop(*each)) for each in
                                (("rows", "20000000"), ("tables", "200"), ("partitions", "10000")))  # fmt: skip
    if asked:
        raise SystemExit(f"{', '.join(asked)}: not rows=, tables= or partitions=")
    report = Report(f"Spark: size, {rows} rows of {COLUMNS + 1} columns, local[{PARTS}]")
    report.note(f"{'work':<44}{'rows':>12}{'s':>8}{'told MB':>9}{'driver':>8}{'JVM':>7}{'worker':>8}")
    with setting("maxTransactionAgeSeconds=600&leaseSeconds=120&mapSizeGib=64") as at:
        write = writes(at, report)
        write("one write", rows, lambda tx: told(tx, "one", numbered(at, rows, PARTS * 4), "error"))
        tenth = rows // 10
        write("a tenth", tenth, lambda tx: told(tx, "tenth", numbered(at, tenth, PARTS * 4), "error"))
        write("a tenth, duplicates=last", tenth, lambda tx: told(tx, "last", numbered(at, tenth, PARTS * 4), "last"))
        write(
            f"{tables} tables in one transaction",
            tables * 1_000,
            lambda tx: sum(told(tx, f"t{n}", numbered(at, 1_000, 1), "error") for n in range(tables)),
        )
        write(
            f"{partitions} partitions",
            partitions * 200,
            lambda tx: told(tx, "parts", numbered(at, partitions * 200, partitions), "error"),
        )
    return report.finish()


def numbered(at: Setting, rows: int, partitions: int) -> DataFrame:
    columns = (f"id * {number} AS c{number}" for number in range(COLUMNS))
    return at.spark.range(rows, numPartitions=partitions).selectExpr("id AS k", *columns)


def told(tx: SparkTransaction, table: str, frame: DataFrame, duplicates: str) -> int:
    """Writes the frame; how many bytes its tasks' reports brought."""
    sizes: list[int] = []

    def note(plan: WritePlan, reports: Sequence[BranchReport]) -> None:
        sizes.extend(report.keys.nbytes for report in reports)
        SparkTransaction.note(tx, plan, reports)

    with patch.object(tx, "note", note):
        tx.write(frame, table, row_key="k", duplicates=duplicates)
    return sum(sizes)


def writes(at: Setting, report: Report) -> Callable[[str, int, Callable[[SparkTransaction], int]], None]:
    def write(name: str, rows: int, work: Callable[[SparkTransaction], int]) -> None:
        began = time.monotonic()
        with most_memory() as most, at.db.begin() as tx:
            size = work(tx)
        seconds = time.monotonic() - began
        memory = [most.get(kind, 0) // MB for kind in ("driver", "jvm", "worker")]
        report.note(f"{name:<44}{rows:>12}{seconds:>8.1f}{size / MB:>9.1f}{memory[0]:>8}{memory[1]:>7}"
                    f"{memory[2]:>8}")  # fmt: skip

    return write


@contextmanager
def most_memory() -> Iterator[dict[str, int]]:
    """The most memory of each kind of process, looked at a few times a second; the marks of before are forgotten."""
    most: dict[str, int] = {}
    ended = threading.Event()
    for pid in _processes():
        _forget_mark(pid)

    def look() -> None:
        while not ended.wait(0.3):
            for pid, kind in _processes().items():
                most[kind] = max(most.get(kind, 0), _mark(pid))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield most
    finally:
        ended.set()
        watcher.join()


def _processes() -> dict[int, str]:
    """This process and all below it, by their kinds; no other programs."""
    commands: dict[int, list[bytes]] = {}
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                commands[int(entry.name)] = (entry / "cmdline").read_bytes().split(b"\0")
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    own = {os.getpid()}
    while below := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= below
    kinds = {"jvm": b"org.apache.spark.deploy.SparkSubmit", "worker": b"pyspark.daemon"}
    found = {pid: kind for pid in own for kind, mark in kinds.items() if mark in commands.get(pid, ())}
    return {os.getpid(): "driver", **found}


def _mark(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)


def _forget_mark(pid: int) -> None:
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


if __name__ == "__main__":
    sys.exit(main())
