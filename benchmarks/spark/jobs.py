"""Compaction and verification as Spark jobs, in cells a second; sanitising in entries a second.

Compaction heals: every record of a fresh Spark write gets its shadow timestamp; a second run finds nothing to do.
Sanitising deletes what a million commits left in the commit table.
"""

from __future__ import annotations

import sys

import numpy as np
from benchmarks._report import Report, Sample, timed
from benchmarks.spark._setting import PARTS, ROWS, Setting, setting
from benchmarks.spark.reads import settle, write

from pyomid.storage.embedded import EmbeddedCommitTable
from pyomid.types import TIMESTAMP_STEP

RUNS = 3
ENTRIES = 1_000_000
FLUSH = 10_000


def main() -> int:
    report = Report(f"Spark: jobs, {ROWS} rows of 19 columns, local[{PARTS}]")
    with setting("maxTransactionAgeSeconds=1&leaseSeconds=60") as at:
        write(at, at.flights)
        settle(at)
        cells = at.db.verify().cells
        healing = [heal(at) for _ in range(RUNS)]
        report.show(Sample("compaction, every cell healed, half of them old", tuple(healing), 2 * cells, "cells"))
        works = {
            "compaction, nothing to do": lambda: at.db.compact(),
            "verification": lambda: at.db.verify(),
        }
        report.measure_together(works, items=cells, unit="cells", runs=RUNS)
        sanitising = [sanitise(at, number) for number in range(RUNS)]
        sample = report.show(Sample("sanitising, dense entries", tuple(sanitising), ENTRIES, "entries"))
        report.ratio("sanitising ÷ 1 M entries/s", sample.per_second, 1e6, at_least=1.0)
    return report.finish()


def heal(at: Setting) -> float:
    """A second version of every row, then the time of the compaction that heals it and drops the first."""
    write(at, at.flights)
    return settle(at)


def sanitise(at: Setting, number: int) -> float:
    """The deletion itself, in a commit table of its own: the TSO does the same under its lock."""
    table = EmbeddedCommitTable(str(at.folder / f"commits{number}"), writable=True)
    starts = np.arange(1, ENTRIES + 1) * 2 * TIMESTAMP_STEP
    for first in range(0, ENTRIES, FLUSH):
        some = starts[first : first + FLUSH].tolist()
        table.put([(start, start + TIMESTAMP_STEP) for start in some])
    deleted = 0

    def delete() -> None:
        nonlocal deleted
        deleted = table.delete_below(int(starts[-1]) + TIMESTAMP_STEP)

    seconds = timed(delete)
    assert deleted == ENTRIES, deleted
    table.close()
    return seconds


if __name__ == "__main__":
    sys.exit(main())
