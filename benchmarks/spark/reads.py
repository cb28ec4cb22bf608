"""Snapshot reads through Spark: against prebuilt Arrow batches, and against the same decoder without visibility.

19 columns, 336 776 rows, two partitions; `aggregate` is count(*) and two sums. Healed: every record has its shadow
cell. Unhealed: none has, as a Spark write leaves it. Old versions: every tenth row has a second, newer version.

What limits it: Spark takes some 1.2 M rows/s of 19 columns from any Python data source on this kind of machine; that
is the physical limit of the first ratio. The second is what snapshots cost.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks._report import Report
from benchmarks.spark._peers import Prebuilt, Raw, write_prebuilt
from benchmarks.spark._setting import KEY, PARTS, ROWS, Setting, setting
from pyspark.sql import functions as f

from pyomid.spark.connections import connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main() -> int:
    report = Report(f"Spark: snapshot reads, {ROWS} rows of 19 columns, local[{PARTS}]")
    with setting("maxTransactionAgeSeconds=1&leaseSeconds=60") as at:
        at.spark.dataSource.register(Prebuilt)
        at.spark.dataSource.register(Raw)
        prepare(at)
        compare(report, at, "unhealed", "flights")
        settle(at)
        compare(report, at, "healed", "flights")
        write(at, at.flights.where("flight % 10 = 0").withColumn("distance", f.col("distance") + 1))
        settle(at)
        write(at, at.flights.where("flight % 10 = 0"))
        compare(report, at, "10 % with an old version", "flights", raw=False)
    return report.finish()


def prepare(at: Setting) -> None:
    write(at, at.flights)
    loaded = at.flights.orderBy(*KEY).toArrow().combine_chunks().to_batches(10_000)
    (at.folder / "prebuilt").mkdir()
    write_prebuilt(loaded, str(at.folder / "prebuilt"), PARTS)


def write(at: Setting, frame: DataFrame) -> None:
    with at.db.begin(conflict_level="table") as tx:
        tx.write(frame, "flights", row_key=KEY, duplicates="last")


def settle(at: Setting) -> float:
    """Compaction, once the watermark has passed everything written; leases of earlier reads end first. Its seconds."""
    conn = connection(at.url)
    for lease in conn.deployment.tso.status().leases:
        conn.deployment.tso.end_lease(lease)
    target = conn.deployment.tso.begin().start_ts
    while conn.deployment.leader_state.read_watermarks()[0] < target:
        time.sleep(0.2)
    return at.db.compact().seconds


def compare(report: Report, at: Setting, state: str, table: str, *, raw: bool = True) -> None:
    prebuilt = at.spark.read.format("bench_prebuilt").options(path=str(at.folder / "prebuilt"), parts=PARTS).load()
    common = {"url": at.url, "table": table}
    ours = at.spark.read.format("omid").options(**common, numPartitions=PARTS).load()
    frames = {"prebuilt Arrow": prebuilt, "snapshot": ours}
    if raw:
        frames["same decoder, no visibility"] = at.spark.read.format("bench_raw").options(**common, parts=PARTS).load()
    for action, work in (("count", count), ("aggregate", aggregate)):
        expected = work(frames["snapshot"])()
        assert all(work(frame)() == expected for frame in frames.values())
        samples = report.measure_together(
            {f"{state}, {action}: {name}": work(frame) for name, frame in frames.items()}, items=ROWS, unit="rows"
        )
        report.ratio(f"{state}, {action}: snapshot ÷ prebuilt", samples[1], samples[0], at_least=0.8)
        if raw:
            report.ratio(f"{state}, {action}: snapshot ÷ no visibility", samples[1], samples[2], at_least=0.8)


def count(frame: DataFrame) -> Callable[[], object]:
    return frame.count


def aggregate(frame: DataFrame) -> Callable[[], object]:
    """A new frame each time: one that is collected again only fetches the shuffled sums of its first time."""
    return lambda: tuple(frame.agg(f.count(f.lit(1)), f.sum("distance"), f.sum("dep_delay")).collect()[0])


if __name__ == "__main__":
    sys.exit(main())
