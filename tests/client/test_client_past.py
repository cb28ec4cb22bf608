"""Snapshots below the present: exact, held by a lease from their begin on, and refused with the reason."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

import pyomid
from pyomid.cli.status import as_json, as_lines
from pyomid.database.database import Database
from pyomid.database.upkeep.jobs import held_back
from pyomid.errors import ConflictError, Misuse, MisuseType, SnapshotTooOld, UnknownTable
from pyomid.protocol.timestamps import NS_PER_S, iso, snapshot_after, time_of
from pyomid.spark.connections import close_connections, connection
from pyomid.spark.source.change_rows import ending_of, starting_place
from pyomid.types import At

pytestmark = pytest.mark.fast

KEY, COLUMN = b"r", b"f:a"


def put(db: Database, value: bytes) -> int:
    with db.begin() as tx:
        tx.table("t").put(KEY, {COLUMN: value})
    assert tx.commit_ts is not None
    return tx.commit_ts


def seen(db: Database, at: At) -> bytes | None:
    with db.snapshot(at=at) as tx:
        return (tx.table("t").get(KEY) or {}).get(COLUMN)


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
    with pytest.raises(SnapshotTooOld, match="history begins at"):
        seen(kept, at - timedelta(hours=1))
    with kept.snapshot() as tx:
        assert tx.moment is None


def test_a_timestamp_a_bookmark_and_a_time_name_a_snapshot_also_as_text(kept: Database) -> None:
    first = put(kept, b"1")
    mark, time_ = kept.bookmark(), datetime.now(UTC)
    while datetime.now(UTC) < time_ + timedelta(milliseconds=20):
        pass
    put(kept, b"2")
    places: list[At] = [first, mark, time_]
    for at in (*places, *map(str, places), time_.isoformat(), f" {first} "):
        assert seen(kept, at) == b"1", at


class LateReader:
    """A machine whose clock is late by some seconds; the TSO's clock is set by hand, and goes on by a microsecond with
    each look: how late a clock is can be told to within the time that a request takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late_s: float) -> None:
        began_ns, looks, self._ahead_ns, self._late_ns = time.time_ns(), count(), 0, int(late_s * NS_PER_S)
        monkeypatch.setattr(time, "time_ns", lambda: began_ns + 1_000 * next(looks) + self._ahead_ns)
        reader = SimpleNamespace(monotonic=time.monotonic, time_ns=lambda: time.time_ns() - self._late_ns)
        monkeypatch.setattr("pyomid.database.open_database.time", reader)

    def later(self, seconds: float) -> None:
        self._ahead_ns += int(seconds * NS_PER_S)

    def now(self) -> datetime:
        return time_of(time.time_ns() - self._late_ns)


LATE_S = [0.001, 0.09, 0.5, 2.8]


@pytest.mark.parametrize("late_s", LATE_S)
def test_t18_a_reader_whose_clock_is_late_reads_a_time_of_seconds_ago_and_not_now(
    memory_db: Database, monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    """To take a mistake back, one names a time shortly before it."""
    reader = LateReader(monkeypatch, late_s)
    with memory_db.begin(lease=True):
        for number in range(3):
            put(memory_db, b"good %d" % number)
            at = reader.now()
            assert seen(memory_db, at) == b"good %d" % number, "all of now"
            reader.later(0.3)
            put(memory_db, b"mistake")
            for seconds in (0.01, 0.5, 4.0):
                reader.later(seconds)
                assert seen(memory_db, at) == b"good %d" % number


@pytest.mark.parametrize("late_s", [0.0, *LATE_S])
def test_t18_changes_read_window_by_window_of_time_are_lost_by_no_late_clock(
    memory_url: str, memory_db: Database, monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    reader = LateReader(monkeypatch, late_s)
    commits, windows = [], []
    conn = connection(memory_url)
    try:
        for wait_s in (0.001, 0.3, 1.0, 4.0):
            for _ in range(5):
                commits.append(put(memory_db, b"1"))
                reader.later(0.04)
            border: Any = reader.now()
            for _ in range(5):
                commits.append(put(memory_db, b"1"))
                reader.later(0.04)
            reader.later(wait_s)
            options: Any = SimpleNamespace(only_one=lambda *names: "endingTimestamp", time=lambda name, at=border: at)
            until = ending_of(conn, options)
            commits.append(put(memory_db, b"1"))
            reader.later(0.5)
            assert until is not None
            windows.append((until.start_ts, starting_place(conn, border).start_ts))
            assert windows[-1][1] <= windows[-1][0]
            assert windows[-1][0] - windows[-1][1] < 0.25 * NS_PER_S, "told twice"
    finally:
        close_connections()
    assert all(commit <= until or commit > since for commit in commits for until, since in windows)


@pytest.mark.parametrize(
    ("at", "error", "told"),
    [
        (datetime(2020, 1, 1), Misuse, "time zone"),
        (1 << 62, Misuse, "in the future"),
        (0, Misuse, "not a valid timestamp"),
        ("0", Misuse, "at=0 is not a valid timestamp"),
        ("yesterday", Misuse, "at='yesterday' is not a valid time: give a timestamp, a bookmark, a datetime"),
        ("2020-01-01T10:00", Misuse, "at=2020-01-01T10:00 has no time zone"),
        (True, MisuseType, "bool"),
        (b"5", MisuseType, "at=b.5. has type bytes: give a timestamp"),
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
    with pytest.raises(SnapshotTooOld, match=r"no longer kept: history begins at \d+ \(\d{4}-.*Z\)"):
        memory_db.snapshot(at=1)


def test_a_change_has_the_time_of_its_commit(kept: Database) -> None:
    since = kept.bookmark()
    before = datetime.now(UTC)
    commit_ts = put(kept, b"1")
    [change] = kept.changes("t", since)
    assert change.commit_time is not None
    assert before - timedelta(milliseconds=1) <= change.commit_time <= datetime.now(UTC)
    assert f"insert of b'r' by commit {commit_ts} ({iso(commit_ts)})" in str(change)
