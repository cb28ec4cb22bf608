"""A watch tells changes as they are committed, over memory and embedded, blocking and asyncio; and what ends it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import pyomid
import pyomid.aio
from pyomid.client import changes
from pyomid.client.database import Database
from pyomid.errors import Misuse, MisuseType, SnapshotTooOld, Unavailable, UnknownTable

pytestmark = pytest.mark.fast

SOON_S = 0.01


def put(db: Database, *keys: bytes, value: bytes = b"1") -> int:
    with db.begin() as tx:
        for key in keys:
            tx.table("t").put(key, {b"f:x": value})
    assert tx.commit_ts is not None
    return tx.commit_ts


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
    assert {kept.start_ts, passed.start_ts} & set(db.status().tso.leases) == {passed.start_ts}
    watch.close()
    put(db, b"b")
    with soon(db, after=passed) as other:
        assert told(other) == [("insert", b"b")]
    db.release_bookmark(passed)
    assert passed.start_ts not in db.status().tso.leases


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
    ended: list[int] = []
    watch._watching._note_ended = ended.append
    for _ in range(3):
        assert told(watch) == []
        assert watch.bookmark.start_ts not in ended
    watch.close()
    assert watch.bookmark.start_ts in ended


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
        patched.setattr(changes.changes, "changes_steps", broken)
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
    monkeypatch.setattr(changes, "ROWS_AT_ONCE", 1)
    since = db.bookmark(keep_seconds=60)
    put(db, b"a", b"b", b"c")
    found = db.changes("t", since)
    assert next(found).row == b"a"

    def broken(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(changes.changes, "changes_steps", broken)
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
    with pytest.raises(UnknownTable):
        told(watch)
    db.create_table("t", ["f"])
    with pytest.raises(UnknownTable):
        told(watch)
    with pytest.raises(Misuse, match="after the bookmark"):
        soon(db, after=watch.bookmark)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"key": b"a", "prefix": b"a"}, Misuse),
        ({"key": b""}, Misuse),
        ({"key": "a"}, MisuseType),
        ({"after": 10**15}, Misuse),
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


def test_a_closed_watch_is_refused(memory_db: Database) -> None:
    watch = memory_db.watch("t")
    watch.close()
    with pytest.raises(Misuse, match="is closed"):
        next(watch)


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
