"""The change feed over HBase finds changed rows by the time range of their versions."""

from __future__ import annotations

import pytest

from changes_in_batches import told_in_batches
from pyomid.database.database import Database
from pyomid.omid.hbase.regions.scan_cursor import ScanSpec

pytestmark = pytest.mark.hbase


def test_the_feed_reads_only_versions_after_its_bookmark(
    database: Database, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.begin() as tx:
        tx.table(table).put(b"old", {b"f:x": b"0"})
        tx.table(table).put(b"a", {b"f:x": b"0"})
    began = database.begin()
    since = database.bookmark(keep_seconds=60)
    began.table(table).put(b"a", {b"f:x": b"1"})
    began.commit()
    with database.begin() as tx:
        tx.table(table).delete(b"a")
    ranges = []
    cluster = database._core.deployment.store._cluster  # type: ignore[attr-defined]
    scan = cluster.scan

    def noted(spec: ScanSpec) -> object:
        ranges.append(spec.time_range)
        return scan(spec)

    monkeypatch.setattr(cluster, "scan", noted)
    found = [(change.kind, change.row, change.before, change.after) for change in database.changes(table, since)]
    old, new = {b"f:x": b"0"}, {b"f:x": b"1"}
    assert found == [("update", b"a", old, new), ("delete", b"a", new, None)]
    assert ranges
    assert all(each is not None and since.watermark < each[0] <= began.start_ts for each in ranges)
    database.release_bookmark(since)


def test_the_feed_returns_inserts_in_batches(database: Database, table: str) -> None:
    since = database.bookmark(keep_seconds=60)
    with database.begin() as tx:
        for number in range(300):
            tx.table(table).put(b"%04d" % number, {b"f:x": b"1", b"f:y": b"%d" % number})
    with database.begin() as tx:
        for number in range(0, 300, 50):
            tx.table(table).put(b"%04d" % number, {b"f:x": b"2"})
    until = database.run(lambda tx: tx.start_ts)
    found, inserted = told_in_batches(database, table, since, until)
    assert found == list(database.changes(table, since, until))
    assert inserted == 294
    database.release_bookmark(since)
