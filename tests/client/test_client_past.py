"""Snapshots below the present: exact, held by a lease from their begin on, and refused with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

import pyomid
from pyomid.cli.status import as_json, as_lines
from pyomid.client.database import Database
from pyomid.client.upkeep.jobs import held_back
from pyomid.errors import ConflictError, Misuse, MisuseType, SnapshotTooOld, UnknownTable
from pyomid.protocol.timestamps import iso, snapshot_after

pytestmark = pytest.mark.fast

KEY, COLUMN = b"r", b"f:a"


def put(db: Database, value: bytes) -> int:
    with db.begin() as tx:
        tx.table("t").put(KEY, {COLUMN: value})
    assert tx.commit_ts is not None
    return tx.commit_ts


def seen(db: Database, at: int | datetime) -> bytes | None:
    with db.snapshot(at=at) as tx:
        return tx.table("t").get(KEY).get(COLUMN)


@pytest.fixture
def kept(db: Database) -> Iterator[Database]:
    """W stays below all that the test commits."""
    with db.begin(lease=True):
        yield db


def test_a_snapshot_holds_the_commit_it_names_and_none_later(kept: Database) -> None:
    first, second = put(kept, b"1"), put(kept, b"2")
    put(kept, b"3")
    assert [seen(kept, at) for at in (first - 50, first, second - 50, second)] == [None, b"1", b"1", b"2"]


def test_a_snapshot_sees_no_cells_of_the_transaction_whose_start_it_has(kept: Database) -> None:
    """C13. They are own versions of that transaction alone."""
    put(kept, b"1")
    writer = kept.begin()
    writer.table("t").put(KEY, {COLUMN: b"2"})
    writer.flush()
    at = writer.start_ts - 50
    assert snapshot_after(at) == writer.start_ts
    assert seen(kept, at) == b"1"
    writer.commit()
    assert seen(kept, at) == b"1"
    assert seen(kept, writer.commit_ts or 0) == b"2"


def test_a_snapshot_of_a_time_has_what_was_acknowledged_by_then(kept: Database) -> None:
    put(kept, b"1")
    at = datetime.now(UTC)
    while datetime.now(UTC) < at + timedelta(milliseconds=20):
        pass
    for value in range(2, 30):
        put(kept, b"%d" % value)
        now = datetime.now(UTC)
        with kept.snapshot(at=now) as tx:
            assert tx.table("t").get(KEY) == {COLUMN: b"%d" % value}
            assert tx.moment is not None
            assert now - timedelta(seconds=1) < tx.moment <= now
    assert [seen(kept, at) for _ in range(2)] == [b"1", b"1"]
    with kept.snapshot(at=at) as tx:
        assert tx.moment == at
    with kept.snapshot(at=now + timedelta(days=36_500)) as tx:
        assert tx.table("t").get(KEY) == {COLUMN: b"29"}, "a moment in the future is now"
    with pytest.raises(SnapshotTooOld, match="kept since"):
        seen(kept, at - timedelta(hours=1))
    with kept.snapshot() as tx:
        assert tx.moment is None


@pytest.mark.parametrize(
    ("at", "error", "told"),
    [
        (datetime(2020, 1, 1), Misuse, "time zone"),
        (1 << 62, Misuse, "in the future"),
        (0, Misuse, "not a valid timestamp"),
        (True, MisuseType, "bool"),
        ("yesterday", MisuseType, "str"),
        (1, SnapshotTooOld, "no longer kept"),
    ],
)
def test_a_snapshot_that_cannot_be_is_refused_with_the_reason(
    memory_db: Database, at: int, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        memory_db.snapshot(at=at)


def test_a_snapshot_below_the_present_is_read_only(kept: Database) -> None:
    with kept.begin(at=put(kept, b"1")) as tx, pytest.raises(Misuse, match="read-only"):
        tx.table("t").put(KEY, {COLUMN: b"2"})


def test_a_table_made_later_was_not_there(kept: Database) -> None:
    before = put(kept, b"1")
    kept.create_table("later", families=["f"])
    with (
        kept.snapshot(at=before) as tx,
        pytest.raises(UnknownTable, match=r"there was no table .* at \d+ \(20.*Z\): .* at \d+ \(20.*Z\)"),
    ):
        tx.table("later")
    kept.drop_table("later")


def test_the_end_of_one_reader_leaves_the_lease_to_the_others(kept: Database) -> None:
    at = put(kept, b"1")
    one, other = kept.snapshot(at=at), kept.snapshot(at=at)
    before = kept.status().tso.leases
    one.commit()
    assert kept.status().tso.leases == before
    assert len(before) > 1
    assert other.table("t").get(KEY) == {COLUMN: b"1"}
    other.commit()


def test_history_is_kept_for_as_long_as_the_url_says(memory_url: str) -> None:
    with pyomid.connect(f"{memory_url}?retention=1h&maxTransactionAgeSeconds=0.1") as db:
        db.create_table("t", families=["f"])
        first = put(db, b"1")
        put(db, b"2")
        status = db.status().tso
        assert status.retention_s == 3600
        assert status.watermark < first
        assert "retention" in "".join(held_back(status, db.settings))
        assert seen(db, first) == b"1"


# ── people see times ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_timestamp_is_printed_with_its_time(memory_db: Database) -> None:
    commit_ts = put(memory_db, b"1")
    shown = iso(commit_ts)
    assert datetime.fromisoformat(shown) <= datetime.now(UTC)
    status = memory_db.status()
    lines = {line.split("   ")[0].strip(): line for line in as_lines(status)}
    for name in ("epoch", "last timestamp", "LWM", "W"):
        found = next(line for line in lines.values() if line.startswith(f"{name} "))
        assert re.search(r"\d{19}   \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z", found), found
    assert as_json(status)["times"]["last_ts"] == iso(status.tso.last_ts)
    with memory_db.begin() as loser:
        loser.table("t").put(KEY, {COLUMN: b"2"})
        winner = put(memory_db, b"3")
        with pytest.raises(ConflictError, match=re.escape(f"commit {winner} ({iso(winner)})")):
            loser.commit()
    with pytest.raises(SnapshotTooOld, match=r"no longer kept: history is kept since \d+ \(\d{4}-.*Z\)"):
        memory_db.snapshot(at=1)


def test_a_change_has_the_time_of_its_commit(kept: Database) -> None:
    since = kept.bookmark()
    before = datetime.now(UTC)
    commit_ts = put(kept, b"1")
    [change] = kept.changes("t", since)
    assert change.commit_time is not None
    assert before - timedelta(milliseconds=1) <= change.commit_time <= datetime.now(UTC)
    assert f"insert of b'r' by commit {commit_ts} ({iso(commit_ts)})" in str(change)
