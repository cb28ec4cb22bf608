"""The change feed of a client, over memory and embedded; HBase has its own run of it in tests/hbase."""

from __future__ import annotations

import pytest

from changes_in_batches import told_in_batches
from pyomid import Bookmark, RowChange
from pyomid.database import change_feed
from pyomid.database.database import Database
from pyomid.errors import Misuse, MisuseType, SnapshotTooOld, UnknownTable

pytestmark = pytest.mark.fast

FUTURE_TS = 5 * 10**18


def put(db: Database, key: bytes, **cells: bytes) -> int:
    with db.begin() as tx:
        tx.table("t").put(key, {b"f:" + name.encode(): value for name, value in cells.items()})
    assert tx.commit_ts is not None
    return tx.commit_ts


def test_changes_lead_from_one_state_to_the_next(db: Database) -> None:
    put(db, b"a", x=b"1")
    put(db, b"b", x=b"1")
    since = db.bookmark(keep_seconds=60)
    first = put(db, b"a", x=b"2", y=b"2")
    with db.begin() as tx:
        tx.table("t").delete(b"b")
        tx.table("t").put(b"c", {b"f:x": b"3"})
    second = tx.commit_ts
    until = db.bookmark()
    put(db, b"a", x=b"too late")
    old, new = {b"f:x": b"1"}, {b"f:x": b"2", b"f:y": b"2"}
    expected = [
        RowChange("update", b"a", first, old, new),
        RowChange("delete", b"b", second, old, None),
        RowChange("insert", b"c", second, None, {b"f:x": b"3"}),
    ]
    assert list(db.changes("t", since, until)) == expected
    assert list(db.changes("t", since.start_ts, until.start_ts)) == expected
    assert list(db.changes("t", since, until, prefix=b"b")) == expected[1:2]
    assert list(db.changes("t", first, until)) == expected[1:]
    assert list(db.changes("t", until, until)) == []
    assert len(list(db.changes("t", since))) == 4


def test_changes_in_batches_are_the_same(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load, changes of it, and rows that lie far apart; batches end amid them."""
    monkeypatch.setattr(change_feed, "INSERTS_AT_ONCE", 40)
    monkeypatch.setattr(change_feed, "INSERTS_LEAST", 1_000_000)
    monkeypatch.setattr(change_feed, "ROWS_AT_ONCE", 3)
    for key in range(0, 1_000, 4):
        put(db, b"old %04d" % key, x=b"0")
    since = db.bookmark(keep_seconds=60)
    with db.begin() as tx:
        for key in range(300):
            tx.table("t").put(b"new %04d" % key, {b"f:x": b"1", b"f:y": b"%d" % key})
    for key in (7, 8, 150):
        put(db, b"new %04d" % key, x=b"2")
    for key in range(0, 1_000, 100):
        put(db, b"old %04d" % key, x=b"3")
    until = db.run(lambda tx: tx.start_ts)
    expected = list(db.changes("t", since, until))
    monkeypatch.setattr(change_feed, "INSERTS_LEAST", 5)
    assert list(db.changes("t", since, until)) == expected
    found, inserted = told_in_batches(db, "t", since, until)
    assert found == expected
    assert inserted > 200
    db.release_bookmark(since)


def test_a_bookmark_holds_w_until_it_is_released(db: Database) -> None:
    kept = db.bookmark(keep_seconds=60)
    assert kept.start_ts in db.status().tso.leases
    assert kept.watermark < kept.start_ts
    db.release_bookmark(kept)
    assert kept.start_ts not in db.status().tso.leases


def test_f5_a_table_that_replaced_the_one_of_the_bookmark_is_refused(db: Database) -> None:
    since = db.bookmark(keep_seconds=60)
    db.drop_table("t")
    with pytest.raises(UnknownTable):
        db.changes("t", since)
    db.create_table("t", families=["f"])
    for read in (db.changes, lambda table, place: db.watch(table, after=place)):
        with pytest.raises(Misuse, match=r"after the bookmark .* a former table with the same name"):
            read("t", since)
    db.release_bookmark(since)


def test_f5_a_bookmark_from_before_the_table_reads_all_of_it_as_inserts(db: Database) -> None:
    """Also what a transaction wrote whose start is older than the table: its version lies below the generation."""
    early = db.bookmark(keep_seconds=60)
    older = db.begin()
    before = db.bookmark()
    info = db.create_table("new", families=["f"])
    assert older.start_ts <= before.start_ts < info.generation
    older.table("new").put(b"a", {b"f:x": b"1"})
    older.commit()
    with db.begin() as tx:
        tx.table("new").put(b"a", {b"f:x": b"2"})
        tx.table("new").put(b"b", {b"f:x": b"3"})
    until = db.bookmark()
    one, two, three = ({b"f:x": value} for value in (b"1", b"2", b"3"))
    assert older.commit_ts is not None
    assert tx.commit_ts is not None
    expected = [
        RowChange("insert", b"a", older.commit_ts, None, one),
        RowChange("update", b"a", tx.commit_ts, one, two),
        RowChange("insert", b"b", tx.commit_ts, None, three),
    ]
    assert list(db.changes("new", early, until)) == expected
    assert list(db.changes("new", early.start_ts)) == expected
    assert list(db.changes("new", early, before)) == []
    with db.watch("new", after=early, max_wait_seconds=0.01, keep_seconds=60) as watch:
        assert list(watch) == expected
    db.release_bookmark(early)
    with pytest.raises(Misuse, match=r"lies after ending .*: swap them"):
        db.changes("new", until, before)


def test_changes_since_the_beginning_are_those_of_a_table_that_is_young_enough(db: Database) -> None:
    """W has passed the position, but not the table's creation: nothing of the table is missing."""
    held = db.bookmark(keep_seconds=60)
    passed_ts, name = held.watermark - 1, f"young-{held.start_ts}"
    assert passed_ts > 0
    db.create_table(name, families=["f"])
    with db.begin() as tx:
        tx.table(name).put(b"a", {b"f:x": b"1"})
    assert [change.row for change in db.changes(name, passed_ts)] == [b"a"]
    db.release_bookmark(held)


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_f5_a_table_that_is_dropped_while_it_is_read_is_told(
    db: Database, monkeypatch: pytest.MonkeyPatch, is_made_anew: bool
) -> None:
    monkeypatch.setattr(change_feed, "ROWS_AT_ONCE", 1)
    since = db.bookmark(keep_seconds=60)
    for key in (b"a", b"b", b"c"):
        put(db, key, x=b"1")
    found = db.changes("t", since)
    assert next(found).row == b"a"
    db.drop_table("t")
    if is_made_anew:
        db.create_table("t", families=["f"])
    with pytest.raises(SnapshotTooOld, match="the table was dropped"):
        list(found)
    db.release_bookmark(since)


@pytest.mark.parametrize(
    ("starting", "ending", "error"),
    [
        (FUTURE_TS, None, Misuse),
        (Bookmark(FUTURE_TS), None, Misuse),
        (1, FUTURE_TS, Misuse),
        (-1, None, Misuse),
        ("yesterday", None, MisuseType),
        (True, None, MisuseType),
        (None, None, MisuseType),
    ],
)
def test_bad_places_are_refused_at_once(
    memory_db: Database, starting: object, ending: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        memory_db.changes("t", starting, ending)  # type: ignore[arg-type]


@pytest.mark.parametrize("keep_seconds", [0, -1, float("inf"), float("nan"), True, "an hour"])
def test_a_bookmark_is_kept_for_seconds(memory_db: Database, keep_seconds: object) -> None:
    with pytest.raises(Misuse, match="is not a number of seconds above 0"):
        memory_db.bookmark(keep_seconds=keep_seconds)  # type: ignore[arg-type]
    assert memory_db.status().tso.leases == ()
