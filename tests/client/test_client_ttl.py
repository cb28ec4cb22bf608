"""A table's time to live, over memory and embedded: what expires, for whom, and what that leaves as it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from put_rows import put
from upkeep_parts import failing_merges, folder_upkeep, publish

import pyomid
import pyomid.aio
from at_points import dying_at, meanwhile
from pyomid.database.database import Database
from pyomid.database.upkeep.unfinished import finish_changes
from pyomid.errors import ConflictError, Corruption, Misuse, MisuseType
from pyomid.protocol.timestamps import NS_PER_S
from waiting import until

pytestmark = pytest.mark.fast

HOUR_S = 3_600.0
TTL_NS = NS_PER_S
"""Short enough to wait for it. What is seen when is tested by snapshots of a time, which no load delays."""


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    with pyomid.connect(url) as database:
        database.create_table("t", ["f"], ttl_seconds=TTL_NS / NS_PER_S)
        yield database


@pytest.fixture
def kept(db: Database) -> Iterator[Database]:
    """W stays below all that the test commits."""
    with db.begin(lease=True):
        yield db


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock of a TSO in this process."""
    clock, ahead = time.time_ns, [0]
    monkeypatch.setattr(time, "time_ns", lambda: clock() + ahead[0])

    def forward(seconds: float) -> None:
        ahead[0] += int(seconds * NS_PER_S)

    return forward


def now(db: Database) -> int:
    with db.begin() as tx:
        return tx.start_ts


def let_expire(db: Database, commit_ts: int, ttl_ns: int = TTL_NS) -> None:
    until(lambda: now(db) >= commit_ts + ttl_ns, "the clock stands")


def let_w_pass(db: Database, start_ts: int) -> None:
    """It moves when somebody begins."""
    until(lambda: db.begin().rollback() or db.status().tso.watermark >= start_ts, f"W never passed {start_ts}")


def seen(tx: Any) -> list[bytes]:
    keys = [key for key, _ in tx.table("t").scan()]
    assert keys == [key for key in (b"a", b"b", b"c") if tx.table("t").get(key)]
    return keys


def keys(db: Database, table: str = "u") -> list[bytes]:
    with db.snapshot() as tx:
        return [key for key, _ in tx.table(table).scan()]


def seen_at(db: Database, at: int) -> list[bytes]:
    with db.snapshot(at=at) as tx:
        return seen(tx)


def test_e1_a_value_expires_exactly_for_each_snapshot_and_stays_so(kept: Database) -> None:
    first = put(kept, b"a")
    with kept.snapshot(lease=True) as old, kept.begin(lease=True) as writer:
        second = put(kept, b"b")
        let_expire(kept, second)
        for _ in range(2):
            assert seen_at(kept, first + TTL_NS - 100) == [b"a", b"b"]
            assert seen_at(kept, first + TTL_NS - 50) == [b"b"]
            assert seen_at(kept, second + TTL_NS - 50) == []
        assert seen(old) == [b"a"], "it began before"
        if type(kept._core.deployment.store).__name__ == "EmbeddedStore":
            assert old.table("t").to_arrow().read_all()["key"].to_pylist() == [b"a"]
            with kept.snapshot() as new:
                assert new.table("t").to_arrow().read_all()["key"].to_pylist() == []
        assert writer.table("t").increment(b"a", b"f:n", 1) == 1
        assert writer.table("t").get(b"a")[b"f:x"] == b"1"
    assert kept.verify("t").ok


def test_own_writes_do_not_expire(memory_db: Database, later: Callable[[float], None]) -> None:
    memory_db.create_table("u", ["f"], ttl_seconds=HOUR_S)
    with memory_db.begin(lease=True) as tx:
        tx.table("u").put(b"a", {b"f:x": b"1"})
        later(HOUR_S + 10)
        assert tx.table("u").get(b"a") == {b"f:x": b"1"}
    assert keys(memory_db) == [b"a"], "its age counts from its commit"


def test_values_of_an_idle_database_expire(memory_db: Database, later: Callable[[float], None]) -> None:
    memory_db.create_table("u", ["f"], ttl_seconds=HOUR_S)
    put(memory_db, b"a", table="u")
    later(HOUR_S - 10)
    assert keys(memory_db) == [b"a"]
    later(10.1)
    assert keys(memory_db) == []


def test_a_clock_set_back_makes_nothing_expire_early_and_brings_nothing_back(
    memory_db: Database, later: Callable[[float], None]
) -> None:
    memory_db.create_table("u", ["f"], ttl_seconds=HOUR_S)
    put(memory_db, b"a", table="u")
    later(HOUR_S + 10)
    put(memory_db, b"b", table="u")
    later(-2 * HOUR_S)
    put(memory_db, b"c", table="u")
    assert keys(memory_db) == [b"b", b"c"]
    later(2 * HOUR_S)
    assert keys(memory_db) == [b"b", b"c"]
    later(HOUR_S + 10)
    assert keys(memory_db) == []


def test_what_expired_may_be_put_again(db: Database) -> None:
    let_expire(db, put(db, b"a"))
    with db.begin() as tx:
        assert seen(tx) == []
        assert tx.table("t").put_if_absent(b"a", {b"f:x": b"2"})
        assert seen(tx) == [b"a"]
    assert seen_at(db, tx.commit_ts or 0) == [b"a"]


def test_e1_another_life_of_a_table_has_no_time_to_live_of_the_former(db: Database) -> None:
    let_expire(db, put(db, b"a"))
    db.drop_table("t")
    db.create_table("t", ["f"])
    let_expire(db, put(db, b"a"))
    with db.snapshot() as tx:
        assert seen(tx) == [b"a"]


def test_what_expired_stays_so_when_the_time_to_live_ends(kept: Database) -> None:
    first = put(kept, b"a")
    let_expire(kept, first)
    put(kept, b"b")
    assert kept.alter_table("t", ttl_seconds=0).ttl_seconds == 0
    last = put(kept, b"c")
    let_expire(kept, last)
    with kept.snapshot() as tx:
        assert b"a" not in seen(tx)
        assert b"c" in seen(tx)
    assert seen_at(kept, first + TTL_NS - 100) == [b"a"], "a snapshot of before is as it was"


def test_a_time_to_live_given_later_counts_for_old_values_at_once(db: Database) -> None:
    db.drop_table("t")
    db.create_table("t", ["f"])
    with db.begin(lease=True):
        old = put(db, b"a")
        let_expire(db, old)
        with db.begin() as open_writer:
            open_writer.table("t").put(b"c", {b"f:x": b"1"})
            db.alter_table("t", ttl_seconds=1)
            with pytest.raises(ConflictError):
                open_writer.commit()
        with db.snapshot() as tx:
            assert seen(tx) == []
        assert seen_at(db, old + TTL_NS) == [b"a"], "before the change it was there"


def test_a_longer_time_to_live_keeps_what_is_left(db: Database) -> None:
    gone = put(db, b"a")
    let_expire(db, gone)
    left = put(db, b"b")
    altered = db.alter_table("t", ttl_seconds=HOUR_S)
    if altered.ttl_changes[-1].since_ts < left + TTL_NS:
        let_expire(db, left)
        with db.snapshot() as tx:
            assert seen(tx) == [b"b"]


def test_e3_the_feed_tells_no_expiry_and_then_an_insert(db: Database) -> None:
    put(db, b"a", b"b")
    since = db.bookmark(keep_seconds=60)
    again = put(db, b"a", value=b"2")
    let_expire(db, again)
    anew = put(db, b"a", value=b"3")
    for _ in range(2):
        told = [(change.kind, change.commit_ts, change.before) for change in db.changes("t", since)]
        assert told[-1] == ("insert", anew, None)
        assert told[0] in (("update", again, {b"f:x": b"1"}), ("insert", again, None))
        assert len(told) == 2
    db.release_bookmark(since)


def test_e5_the_feed_tells_who_renewed_a_row(db: Database) -> None:
    db.create_table("forever", ["f"])
    db.alter_table("t", ttl_seconds=HOUR_S)
    put(db, b"a")
    since = db.bookmark(keep_seconds=60)
    again = put(db, b"a")
    with db.begin() as tx:
        tx.table("t").delete(b"b")
        tx.table("forever").put(b"a", {b"f:x": b"1"})
    with db.begin() as tx:
        tx.table("forever").put(b"a", {b"f:x": b"1"})
    with db.watch("t", after=since, max_wait_seconds=0.01) as watch:
        watched = list(watch)
    told = list(db.changes("t", since))
    assert [(each.kind, each.commit_ts) for each in told] == [("update", again)]
    assert told[0].before == told[0].after == {b"f:x": b"1"}
    assert watched == told
    assert len(list(db.changes("forever", since))) == 1
    db.release_bookmark(since)


def test_e5_the_feed_of_before_a_time_to_live_is_the_same_afterwards(db: Database) -> None:
    db.create_table("u", ["f"])
    since = db.bookmark(keep_seconds=60)
    put(db, b"a", table="u")
    put(db, b"a", table="u")
    changed = put(db, b"a", value=b"2", table="u")
    until = db.bookmark(keep_seconds=60)
    told = list(db.changes("u", since, until))
    assert [each.kind for each in told] == ["insert", "update"]
    for ttl_seconds in (HOUR_S, 2 * HOUR_S, 0):
        db.alter_table("u", ttl_seconds=ttl_seconds)
        assert list(db.changes("u", since, until)) == told
    renewed = put(db, b"a", value=b"2", table="u")
    assert [each.commit_ts for each in db.changes("u", since)][1:] == [changed, renewed]
    db.release_bookmark(since)
    db.release_bookmark(until)


@pytest.fixture
def counting_db(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """Its TSO does not know the time, and counts timestamps from 0, as Apache Omid's does without WORLD_TIME."""
    clock = SimpleNamespace(monotonic=time.monotonic, time_ns=lambda: 0)
    monkeypatch.setattr("pyomid.omid.tso.local.time", clock)
    with pyomid.connect(memory_url) as database:
        yield database


def test_e6_without_times_a_table_with_a_time_to_live_refuses_writes(counting_db: Database) -> None:
    db = counting_db
    for name, ttl in (("t", 1.0), ("u", None)):
        db.create_table(name, ["f"], ttl_seconds=ttl)
    put(db, b"a", table="u")
    with pytest.raises(
        Misuse,
        match=r"'t' has a time to live, but .* timestamps are not wall-clock times .*WORLD_TIME.*ttl_seconds=0",
    ):
        put(db, b"a")
    with db.begin() as tx, pytest.raises(Misuse, match="not wall-clock times"):
        tx.table("t").increment(b"a", b"f:n", 1)
    assert keys(db, "t") == []
    db.alter_table("t", ttl_seconds=0)
    put(db, b"a")
    assert keys(db, "t") == [b"a"]


def test_without_times_the_past_is_read_by_version_and_not_by_time(counting_db: Database) -> None:
    db = counting_db
    db.create_table("u", ["f"])
    with db.begin(lease=True):
        first = put(db, b"a", table="u")
        put(db, b"b", table="u")
        with db.snapshot(at=first) as tx:
            assert [key for key, _ in tx.table("u").scan()] == [b"a"]
        with pytest.raises(Misuse, match=r"are not wall-clock times .*give a version.*WORLD_TIME"):
            db.snapshot(at=datetime.now(UTC))


def test_values_of_before_timestamps_were_times_stay(
    memory_url: str, counting_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows their age. A TSO that draws times takes over."""
    db = counting_db
    db.create_table("u", ["f"])
    put(db, b"old", table="u")
    monkeypatch.setattr("pyomid.omid.tso.local.time", time)
    tso: Any = db._core.deployment.tso
    tso.machine = tso._new_machine()
    db.alter_table("u", ttl_seconds=1)
    let_expire(db, put(db, b"new", table="u"))
    assert keys(db) == [b"old"]
    with db.begin(lease=True) as tx:
        with db.snapshot(at=datetime.now(UTC)) as now_:
            assert [key for key, _ in now_.table("u").scan()] == [b"old"], "older than every time"
        assert tx.start_ts > 10**18


def test_compaction_drops_what_expired_for_every_reader(memory_url: str, later: Callable[[float], None]) -> None:
    with pyomid.connect(memory_url + "?maxTransactionAgeSeconds=1") as db:
        db.create_table("t", ["f"], ttl_seconds=HOUR_S)
        put(db, *(b"%d" % number for number in range(20)))
        held = db.snapshot(lease=True)
        publish(db, held.start_ts - 1)
        later(HOUR_S + 10)
        assert db.compact("t").cells_dropped == 0
        assert len(list(held.table("t").scan())) == 20
        held.rollback()
        last = put(db, b"last")
        let_w_pass(db, last)
        assert db.compact("t").cells_dropped == 20
        with db.snapshot() as tx:
            assert [key for key, _ in tx.table("t").scan()] == [b"last"]


@pytest.mark.parametrize("point", ["client.columns.changing", "client.columns.fenced", "client.columns.dated"])
@pytest.mark.parametrize("ttl_seconds", [1, 10 * HOUR_S])
def test_e2_who_reads_beside_a_change_of_the_time_to_live_keeps_what_it_sees(
    memory_db: Database, memory_url: str, later: Callable[[float], None], point: str, ttl_seconds: float
) -> None:
    """Whichever of the two it goes by, and however long the client sleeps that makes the change."""
    memory_db.alter_table("t", ttl_seconds=HOUR_S)
    put(memory_db, b"a")
    later(HOUR_S / 4)
    put(memory_db, b"b")
    readers: list[Any] = []
    with pyomid.connect(memory_url) as other:

        def read() -> None:
            for seconds in (660, 40, HOUR_S / 4):
                later(seconds)
                readers.append(other.snapshot(lease=True))
                readers[-1].table("t").get(b"a")
                publish(memory_db, readers[0].start_ts - 1)
                other.compact("t")
            later(HOUR_S / 2)

        with meanwhile(point, read):
            memory_db.alter_table("t", ttl_seconds=ttl_seconds)
        told = [seen(reader) for reader in readers]
        publish(memory_db, readers[0].start_ts - 1)
        memory_db.compact("t")
        assert [seen(reader) for reader in readers] == told
        for reader in readers:
            reader.rollback()
        later(10 * HOUR_S + 60)
        publish(memory_db)
        assert memory_db.compact("t").cells_dropped + other.compact("t").cells_dropped >= 1 or told[0] == []
        assert keys(memory_db, "t") == []
        assert list(memory_db._core.deployment.store.read_rows("t", [b"a", b"b"])) == [[], []]


def test_e2_compaction_goes_by_a_new_time_to_live_once_w_has_passed_its_change(
    memory_db: Database, later: Callable[[float], None]
) -> None:
    memory_db.alter_table("t", ttl_seconds=HOUR_S)
    put(memory_db, b"a")
    later(60)
    before = publish(memory_db)
    memory_db.alter_table("t", ttl_seconds=1)
    publish(memory_db, before)
    assert keys(memory_db, "t") == []
    assert memory_db.compact("t").cells_dropped == 0
    publish(memory_db)
    assert memory_db.compact("t").cells_dropped == 1


@pytest.mark.parametrize("end", ["upkeep", "the same", "another", "columns"])
def test_e2_a_change_whose_client_died_is_settled_by_whoever_ends_it(
    memory_db: Database, later: Callable[[float], None], end: str
) -> None:
    memory_db.set_schema("t", {"id": int, "n": int}, row_key="id")
    memory_db.alter_table("t", ttl_seconds=HOUR_S)
    with dying_at("client.columns.dated"):
        memory_db.alter_table("t", ttl_seconds=60)
    if end == "upkeep":
        assert any("'t'" in sentence for sentence in finish_changes(memory_db._core.deployment))
    elif end == "columns":
        memory_db.alter_columns("t", add={"m": int})
    else:
        memory_db.alter_table("t", ttl_seconds=60 if end == "the same" else 50)
    info = memory_db.table_info("t")
    assert not info.is_changing
    assert info.ttl_seconds == (50 if end == "another" else 60)
    put(memory_db, b"a")
    later(61)
    publish(memory_db)
    assert memory_db.compact("t").cells_dropped == 1


def test_a_past_snapshot_outlives_many_changes_of_the_time_to_live(db: Database) -> None:
    """Its rows were gone when it was read first."""
    with db.begin(lease=True):
        first = put(db, b"a")
        let_expire(db, first)
        at = put(db, b"b")
        for number in range(25):
            assert seen_at(db, at) == [b"b"], number
            db.alter_table("t", ttl_seconds=HOUR_S + number)
        assert seen_at(db, first + TTL_NS - 100) == [b"a"]


def test_too_many_changes_of_the_time_to_live_are_refused(memory_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyomid.database.table_admin.TTL_CHANGES_MAX", 3)
    for ttl_seconds in (5, 6, 7):
        memory_db.alter_table("t", ttl_seconds=ttl_seconds)
    before = memory_db.table_info("t")
    with pytest.raises(Misuse, match=r"'t' was changed 3 times since .*; change it again after"):
        memory_db.alter_table("t", ttl_seconds=8)
    assert memory_db.table_info("t") == before
    publish(memory_db)
    assert len(memory_db.alter_table("t", ttl_seconds=8).ttl_changes) == 2


def test_the_same_time_to_live_again_changes_nothing(db: Database) -> None:
    before = db.table_info("t")
    with db.begin() as tx:
        tx.table("t").put(b"a", {b"f:x": b"1"})
        assert db.alter_table("t", ttl_seconds=1) == before
    assert db.table_info("t") == before


@pytest.mark.parametrize("is_indexed", [False, True])
def test_ending_a_time_to_live_that_no_table_has_changes_nothing(memory_db: Database, is_indexed: bool) -> None:
    """It may have an index, and get one later."""
    memory_db.set_schema("t", {"id": int, "n": int}, row_key="id")
    if is_indexed:
        memory_db.create_index("t", "by_n", ["n"])
    before = memory_db.table_info("t")
    assert memory_db.alter_table("t", ttl_seconds=0) == memory_db.table_info("t") == before
    if not is_indexed:
        memory_db.create_index("t", "by_n", ["n"])


def test_an_idle_folder_is_cleaned_when_its_values_have_expired(
    memory_url: str, tmp_path: Path, later: Callable[[float], None]
) -> None:
    with pyomid.connect(memory_url + "?maxTransactionAgeSeconds=0.2") as db:
        db.create_table("t", ["f"], ttl_seconds=HOUR_S)
        put(db, b"a", b"b")
        now_s, opened = [0.0], [0]

        def open_again() -> Any:
            opened[0] += 1
            return replace(db._core.deployment, closers=())

        tso: Any = db._core.deployment.tso
        upkeep = folder_upkeep(db, tmp_path, open_deployment=open_again, clock=lambda: now_s[0])
        upkeep._timestamps = lambda: (tso.machine.state.newest_start, tso.machine.state.watermarks.published)
        upkeep._commits = lambda: int(tso.machine.report().counters["commits"])
        upkeep._sanitized_s = float("inf")

        def rounds(count: int) -> None:
            for _ in range(count):
                upkeep.round()
                now_s[0] += 1
                later(1)

        rounds(1_000)
        assert upkeep.report.versions_dropped == 0
        rounds(2_700)

        def is_clean() -> bool:
            rounds(20)
            db.status()  # the TSO in this process moves W when it is called
            return upkeep.report.versions_dropped == 2

        until(is_clean, "what has expired stays")
        quiet = opened[0]
        rounds(1_000)
        assert opened[0] <= quiet + 2, "nothing is left that could expire"


def test_what_ails_one_table_stops_no_others_upkeep(
    memory_url: str, tmp_path: Path, later: Callable[[float], None]
) -> None:
    with pyomid.connect(memory_url + "?maxTransactionAgeSeconds=0.2") as db:
        for name in ("a", "t"):
            db.create_table(name, ["f"], ttl_seconds=HOUR_S)
        put(db, b"a")
        later(HOUR_S + 10)
        let_w_pass(db, put(db, b"b"))
        failing_merges(db, "a", Corruption("its file is damaged"))
        upkeep = folder_upkeep(db, tmp_path)
        upkeep._is_whole = True
        upkeep._with_deployment(upkeep._pass)
        assert (upkeep.report.passes, upkeep.report.failures) == (1, 1)
        assert upkeep.report.versions_dropped == 1


def test_a_refused_alteration_changes_nothing(db: Database) -> None:
    with pytest.raises(Misuse, match="conflict level"):
        db.alter_table("t", conflict_level="nonsense", ttl_seconds=5)
    assert db.table_info("t").ttl_seconds == 1


def test_a_table_with_an_index_has_no_time_to_live(db: Database) -> None:
    db.create_table("u", ["f"], if_not_exists=True)
    db.set_schema("u", {"id": int, "name": str}, row_key="id")
    db.create_index("u", "by_name", ["name"])
    with pytest.raises(Misuse, match="has the index 'by_name'"):
        db.alter_table("u", ttl_seconds=60)
    db.set_schema("t", {"id": int, "name": str}, row_key="id")
    with pytest.raises(Misuse, match="has or had a time to live"):
        db.create_index("t", "by_name", ["name"])
    assert db.table_info("u").ttl_seconds is None
    assert not db.table_info("u").is_changing


@pytest.mark.parametrize(
    ("ttl", "error"),
    [
        (0, Misuse),
        (0.5, Misuse),
        (-1, Misuse),
        (100 * 366 * 86_400, Misuse),
        (1e308, Misuse),
        (10**400, Misuse),
        (float("inf"), Misuse),
        (float("nan"), Misuse),
        ("1", MisuseType),
        (True, MisuseType),
    ],
)
def test_bad_times_to_live_are_refused(memory_db: Database, ttl: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="ttl_seconds"):
        memory_db.create_table("u", ["f"], ttl_seconds=ttl)  # type: ignore[arg-type]
    if ttl != 0 or ttl is False:
        with pytest.raises(error, match="ttl_seconds"):
            memory_db.alter_table("t", ttl_seconds=ttl)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="nothing to change"):
        memory_db.alter_table("t")
