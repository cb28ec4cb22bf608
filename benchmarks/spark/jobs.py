"""Compaction and verification as Spark jobs, in cells a second; sanitising in entries a second.

Compaction heals: every record of a fresh Spark write gets its shadow timestamp; a second run finds nothing to do.
Sanitising deletes what a million commits left in the commit table.
"""

from __future__ import annotations

import sys

from benchmarks._report import Report, Sample
from benchmarks.spark._setting import PARTS, ROWS, Setting, setting
from benchmarks.spark.reads import settle, write

RUNS = 3


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
    return report.finish()


def heal(at: Setting) -> float:
    """A second version of every row, then the time of the compaction that heals it and drops the first."""
    write(at, at.flights)
    return settle(at)


if __name__ == "__main__":
    sys.exit(main())
