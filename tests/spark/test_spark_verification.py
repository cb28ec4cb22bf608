"""The verifier finds what was planted, names it, and tells what may be from what may not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import pyomid
import pyomid.spark
from pyomid.client.database import Database
from pyomid.client.upkeep.verification import TableReport, Verification
from pyomid.spark.connections import connection
from pyomid.types import NOT_FOUND, CellVersion, Column, RowWrite
from waiting import until, until_w_passes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMN = Column(b"f", b"x")


def three_rows(db: Database, table: str) -> tuple[int, int]:
    """Rows a, b and c in one transaction, completed: its start and commit timestamps."""
    db.create_table(table, families=["f"])
    with db.begin() as tx:
        for row in (b"a", b"b", b"c"):
            tx.table(table).put(row, {b"f:x": b"1"})
    assert db.drain(30)
    commits = db._core.deployment.commit_table
    until(lambda: commits.lookup([tx.start_ts]) == [NOT_FOUND], "the commit-table entry stays")
    assert tx.commit_ts is not None
    return tx.start_ts, tx.commit_ts


def verified(spark: SparkSession, url: str, table: str) -> tuple[Verification, TableReport]:
    found = pyomid.spark.connect(spark, url).verify([table])
    (report,) = found.tables
    return found, report


def test_a_completed_commit_is_sound_and_counted(spark: SparkSession, url: str) -> None:
    with pyomid.connect(url) as db:
        three_rows(db, "sound")
    found, report = verified(spark, url, "sound")
    assert found.ok
    assert (report.rows, report.cells) == (3, 3)
    assert (report.missing_shadow_cells, report.orphans, report.open, report.torn) == (0, 0, 0, 0)


def test_a_planted_cell_of_nobody_is_open_at_first_and_an_orphan_once_w_has_passed_it(
    spark: SparkSession, url: str
) -> None:
    conn = connection(url)
    with pyomid.connect(url) as db:
        three_rows(db, "haunted")
    ghost = conn.deployment.tso.begin().start_ts
    conn.deployment.store.write_cells("haunted", ghost, [planted(b"b"), planted(b"z")])
    found, report = verified(spark, url, "haunted")
    assert found.ok
    assert (report.open + report.orphans, report.cells) == (2, 5)
    until_w_passes(connection(url).deployment.leader_state, ghost)
    found, report = verified(spark, url, "haunted")
    assert found.ok, "an orphan is no damage"
    assert (report.orphans, found.orphan_starts) == (2, {ghost: 2})
    assert pyomid.spark.connect(spark, url).compact(["haunted"]).orphans_dropped == 2
    found, report = verified(spark, url, "haunted")
    assert (report.rows, report.cells, report.orphans) == (3, 3, 0)


def test_a_commit_without_its_shadow_cells_is_counted_cell_by_cell_and_healed_by_compaction(
    spark: SparkSession, url: str
) -> None:
    db = pyomid.spark.connect(spark, url)
    with db.transaction() as tx:
        content = spark.range(5, numPartitions=1).selectExpr("id", "id * 2 AS twice", "'x' AS text")
        tx.write(content, "unhealed", row_key=["id"])
    found, report = verified(spark, url, "unhealed")
    assert found.ok, "the commit table still says it"
    assert (report.rows, report.cells, report.missing_shadow_cells) == (5, 10, 10)
    until_w_passes(connection(url).deployment.leader_state, max(tx.branches))
    assert pyomid.spark.connect(spark, url).compact(["unhealed"]).cells_healed == 10
    found, report = verified(spark, url, "unhealed")
    assert (report.cells, report.missing_shadow_cells) == (10, 0)
    assert db.compact(["unhealed"]).cells_healed == 0


def test_a_commit_of_which_one_cell_lost_its_shadow_cell_and_the_table_its_entry_is_torn(
    spark: SparkSession, url: str
) -> None:
    conn = connection(url)
    with pyomid.connect(url) as db:
        start_ts, _ = three_rows(db, "torn")
    gone = CellVersion(b"b", *COLUMN, start_ts)
    conn.deployment.store.delete_versions("torn", [gone])
    assert verified(spark, url, "torn")[0].ok, "a cell that is gone tells nothing"
    conn.deployment.store.write_cells("torn", start_ts, [planted(b"b")])
    found, report = verified(spark, url, "torn")
    assert not found.ok
    assert found.torn_starts == [start_ts]
    assert report.torn == 1
    assert f"torn commits: {start_ts}" in str(found)


def planted(row: bytes) -> RowWrite:
    return RowWrite(row, ((COLUMN, b"9"),))
