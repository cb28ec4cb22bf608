"""The change feed of a large table: what it costs to be told of a thousand changed rows among three million.

    python -m benchmarks.spark.changes [rows=3000000] [changed=1000] [url=omid+hbase://…]

The changed rows lie all over the table. By a bookmark, which tells from which version on rows may have changed, and by
its timestamp alone, for which all versions are looked through; by Spark, and by the client in one thread. Beside them
Spark counts the rows of the whole table. The goal is that of changes by Spark since a bookmark.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from benchmarks._report import Report
from benchmarks.spark._setting import PARTS, Setting, setting

import pyomid

COLUMNS = 8
GOAL_S = 1.0
TABLE = "changes_bench"


def main() -> int:
    asked = dict(text.split("=", 1) for text in sys.argv[1:])
    rows, changed = int(asked.pop("rows", "3000000")), int(asked.pop("changed", "1000"))
    url = asked.pop("url", "")
    if asked:
        raise SystemExit(f"{', '.join(asked)}: not rows=, changed= or url=")
    report = Report(f"Spark: {changed} changed rows among {rows} of {COLUMNS + 1} columns, local[{PARTS}]")
    with setting("leaseSeconds=600&mapSizeGib=64", url=url) as at:
        with pyomid.connect(at.url) as db:
            measure(report, at, db, rows, changed)
            if url:
                db.drop_table(TABLE)
    return report.finish()


def measure(report: Report, at: Setting, db: pyomid.Database, rows: int, changed: int) -> None:
    loaded_ts = write(at, 0, rows, 1)
    wait_for_watermark(db, loaded_ts)
    since = db.bookmark(keep_seconds=3600)
    write(at, 1, changed, rows // changed)

    def by_spark(starting: pyomid.Bookmark | int) -> Callable[[], None]:
        def count() -> None:
            found = at.db.changes(TABLE, starting=starting).groupBy("_change_type").count()
            counted = {row["_change_type"]: row["count"] for row in found.collect()}
            assert counted == {"update_preimage": changed, "update_postimage": changed}, counted

        return count

    def by_client() -> None:
        assert sum(change.kind == "update" for change in db.changes(TABLE, since)) == changed

    def whole() -> None:
        assert at.db.read(TABLE).count() == rows

    works = {
        "Spark, changes since a bookmark": by_spark(since),
        "Spark, changes since its timestamp alone": by_spark(since.start_ts),
        "client, changes since the bookmark": by_client,
        "Spark, count of the whole table": whole,
    }
    by_bookmark, *_ = samples = report.measure_together(works, items=changed, unit="changed rows", runs=3)
    for sample in samples:
        report.note(f"{sample.name}: {sample.median_s:.2f} s")
    if by_bookmark.median_s > GOAL_S:
        report.missed.append(f"{changed} changes among {rows} rows: {by_bookmark.median_s:.2f} s, over {GOAL_S:g} s")


def wait_for_watermark(db: pyomid.Database, commit_ts: int) -> None:
    """What lies above W is looked at for each reader: a bookmark that is drawn amid a load costs more."""
    deadline_s = time.monotonic() + 60
    while db.status().tso.watermark < commit_ts:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"W did not pass {commit_ts} within a minute")
        with db.begin():
            time.sleep(0.1)


def write(at: Setting, value: int, rows: int, step: int) -> int:
    columns = (f"id * {number} + {value} AS c{number}" for number in range(COLUMNS))
    frame = at.spark.range(0, rows * step, step, numPartitions=PARTS * 4).selectExpr("id AS k", *columns)
    with at.db.begin(lease_seconds=600) as tx:
        tx.write(frame, TABLE, row_key="k")
    assert tx.commit_ts is not None
    return tx.commit_ts


if __name__ == "__main__":
    sys.exit(main())
