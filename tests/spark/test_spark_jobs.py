"""Compaction, sanitising and verification as Spark jobs: what they find, repair and refuse."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

import pyomid
import pyomid.spark
from pyomid.database.upkeep.jobs import Partition
from pyomid.spark.connections import connection
from pyomid.spark.maintenance import partitions_for
from pyomid.types import NOT_FOUND, CellVersion, Column, RowWrite, ShadowWrite
from waiting import let_compactions_count, until, until_w_passes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def wait_for_watermark(url: str) -> int:
    """Until W has passed every commit and branch so far."""
    target = connection(url).deployment.tso.status().last_ts
    until_w_passes(connection(url).deployment.leader_state, target)
    return target


@pytest.mark.connect
def test_cleaning_heals_commits_drops_orphans_and_old_versions_and_empties_the_commit_table(
    spark: SparkSession, url: str
) -> None:
    db = pyomid.spark.connect(spark, url)

    def count(table: str) -> int:
        with db.begin() as tx:
            return tx.read(table).count()

    ten = spark.range(10).selectExpr("id", "id * 2 AS twice", "'x' AS text")
    for _ in range(3):
        with db.begin() as tx:
            tx.write(ten, "t", row_key=["id"])
    with db.begin() as tx:
        tx.write(ten.selectExpr("id + 5 AS id", "0L AS twice", "'orphan' AS text"), "t")
        tx.rollback()
    with db.begin() as tx:
        tx.delete(ten.where("id < 4"), "t")
    wait_for_watermark(url)
    before = db.verify()
    assert before.ok, before
    assert before.orphans == 20
    healed_at_most = 3 * 4 * 2
    """By the delete: it reads its four rows one by one, and point reads repair what they look at, in the background. A
    repair that fails is not tried again."""
    assert 3 * 20 + 8 - healed_at_most <= before.missing_shadow_cells <= 3 * 20 + 8
    assert sum(before.orphan_starts.values()) == 20
    assert before.commit_table_entries > 4
    assert count("t") == 6

    horizon_before = connection(url).deployment.leader_state.read_watermarks()[1]
    cleaned = db.compact()
    assert cleaned.orphans_dropped == 20
    after = db.verify(["t"])
    assert (after.orphans, after.missing_shadow_cells, after.cells) == (0, 0, 12)
    assert count("t") == 6

    again = db.compact()
    assert (again.cells_healed, again.cells_dropped) == (0, 0)
    held = db.sanitize()
    assert held.horizon == horizon_before, "records younger than the longest retry must not count"
    let_compactions_count(connection(url).deployment.catalog)
    sanitised = pyomid.spark.connect(spark, url).sanitize()
    assert sanitised.entries_deleted >= before.commit_table_entries - sanitised.entries_left
    assert sanitised.horizon == min(table.watermark for table in again.tables)
    assert count("t") == 6
    assert db.verify().ok
    for result, word in ((before, "orphans"), (cleaned, "healed"), (sanitised, "horizon")):
        assert word in str(result)


def test_half_a_commit_and_a_wrong_shadow_cell_are_found(spark: SparkSession, url: str) -> None:
    db, parts = pyomid.spark.connect(spark, url), connection(url).deployment
    with pyomid.connect(url) as client:
        client.create_table("broken", families=["f"])
        with client.begin() as tx:
            for row in (b"a", b"b", b"c"):
                tx.table("broken").put(row, {b"f:x": b"1"})
            tx.flush()
        assert client.drain(30)
    start, commit = parts.store.read_rows("broken", [b"a"])[0][0].version, tx.commit_ts
    assert commit is not None
    until(lambda: parts.commit_table.lookup([start]) == [NOT_FOUND], "the commit-table entry stays")
    assert db.verify(["broken"]).ok
    parts.store.delete_versions("broken", [CellVersion(b"b", b"f", b"x", start)])
    assert db.verify(["broken"]).ok, "a cell that is gone says nothing"
    parts.store.write_cells("broken", start, [RowWrite(b"b", ((Column(b"f", b"x"), b"9"),))])
    found = db.verify(["broken"])
    assert (found.ok, found.torn_starts, found.tables[0].torn) == (False, [start], 1)
    assert f"torn commits: {start}" in str(found)
    parts.store.write_shadow_cells("broken", [ShadowWrite(CellVersion(b"c", b"f", b"x", start), commit + 50)])
    told = f"start {start}: two shadow timestamps, {commit} and {commit + 50}"
    assert told in db.verify(["broken"]).violations


def test_a_table_dropped_before_its_tasks_is_passed_over(
    spark: SparkSession, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def then_dropped(*arguments: Any) -> list[Partition]:
        found = partitions_for(*arguments)
        with pyomid.connect(url) as db:
            db.drop_table("dropped")
        return found

    monkeypatch.setattr("pyomid.spark.maintenance.partitions_for", then_dropped)
    with pyomid.connect(url) as db:
        for table in ("dropped", "stays"):
            db.create_table(table, ["f"])
    names = {table.table for table in pyomid.spark.connect(spark, url).compact().tables}
    assert "stays" in names
    assert "dropped" not in names


def test_compaction_goes_by_the_watermark_of_before_its_grace(
    spark: SparkSession, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a reader that never looks at W still needs stays: it began before W passed it, in the time of the grace."""
    db = pyomid.spark.connect(spark, url)
    grace_s, pause = 0.0125, time.sleep
    passed: list[int] = []

    def pause_or_move_on(seconds: float) -> None:
        if seconds == grace_s:
            with db.begin() as tx:
                tx.write(spark.range(1).selectExpr("id", "'new' AS text"), "graced")
            passed.append(wait_for_watermark(url))
        else:
            pause(seconds)

    with db.begin() as tx:
        tx.write(spark.range(1).selectExpr("id", "'old' AS text"), "graced", row_key=["id"])
    monkeypatch.setattr(time, "sleep", pause_or_move_on)
    (careful,) = db.compact(["graced"], grace_seconds=grace_s).tables
    assert careful.watermark < passed[0] <= connection(url).deployment.leader_state.read_watermarks()[0]
    assert (careful.cells, careful.cells_dropped) == (2, 0)
    (prompt,) = db.compact(["graced"]).tables
    assert prompt.watermark >= passed[0]
    assert prompt.cells_dropped == 1
