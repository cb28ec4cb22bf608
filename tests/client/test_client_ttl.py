"""A table's time to live, over memory and embedded: what expires, for whom, and what that leaves as it was."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from client_faults import parts_with
from put_rows import put
from upkeep_parts import folder_upkeep

import pyomid
import pyomid.aio
from pyomid.client.database import Database
from pyomid.client.upkeep import expire
from pyomid.errors import ConflictError, Misuse, MisuseType
from pyomid.protocol.expiry import EXPIRY_TABLE, Expiry, expiry_row
from waiting import until

pytestmark = pytest.mark.fast

HOUR_S = 3_600.0


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    with pyomid.connect(url) as database:
        database.create_table("t", ["f"], ttl_seconds=HOUR_S)
        yield database


def later(db: Database, seconds: float) -> Expiry:
    """Moves the floor as a process does whose clock is ahead. Beside it a folder's TSO may note points by a clock that
    is right, until one is noted here: then that is late."""
    return expire.expire(db, "t", wall_clock=lambda: time.time() + seconds, notes=True)["t"]


def let_w_pass(db: Database, start_ts: int) -> None:
    """It moves when somebody begins."""
    until(lambda: db.begin().rollback() or db.status().tso.watermark >= start_ts, f"W never passed {start_ts}")


def seen(tx: Any) -> list[bytes]:
    keys = [key for key, _ in tx.table("t").scan()]
    assert keys == [key for key in (b"a", b"b", b"c") if tx.table("t").get(key)]
    return keys


def test_e1_a_snapshot_sees_the_same_before_and_after(db: Database) -> None:
    first = put(db, b"a")
    later(db, 400)
    second = put(db, b"b")
    with db.snapshot(lease=True) as old, db.begin() as writer:
        assert later(db, HOUR_S + 500).expired_to > first
        assert seen(old) == [b"a", b"b"]
        with db.snapshot() as new, db.snapshot(at=second) as past:
            assert seen(new) == [b"b"]
            assert seen(past) == [b"a", b"b"]
            if type(db._core.deployment.store).__name__ == "EmbeddedStore":
                assert new.table("t").to_arrow().read_all()["key"].to_pylist() == [b"b"]
        assert writer.table("t").increment(b"a", b"f:n", 1) == 1  # it began before
        assert writer.table("t").get(b"a")[b"f:x"] == b"1"
    with db.begin() as tx:
        assert seen(tx) == [b"a", b"b"]
        assert tx.table("t").get(b"a") == {b"f:n": (1).to_bytes(8, "big", signed=True)}
        assert not tx.table("t").put_if_absent(b"b", {b"f:x": b"2"})
    assert db.verify("t").ok


def test_what_expired_may_be_put_again(db: Database) -> None:
    put(db, b"a")
    later(db, 0)
    later(db, HOUR_S + 10)
    with db.begin() as tx:
        assert seen(tx) == []
        assert tx.table("t").put_if_absent(b"a", {b"f:x": b"2"})
        assert seen(tx) == [b"a"]
    with db.snapshot() as tx:
        assert seen(tx) == [b"a"]


def test_e1_another_life_of_a_table_has_no_floor_of_the_former(db: Database) -> None:
    put(db, b"a")
    later(db, 0)
    later(db, HOUR_S + 10)
    db.drop_table("t")
    db.create_table("t", ["f"])
    put(db, b"a")
    with db.snapshot() as tx:
        assert seen(tx) == [b"a"]
    assert expire.expire(db, "t") == {}


def test_what_expired_stays_so_when_the_time_to_live_ends(db: Database) -> None:
    put(db, b"a")
    later(db, 400)
    put(db, b"b")
    later(db, HOUR_S + 500)
    assert db.alter_table("t", ttl_seconds=0).ttl_seconds == 0
    later(db, 10 * HOUR_S)
    with db.snapshot() as tx:
        assert seen(tx) == [b"b"]


def test_a_time_to_live_given_later_counts_from_then(db: Database) -> None:
    db.drop_table("t")
    db.create_table("t", ["f"])
    put(db, b"a")
    with db.begin() as open_writer:
        open_writer.table("t").put(b"c", {b"f:x": b"1"})
        db.alter_table("t", ttl_seconds=HOUR_S)
        with pytest.raises(ConflictError):
            open_writer.commit()
    later(db, HOUR_S - 10)
    with db.snapshot() as tx:
        assert seen(tx) == [b"a"]
    later(db, HOUR_S + 10)
    with db.snapshot() as tx:
        assert seen(tx) == []


def test_e2_who_moves_a_floor_by_a_former_ttl_begins_anew(db: Database) -> None:
    put(db, b"a")
    later(db, 0)
    times = [time.time() + HOUR_S + 10] * 3

    def clock() -> float:
        """Between what it read of the catalog and what it writes another client makes the time to live longer. The
        first look at the clock is before both."""
        if len(times) == 2:
            db.alter_table("t", ttl_seconds=24 * HOUR_S)
        return times.pop() if len(times) > 1 else times[0]

    assert expire.expire(db, "t", wall_clock=clock)["t"].expired_to == 0
    with db.snapshot() as tx:
        assert seen(tx) == [b"a"]


def test_e3_the_feed_tells_no_expiry_and_then_an_insert(db: Database) -> None:
    put(db, b"a", b"b")
    since = db.bookmark(keep_seconds=60)
    again = put(db, b"a", value=b"2")
    later(db, 0)
    later(db, HOUR_S + 10)
    anew = put(db, b"a", value=b"3")
    told = [(change.kind, change.commit_ts, change.before) for change in db.changes("t", since)]
    assert told == [("update", again, {b"f:x": b"1"}), ("insert", anew, {})]
    db.release_bookmark(since)


def test_e4_by_a_late_clock_nothing_expires_early(db: Database) -> None:
    """All points are gone, and the last mover whose clock was right was here longer ago than values live."""
    put(db, b"a")
    later(db, 10)
    rests = expire.expire(db, "t", wall_clock=lambda: time.time() + 2 * HOUR_S, notes=False)["t"]
    assert rests.points == ()
    put(db, b"b")
    assert later(db, -HOUR_S) == later(db, HOUR_S) == rests
    assert later(db, 4 * HOUR_S).expired_to == rests.expired_to
    with db.begin() as tx:
        assert seen(tx) == [b"b"]
    later(db, 6 * HOUR_S)
    with db.begin() as tx:
        assert seen(tx) == []


def test_e6_by_a_clock_that_is_ahead_of_the_tso_s_nothing_expires_early(db: Database) -> None:
    put(db, b"a")
    later(db, 2 * HOUR_S)
    put(db, b"b")
    later(db, 2.5 * HOUR_S)
    with db.snapshot() as tx:
        assert seen(tx) == [b"a", b"b"]
    later(db, 3 * HOUR_S + 10)
    with db.snapshot() as tx:
        assert seen(tx) == [b"b"]


def test_e4_a_time_to_live_given_anew_believes_another_clock(db: Database) -> None:
    later(db, 1_000 * HOUR_S)
    put(db, b"a")
    db.alter_table("t", ttl_seconds=0)
    db.alter_table("t", ttl_seconds=HOUR_S)
    later(db, HOUR_S + 10)
    with db.begin() as tx:
        assert seen(tx) == []


def test_e5_the_feed_tells_who_renewed_a_row(db: Database) -> None:
    db.create_table("forever", ["f"])
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


def test_compaction_drops_what_expired(memory_url: str) -> None:
    with pyomid.connect(memory_url + "?maxTransactionAgeSeconds=1") as db:
        db.create_table("t", ["f"], ttl_seconds=HOUR_S)
        put(db, *(b"%d" % number for number in range(20)))
        later(db, 0)
        held = db.snapshot(lease=True)
        later(db, HOUR_S + 10)
        assert db.compact("t").cells_dropped == 0
        assert len(list(held.table("t").scan())) == 20
        held.rollback()
        let_w_pass(db, put(db, b"last"))
        assert db.compact("t").cells_dropped == 20
        with db.snapshot() as tx:
            assert [key for key, _ in tx.table("t").scan()] == [b"last"]


def test_a_quiet_folder_is_looked_at_when_something_expires(memory_url: str, tmp_path: Path) -> None:
    with pyomid.connect(memory_url) as db:
        db.create_table("t", ["f"], ttl_seconds=HOUR_S)
        put(db, b"a")
        now_s, opened, newest = [time.time()], [0.0], [1]

        def open_again() -> Any:
            opened.append(now_s[0])
            return replace(db._core.deployment, closers=())

        times: dict[str, Any] = dict.fromkeys(["clock", "expiry_clock"], lambda: now_s[0])
        upkeep = folder_upkeep(db, tmp_path, open_deployment=open_again, **times)
        upkeep._timestamps = lambda: (newest[0], 0)
        tso: Any = db._core.deployment.tso
        beside: list[int] = []

        def commits() -> int:
            """Somebody commits right behind the last note, before it is looked at."""
            if len(opened) == 2 and not beside:
                beside.append(put(db, b"c"))
            return int(tso.machine.commits_counted)

        def rounds(count: int) -> None:
            for _ in range(count):
                upkeep.round()
                now_s[0] += 1

        upkeep._commits = commits
        upkeep._sanitized_s = float("inf")
        rounds(50)
        assert len(opened) == 3, "the first look, and one behind what was committed beside it"
        row = expiry_row("t", db.table_info("t").generation)
        with db.snapshot() as tx:
            assert Expiry.of(tx.table(EXPIRY_TABLE).get(row)).points[-1].start_ts > beside[0]
        newest[0] += 50
        late = put(db, b"b")
        rounds(50)
        quiet = len(opened)
        rounds(4_000)
        assert quiet < len(opened) <= quiet + 8
        with db.snapshot() as tx:
            assert seen(tx) == []
            value = tx.table(EXPIRY_TABLE).get(row)
            assert Expiry.of(value).expired_to > late
            assert Expiry.of(value).points == ()
        assert upkeep._expires.emptied_below(newest[0]) == {"t"}, "a pass is due once W is there"


def test_what_ails_one_table_stops_no_others_upkeep(memory_url: str, tmp_path: Path) -> None:
    with pyomid.connect(memory_url + "?maxTransactionAgeSeconds=0.2") as db:
        for name in ("a", "t", "u"):
            db.create_table(name, ["f"], ttl_seconds=HOUR_S)
        put(db, b"a")
        with db.begin() as tx:
            tx.table(EXPIRY_TABLE).put(expiry_row("a", db.table_info("a").generation), {b"e:floor": b"nonsense!"})
        now_s, opened = [time.time()], [0]

        def open_again() -> Any:
            """One table is dropped behind the listing."""
            opened[0] += 1
            deployment = replace(db._core.deployment, closers=())
            if opened[0] == 1:
                stale = db._core.deployment.catalog.tables()
                deployment = parts_with(deployment, catalog={"tables": lambda _: stale})
                db.drop_table("u")
            return deployment

        times: dict[str, Any] = dict.fromkeys(["clock", "expiry_clock"], lambda: now_s[0])
        upkeep = folder_upkeep(db, tmp_path, open_deployment=open_again, **times)
        upkeep._sanitized_s = float("inf")
        upkeep.round()
        now_s[0] += HOUR_S + 10
        upkeep.round()
        with db.snapshot() as tx:
            assert seen(tx) == []
        assert upkeep.report.failures == 2
        let_w_pass(db, put(db, b"b"))
        upkeep._is_whole = True
        upkeep._with_deployment(upkeep._pass)
        assert (upkeep.report.passes, upkeep.report.failures) == (1, 3)
        assert upkeep.report.versions_dropped > 0


def test_a_dropped_table_leaves_no_floor(db: Database) -> None:
    later(db, 0)
    row = expiry_row("t", db.table_info("t").generation)
    db.drop_table("t")
    with db.snapshot() as tx:
        assert tx.table(EXPIRY_TABLE).get(row) == {}


def test_a_refused_alteration_changes_nothing(db: Database) -> None:
    with pytest.raises(Misuse, match="conflict level"):
        db.alter_table("t", "nonsense", ttl_seconds=5)
    assert db.table_info("t").ttl_seconds == HOUR_S


def test_a_table_with_an_index_has_no_time_to_live(db: Database) -> None:
    db.create_table("u", ["f"], if_not_exists=True)
    db.table_schema("u", {"id": int, "name": str}, row_key="id")
    db.create_index("u", "by_name", ["name"])
    with pytest.raises(Misuse, match="has the index 'by_name'"):
        db.alter_table("u", ttl_seconds=60)
    db.table_schema("t", {"id": int, "name": str}, row_key="id")
    with pytest.raises(Misuse, match="has, or had, a time to live"):
        db.create_index("t", "by_name", ["name"])
    assert db.table_info("u").ttl_seconds is None
    assert not db.table_info("u").is_changing


@pytest.mark.parametrize(
    ("ttl", "error"),
    [
        (0, Misuse),
        (0.5, Misuse),
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
