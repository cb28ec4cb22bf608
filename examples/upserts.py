"""Orders in Spark: upserts by key, a read of the past, and a change feed that keeps a second table up to date.

Run: python examples/upserts.py [FOLDER]
"""

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

import pyomid
import pyomid.spark
from pyomid.spark import ChangesResult, SparkDatabase, SparkTransaction

COLUMNS = "id long, customer string, cents long"
DAYS = {
    "2026-02-01": [(1, "alice", 100), (2, "bob", 250), (3, "carol", 75)],
    "2026-02-02": [(2, "bob", 300), (4, "dave", 10)],
}
KEEP_SECONDS = 7 * 86400  # the feed must be followed at least this often


def load(tx: SparkTransaction, day: str) -> None:
    """Upsert a day's orders. On the second day carol cancels hers, in the same commit."""
    orders = SparkSession.active().createDataFrame(DAYS[day], COLUMNS)
    tx.write(orders, "orders", row_key=["id"])
    if day == "2026-02-02":
        tx.delete("orders", where="id = 3")


def follow(db: SparkDatabase, position: Path) -> ChangesResult:
    """Apply the changes of `orders` since the stored position to the table `copy`, store the new position, and release
    the old one, so that compaction may drop the history before the new one.

    If the program dies between the commit and the write of the file, the next run applies some changes again, and
    `apply_changes` ignores them.
    """
    since = pyomid.Bookmark(*json.loads(position.read_text()))
    until = db.bookmark(keep_seconds=KEEP_SECONDS)
    changes = db.changes("orders", since, until).where("_change_type != 'update_preimage'")
    rows = changes.selectExpr("id", "customer", "cents", "_change_type", "_commit_version AS version")
    with db.begin() as tx:
        done = tx.apply_changes(rows, "copy", sequence_by="version", deletes="_change_type = 'delete'")
    position.write_text(json.dumps(until))
    db.release_bookmark(since)
    return done


def main(spark: SparkSession, folder: Path) -> list[list[tuple[object, ...]]]:
    """Return the orders as of the first day, the orders now, and the copy."""
    db = pyomid.spark.connect(spark, f"omid://{folder}/db?retention=7d")  # how far back reads may reach
    db.sql(
        "CREATE TABLE IF NOT EXISTS copy (id BIGINT, customer STRING, cents BIGINT, version BIGINT, PRIMARY KEY (id))"
    )
    position = folder / "position.json"
    if not position.exists():
        position.write_text(json.dumps(db.bookmark(keep_seconds=KEEP_SECONDS)))
    for day in DAYS:
        db.run_once(f"orders-{day}", partial(load, day=day))  # a rerun writes nothing
        print(day, follow(db, position))
    versions = db.history("orders").orderBy("version").collect()
    tables = [db.read("orders", at=versions[0].version), db.read("orders"), db.read("copy").drop("version")]
    return [[tuple(row) for row in table.orderBy("id").collect()] for table in tables]


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="orders-"))
    print(*main(session, folder), sep="\n")
    session.stop()
