"""A watch tells changes as they are committed, over memory and embedded, blocking and asyncio; and what ends it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from put_rows import put

import pyomid
import pyomid.aio
from pyomid.database import change_feed
from pyomid.database.database import Database
from pyomid.errors import Misuse, MisuseType, SnapshotTooOld, Unavailable, UnknownTable

pytestmark = pytest.mark.fast

SOON_S = 0.01


def told(watch: Any) -> list[tuple[str, bytes]]:
    return [(change.kind, change.row) for change in watch]


def soon(db: Database, **options: Any) -> pyomid.Watch:
    return db.watch("t", max_wait_seconds=SOON_S, poll_seconds=SOON_S, **options)


def test_a_watch_tells_what_is_committed_after_it_began(db: Database) -> None:
    put(db, b"a", b"ab", b"b")
    with soon(db) as all_, soon(db, prefix=b"a") as some, soon(db, key=b"a") as one:
        assert told(all_) == told(some) == told(one) == []
        put(db, b"ab", value=b"2")
        with db.begin() as tx:
            tx.table("t").delete(b"a")
            tx.table("t").put(b"c", {b"f:x": b"3"})
        assert told(all_) == [("delete", b"a"), ("update", b"ab"), ("insert", b"c")]
        assert told(some) == [("delete", b"a"), ("update", b"ab")]
        assert told(one) == [("delete", b"a")]
        put(db, b"a")
        assert told(all_) == told(some) == told(one) == [("insert", b"a")]


def test_a_watch_waits_for_the_next_commit(db: Database) -> None:
    watch = db.watch("t", key=b"a", poll_seconds=SOON_S)
    writer = threading.Thread(target=put, args=(db, b"b", b"a"))
    writer.start()
    assert next(watch).row == b"a"
    writer.join()
    watch.close()


def test_rounds_miss_nothing_and_tell_nothing_twice(db: Database) -> None:
    """Writers commit while it looks: those that began before a round and commit behind it too."""
    commits: list[int] = []
    watch = soon(db, prefix=b"k")
    old = db.begin()
    old.table("t").put(b"k-old", {b"f:x": b"1"})

    def write() -> None:
        commits.extend(put(db, b"k%d" % (number % 7), value=b"%d" % number) for number in range(60))

    writer = threading.Thread(target=write)
    writer.start()
    found: list[int] = []
    while writer.is_alive():
        found += [change.commit_ts for change in watch]
    writer.join()
    old.commit()
    found += [change.commit_ts for change in watch]
    assert sorted(found) == sorted([*commits, old.commit_ts])
    watch.close()


def test_another_watch_goes_on_from_a_bookmark(db: Database) -> None:
    watch = soon(db, keep_seconds=60)
    kept = watch.bookmark
    assert kept.start_ts in db.status().tso.leases
    put(db, b"a")
    assert told(watch) == [("insert", b"a")]
    passed = watch.bookmark
    assert passed.start_ts > kept.start_ts
    assert passed.start_ts in db.status().tso.leases
    watch.close()
    put(db, b"b")
    with soon(db, after=passed) as other:
        assert told(other) == [("insert", b"b")]
    for place in (kept, passed):
        db.release_bookmark(place)
        assert place.start_ts not in db.status().tso.leases


def test_f6_a_place_that_was_given_is_leased_at_once(db: Database) -> None:
    """And its giver's lease is its giver's to end."""
    given, other = db.bookmark(keep_seconds=60), db.bookmark(keep_seconds=60)
    with soon(db, after=given, keep_seconds=60), soon(db, after=other, keep_seconds=60) as watch:
        db.release_bookmark(given)
        assert given.start_ts in db.status().tso.leases
        for value in (b"1", b"2"):
            put(db, b"a", value=value)
            assert next(watch).after == {b"f:x": value}
            assert watch.bookmark
            assert told(watch) == []
        assert watch.bookmark != other
        assert other.start_ts in db.status().tso.leases
    for start_ts in {given.start_ts, other.start_ts, *(leased.start_ts for leased in watch._watching._leased)}:
        db._core.deployment.tso.end_lease(start_ts, shared=True)


def test_f7_a_place_that_was_read_is_kept_until_a_later_one(db: Database) -> None:
    """A program stores it, waits, and dies; or dies before it stored the later one."""
    watch = soon(db, keep_seconds=60)
    put(db, b"a")
    next(watch)
    stored = watch.bookmark
    assert told(watch) == []
    put(db, b"b")
    assert next(watch).row == b"b"
    later = watch.bookmark
    assert {stored.start_ts, later.start_ts} <= set(db.status().tso.leases)
    assert told(watch) == []
    assert {stored.start_ts, later.start_ts} & set(db.status().tso.leases) == {later.start_ts}
    watch.close()
    with soon(db, after=stored) as other:
        assert told(other) == [("insert", b"a"), ("insert", b"b")]
    for leased in watch._watching._leased:
        db._core.deployment.tso.end_lease(leased.start_ts)


def test_f7_a_table_that_rests_does_not_hold_w(db: Database) -> None:
    watch = soon(db, keep_seconds=60)
    put(db, b"a")
    next(watch)
    stored = watch.bookmark
    assert told(watch) == []
    clock = watch._watching._clock
    watch._watching._clock = lambda: clock() + 61
    assert told(watch) == []
    assert stored.start_ts not in db.status().tso.leases
    assert watch.bookmark.start_ts in db.status().tso.leases
    db.release_bookmark(watch.bookmark)
    watch.close()


def test_f7_a_place_is_renewed_while_nobody_asks(memory_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round may take longer than the lease's term, and so may what a program makes of one change."""
    renewed = threading.Semaphore(0)
    tso = memory_db._core.deployment.tso
    renew = tso.renew_lease

    def renew_lease(start_ts: int) -> float:
        term_s = renew(start_ts)
        renewed.release()
        return term_s

    monkeypatch.setattr(tso, "renew_lease", renew_lease)
    with soon(memory_db, keep_seconds=0.5) as watch:
        put(memory_db, b"a", b"b")
        assert next(watch).row == b"a"
        for _ in range(3):
            assert renewed.acquire(timeout=30)
        assert told(watch) == [("insert", b"b")]


@pytest.mark.parametrize("where", ["fill", "_round", "draw_mark", "_one_pass", "_lease"])
def test_who_is_in_a_watch_that_is_closed_is_told(
    memory_db: Database, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Another thread closes it between any two of its steps, and nothing is held then."""
    watch = soon(memory_db, keep_seconds=60 if where == "_lease" else None)
    put(memory_db, b"a")
    owner: Any = change_feed if where == "draw_mark" else watch._watching
    original = getattr(owner, where)

    async def closed_around(*given: Any) -> Any:
        if where == "_one_pass":
            watch.close()
        found = await original(*given)
        watch.close()
        return found

    monkeypatch.setattr(owner, where, closed_around)
    with pytest.raises(Misuse, match="is closed"):
        told(watch)
    assert watch._watching._open is watch._watching._until is None
    assert not memory_db._core.leases._live()


def test_a_watch_that_looks_too_seldom_is_refused(memory_url: str) -> None:
    with pyomid.connect(memory_url, max_transaction_age_seconds=1) as db:
        db.create_table("t", ["f"])
        with pytest.raises(Misuse, match="poll_seconds 1 must be less than maxTransactionAgeSeconds"):
            db.watch("t", poll_seconds=1)
        db.watch("t", poll_seconds=1, keep_seconds=1).close()


def test_a_round_that_was_not_told_to_its_end_comes_again(db: Database) -> None:
    watch = soon(db)
    put(db, b"a", b"b")
    assert next(watch).row == b"a"
    with soon(db, after=watch.bookmark) as other:
        assert told(other) == [("insert", b"a"), ("insert", b"b")]
    watch.close()


def test_f6_a_watch_holds_w_below_its_last_place(db: Database) -> None:
    """W never passes the last place, whatever is committed between two looks; nothing is held once it is closed."""
    leases = db.status().tso.leases
    watch = soon(db)
    assert db.status().tso.leases == leases
    for _ in range(3):
        assert told(watch) == []
        held = watch._watching._open
        assert held is not None
        assert held.start_ts == watch.bookmark.start_ts
        assert held.hold is not None
        assert held.hold.is_open
    watch.close()
    assert not held.hold.is_open


@pytest.mark.parametrize("error", [Unavailable("gone"), KeyboardInterrupt(), SnapshotTooOld("late")])
def test_what_breaks_a_round_off_ends_the_watch(
    db: Database, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    watch = soon(db, keep_seconds=60)
    place = watch.bookmark
    put(db, b"a", b"b")

    def broken(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(change_feed.changes, "read_changes", broken)
        with pytest.raises(type(error)):
            next(watch)
    with pytest.raises(type(error) if isinstance(error, Exception) else Misuse):
        next(watch)
    assert watch.bookmark == place
    with soon(db, after=place) as other:
        assert told(other) == [("insert", b"a"), ("insert", b"b")]
    db.release_bookmark(place)


@pytest.mark.parametrize("error", [Unavailable("gone"), KeyboardInterrupt()])
def test_f6_changes_after_an_error_are_never_told_as_their_end(
    db: Database, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(change_feed, "ROWS_AT_ONCE", 1)
    since = db.bookmark(keep_seconds=60)
    put(db, b"a", b"b", b"c")
    found = db.changes("t", since)
    assert next(found).row == b"a"

    def broken(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(change_feed.changes, "read_changes", broken)
        with pytest.raises(type(error)):
            next(found)
    for _ in range(2):
        with pytest.raises(type(error) if isinstance(error, Exception) else Misuse):
            next(found)
    db.release_bookmark(since)


def test_a_watch_of_a_table_that_is_dropped_is_told(db: Database) -> None:
    watch = soon(db)
    put(db, b"a")
    assert told(watch) == [("insert", b"a")]
    db.drop_table("t")
    with pytest.raises(SnapshotTooOld, match="the table was dropped"):
        told(watch)
    db.create_table("t", ["f"])
    with pytest.raises(SnapshotTooOld, match="the table was dropped"):
        told(watch)
    with pytest.raises(Misuse, match="after the bookmark"):
        soon(db, after=watch.bookmark)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"key": b"a", "prefix": b"a"}, Misuse),
        ({"key": b""}, Misuse),
        ({"key": "a"}, MisuseType),
        ({"after": 5 * 10**18}, Misuse),
        ({"after": "now"}, MisuseType),
        ({"keep_seconds": 0}, Misuse),
        ({"poll_seconds": 0}, Misuse),
        ({"poll_seconds": None}, MisuseType),
        ({"max_wait_seconds": -1}, Misuse),
    ],
)
def test_bad_watches_are_refused(memory_db: Database, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        next(memory_db.watch("t", **{"max_wait_seconds": SOON_S, **options}))
    with pytest.raises(UnknownTable):
        memory_db.watch("nothing")


def test_asyncio_watches_the_same_and_ends_when_cancelled(url: str) -> None:
    asyncio.run(look(url))


async def look(url: str) -> None:
    async with await pyomid.aio.connect(url) as db:
        await db.create_table("t", ["f"])
        async with db.watch("t", key=b"a", max_wait_seconds=SOON_S, poll_seconds=SOON_S) as watch:
            assert [change async for change in watch] == []
            async with db.begin() as tx:
                await (await tx.table("t")).put(b"a", {b"f:x": b"1"})
            assert [(change.kind, change.row) async for change in watch] == [("insert", b"a")]
        async with db.watch("t", key=b"a", poll_seconds=SOON_S) as watch:
            place = watch.bookmark
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(watch), 5 * SOON_S)
            with pytest.raises(Misuse, match="is closed"):
                await anext(watch)
            assert watch.bookmark is not None
            assert place is not None
            assert watch.bookmark.start_ts >= place.start_ts
