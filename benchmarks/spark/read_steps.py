"""What a read of all columns costs, from rows that Spark holds to the snapshot of a table, step by step.

    python -m benchmarks.spark.read [upserts=9]

The flights (336 776 rows of 19 columns), local[2]; the read is a checksum over all values, as in
`benchmarks.spark.peers`. Three states of the table: loaded; behind upserts of 1 000 rows from all over it; compacted
after that. All steps of a state take turns; medians, in seconds.

    cached            rows that Spark has cached: its aggregate alone, in the JVM
    prebuilt          + its Python workers, which hand it Arrow batches of a mapped file
    no visibility     + the pages of the folder, and their cells decoded: every value that is stored
    snapshot          + which of them the snapshot sees
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from benchmarks._report import Report
from benchmarks.spark._peers import Prebuilt, Raw
from benchmarks.spark._setting import KEY, PARTS, ROWS, Setting, setting
from benchmarks.spark.reads import prepare, settle, write
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

RUNS: Final = 7
UPSERT_ROWS: Final = 1_000


def main() -> int:
    asked = dict(text.split("=", 1) for text in sys.argv[1:])
    report = Report(f"Spark: a read of all columns step by step, {ROWS} rows, local[{PARTS}]")
    found: dict[str, dict[str, float]] = {}
    with setting("maxTransactionAgeSeconds=1&leaseSeconds=60") as at:
        at.spark.dataSource.register(Prebuilt)
        at.spark.dataSource.register(Raw)
        prepare(at)
        found["loaded"] = measured(report, at, "loaded")
        for _ in range(int(asked.get("upserts", "9"))):
            write(at, at.flights.orderBy(f.xxhash64(*KEY)).limit(UPSERT_ROWS))
        found["upserted"] = measured(report, at, "upserted", raw=False)
        settle(at)
        found["after upkeep"] = measured(report, at, "after upkeep")
    print(f"\n| step | {' | '.join(found)} |\n| --- |{' --- |' * len(found)}")
    for name in found["loaded"]:
        cells = (f"{each[name]:.2f}" if name in each else "–" for each in found.values())
        print(f"| {name} | {' | '.join(cells)} |")
    return report.finish()


def measured(report: Report, at: Setting, state: str, *, raw: bool = True) -> dict[str, float]:
    """`raw`: each row has one version."""
    common = {"url": at.url, "table": "flights"}
    frames = {
        "cached": at.flights,
        "prebuilt": at.spark.read.format("bench_prebuilt").options(path=f"{at.folder}/prebuilt", parts=PARTS).load(),
    }
    if raw:
        frames["no visibility"] = at.spark.read.format("bench_raw").options(**common, parts=PARTS).load()
    frames["snapshot"] = at.spark.read.format("omid").options(**common, numPartitions=PARTS).load()
    expected = checksum(at.flights, at.flights.columns)()
    assert all(checksum(frame, at.flights.columns)() == expected for frame in frames.values())
    works = {f"{state}: {name}": checksum(frame, at.flights.columns) for name, frame in frames.items()}
    samples = report.measure_together(works, items=ROWS, unit="rows", runs=RUNS)
    return {name: sample.median_s for name, sample in zip(frames, samples, strict=True)}


def checksum(frame: DataFrame, columns: list[str]) -> Callable[[], object]:
    """Of all values, whatever their order; a new frame each time."""
    return lambda: frame.select(f.xxhash64(*columns).alias("h")).agg(f.bit_xor("h")).collect()[0][0]


if __name__ == "__main__":
    sys.exit(main())
